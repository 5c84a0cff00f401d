"""Losses that draw negatives by distance, by draws of their own that can be resumed."""

import math

import numpy as np
import torch
from pytorch_metric_learning.distances import LpDistance
from pytorch_metric_learning.losses import MarginLoss
from torch import Tensor, nn

from cbml.losses.baselines.baseline import BaselineLoss, Batch, check_classes, distances
from cbml.losses.baselines.mined import pml_arguments
from cbml.losses.options import check_count, check_number


class Margin(BaselineLoss):
    """Pairs on their side of a learned distance, negatives drawn by distance (Wu et al. 2017).

    With D_ij the Euclidean distance of unit vectors and β learned, one for all or one per class;
    each positive pair (i, p) comes with one negative n drawn by `sample_by_distance`, and the sum
    is divided by the number of terms above zero:

        loss = Σ max(0, m + D_ip - β) + max(0, m - D_in + β)  / number of such terms  + ν β

    The draws depend on `seed` and on the number of calls so far alone, and that number is part of
    the state, so that a resumed run draws the same. Negatives that a caller lists are not drawn.
    The sampler is written here because pytorch-metric-learning draws from torch's global state,
    draws positives too instead of taking each once, and drops an anchor whose negatives are all
    beyond the far distance, where the authors' program draws uniformly.

    Args:
        num_classes: Give it for one β per class, as the authors train it, the labels then being
            0 ... num_classes - 1. `build_loss`, and with it `--loss margin`, always gives it;
            without it one β serves all.
        margin: m. 0.2, from the paper.
        beta: Start of β. 1.2, from the paper.
        beta_weight: ν. 0, as Roth et al. 2020 have it.
        near: Smallest distance of the sampling weights. 0.5, from the authors' program.
        far: Distance beyond which negatives are not drawn. 1.4, from the authors' program.
        learning_rate_factor: Factor on the learning rate of β. 50, from Roth et al. 2020, who use
            Adam for β as well; the authors' 0.1 is a rate of its own for SGD.
        seed: Random seed of the draws.
    """

    def __init__(
        self,
        *,
        num_classes: int | None = None,
        margin: float = 0.2,
        beta: float = 1.2,
        beta_weight: float = 0.0,
        near: float = 0.5,
        far: float = 1.4,
        learning_rate_factor: float = 50.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.num_classes = None if num_classes is None else check_count(num_classes, "num_classes")
        self.margin = check_number(margin, "margin", at_least=0.0)
        self.beta_weight = check_number(beta_weight, "beta_weight", at_least=0.0)
        self.near = check_number(near, "near", above=0.0)
        self.far = check_number(far, "far", at_least=near, at_most=2.0)
        self.learning_rate_factor = check_number(
            learning_rate_factor, "learning_rate_factor", above=0.0
        )
        self.seed = check_count(seed, "seed", at_least=0)
        self.calls: Tensor
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self._loss = MarginLoss(
            margin=margin,
            nu=beta_weight,
            beta=check_number(beta, "beta", above=0.0),
            learn_beta=True,
            num_classes=num_classes,
            distance=LpDistance(normalize_embeddings=False),
        )

    @property
    def beta(self) -> Tensor:
        """β as it is now: one number, or one per class."""
        value: Tensor = self._loss.beta
        return value

    def _value(self, batch: Batch) -> Tensor:
        if self.num_classes is not None:
            check_classes(batch, self.num_classes)
        value: Tensor = self._loss(*pml_arguments(batch, self._chosen(batch)))
        return value

    def _mined(self, batch: Batch) -> tuple[Tensor, ...]:
        # Mixed, because torch's generator looks at the low half of a seed alone.
        mixed = np.random.SeedSequence((self.seed, int(self.calls))).generate_state(1)[0]
        generator = torch.Generator().manual_seed(int(mixed))
        self.calls += 1
        return sample_by_distance(batch, near=self.near, far=self.far, generator=generator)


@torch.no_grad()
def sample_by_distance(
    batch: Batch, *, near: float, far: float, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Every positive pair with a negative of its anchor, drawn evenly over distances.

    Distances d between points spread evenly over the sphere in D dimensions have the density q,
    so a negative at distance d = near ... far is drawn with the weight 1 / q(d):

        log q(d) = (D - 2) log d + (D - 3) / 2 log(1 - d²/4)

    An anchor whose negatives are all beyond `far` takes any of them alike.

    Args:
        near: Smaller distances weigh as this one, to keep the weights from being ruled by a few.
        far: Negatives at or beyond this distance have no weight.
        generator: On the processor; the only source of the draws.
    """
    positive, negative = batch.masks()
    positive &= negative.any(dim=1, keepdim=True)
    anchors, partners = positive.nonzero(as_tuple=True)
    if not len(anchors):
        return anchors, partners, partners
    dimension = batch.anchors.shape[1]
    distance = distances(batch.similarity().double()).clamp(min=near)  # (B, R)
    allowed = negative & (distance < far)
    allowed = torch.where(allowed.any(dim=1, keepdim=True), allowed, negative)
    inside = distance.clamp(max=far)
    log_weight = (2 - dimension) * inside.log()
    log_weight -= (dimension - 3) / 2 * (1.0 - inside.square() / 4.0).log()
    weight = log_weight.masked_fill(~allowed, -torch.inf).softmax(dim=1)[anchors]
    drawn = torch.multinomial(weight.cpu(), 1, generator=generator)[:, 0]
    return anchors, partners, drawn.to(anchors.device)


class RankMI(BaselineLoss):
    """Matching and other pairs made as different in distance as can be (Kemertas et al. 2020).

    A network V scores the distance d of a pair. Over positive pairs P and negative pairs N it
    bounds how far the two distributions of distances are apart (Donsker and Varadhan):

        I(V; P, N) = mean_P V(d) - log mean_N exp(V(d))
        loss       = -I(V fixed; P, N')  -  I(V; P, N with d fixed)

    The embeddings climb the first part, on negatives N' drawn by distance, one for each positive
    pair; V climbs the second, on all pairs. Both in one step, where the paper takes turns. V
    is 2 (1 - d) plus a network that starts small: a fresh one may rise with d and drive positives
    apart.

    The authors published no program. The two players are from the abstract; the bound is the usual
    one; network, sampling and all numbers are choices of this library.

    Args:
        hidden: Width of V's two hidden layers. 128, our choice.
        limit: V stays within ± this, because the bound has no maximum once the distances separate.
            10, our choice.
        learning_rate_factor: Factor on the learning rate of V. 10, our choice.
        seed: Random seed of V's first numbers and of the draws.
    """

    _takes_indices = False

    def __init__(
        self,
        *,
        hidden: int = 128,
        limit: float = 10.0,
        learning_rate_factor: float = 10.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.hidden = check_count(hidden, "hidden")
        self.limit = check_number(limit, "limit", above=0.0)
        self.learning_rate_factor = check_number(
            learning_rate_factor, "learning_rate_factor", above=0.0
        )
        self.seed = check_count(seed, "seed", at_least=0)
        self.calls: Tensor
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.network = _Scores(hidden, self.limit, torch.Generator().manual_seed(seed))

    def _value(self, batch: Batch) -> Tensor:
        positive, negative = batch.masks()
        if not (bool(positive.any()) and bool(negative.any())):
            return batch.anchors.sum() * 0.0
        distance = distances(batch.similarity())
        anchors, _, drawn = self._draw(batch)
        fixed = {name: value.detach() for name, value in self.network.named_parameters()}
        near, far = distance[positive], distance[anchors, drawn]
        scores = torch.func.functional_call(self.network, fixed, (torch.cat((near, far)),))
        embeddings_part = information(scores[: len(near)], scores[len(near) :])
        scores = self.network(distance.detach())
        return -embeddings_part - information(scores[positive], scores[negative])

    def _draw(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        # Mixed, because torch's generator looks at the low half of a seed alone.
        mixed = np.random.SeedSequence((self.seed, int(self.calls))).generate_state(1)[0]
        self.calls += 1
        generator = torch.Generator().manual_seed(int(mixed))
        # The sampler's limits are those of the margin loss.
        return sample_by_distance(batch, near=0.5, far=1.4, generator=generator)


def information(positive: Tensor, negative: Tensor) -> Tensor:
    """The bound mean V - log mean exp V, with V of matching and of other pairs.

    Args:
        positive: Scores of matching pairs. (P,)
        negative: Scores of other pairs. (N,)
    """
    return positive.mean() - (negative.logsumexp(dim=0) - math.log(len(negative)))


class _Scores(nn.Module):
    """V: a score for each distance, the line 2 (1 - d) plus a network that starts small."""

    def __init__(self, hidden: int, limit: float, generator: torch.Generator) -> None:
        super().__init__()
        self.limit = limit
        self.first = nn.Parameter(torch.randn(1, hidden, generator=generator))
        self.first_bias = nn.Parameter(torch.randn(hidden, generator=generator))
        spread = math.sqrt(2.0 / hidden)
        self.second = nn.Parameter(spread * torch.randn(hidden, hidden, generator=generator))
        self.second_bias = nn.Parameter(torch.zeros(hidden))
        self.last = nn.Parameter(0.01 * torch.randn(hidden, generator=generator))

    def forward(self, distance: Tensor) -> Tensor:
        """V(d), of the shape of d."""
        parts = (self.first, self.first_bias, self.second, self.second_bias, self.last)
        first, first_bias, second, second_bias, last = (part.to(distance.dtype) for part in parts)
        inner = (distance[..., None] @ first + first_bias).relu()
        inner = (inner @ second + second_bias).relu()
        raw = 2.0 * (1.0 - distance) + inner @ last
        return self.limit * torch.tanh(raw / self.limit)
