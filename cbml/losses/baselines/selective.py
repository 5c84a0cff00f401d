"""Triplets that are pulled and pushed when in order, and only pushed otherwise."""

import torch
from torch import Tensor
from torch.nn import functional

from cbml.losses.baselines.baseline import BaselineLoss, Batch
from cbml.losses.options import check_number

__all__ = ["SelectivelyContrastiveTriplet"]

_DUPLICATE = 0.9999  # a positive beyond this is the same image; from the authors' program


class SelectivelyContrastiveTriplet(BaselineLoss):
    """Easiest positive and hardest negative, hard triplets only pushed: SCT (Xuan et al. 2020).

    With p the most similar positive of anchor i that is no duplicate (s_ip ≤ 0.9999), and n its
    most similar negative, a triplet is hard when s_in > s_ip or s_in > h, easy when s_in is below
    both, and dropped on the boundary:

        loss = (Σ_easy log(1 + exp((s_in - s_ip) / σ)) + λ Σ_hard s_in) / (number of both)

    A hard triplet leaves its positive alone: pulling it too makes all embeddings collapse.

    Args:
        hard_weight: λ. 1, from the authors' program.
        temperature: σ. 0.1, from the authors' program.
        hard_above: h. 0.8, from the authors' program of 2021; the paper has no such rule, and 1
            switches it off.
    """

    _takes_indices = False

    def __init__(
        self, *, hard_weight: float = 1.0, temperature: float = 0.1, hard_above: float = 0.8
    ) -> None:
        super().__init__()
        self.hard_weight = check_number(hard_weight, "hard_weight", at_least=0.0)
        self.temperature = check_number(temperature, "temperature", above=0.0)
        self.hard_above = check_number(hard_above, "hard_above", at_least=0.0, at_most=1.0)

    def _value(self, batch: Batch) -> Tensor:
        similarity = batch.similarity()
        positive, negative = batch.masks()
        positive &= similarity <= _DUPLICATE
        complete = positive.any(dim=1) & negative.any(dim=1)
        easiest = similarity.masked_fill(~positive, -torch.inf).argmax(dim=1, keepdim=True)
        hardest = similarity.masked_fill(~negative, -torch.inf).argmax(dim=1, keepdim=True)
        pulled = similarity.gather(1, easiest)[:, 0]
        pushed = similarity.gather(1, hardest)[:, 0]
        hard = complete & ((pushed > pulled) | (pushed > self.hard_above))
        easy = complete & (pushed < pulled) & (pushed < self.hard_above)
        kept = functional.softplus((pushed - pulled) / self.temperature).masked_fill(~easy, 0.0)
        apart = self.hard_weight * pushed.masked_fill(~hard, 0.0)
        return (kept + apart).sum() / (hard.sum() + easy.sum()).clamp(min=1)
