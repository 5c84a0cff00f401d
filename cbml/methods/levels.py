"""One sub-embedding for each of three depths of a network, as several methods have them."""

from collections.abc import Sequence

from cbml.errors import BadData
from cbml.models import Head

#: The parts in the order of their depth.
LEVEL_NAMES = ("low", "middle", "high")
_TAPS = ("low", "middle", "")


def level_heads(
    dim: int, *, weights: Sequence[float] = (1.0, 1.0, 1.0), hidden: tuple[int, ...] = ()
) -> tuple[Head, ...]:
    """A head for each depth, as equal in width as they can be, the deepest the widest.

    Args:
        weights: Of the levels within the embedding.
        hidden: Widths of the layers before the last one of the two lower heads.
    """
    if dim < len(LEVEL_NAMES):
        raise BadData(f"dim {dim}: three levels need an embedding of at least 3 numbers")
    widths = [(dim + level) // len(LEVEL_NAMES) for level in range(len(LEVEL_NAMES))]
    return tuple(
        Head(name=name, dim=width, tap=tap, hidden=hidden if tap else (), weight=weight)
        for name, tap, width, weight in zip(LEVEL_NAMES, _TAPS, widths, weights, strict=True)
    )
