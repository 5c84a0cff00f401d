"""Numbers that are no numbers, and embeddings that no longer tell pictures apart."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = [
    "BadNumbers",
    "Similarities",
    "broken_tensor",
    "check_embeddings",
    "collapse_reason",
    "similarities",
]

_SHOWN = 5
# Where every pair of a batch is more alike than this, float32 losses have no more to hold on to.
NEAR_ONE = 0.99
# Difference of the means in units of the common deviation; chance alone gives 0.1 now and then
# in batches of a hundred, so that an alarm asks for many batches in a row.
INDISTINGUISHABLE = 0.1


class BadNumbers(ValueError):
    """NaN or infinity in a training step. Exit code 1."""


@dataclass(frozen=True)
class Similarities:
    """Cosines of the pairs of one batch.

    Args:
        positive_mean: of pairs of one class; NaN without such pairs.
        negative_mean: of pairs of two classes; NaN without such pairs.
        separation: difference of the means in units of the common standard deviation.
        lowest: the smallest of all.
    """

    positive_mean: float
    negative_mean: float
    separation: float
    lowest: float


def check_embeddings(embeddings: Tensor, names: Sequence[str], step: int) -> None:
    """Raise BadNumbers, naming the pictures whose embedding holds NaN or infinity.

    Args:
        embeddings: of the batch. (B, D)
        names: of the pictures, in their order.
        step: the update that they are for, for the message.
    """
    good = torch.isfinite(embeddings).all(dim=1)
    if bool(good.all()):
        return
    bad = [names[place] for place in torch.nonzero(~good).flatten().tolist()]
    blame = "the weights" if len(bad) == len(names) else "these pictures"
    shown = ", ".join(bad[:_SHOWN]) + (f" and {len(bad) - _SHOWN} more" if bad[_SHOWN:] else "")
    raise BadNumbers(
        f"step {step}: NaN or infinity in the embeddings of {len(bad)} of {len(names)} pictures, "
        f"probably because of {blame}: {shown}; the weights were not changed"
    )


def broken_tensor(tensors: Mapping[str, Tensor]) -> str | None:
    """The name of the first tensor that holds NaN or infinity; None where all are sound.

    Args:
        tensors: by name; integers are passed over.
    """
    # Lengths are read off all tensors at once; a square that overflows is no use to training.
    floats = {name: value for name, value in tensors.items() if value.is_floating_point()}
    large = [value for value in floats.values() if value.dim()]
    small = [value for value in floats.values() if not value.dim()]
    if math.isfinite(sum(map(float, small)) + float(torch.nn.utils.get_total_norm(large))):
        return None
    lengths = {name: float(torch.linalg.vector_norm(value)) for name, value in floats.items()}
    return next((name for name, length in lengths.items() if not math.isfinite(length)), None)


def similarities(embeddings: Tensor, labels: Tensor) -> Similarities:
    """What a batch's pairs look like.

    Args:
        embeddings: unit rows. (B, D)
        labels: of the rows. (B,)
    """
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
    )


def collapse_reason(recent: Sequence[Similarities]) -> str | None:
    """Why the last batches look collapsed, None if they do not.

    Args:
        recent: of the last batches, the newest at the end.
    """
    if recent and recent[-1].lowest > NEAR_ONE:
        return f"all similarities are above {NEAR_ONE}"
    if len(recent) == 10 and all(batch.separation < INDISTINGUISHABLE for batch in recent):
        return (
            f"for {len(recent)} batches positives ({recent[-1].positive_mean:.3f} on average) "
            f"cannot be told from negatives ({recent[-1].negative_mean:.3f})"
        )
    return None
