"""What an evaluation gives."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["Scores"]


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Scores of a set of embeddings; all are fractions, larger is better, None is not computed.

    The arrays keep the order of the embeddings as they were given. A query whose class has no other
    picture has no positive: it is left out of every mean, its rank is 0, its precisions are NaN.

    Args:
        recall: K -> share of the queries with a positive among their K nearest.
        map_at_r: mean over the queries of the average precision at R, R the number of positives.
        r_precision: mean over the queries of the share of positives among the R nearest.
        nmi: normalised mutual information of clusters and classes, arithmetic mean.
        ami: the same, adjusted for chance.
        queries: how many queries were scored.
        lone_queries: how many were left out because no positive exists.
        gallery: how many pictures were searched, the query itself among them where it is one.
        classes: how many classes the queries have, and so the number of clusters asked for.
        kmeans_seed: seed of the clustering.
        kmeans_iterations: its rounds.
        kmeans_attempts: its starts, of which the best was kept.
        first_hits: rank of each query's nearest positive, 1 for the best, 0 for none. (Q,)
        positives: R of each query. (Q,)
        average_precisions: at R, of each query. (Q,)
        r_precisions: of each query. (Q,)
    """

    recall: dict[int, float]
    map_at_r: float | None
    r_precision: float | None
    nmi: float | None
    ami: float | None
    queries: int
    lone_queries: int
    gallery: int
    classes: int
    kmeans_seed: int | None
    kmeans_iterations: int | None
    kmeans_attempts: int | None
    first_hits: NDArray[np.int64] = field(repr=False, compare=False)
    positives: NDArray[np.int64] = field(repr=False, compare=False)
    average_precisions: NDArray[np.float64] | None = field(repr=False, compare=False)
    r_precisions: NDArray[np.float64] | None = field(repr=False, compare=False)

    def as_dict(self) -> dict[str, object]:
        """The scores and counts as JSON can hold them; the arrays of single queries stay out."""
        names = [name for name, about in self.__dataclass_fields__.items() if about.repr]
        plain: dict[str, object] = {name: getattr(self, name) for name in names}
        plain["recall"] = {str(k): share for k, share in self.recall.items()}
        return plain
