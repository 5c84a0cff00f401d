"""The baselines compute their papers' formulas; where the library differs, it is shown."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from pytorch_metric_learning import losses as library
from pytorch_metric_learning.miners import MultiSimilarityMiner
from torch import Tensor, nn

from cbml.losses import BASELINES
from cbml.losses.baselines.baseline import Batch
from cbml.losses.baselines.margin import sample_by_distance
from tests.oracles import baseline_proxies, baselines

WIDTH = 6
OF_PAIRS = [
    "angular",
    "binomial_deviance",
    "circle",
    "contrastive",
    "histogram",
    "lifted_structure",
    "multi_similarity",
    "n_pair",
    "nt_xent",
    "ranked_list",
    "triplet_easy_positive",
    "triplet_semihard",
    "tuplet_margin",
]
OF_PROXIES = ["arcface", "normalized_softmax", "proxy_anchor", "proxy_nca", "proxy_nca_pp"]
ON_THEIR_OWN = ["fast_ap", "margin", "multi_similarity_xbm", "soft_triple"]
IN_TEST_SYSTEMS = [
    "facility_location",
    "multi_similarity_dr",
    "multi_similarity_ee",
    "multi_similarity_loop",
    "proxy_anchor_memvir",
    "rank_mi",
    "ranked_list_simpler",
    "selectively_contrastive_triplet",
]
# Singletons, a class of two and a class of five: sizes must not be taken for granted.
LABELS = torch.tensor([0, 0, 1, 1, 1, 2, 3, 3, 3, 3, 3, 4])
REFERENCE_LABELS = torch.tensor([1, 1, 3, 0, 5, 3, 2, 2, 1])


def rows(count: int, seed: int) -> Tensor:
    """Similar enough that hinges, margins and miners all have something to do."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, WIDTH, generator=generator, dtype=torch.float64) + 0.7


def close(value: Tensor, expected: float) -> None:
    assert value.item() == pytest.approx(expected, rel=1e-7, abs=1e-9)


def test_every_baseline_has_an_oracle() -> None:
    assert {*OF_PAIRS, *OF_PROXIES, *ON_THEIR_OWN, *IN_TEST_SYSTEMS} == set(BASELINES)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", OF_PAIRS)
def test_pair_losses_equal_their_formula(name: str, seed: int) -> None:
    x, z = rows(len(LABELS), seed), rows(len(REFERENCE_LABELS), seed + 100)
    loss, oracle = BASELINES[name](), getattr(baselines, name)
    close(loss(x, LABELS), oracle(x.tolist(), LABELS.tolist()))
    expected = oracle(x.tolist(), LABELS.tolist(), z.tolist(), REFERENCE_LABELS.tolist())
    close(loss(x, LABELS, None, z, REFERENCE_LABELS), expected)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", OF_PROXIES)
def test_proxy_losses_equal_their_formula(name: str, seed: int) -> None:
    loss = BASELINES[name](num_classes=7, embedding_size=WIDTH, seed=seed).double()
    (proxies,) = loss.parameters()
    proxies = proxies if len(proxies) == 7 else proxies.T
    x = rows(len(LABELS), seed)
    close(
        loss(x, LABELS),
        getattr(baseline_proxies, name)(x.tolist(), LABELS.tolist(), proxies.tolist()),
    )


def test_the_rest_equal_their_formula() -> None:
    x, y = rows(len(LABELS), 0), LABELS.tolist()
    close(BASELINES["fast_ap"]()(x, LABELS), baselines.fast_ap(x.tolist(), y))
    triplets = [(0, 1, 2), (2, 3, 0), (2, 4, 5), (8, 7, 11), (8, 7, 10)]
    value = BASELINES["margin"]().double()(x, LABELS, tuple(torch.tensor(triplets).T))
    close(value, baselines.margin(x.tolist(), y, triplets))
    loss = BASELINES["soft_triple"](
        num_classes=5, embedding_size=WIDTH, centers_per_class=3
    ).double()
    centers = loss._loss.fc.T.reshape(5, 3, WIDTH).tolist()
    close(loss(x, LABELS), baseline_proxies.soft_triple(x.tolist(), y, centers))
    loss = BASELINES["triplet_easy_positive"](negatives="hard")
    close(loss(x, LABELS), baselines.triplet_easy_positive(x.tolist(), y, negatives="hard"))


SMOOTH = ["angular", "binomial_deviance", "contrastive", "lifted_structure", "n_pair"]


@pytest.mark.parametrize("name", [*SMOOTH, "nt_xent", "tuplet_margin", "proxy_nca", "proxy_nca_pp"])
def test_gradients_written_here_are_right(name: str) -> None:
    options = {"num_classes": 5, "embedding_size": WIDTH} if name.startswith("proxy") else {}
    loss = BASELINES[name](**options).double()
    x = rows(len(LABELS), 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda leaf: loss(leaf, LABELS), x)


def test_weights_of_the_ranked_list_carry_no_gradient() -> None:
    x = nn.functional.normalize(rows(6, 0)).requires_grad_()
    BASELINES["ranked_list"]()(x, torch.arange(6)).backward()
    gradient, x.grad = x.grad, None
    near = 1.2 - (2.0 - 2.0 * x @ x.T).clamp(min=1e-12).sqrt()
    near = near[~torch.eye(6, dtype=torch.bool)].view(6, 5)
    weights = (10.0 * near.detach()).exp() * (near > 0)
    assert ((near > 0).sum(1) > 1).any(), "weights of a single pair are one whatever they are"
    ((weights * near).sum(1) / weights.sum(1).clamp(min=1e-300) / 2.0).mean().backward()
    assert gradient is not None
    assert x.grad is not None
    along = (x.grad * x).sum(1, keepdim=True) * x  # ours stays on the sphere
    torch.testing.assert_close(gradient, (x.grad - along).detach())


def test_the_memory_is_the_queue_of_the_library() -> None:
    ours = BASELINES["multi_similarity_xbm"](
        embedding_size=WIDTH, memory_size=30, warmup_steps=0, batch_weight=0.0
    )
    theirs = library.CrossBatchMemory(
        library.MultiSimilarityLoss(), WIDTH, memory_size=30, miner=MultiSimilarityMiner()
    )
    for seed in range(8):
        x, labels = rows(12, seed).float(), torch.arange(3).repeat(4)
        torch.testing.assert_close(ours(x, labels), theirs(nn.functional.normalize(x), labels))


def test_the_memory_warms_up_rests_in_evaluation_and_knows_itself() -> None:
    x = rows(len(LABELS), 0)
    plain = BASELINES["multi_similarity"]()
    loss = BASELINES["multi_similarity_xbm"](
        embedding_size=WIDTH, memory_size=20, warmup_steps=2, batch_weight=0.0
    ).double()
    for _ in range(2):
        torch.testing.assert_close(loss(x, LABELS), plain(x, LABELS))
    assert loss.stored == 0
    torch.testing.assert_close(loss(x, LABELS), plain(x, LABELS))  # nothing but itself in there
    assert loss.stored == 12
    loss.eval()
    torch.testing.assert_close(loss(x[:6], LABELS[:6]), plain(x[:6], LABELS[:6]))
    assert loss.stored == 12
    loss.train()
    value = loss(x[5:6], torch.tensor([77]))  # new to the memory: its only positive is itself
    assert value == 0.0
    with pytest.raises(ValueError, match="memory_size is 20"):
        loss(rows(21, 0), torch.zeros(21, dtype=torch.int64))


def test_the_memory_adds_the_loss_of_the_batch_itself() -> None:
    plain = BASELINES["multi_similarity"]()
    made = [
        BASELINES["multi_similarity_xbm"](
            embedding_size=WIDTH, memory_size=30, warmup_steps=0, batch_weight=weight
        )
        for weight in (0.0, 1.0, 0.5)
    ]
    by_default = BASELINES["multi_similarity_xbm"](embedding_size=WIDTH, warmup_steps=0)
    for seed in range(4):
        x, labels = rows(12, seed).float(), torch.arange(3).repeat(4)
        memory, both, half = (loss(x, labels) for loss in made)
        torch.testing.assert_close(both, memory + plain(x, labels))
        torch.testing.assert_close(half, memory + 0.5 * plain(x, labels))
        if seed < 2:  # the queue of 30 has not wrapped around
            torch.testing.assert_close(by_default(x, labels), both)


# Lengths of the authors' first class vectors at D = 512: uniform within 1/sqrt(D), and normal with
# a deviation of 0.01. A step turns a long vector less.
@pytest.mark.parametrize(
    ("name", "length", "degrees"), [("normalized_softmax", 0.577, 20.0), ("arcface", 0.226, 40.0)]
)
def test_class_vectors_start_short_enough_to_turn(name: str, length: float, degrees: float) -> None:
    loss = BASELINES[name](num_classes=20, embedding_size=512)
    first = loss._loss.W.detach().clone()
    assert first.norm(dim=0).mean().item() == pytest.approx(length, rel=0.02)
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(80) % 20
    centers = torch.randn(20, 512, generator=generator)
    x = centers[labels] + 0.5 * torch.randn(80, 512, generator=generator)
    optimizer = torch.optim.Adam(loss.parameters(), lr=3e-4 * loss.learning_rate_factor)
    for _ in range(100):
        optimizer.zero_grad()
        loss(x, labels).backward()
        optimizer.step()
    cosine = nn.functional.cosine_similarity(first, loss._loss.W.detach(), dim=0)
    assert cosine.acos().rad2deg().mean().item() > degrees


def test_defaults_are_those_of_the_programs() -> None:
    proxies = BASELINES["proxy_nca"](num_classes=5, embedding_size=WIDTH)
    assert (proxies.scale, proxies.learning_rate_factor) == (3.0, 50.0)
    assert BASELINES["arcface"](num_classes=5, embedding_size=WIDTH).margin == math.degrees(0.5)
    memory = BASELINES["multi_similarity_xbm"](embedding_size=WIDTH)
    assert (memory.memory_size, memory.warmup_steps, memory.batch_weight) == (8192, 2000, 1.0)
    # 0.25 of the paper's 0.02 for anchors plus the same for positives, on a batch of pairs
    x, pairs = rows(8, 0), torch.arange(4).repeat(2)
    norms = 0.25 * 0.02 * (x[:4].square().sum(1).mean() + x[4:].square().sum(1).mean())
    difference = BASELINES["n_pair"]()(x, pairs) - BASELINES["n_pair"](norm_weight=0.0)(x, pairs)
    torch.testing.assert_close(difference, norms)


def test_lifted_structure_on_the_rows_as_they_come() -> None:
    x, z = 2.0 * rows(len(LABELS), 0), rows(len(REFERENCE_LABELS), 100)
    loss = BASELINES["lifted_structure"](unit_rows=False)
    close(loss(x, LABELS), baselines.lifted_structure(x.tolist(), LABELS.tolist(), raw=True))
    expected = baselines.lifted_structure(
        x.tolist(), LABELS.tolist(), z.tolist(), REFERENCE_LABELS.tolist(), raw=True
    )
    close(loss(x, LABELS, None, z, REFERENCE_LABELS), expected)


def test_one_proxy_scale_is_nine_times_the_square() -> None:
    x = rows(len(LABELS), 0)
    for scale in (1.0, 3.0):
        loss = BASELINES["proxy_nca"](num_classes=5, embedding_size=WIDTH, scale=scale).double()
        expected = baseline_proxies.proxy_nca(
            x.tolist(), LABELS.tolist(), loss.proxies.tolist(), scale=scale
        )
        close(loss(x, LABELS), expected)


def checked(x: Tensor, labels: Tensor) -> Batch:
    units = nn.functional.normalize(x)
    return Batch(anchors=units, labels=labels, columns=units, column_labels=labels, indices=None)


@pytest.mark.parametrize("dimension", [2, 4, 30])
def test_negatives_are_drawn_by_distance(dimension: int, monkeypatch: pytest.MonkeyPatch) -> None:
    angles = torch.tensor([0.0, 0.1, 0.3, 0.9, 1.2, 2.5], dtype=torch.float64)
    x = torch.zeros(6, dimension, dtype=torch.float64)
    x[:, 0], x[:, 1] = angles.cos(), angles.sin()
    expected = torch.zeros(6, dtype=torch.float64)
    for j, angle in ((2, 0.3), (3, 0.9), (4, 1.2)):  # the last is beyond 1.4 away
        d = max(0.5, 2.0 * math.sin(angle / 2.0))
        expected[j] = d ** (2 - dimension) * (1.0 - d * d / 4.0) ** ((3 - dimension) / 2)
    asked = []

    def multinomial(weights: Tensor, count: int, *, generator: torch.Generator) -> Tensor:
        asked.append((weights, generator))
        return torch.full((len(weights), count), 4)

    monkeypatch.setattr(torch, "multinomial", multinomial)
    generator = torch.Generator()
    drawn = sample_by_distance(
        checked(x, torch.tensor([0, 0, 1, 2, 3, 4])), near=0.5, far=1.4, generator=generator
    )
    assert [part.tolist() for part in drawn] == [[0, 1], [1, 0], [4, 4]]
    (weights, used) = asked[0]
    assert used is generator
    torch.testing.assert_close(weights[0], expected / expected.sum())


def test_an_anchor_with_far_negatives_only_keeps_its_positives() -> None:
    x, labels = torch.eye(WIDTH)[:4], torch.tensor([0, 0, 1, 1])
    assert BASELINES["margin"]()(x, labels).item() == pytest.approx(2**0.5 - 1.0)
    drawn = set()
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        drawn |= set(
            sample_by_distance(checked(x, labels), near=0.5, far=1.4, generator=generator)[
                2
            ].tolist()
        )
    assert drawn == {0, 1, 2, 3}


def test_seeds_decide_the_draws_and_the_first_proxies() -> None:
    x = rows(len(LABELS), 0)
    draws = [BASELINES["margin"](seed=seed).double() for seed in (0, 0, 1)]
    values = [[loss(x, LABELS).item() for _ in range(5)] for loss in draws]
    assert values[0] == values[1] != values[2]
    assert len(set(values[0])) > 1, "each call draws again"
    for name in [*OF_PROXIES, "soft_triple"]:
        first = [
            next(BASELINES[name](num_classes=5, embedding_size=WIDTH, seed=seed).parameters())
            for seed in (0, 0, 1)
        ]
        assert torch.equal(first[0], first[1])
        assert not torch.equal(first[0], first[2])


def test_arcface_stays_off_the_ends_of_the_arc_cosine() -> None:
    loss = BASELINES["arcface"](num_classes=2, embedding_size=WIDTH)
    with torch.no_grad():
        loss._loss.W.copy_(torch.eye(WIDTH)[:, :2])
    assert (loss._loss.get_cosine(torch.eye(WIDTH)).abs() < 1.0).all()


# Where the library is not what the paper says, which is why these are written here. Should a new
# version of it mend one, the test fails and the member can become a wrapper.


def different(ours: str, theirs: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other = theirs(*arguments)
    own = BASELINES[ours](**options)(*arguments)
    assert not torch.isclose(own, other.to(own.dtype), rtol=1e-3), (own, other)


def test_where_the_library_differs_from_the_papers() -> None:
    x = nn.functional.normalize(rows(len(LABELS), 1))
    z = nn.functional.normalize(rows(len(REFERENCE_LABELS), 2))
    same = x[:1].expand(3, -1)
    images_twice = torch.eye(2).repeat(2, 1), torch.tensor([0, 1, 0, 1])
    one_each = (x[:1], LABELS[:1], None, x[[1, 2]], LABELS[[1, 2]])
    different("contrastive", library.ContrastiveLoss(), x, LABELS)
    different("histogram", library.HistogramLoss(n_bins=200), x, LABELS)
    different("n_pair", library.NPairsLoss(), x, LABELS)
    different("angular", library.AngularLoss(45), 2.0 * x, LABELS)
    different(
        "lifted_structure", library.LiftedStructureLoss(), x, LABELS, None, z, REFERENCE_LABELS
    )
    different("multi_similarity", library.MultiSimilarityLoss(), *one_each)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ranked = library.RankedListLoss(margin=0.4, Tn=10)
    different("ranked_list", ranked, same, torch.tensor([0, 1, 2]))
    proxies = library.ProxyNCALoss(5, WIDTH)
    with torch.no_grad():
        ours = BASELINES["proxy_nca"](num_classes=5, embedding_size=WIDTH).double()
        proxies.proxies.copy_(ours.proxies)
    assert not torch.isclose(ours(x, LABELS), proxies(x, LABELS), rtol=1e-3)
    with pytest.raises((RuntimeError, IndexError)):
        different("histogram", library.HistogramLoss(), *images_twice)


def test_where_the_library_agrees_and_is_not_used_for_size_or_rounding() -> None:
    x = nn.functional.normalize(rows(len(LABELS), 1))
    for name, theirs in [
        ("lifted_structure", library.LiftedStructureLoss()),
        ("angular", library.AngularLoss(45)),
        ("tuplet_margin", library.TupletMarginLoss()),
        ("nt_xent", library.NTXentLoss(0.1)),
    ]:
        torch.testing.assert_close(BASELINES[name]()(x, LABELS), theirs(x, LABELS))
