"""Scores after a reranker has put the nearest images in a new order, against plain loops."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cbml import QueryGallery, evaluate
from cbml.outputs import Outputs
from tests.oracles import retrieval as literal

RANDOM = np.random.default_rng(0)
ROWS = torch.from_numpy(RANDOM.normal(size=(40, 6)))
LABELS = RANDOM.integers(0, 6, 40)
PARTS = torch.from_numpy(RANDOM.normal(size=(40, 3)))


def by_part(queries: Outputs, gallery: Outputs, candidates: Tensor) -> Tensor:
    """The product of the parts, which has nothing to do with the embeddings."""
    found = gallery.parts["map"][candidates]  # (Q, K, 3)
    return (queries.parts["map"][:, None] * found).sum(dim=2)


def expected(queries: list[int], gallery: list[int], candidates: int) -> list[literal.Query]:
    found = []
    for i in queries:
        others = [j for j in gallery if j != i]
        others.sort(key=lambda j: -literal.cosine(ROWS[i].tolist(), ROWS[j].tolist()))
        first = sorted(others[:candidates], key=lambda j: -float(PARTS[i] @ PARTS[j]))
        ranked = [*first, *others[candidates:]]
        found.append(literal.one_query([bool(LABELS[j] == LABELS[i]) for j in ranked]))
    return found


def check(scores: Any, found: list[literal.Query]) -> None:
    assert scores.first_hits.tolist() == [query.first_hit for query in found]
    averages = [query.average_precision for query in found]
    np.testing.assert_allclose(scores.per_query["map@r"], averages, rtol=1e-9)


@pytest.mark.parametrize("candidates", [1, 5, 39, 100])
def test_only_the_candidates_are_put_in_a_new_order(candidates: int) -> None:
    outputs = Outputs(ROWS, {"map": PARTS})
    scores = evaluate(outputs, LABELS, reranker=by_part, candidates=candidates, clustering=False)
    check(scores, expected([*range(40)], [*range(40)], candidates))
    if candidates == 1:
        assert scores == evaluate(ROWS, LABELS, clustering=False)


@pytest.mark.parametrize("within", [False, True])
def test_queries_with_a_gallery(within: bool) -> None:
    asked, gallery = [*range(12)], [*range(40)] if within else [*range(12, 40)]
    sides = QueryGallery.of(
        Outputs(ROWS[asked], {"map": PARTS[asked]}),
        LABELS[asked],
        gallery_embeddings=Outputs(ROWS[gallery], {"map": PARTS[gallery]}),
        gallery_labels=LABELS[gallery],
        self_indices=asked if within else None,
    )
    scores = evaluate(sides, reranker=by_part, candidates=9, clustering=False)
    check(scores, expected(asked, gallery, 9))


@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_scores_that_differ_by_rounding_tie_against_the_query(scale: float) -> None:
    """As another processor might sum them: every score of one pair of equal images is a bit off."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.nn.functional.normalize(torch.ones(30, 64))

    def shaken(queries: Outputs, gallery: Outputs, candidates: Tensor) -> Tensor:
        noise = torch.rand(candidates.shape, generator=generator) - 0.5
        return scale * (1.0 + 2.0**-22 * noise)

    labels = np.arange(30) % 3
    scores = evaluate(rows, labels, reranker=shaken, candidates=29, clustering=False)
    assert scores.metrics["recall@1"] == 0.0
    assert set(scores.first_hits) == {21}


def test_scores_that_are_none_are_refused() -> None:
    for wrong in (torch.zeros(40, 3), torch.full((40, 5), torch.nan)):
        with pytest.raises(ValueError, match="reranker: must give a finite score"):
            evaluate(ROWS, LABELS, reranker=lambda *_, wrong=wrong: wrong, candidates=5)
