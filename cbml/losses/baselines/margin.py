"""The margin loss with distance-weighted sampling, whose draws are its own and can be resumed."""

import numpy as np
import torch
from pytorch_metric_learning.distances import LpDistance
from pytorch_metric_learning.losses import MarginLoss
from torch import Tensor

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
        num_classes: give it for one β per class, as the authors train it, the labels then being
            0 ... num_classes - 1. `build_loss`, and with it `--loss margin`, always gives it;
            without it one β serves all.
        margin: m. 0.2, from the paper.
        beta: start of β. 1.2, from the paper.
        beta_weight: ν. 0, as Roth et al. 2020 have it.
        near: smallest distance of the sampling weights. 0.5, from the authors' program.
        far: distance beyond which negatives are not drawn. 1.4, from the authors' program.
        learning_rate_factor: for β. 50, from Roth et al. 2020, who use Adam for β as well; the
            authors' 0.1 is a rate of its own for SGD.
        seed: of the draws.
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
        near: smaller distances weigh as this one, to keep the weights from being ruled by a few.
        far: negatives at or beyond this distance have no weight.
        generator: on the processor; the only source of the draws.
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
