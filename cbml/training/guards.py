"""Non-finite values, and embeddings that no longer tell images apart."""

import itertools
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch import Tensor

_SHOWN = 5
_REMEMBERED_BATCHES = 10
_SILENT_STEPS = 50
# Where every pair of a batch is more alike than this, float32 losses have no more to hold on to.
NEAR_ONE = 0.99
# Difference of the means in units of the common deviation; chance alone gives 0.1 now and then
# in batches of a hundred, so that an alarm asks for many batches in a row.
INDISTINGUISHABLE = 0.1
# So many validations in a row must fall before it is called a decline.
FALLS_THAT_COUNT = 3


class NonFiniteError(ValueError):
    """NaN or infinity in a training step. Exit code 1."""


@dataclass(frozen=True)
class Similarities:
    """Cosines of the pairs of one batch.

    Args:
        positive_mean: Mean similarity of pairs of one class; NaN without such pairs.
        negative_mean: Mean similarity of pairs of two classes; NaN without such pairs.
        separation: Difference of the means in units of the common standard deviation.
        negative_std: Spread of pairs of two classes; NaN without such pairs.
    """

    positive_mean: float
    negative_mean: float
    separation: float
    lowest: float
    negative_std: float = float("nan")


def check_embeddings(embeddings: Tensor, names: Sequence[str], step: int) -> None:
    """Raise NonFiniteError, naming the images whose row (B, D) holds NaN or infinity."""
    good = torch.isfinite(embeddings).all(dim=1)
    if bool(good.all()):
        return
    bad = [names[row] for row in torch.nonzero(~good).flatten().tolist()]
    blame = "the weights" if len(bad) == len(names) else "these images"
    shown = ", ".join(bad[:_SHOWN]) + (f" and {len(bad) - _SHOWN} more" if bad[_SHOWN:] else "")
    raise NonFiniteError(
        f"step {step}: NaN or infinity in the embeddings of {len(bad)} of {len(names)} images, "
        f"probably because of {blame}: {shown}; the weights were not changed"
    )


def broken_tensor(tensors: Mapping[str, Tensor]) -> str | None:
    """The name of the first tensor that holds NaN or infinity; None where all are sound."""
    # Lengths are read off all tensors at once; a square that overflows is no use to training.
    floats = {name: value for name, value in tensors.items() if value.is_floating_point()}
    large = [value for value in floats.values() if value.dim()]
    small = [value for value in floats.values() if not value.dim()]
    if math.isfinite(sum(map(float, small)) + float(torch.nn.utils.get_total_norm(large))):
        return None
    lengths = {name: float(torch.linalg.vector_norm(value)) for name, value in floats.items()}
    return next((name for name, length in lengths.items() if not math.isfinite(length)), None)


def similarities(embeddings: Tensor, labels: Tensor) -> Similarities:
    """What a batch's pairs look like, from unit vectors (B, D) and labels (B,)."""
    cosines = embeddings @ embeddings.T  # (B, B)
    same = labels[:, None] == labels[None, :]
    upper = torch.ones_like(same).triu(diagonal=1)
    positive, negative = cosines[same & upper], cosines[~same & upper]
    if not len(positive) or not len(negative):
        return Similarities(float("nan"), float("nan"), float("nan"), float(cosines.min()))
    spread = ((positive.var(correction=0) + negative.var(correction=0)) / 2).sqrt()
    difference = positive.mean() - negative.mean()
    return Similarities(
        float(positive.mean()),
        float(negative.mean()),
        float(difference / spread.clamp(min=1e-6)),
        float(torch.minimum(positive.min(), negative.min())),
        float(negative.std(correction=0)),
    )


def collapse_reason(
    recent: Sequence[Similarities], start: Similarities | None = None
) -> str | None:
    """Why the last batches, the newest at the end, look collapsed; None if they do not.

    A collapse need not end at one point: where all pairs have come closer to one than negatives
    spread at the start, or positives are half as far from negatives as they were, it is one, too.
    """
    if not recent:
        return None
    newest = recent[-1]
    if newest.lowest > NEAR_ONE:
        return f"all similarities are above {NEAR_ONE}"
    if start is not None and 1.0 - newest.lowest < start.negative_std:
        return (
            f"all similarities are above {newest.lowest:.3f}, closer together than negatives "
            f"spread at the start ({start.negative_std:.3f})"
        )
    if len(recent) < _REMEMBERED_BATCHES:
        return None
    separations = [batch.separation for batch in recent]
    if all(separation < INDISTINGUISHABLE for separation in separations):
        return (
            f"for {len(recent)} batches positives ({newest.positive_mean:.3f} on average) "
            f"cannot be told from negatives ({newest.negative_mean:.3f})"
        )
    if start is not None and all(separation < start.separation / 2 for separation in separations):
        return (
            f"for {len(recent)} batches positives have been less than half as far from negatives "
            f"({newest.separation:.2f} deviations) as at the start ({start.separation:.2f})"
        )
    return None


class CollapseWatch:
    """Remembers the similarities of the last batches and tells when they look collapsed."""

    def __init__(self) -> None:
        self.recent: deque[Similarities] = deque(maxlen=_REMEMBERED_BATCHES)
        self.start: Similarities | None = None
        self._silent_until = 0

    @property
    def last(self) -> Similarities | None:
        """Similarities of the last batch."""
        return self.recent[-1] if self.recent else None

    def look(self, embeddings: Tensor, labels: Tensor, step: int) -> str | None:
        """Why the model looks collapsed after this batch; a model that stays so is no news."""
        self.recent.append(similarities(embeddings, labels))
        if self.start is None and step == 1:  # before any update
            self.start = self.recent[-1]
        reason = collapse_reason(self.recent, self.start)
        if reason is None or step < self._silent_until:
            return None
        self._silent_until = step + _SILENT_STEPS
        return reason

    def state_dict(self) -> dict[str, Any]:
        """What it has seen, for a checkpoint: plain values, None in the place of NaN."""
        seen = [self.start, *self.recent] if self.start is not None else [*self.recent]
        rows = [[value if math.isfinite(value) else None for value in astuple(one)] for one in seen]
        return {"start": self.start is not None, "rows": rows, "silent": self._silent_until}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        seen = [
            Similarities(*(math.nan if value is None else value for value in row))
            for row in state["rows"]
        ]
        self.start = seen.pop(0) if state["start"] else None
        self.recent.clear()
        self.recent.extend(seen)
        self._silent_until = int(state["silent"])


def decline_reason(scores: Sequence[float]) -> str | None:
    """Why training looks harmful by its validations, and what to do; None if it does not.

    The scores are those of all validations, higher is better, the start's first.
    """
    last = scores[-FALLS_THAT_COUNT - 1 :]
    if len(last) <= FALLS_THAT_COUNT or not all(
        later < earlier for earlier, later in itertools.pairwise(last)
    ):
        return None
    below = f" and is below the start's {scores[0]:.4f}" if last[-1] < scores[0] else ""
    return (
        f"the held-out score has fallen {FALLS_THAT_COUNT} times in a row, from {last[0]:.4f} to "
        f"{last[-1]:.4f}{below}: lower learning_rate, or stop here; the best model is kept"
    )
