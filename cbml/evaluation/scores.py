"""Embeddings and labels -> scores, exactly, in bounded memory."""

import contextlib
import functools
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from cbml.evaluation.metrics import METRICS, Metric
from cbml.evaluation.ranking import PositiveRanges, rank_positives, rerank_positives
from cbml.index import kmeans
from cbml.outputs import Outputs, Reranker
from cbml.query_gallery import Labels, Matrix, QueryGallery

#: The K of Recall@K, those of the paper's tables.
RECALL_AT = (1, 2, 4, 8, 10, 100, 1000)


@dataclass(frozen=True, kw_only=True)
class KMeansOptions:
    """How the queries are clustered for NMI and AMI.

    Args:
        seed: Random seed of the first centers.
        iterations: Rounds of assignment and averaging; 20 as in pytorch-metric-learning.
        attempts: Starts with different first centers, of which the best is kept.
    """

    seed: int = 0
    iterations: int = 20
    attempts: int = 1


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Scores of embeddings by name, such as "recall@1": fractions, larger is better.

    The arrays keep the order of the embeddings as they were given. A query whose class has no other
    image has no positive: it is left out of every mean, its rank is 0, its values are NaN.

    Args:
        metrics: Every score that was computed, by its name in `METRICS`.
        queries: Number of queries that were scored.
        lone_queries: Number of queries left out because no positive exists.
        gallery: Number of images searched, the query itself among them where it is one.
        classes: Number of classes of the queries, and so the number of clusters asked for.
        kmeans_seed: Seed of the clustering; None where there was none.
        kmeans_iterations: Iterations of each k-means attempt.
        kmeans_attempts: Number of k-means attempts, of which the best was kept.
        labels: Label of each query. (Q,)
        first_hits: Rank of each query's nearest positive, 1 for the best, 0 for none. (Q,)
        positives: R, how many images of its class each query can find. (Q,)
        per_query: The value of each query, by the name of the metric that is its mean. (Q,)
    """

    metrics: dict[str, float]
    queries: int
    lone_queries: int
    gallery: int
    classes: int
    kmeans_seed: int | None
    kmeans_iterations: int | None
    kmeans_attempts: int | None
    labels: NDArray[Any] = field(repr=False, compare=False)
    first_hits: NDArray[np.int64] = field(repr=False, compare=False)
    positives: NDArray[np.int64] = field(repr=False, compare=False)
    per_query: dict[str, NDArray[np.float64]] = field(repr=False, compare=False)

    def per_class(self, metric: str) -> dict[Any, float]:
        """The mean of a metric over the queries of each class, by label; lone classes left out.

        Args:
            metric: A name in `per_query`, such as "recall@1".
        """
        values = self.per_query[metric]
        scored = ~np.isnan(values)
        names, codes = np.unique(self.labels[scored], return_inverse=True)
        means = np.bincount(codes, weights=values[scored]) / np.bincount(codes)
        return dict(zip(names.tolist(), means.tolist(), strict=True))

    def class_average(self, metric: str) -> float:
        """The mean over classes of their means, so that a large class counts as much as a small.

        Args:
            metric: A name in `per_query`, such as "recall@1".
        """
        means = self.per_class(metric)
        return sum(means.values()) / len(means)

    def as_dict(self) -> dict[str, object]:
        """The scores and counts as JSON can hold them; single queries stay out."""
        names = [name for name, entry in self.__dataclass_fields__.items() if entry.repr]
        return {name: getattr(self, name) for name in names}


def score_names(*, clustering: bool = True) -> list[str]:
    """Names of the scores that `evaluate` gives by default.

    Args:
        clustering: Whether NMI and AMI are among them.
    """
    chosen = _chosen(None, clustering)
    clustered = [name for name, metric in chosen.items() if metric.needs == "clusters"]
    return [*_computes(chosen, list(RECALL_AT)), *clustered]


def evaluate(
    embeddings: Matrix | Outputs | QueryGallery,
    labels: Labels | None = None,
    *,
    gallery_embeddings: Matrix | Outputs | None = None,
    gallery_labels: Labels | None = None,
    recall_at: Iterable[int] = RECALL_AT,
    metrics: Collection[str] | None = None,
    reranker: Reranker | None = None,
    candidates: int = 100,
    clustering: bool = True,
    kmeans_options: KMeansOptions | None = None,
) -> Scores:
    """Recall@K, MAP@R and every other score of `METRICS`.

    Every image is a query to all the others, or to a gallery of its own. Neighbors are ranked by
    cosine similarity in float32. The query itself is left out by its index. A negative as similar
    as a positive ranks before it, so that embeddings that collapsed score nothing; as similar is
    what differs by less than √D 2⁻²³, so that ties are ties on every processor. A query without
    any positive is left out and counted.

    Args:
        embeddings: One row per query, array or tensor, of any length but zero; or a `QueryGallery`,
            and then neither labels nor a gallery beside it. (Q, D)
        labels: Integers or strings, one per row. (Q,)
        gallery_embeddings: What the queries search, where it is not the queries. (G, D)
        gallery_labels: One per row of the gallery. (G,)
        recall_at: The K of Recall@K; the default holds those of the paper's tables.
        metrics: Names in `METRICS`, such as "recall@k" or "map@r"; None for all of them.
        reranker: Puts the nearest images of each query in a new order before they are ranked; the
            embeddings are then `Outputs` with the parts that it reads.
        candidates: Number of nearest images that the reranker is given.
        clustering: Compute NMI and AMI, from k-means of the queries into as many clusters as they
            have classes.
        kmeans_options: Seed, iterations and attempts of k-means; None for the usual ones.
    """
    chosen = _chosen(metrics, clustering)
    computes = _computes(chosen, _as_cutoffs(recall_at))
    # The embeddings as given are let go: sorted by class is all that is needed from here on.
    query_gallery, order = QueryGallery.of(
        embeddings,
        labels,
        gallery_embeddings=gallery_embeddings,
        gallery_labels=gallery_labels,
    ).sorted_by_class()
    ranges = PositiveRanges.of(query_gallery)
    nearest = any(metric.needs == "nearest" for metric in chosen.values())
    with _full_precision():
        if reranker is None:
            first_hits, values = rank_positives(query_gallery, ranges, computes, nearest=nearest)
        else:
            first_hits, values = rerank_positives(
                query_gallery, ranges, computes, reranker, candidates
            )
    metrics_found = {name: float(value.mean()) for name, value in values.items()}
    of_clusters = {name: one for name, one in chosen.items() if one.needs == "clusters"}
    options = kmeans_options or KMeansOptions()
    metrics_found |= _cluster_scores(query_gallery, of_clusters, options)
    recorded = asdict(options) if of_clusters else {}
    given = _Given(order, ranges.queries.numpy())
    return Scores(
        metrics=metrics_found,
        queries=len(ranges.queries),
        lone_queries=len(order) - len(ranges.queries),
        gallery=len(query_gallery.searched),
        classes=len(np.unique(query_gallery.codes)),
        kmeans_seed=recorded.get("seed"),
        kmeans_iterations=recorded.get("iterations"),
        kmeans_attempts=recorded.get("attempts"),
        labels=query_gallery.class_labels[query_gallery.codes[np.argsort(order)]],
        first_hits=given.spread(first_hits, 0),
        positives=given.spread(ranges.positives().numpy(), 0),
        per_query={name: given.spread(value, np.nan) for name, value in values.items()},
    )


class _Given(NamedTuple):
    """Where sorted queries stood in the embeddings as given, and which of them were scored."""

    order: NDArray[np.int64]
    scored: NDArray[np.int64]

    def spread(self, values: NDArray[Any], missing: float) -> NDArray[Any]:
        """Values of the scored queries in the order of the embeddings, with gaps filled."""
        spread = np.full(len(self.order), missing, dtype=values.dtype)
        spread[self.order[self.scored]] = values
        return spread


def _cluster_scores(
    query_gallery: QueryGallery, metrics: dict[str, Metric], options: KMeansOptions
) -> dict[str, float]:
    """What k-means clusters of the queries tell of their classes."""
    if not metrics:
        return {}
    classes = len(np.unique(query_gallery.codes))
    clusters = kmeans(
        query_gallery.embeddings,
        classes,
        iterations=options.iterations,
        seed=options.seed,
        attempts=options.attempts,
    ).assignments
    return {
        name: float(metric.compute(query_gallery.codes, clusters))
        for name, metric in metrics.items()
    }


def _chosen(names: Collection[str] | None, clustering: bool) -> dict[str, Metric]:
    """The metrics to compute, in the order of the table."""
    unknown = sorted(set(names or ()) - set(METRICS))
    if unknown:
        raise ValueError(f"metrics must be among {', '.join(METRICS)}, got {unknown[0]!r}")
    return {
        name: metric
        for name, metric in METRICS.items()
        if (names is None or name in names) and (clustering or metric.needs != "clusters")
    }


def _computes(chosen: dict[str, Metric], cutoffs: list[int]) -> dict[str, Any]:
    """What to make of the ranks of positives, by the names that the scores will have."""
    computes: dict[str, Any] = {}
    for name, metric in chosen.items():
        if metric.needs == "clusters":
            continue
        if name.endswith("@k"):
            stem = name.removesuffix("k")
            computes |= {f"{stem}{k}": functools.partial(metric.compute, k=k) for k in cutoffs}
        else:
            computes[name] = metric.compute
    return computes


def _as_cutoffs(recall_at: Iterable[int]) -> list[int]:
    """The distinct K of Recall@K, ascending."""
    cutoffs = list(recall_at)
    for cutoff in cutoffs:
        if not isinstance(cutoff, int | np.integer) or isinstance(cutoff, bool) or cutoff < 1:
            raise ValueError(f"recall_at must be positive whole numbers, got {cutoff!r}")
    return sorted({int(cutoff) for cutoff in cutoffs})


@contextlib.contextmanager
def _full_precision() -> Iterator[None]:
    """Products in true float32, whatever the training around has set up."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.inference_mode(), torch.autocast("cpu", enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)
