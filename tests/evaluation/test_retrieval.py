"""Ranks and precisions against literal sorting, on every kind of case."""

import random

import numpy as np
import pytest
import torch

from cbml import Scores, evaluate
from cbml.evaluation import ranking
from tests.evaluation.cases import KINDS, Case, make_case
from tests.oracles import retrieval as literal

CUTOFFS = (1, 2, 3, 5, 8, 1000)
CASES_PER_KIND = 60


def scores_of(case: Case, dtype: torch.dtype = torch.float64, *, precision: bool = True) -> Scores:
    other = None if case.gallery is None else torch.tensor(case.gallery, dtype=dtype)
    return evaluate(
        torch.tensor(case.rows, dtype=dtype),
        case.labels,
        gallery_embeddings=other,
        gallery_labels=case.gallery_labels,
        recall_at=CUTOFFS,
        precision=precision,
        clustering=False,
    )


def check(case: Case, scores: Scores) -> None:
    found = literal.queries(case.rows, case.labels, case.gallery, case.gallery_labels)
    assert scores.first_hits.tolist() == [query.first_hit for query in found]
    assert scores.positives.tolist() == [query.positives for query in found]
    assert scores.recall == pytest.approx({k: literal.recall(found, k) for k in CUTOFFS})
    assert scores.queries == sum(query.positives > 0 for query in found)
    assert scores.lone_queries == len(found) - scores.queries
    assert scores.gallery == len(case.gallery or case.rows)
    if scores.average_precisions is None or scores.r_precisions is None:
        assert scores.map_at_r is None
        assert scores.r_precision is None
        return
    averages = [query.average_precision for query in found]
    shares = [query.r_precision for query in found]
    np.testing.assert_allclose(scores.average_precisions, averages, rtol=1e-12)
    np.testing.assert_allclose(scores.r_precisions, shares, rtol=1e-12)
    assert scores.map_at_r == pytest.approx(literal.mean(averages), rel=1e-12)
    assert scores.r_precision == pytest.approx(literal.mean(shares), rel=1e-12)


@pytest.mark.parametrize("with_gallery", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_equal_to_sorting_everything(
    kind: str, with_gallery: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small groups and blocks, so that the bound, its absence and many blocks all occur."""
    chance = random.Random(f"{kind} {with_gallery}")
    for number in range(CASES_PER_KIND):
        case = make_case(kind, chance, with_gallery)
        monkeypatch.setattr(ranking, "BLOCK_ROWS", chance.choice([2, 3, 7, 512]))
        monkeypatch.setattr(ranking, "GROUP", chance.choice([1, 2, 3, 64]))
        dtype = torch.float32 if number % 2 else torch.float64
        check(case, scores_of(case, dtype, precision=bool(number % 4)))


@pytest.mark.parametrize("classes", [2, 40, 300])
def test_blocks_and_groups_of_real_size(classes: int) -> None:
    """Enough pictures for several full blocks and many groups, signs for many ties."""
    generator = torch.Generator().manual_seed(classes)
    labels = torch.randint(0, classes, (1100,), generator=generator)
    centers = torch.randn(classes, 16, generator=generator)
    rows = torch.sign(centers[labels] + torch.randn(1100, 16, generator=generator))
    scores = evaluate(rows, labels, clustering=False)
    similarity = (rows @ rows.T / 16.0).numpy()
    codes = labels.numpy()
    for i in range(0, 1100, 7):
        others = np.delete(np.arange(1100), i)
        positive = codes[others] == codes[i]
        order = np.lexsort((positive, -similarity[i, others]))
        query = literal.one_query(positive[order].tolist())
        assert scores.average_precisions is not None
        assert scores.first_hits[i] == query.first_hit
        np.testing.assert_allclose(scores.average_precisions[i], query.average_precision)


@pytest.mark.parametrize("dim", [1, 2, 3, 64, 100, 513])
@pytest.mark.parametrize("size", [4, 9, 70, 1001])
def test_collapsed_embeddings_score_nothing(dim: int, size: int) -> None:
    generator = torch.Generator().manual_seed(size * dim)
    rows = torch.randn(1, dim, generator=generator).expand(size, dim)
    scores = evaluate(rows, torch.arange(size) % 2, clustering=False, recall_at=(1, size // 2))
    assert scores.recall == {1: 0.0, size // 2: 0.0}
    assert scores.map_at_r == scores.r_precision == 0.0
    # One query before a collapsed gallery: the product of a single row is the tricky one.
    one = evaluate(
        torch.randn(1, dim, generator=generator),
        [0],
        gallery_embeddings=rows,
        gallery_labels=[0] + [1] * (size - 1),
        clustering=False,
    )
    assert one.first_hits.tolist() == [size]


def test_a_score_does_not_depend_on_the_order_of_the_pictures() -> None:
    case = make_case("signs", random.Random(3), with_gallery=False)
    scores = scores_of(case)
    order = random.Random(4).sample(range(len(case.rows)), len(case.rows))
    moved = Case([case.rows[i] for i in order], [case.labels[i] for i in order], None, None)
    again = scores_of(moved)
    assert again.recall == scores.recall
    assert again.first_hits.tolist() == scores.first_hits[order].tolist()


def test_the_settings_of_a_training_around_change_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(600, 64, generator=generator)
    labels = torch.arange(600) % 40
    expected = evaluate(rows, labels, clustering=False)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            scores = evaluate(rows.requires_grad_(), labels, clustering=False)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    assert scores.first_hits.tolist() == expected.first_hits.tolist()
