"""Mutual information between distance and match, estimated by a small network of its own."""

import math

import numpy as np
import torch
from torch import Tensor, nn

from cbml.losses.baselines.baseline import BaselineLoss, Batch, distances
from cbml.losses.baselines.margin import sample_by_distance
from cbml.losses.options import check_count, check_number


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
        hidden: width of V's two hidden layers. 128, our choice.
        limit: V stays within ± this, because the bound has no maximum once the distances separate.
            10, our choice.
        learning_rate_factor: for V. 10, our choice.
        seed: of V's first numbers and of the draws.
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
        positive: scores of matching pairs. (P,)
        negative: scores of other pairs. (N,)
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
