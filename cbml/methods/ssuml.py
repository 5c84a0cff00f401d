"""sSUML: random triplets, synthetic examples, and the entropy of what their labels may be."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from cbml.errors import BadData
from cbml.losses import check_count, check_number
from cbml.methods.unlabeled import HeadStart, Projection, angular_factor
from cbml.models import Embedder
from cbml.outputs import Outputs
from cbml.training import BatchInfo, EpochPlan, StepLoss, TrainingView


class SSUML(Projection):
    """Unsupervised metric learning with synthetic examples (Dutta et al., AAAI 2020).

    x are unit features of random triplets, L is the model's linear layer, S makes synthetic
    examples of two stacked features, t = tan²(alpha) and |.| is the Euclidean length:

        c = 1, 2, 3: (a, p, n) = (x1, x2, x3), (x1, x3, x2), (x2, x3, x1)
            u = S'([a;a] - [a;p]),   v = S'([a;n] - ([a;a] + [a;p]) / 2)
            l_c = softplus(4 t |v|² - |u|²) + softplus(|L'u|² - 4 t |L'v|²)
        c = 4, 5: u = S'([x1;x2] - [x1;x3]),   l_4 = |L'u|² - |u|²,   l_5 = -l_4
        p_c  = 1 / (1 + exp(l_c))
        loss = mean over triplets of -sum_c p_c log p_c, + weight |L'L - I|²

    The authors sum over the triplets and move S and L by ten rounds of Riemannian conjugate
    gradients for each batch; here it is the mean, and the optimizer moves S, L and the network.

    Args:
        alpha: Degrees. 45 in the paper.
        triplets: Drawn from each batch. About 1,000 in the paper.
        orthogonality: The weight of |L'L - I|². 0.5 in the paper.
        train_network: Whether the backbone learns too, which the paper leaves open.
        head_start: "random", or "whitened": the principal directions of the features.
        seed: Random seed of the triplets and of S.
    """

    smallest_batch = (3, 1)

    def __init__(
        self,
        *,
        alpha: float = 45.0,
        triplets: int = 1000,
        orthogonality: float = 0.5,
        train_network: bool = True,
        head_start: HeadStart = "random",
        seed: int = 0,
    ) -> None:
        super().__init__(head_start=head_start)
        self.factor = angular_factor(alpha)
        self.triplets = check_count(triplets, "triplets")
        self.orthogonality = check_number(orthogonality, "orthogonality", at_least=0.0)
        self.train_network, self.seed = train_network, seed
        self.synthesis = nn.Parameter(torch.zeros(0))  # S' (C, 2C)

    def attach(self, model: Embedder) -> None:
        """Meet the model, and start S at the mean of the two features, with a little noise."""
        super().attach(model)
        width = self.projection.shape[1]
        generator = torch.Generator().manual_seed(self.seed)
        noise = torch.randn(width, 2 * width, generator=generator) * (0.01 / width**0.5)
        both = torch.cat([torch.eye(width), torch.eye(width)], dim=1) / 2
        self.synthesis = nn.Parameter((both + noise).to(self.projection.device))

    def before_epoch(self, view: TrainingView) -> EpochPlan | None:
        """Let the backbone rest where it is not to learn."""
        del view
        return None if self.train_network else EpochPlan(rest=frozenset({"backbone"}))

    def forward(self, outputs: Outputs, batch: BatchInfo) -> StepLoss:
        """The loss of a step, with its two terms.

        Args:
            batch: Its step decides the triplets.
        """
        x = self.unit_features(outputs)
        chosen = random_triplets(len(x), self.triplets, seed=self.seed, step=batch.step)
        terms = {
            "entropy": self.entropy(*(x[rows.to(x.device)] for rows in chosen.T)),
            "orthogonality": _deviation(self.projection),
        }
        return StepLoss(terms["entropy"] + self.orthogonality * terms["orthogonality"], terms)

    def entropy(self, first: Tensor, second: Tensor, third: Tensor) -> Tensor:
        """The mean entropy of five hypotheses about triplets of features.

        Args:
            first: First of each triplet. (T, C)
            second: Second of each triplet. (T, C)
            third: Third of each triplet. (T, C)
        """
        cases = [
            self._angular(first, second, third),
            self._angular(first, third, second),
            self._angular(second, third, first),
        ]
        synthetic, projected = self._lengths(first, second, first, third)
        cases += [projected - synthetic, synthetic - projected]
        losses = torch.stack(cases, dim=1)  # (T, 5)
        # log p = -softplus(l) also where p is too small for a number.
        return ((-losses).sigmoid() * functional.softplus(losses)).sum(dim=1).mean()

    def _angular(self, a: Tensor, p: Tensor, n: Tensor) -> Tensor:
        across, across_projected = self._lengths(a, a, a, p)
        away, away_projected = self._lengths(a, n, a, (a + p) / 2)
        synthetic = self.factor * away - across
        return functional.softplus(synthetic) + functional.softplus(
            across_projected - self.factor * away_projected
        )

    def _lengths(self, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
        """|u|² and |L'u|² of u = S'([a;b] - [c;d]). (T,) each"""
        made = torch.cat([a - c, b - d], dim=1) @ self.synthesis.T
        return made.square().sum(dim=1), (made @ self.projection.T).square().sum(dim=1)


def _deviation(projection: Tensor) -> Tensor:
    """|L'L - I|², zero where the columns of L are orthonormal."""
    eye = torch.eye(len(projection), device=projection.device)
    return (projection @ projection.T - eye).square().sum()


def random_triplets(rows: int, count: int, *, seed: int, step: int) -> Tensor:
    """Triplets of different rows of a batch, the same in every process. (count, 3)"""
    if rows < 3:
        raise BadData(
            f"--method ssuml: a batch of {rows} images has no triplets; at least 3 are needed"
        )
    keys = np.random.default_rng([seed, step]).random((count, rows))
    return torch.from_numpy(np.argpartition(keys, 2, axis=1)[:, :3])
