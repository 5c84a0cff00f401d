"""Ranks and precisions against literal sorting, on every kind of case."""

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from cbml import QueryGallery, Scores, evaluate
from cbml.evaluation import ranking
from tests.evaluation.cases import KINDS, Case, Gallery, make_case
from tests.oracles import retrieval as literal

CUTOFFS = (1, 2, 3, 5, 8, 1000)
CASES_PER_KIND = 60
SEEDS = {"none": False, "another": True, "holds the queries": 2}


def scores_of(
    case: Case, dtype: torch.dtype = torch.float64, metrics: tuple[str, ...] | None = None
) -> Scores:
    other = None if case.gallery is None else torch.tensor(case.gallery, dtype=dtype)
    sides = QueryGallery.of(
        torch.tensor(case.rows, dtype=dtype),
        case.labels,
        gallery_embeddings=other,
        gallery_labels=case.gallery_labels,
        self_indices=case.self_indices,
    )
    return evaluate(sides, recall_at=CUTOFFS, metrics=metrics, clustering=False)


def check(case: Case, scores: Scores) -> None:
    found = literal.queries(
        case.rows, case.labels, case.gallery, case.gallery_labels, case.self_indices
    )
    assert scores.first_hits.tolist() == [query.first_hit for query in found]
    assert scores.positives.tolist() == [query.positives for query in found]
    for k in CUTOFFS:
        assert scores.metrics[f"recall@{k}"] == pytest.approx(literal.recall(found, k))
    assert scores.queries == sum(query.positives > 0 for query in found)
    assert scores.lone_queries == len(found) - scores.queries
    assert scores.gallery == len(case.gallery or case.rows)
    if len(scores.metrics) == len(CUTOFFS):  # nothing else was asked for
        return
    assert scores.metrics["mrr"] == pytest.approx(literal.mean_reciprocal_rank(found))
    averages = [query.average_precision for query in found]
    shares = [query.r_precision for query in found]
    np.testing.assert_allclose(scores.per_query["map@r"], averages, rtol=1e-12)
    np.testing.assert_allclose(scores.per_query["r_precision"], shares, rtol=1e-12)
    assert scores.metrics["map@r"] == pytest.approx(literal.mean(averages), rel=1e-12)
    assert scores.metrics["r_precision"] == pytest.approx(literal.mean(shares), rel=1e-12)


@pytest.mark.parametrize("gallery", ["none", "another", "holds the queries"])
@pytest.mark.parametrize("kind", KINDS)
def test_equal_to_sorting_everything(
    kind: str, gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small groups and blocks, so that the bound, its absence and many blocks all occur."""
    chance = random.Random(f"{kind} {SEEDS[gallery]}")
    for number in range(CASES_PER_KIND):
        case = make_case(kind, chance, gallery)
        monkeypatch.setattr(ranking, "BLOCK_ROWS", chance.choice([2, 3, 7, 512]))
        monkeypatch.setattr(ranking, "GROUP", chance.choice([1, 2, 3, 64]))
        dtype = torch.float32 if number % 2 else torch.float64
        check(case, scores_of(case, dtype, None if number % 4 else ("recall@k",)))


@pytest.mark.parametrize("classes", [2, 40, 300])
def test_blocks_and_groups_of_real_size(classes: int) -> None:
    """Enough images for several full blocks and many groups, signs for many ties."""
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
        assert scores.first_hits[i] == query.first_hit
        np.testing.assert_allclose(scores.per_query["map@r"][i], query.average_precision)


@pytest.mark.parametrize("dim", [1, 2, 3, 64, 100, 513])
@pytest.mark.parametrize("size", [4, 9, 70, 1001])
def test_collapsed_embeddings_score_nothing(dim: int, size: int) -> None:
    generator = torch.Generator().manual_seed(size * dim)
    rows = torch.randn(1, dim, generator=generator).expand(size, dim)
    scores = evaluate(rows, torch.arange(size) % 2, clustering=False, recall_at=(1, size // 2))
    recalls = [scores.metrics["recall@1"], scores.metrics[f"recall@{size // 2}"]]
    assert recalls == [0.0, 0.0]
    assert scores.metrics["map@r"] == scores.metrics["r_precision"] == 0.0
    # One query before a collapsed gallery: the product of a single row is the tricky one.
    one = evaluate(
        torch.randn(1, dim, generator=generator),
        [0],
        gallery_embeddings=rows,
        gallery_labels=[0] + [1] * (size - 1),
        clustering=False,
    )
    assert one.first_hits.tolist() == [size]


def shuffled_product(chance: torch.Generator) -> Callable[..., Tensor]:
    """A product in float32 that sums each column in an order of its own, as a library may."""

    def product(left: Tensor, right: Tensor, *, out: Tensor) -> Tensor:
        for column in range(right.shape[1]):
            order = torch.randperm(left.shape[1], generator=chance)
            terms = left[:, order] * right[order, column]
            total = torch.zeros(len(left))
            for term in terms.unbind(1):
                total += term
            out[:, column] = total
        return out

    return product


def tied_rows(kind: str, dim: int) -> Tensor:
    generator = torch.Generator().manual_seed(dim)
    if kind == "collapsed":
        return torch.randn(1, dim, generator=generator).expand(40, dim)
    if kind == "duplicates":
        return torch.randn(6, dim, generator=generator)[torch.arange(40) % 6]
    signs = torch.randint(0, 2, (40, dim), generator=generator)  # equal products of unequal rows
    return 2.0 * signs.float() - 1.0


@pytest.mark.parametrize("dim", [7, 100, 300])
@pytest.mark.parametrize("kind", ["collapsed", "duplicates", "signs"])
def test_ties_do_not_hang_on_the_order_of_sums(
    kind: str, dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, labels = tied_rows(kind, dim), torch.arange(40) % 5
    if kind == "signs":  # whole numbers decide
        similarity = (rows @ rows.T).long().numpy()
    else:
        similarity = (rows.double() @ rows.double().T).round(decimals=9).numpy()
    monkeypatch.setattr(torch, "mm", shuffled_product(torch.Generator().manual_seed(1)))
    scores = evaluate(rows, labels, clustering=False)
    assert scores.per_query["map@r"] is not None
    for i in range(40):
        others = np.delete(np.arange(40), i)
        positive = (labels[others] == labels[i]).numpy()
        query = literal.one_query(positive[np.lexsort((positive, -similarity[i, others]))].tolist())
        assert scores.first_hits[i] == query.first_hit
        np.testing.assert_allclose(scores.per_query["map@r"][i], query.average_precision)


def test_scores_of_separate_similarities_do_not_hang_on_rounding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Embeddings on a coarse grid of similarities, and errors larger than any library makes."""
    generator = torch.Generator().manual_seed(2)
    rows = 2.0 * torch.randint(0, 2, (300, 64), generator=generator).float() - 1.0
    labels, product = torch.arange(300) % 30, torch.mm
    expected = evaluate(rows, labels, clustering=False)

    def rough(left: Tensor, right: Tensor, *, out: Tensor) -> Tensor:
        error = (torch.rand(out.shape, generator=generator) - 0.5) * ranking.tie_slack(64)
        return out.copy_(product(left, right) + 0.9 * error)

    monkeypatch.setattr(torch, "mm", rough)
    monkeypatch.setattr(ranking, "BLOCK_ROWS", 97)
    scores = evaluate(rows, labels, clustering=False)
    assert scores.first_hits.tolist() == expected.first_hits.tolist()
    assert scores.metrics == expected.metrics


def test_a_negative_ties_within_the_slack_and_not_beyond() -> None:
    slack = ranking.tie_slack(2)
    for gap, rank in ((0.5 * slack, 2), (-0.5 * slack, 2), (-4.0 * slack, 1), (4.0 * slack, 2)):
        # At 45 degrees the similarity changes by sin(45°) per radian.
        angles = np.pi / 4 + np.array([0.0, -gap / np.sin(np.pi / 4)])
        gallery = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        one = evaluate(
            np.array([[1.0, 0.0]]),
            [0],
            gallery_embeddings=gallery,
            gallery_labels=[0, 1],
            clustering=False,
        )
        assert one.first_hits.tolist() == [rank], gap


def test_a_score_does_not_depend_on_the_order_of_the_images() -> None:
    case = make_case("signs", random.Random(3), "none")
    scores = scores_of(case)
    order = random.Random(4).sample(range(len(case.rows)), len(case.rows))
    moved = Case([case.rows[i] for i in order], [case.labels[i] for i in order])
    again = scores_of(moved)
    assert again.metrics == pytest.approx(scores.metrics, rel=1e-12)
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
