"""Embeddings and labels -> scores, exactly, in bounded memory."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cbml.evaluation.grouping import agreement
from cbml.evaluation.inputs import as_cutoffs
from cbml.evaluation.ranking import rank_positives
from cbml.evaluation.scene import Scene, set_scene
from cbml.evaluation.scores import Scores
from cbml.index import kmeans
from cbml.index.inputs import Labels, Matrix

__all__ = ["evaluate"]


def evaluate(
    embeddings: Matrix,
    labels: Labels,
    *,
    gallery_embeddings: Matrix | None = None,
    gallery_labels: Labels | None = None,
    recall_at: Iterable[int] = (1, 2, 4, 8, 10, 100, 1000),
    precision: bool = True,
    clustering: bool = True,
    seed: int = 0,
    kmeans_iterations: int = 20,
    kmeans_attempts: int = 1,
) -> Scores:
    """Recall@K, MAP@R, R-precision, NMI and AMI of embeddings.

    Every picture is a query to all the others, or to a gallery of its own. Neighbours are ranked by
    cosine similarity in float32. The query itself is left out by its index; a negative as similar
    as a positive ranks before it, so that embeddings that collapsed score nothing. A query without
    any positive is left out and counted.

    Args:
        embeddings: one row per query, array or tensor, of any length but zero. (Q, D)
        labels: integers or strings, one per row. (Q,)
        gallery_embeddings: what the queries search, where it is not the queries. (G, D)
        gallery_labels: one per row of the gallery. (G,)
        recall_at: the K of Recall@K; the default holds those of the paper's tables.
        precision: compute MAP@R and R-precision.
        clustering: compute NMI and AMI, from k-means of the queries into as many clusters as they
            have classes.
        seed: of k-means.
        kmeans_iterations: rounds of k-means; 20 as in pytorch-metric-learning.
        kmeans_attempts: starts of k-means, of which the best is kept.
    """
    cutoffs = as_cutoffs(recall_at)
    with _full_precision():
        scene = set_scene(embeddings, labels, gallery_embeddings, gallery_labels)
        ranks = rank_positives(scene, precision)
    classes = len(np.unique(scene.codes))
    nmi, ami = None, None
    if clustering:
        clusters = kmeans(
            scene.rows,
            classes,
            iterations=kmeans_iterations,
            seed=seed,
            attempts=kmeans_attempts,
        )
        nmi, ami = agreement(scene.codes, clusters.assignments)
    averages, shares = ranks.average_precisions, ranks.r_precisions
    return Scores(
        recall={k: float((ranks.first_hits <= k).mean()) for k in cutoffs},
        map_at_r=None if averages is None else float(averages.mean()),
        r_precision=None if shares is None else float(shares.mean()),
        nmi=nmi,
        ami=ami,
        queries=len(scene.queries),
        lone_queries=len(scene.codes) - len(scene.queries),
        gallery=len(scene.gallery),
        classes=classes,
        kmeans_seed=seed if clustering else None,
        kmeans_iterations=kmeans_iterations if clustering else None,
        kmeans_attempts=kmeans_attempts if clustering else None,
        first_hits=_as_given(scene, ranks.first_hits, 0),
        positives=_as_given(scene, scene.positives().numpy(), 0),
        average_precisions=None if averages is None else _as_given(scene, averages, np.nan),
        r_precisions=None if shares is None else _as_given(scene, shares, np.nan),
    )


def _as_given(scene: Scene, values: NDArray[Any], missing: float) -> NDArray[Any]:
    """Values of the queries in the order of the embeddings, with gaps filled."""
    spread = np.full(len(scene.order), missing, dtype=values.dtype)
    spread[scene.order[scene.queries.numpy()]] = values
    return spread


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
