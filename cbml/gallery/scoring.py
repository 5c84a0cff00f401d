"""How well each labelled picture of a gallery finds the others of its label."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cbml.gallery.pictures import Picture
from cbml.gallery.storage import QueryScores

__all__ = ["Evaluate", "scored"]

# embeddings, labels -> an object with the fields of cbml.Scores; this room does not import it.
Evaluate = Callable[..., Any]


def scored(
    vectors: NDArray[np.float32], pictures: Sequence[Picture], evaluate: Evaluate
) -> QueryScores | None:
    """Every labelled picture as a query to all others; those without a label only answer.

    None where no two pictures share a label.

    Args:
        vectors: of the pictures. (N, D)
        pictures: N of them.
        evaluate: `cbml.evaluate`.
    """
    numbers: dict[str, int] = {}
    # A label of its own for each unlabelled picture: nobody's positive, and a query without any.
    labels = [
        -1 - place if picture.label is None else numbers.setdefault(picture.label, len(numbers))
        for place, picture in enumerate(pictures)
    ]
    if max(Counter(labels).values()) < 2:
        return None
    scores = evaluate(vectors, np.array(labels), clustering=False)
    names = ("recall", "map_at_r", "r_precision", "queries")
    totals = {name: value for name, value in scores.as_dict().items() if name in names}
    labelled = sum(label >= 0 for label in labels)
    totals |= {"lone_queries": labelled - scores.queries, "classes": len(numbers)}
    return QueryScores(totals, scores.first_hits, scores.positives, scores.average_precisions)
