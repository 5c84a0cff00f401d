"""Baselines that are a change of another loss: worked examples, oracles and limits."""

import math

import pytest
import torch
from torch import Tensor, nn

from cbml.losses import BASELINES
from cbml.losses.baselines.baseline import Batch
from cbml.losses.baselines.loop import arc_similarity
from cbml.losses.baselines.margin import information
from cbml.losses.baselines.multi_similarity import directions, expanded_similarity, partners
from cbml.losses.baselines.proxies import chosen_steps
from cbml.losses.baselines.tuplets import disagreement, find_medoids
from tests.oracles import baseline_proxies, baselines
from tests.oracles import baseline_systems as literal

# Singletons, pairs, and classes of odd and even size, not in order.
LABELS = torch.tensor([0, 1, 0, 3, 1, 1, 2, 3, 3, 3, 3, 4, 5, 5])
FOUR = torch.tensor([0, 0, 1, 1])


def on_circle(*degrees: float) -> Tensor:
    angles = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    return torch.stack((angles.cos(), angles.sin()), dim=1)


def rows(seed: int, shift: float = 0.7) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(len(LABELS), 6, generator=generator, dtype=torch.float64) + shift


QUARTET = on_circle(0, 40, 65, 115)


def six_digits(value: Tensor, expected: float) -> None:
    assert value.item() == pytest.approx(expected, abs=6e-7)


def plain(name: str, x: Tensor, labels: Tensor, **options: float) -> Tensor:
    value: Tensor = BASELINES[name](**options)(x, labels)
    return value


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "name", ["multi_similarity_dr", "multi_similarity_ee", "selectively_contrastive_triplet"]
)
def test_values_equal_their_formula(name: str, seed: int) -> None:
    x = rows(seed)
    expected = getattr(literal, name)(x.tolist(), LABELS.tolist())
    assert plain(name, x, LABELS).item() == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("name", ["multi_similarity_dr", "multi_similarity_ee"])
def test_gradients_are_right(name: str) -> None:
    x = rows(3).requires_grad_()
    loss = BASELINES[name](mining_margin=3.0)  # all pairs: no jump of the choice
    assert torch.autograd.gradcheck(lambda leaf: loss(leaf, LABELS), x)


# Direction regularization


def test_direction_worked_example() -> None:
    x = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, -0.6], [0.8, 0.7]], dtype=torch.float64)
    units = nn.functional.normalize(x)
    kappa = directions(units @ units.T, torch.tensor([1, 0, 0, 0]))
    six_digits(kappa[0, 2], -0.707107)
    six_digits(kappa[0, 3], 0.994573)
    assert kappa[0, 0] == 0.0
    loss = BASELINES["multi_similarity_dr"](mining_margin=3.0)
    similarity = (units @ units.T)[:1]
    positive, negative = (torch.tensor([flags]) for flags in ([0, 1, 0, 0], [0, 0, 1, 1]))
    six_digits(loss._pull(similarity, positive.bool()), 0.299069)
    six_digits(loss._push(similarity, negative.bool()), 0.301785)
    six_digits(loss._push(similarity - 0.3 * kappa[:1], negative.bool()), 0.512132)


def test_no_direction_weight_is_the_plain_loss_and_rotation_changes_nothing() -> None:
    x = rows(1)
    torch.testing.assert_close(
        plain("multi_similarity_dr", x, LABELS, direction_weight=0.0),
        plain("multi_similarity", x, LABELS),
    )
    turned = x @ torch.linalg.qr(rows(2)[:6, :6]).Q
    value = plain("multi_similarity_dr", x, LABELS)
    torch.testing.assert_close(value, plain("multi_similarity_dr", turned, LABELS))
    assert not torch.isclose(value, plain("multi_similarity", x, LABELS), rtol=1e-2)


# Embedding expansion


def test_expansion_worked_example() -> None:
    assert partners(FOUR).tolist() == [1, 0, 3, 2]
    angles = [
        math.degrees(math.atan2(p[1], p[0]))
        for p in literal.lines(QUARTET.tolist(), FOUR.tolist(), 2)[0]
    ]
    assert angles == pytest.approx([0.0, 13.082489, 26.917511], abs=6e-7)
    expanded = expanded_similarity(QUARTET, partners(FOUR), 2)
    for (i, j), expected in {
        (0, 2): 0.787124,
        (0, 3): 0.584287,
        (1, 2): 0.906308,
        (1, 3): 0.752819,
    }.items():
        six_digits(expanded[i, j], expected)
    six_digits(plain("multi_similarity_ee", QUARTET, FOUR), 0.593806)
    six_digits(plain("multi_similarity_ee", QUARTET, FOUR, mining_margin=3.0), 0.593806)
    six_digits(plain("multi_similarity_ee", QUARTET, FOUR, mining_margin=3.0, points=0), 0.458908)
    six_digits(plain("multi_similarity", QUARTET, FOUR), 0.330979)


def test_no_points_are_the_plain_loss_and_more_points_never_less_similar() -> None:
    x = rows(1)
    torch.testing.assert_close(
        plain("multi_similarity_ee", x, LABELS, points=0), plain("multi_similarity", x, LABELS)
    )
    units, other = nn.functional.normalize(x), partners(LABELS)
    assert other.tolist() == literal.pairs_in_order(LABELS.tolist())
    before = units @ units.T
    torch.testing.assert_close(expanded_similarity(units, other, 0), before)
    for points in (1, 3, 7):  # each holds the points of the one before
        expanded = expanded_similarity(units, other, points)
        torch.testing.assert_close(expanded, expanded.T)
        assert (expanded >= before - 1e-12).all()
        before = expanded


def test_opposite_partners_have_no_midpoint() -> None:
    x = on_circle(0, 180, 90, 270).requires_grad_()
    plain("multi_similarity_ee", x, FOUR, points=1).backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


# Selectively contrastive triplets


def test_selective_worked_examples() -> None:
    name = "selectively_contrastive_triplet"
    six_digits(plain(name, QUARTET, FOUR), 0.466407)
    near = on_circle(0, 20, 50, 60)
    six_digits(plain(name, near, FOUR), 0.472113)
    six_digits(plain(name, near, FOUR, hard_above=1.0), 0.203420)


def test_without_hard_triplets_it_is_the_easy_positive_loss() -> None:
    x = torch.eye(6, dtype=torch.float64)[LABELS] + 0.1 * rows(0, 0.0)
    value = plain("selectively_contrastive_triplet", x, LABELS, hard_weight=0.0)
    expected = BASELINES["triplet_easy_positive"](negatives="hard")(x, LABELS)
    torch.testing.assert_close(value, expected)


def test_a_hard_triplet_leaves_its_positive_alone() -> None:
    x = on_circle(0, 60, 10).requires_grad_()  # the third, of another class, is nearer
    plain("selectively_contrastive_triplet", x, torch.tensor([0, 0, 1])).backward()
    assert x.grad is not None
    expected = QUARTET.new_zeros(3, 2)
    leaf = on_circle(0, 60, 10).requires_grad_()
    units = nn.functional.normalize(leaf)
    ((units[0] @ units[2] + units[1] @ units[2]) / 2.0).backward()  # both anchors push alone
    assert leaf.grad is not None
    torch.testing.assert_close(x.grad, leaf.grad)
    assert not torch.equal(x.grad, expected)


def test_duplicates_are_no_positives_and_references_count() -> None:
    name = "selectively_contrastive_triplet"
    twice = torch.cat([rows(0), rows(0)[:3]])
    labels = torch.cat([LABELS, LABELS[:3]])
    expected = literal.selectively_contrastive_triplet(twice.tolist(), labels.tolist())
    assert plain(name, twice, labels).item() == pytest.approx(expected, rel=1e-7)
    x, z = rows(0), rows(1)
    expected = literal.selectively_contrastive_triplet(
        x.tolist(), LABELS.tolist(), z.tolist(), LABELS.flip(0).tolist()
    )
    value = BASELINES[name]()(x, LABELS, None, z, LABELS.flip(0))
    assert value.item() == pytest.approx(expected, rel=1e-7)


# Ranked list, simpler


def test_simpler_ranked_list_worked_example_and_oracle() -> None:
    six_digits(plain("ranked_list_simpler", QUARTET, FOUR), 0.218634)
    others = on_circle(0, 10, 90, 150), on_circle(0, 70, 30, 100)
    six_digits(plain("ranked_list_simpler", others[0], FOUR), 0.050000)
    six_digits(plain("ranked_list_simpler", others[1], FOUR), 0.508134)
    x = rows(0)
    torch.testing.assert_close(
        plain("ranked_list_simpler", x, LABELS), plain("ranked_list", x, LABELS)
    )
    value = plain("ranked_list_simpler", x, LABELS, margin=0.6, negative_temperature=5.0)
    expected = baselines.ranked_list(x.tolist(), LABELS.tolist(), boundary=1.3, margin=0.6, hot=5.0)
    assert value.item() == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("name", ["ranked_list", "ranked_list_simpler"])
def test_the_gradient_of_the_query_alone(name: str) -> None:
    expected = {
        False: [(-0.067162, 0.105424), (-0.099169, 0.076095), (0.224117, -0.076143), (-0.125, 0.0)],
        True: [(-0.067272, 0.105596), (-0.198177, 0.152066), (0.515449, -0.257662), (-0.25, 0.0)],
    }
    for both_ends, rows_of in expected.items():
        x = QUARTET.clone().requires_grad_()
        plain(name, x, FOUR, gallery_gradient=both_ends).backward()
        assert x.grad is not None
        free = torch.tensor(rows_of, dtype=torch.float64)  # these may change the length
        tangent = free - (free * QUARTET).sum(1, keepdim=True) * QUARTET
        torch.testing.assert_close(x.grad, tangent, atol=2e-6, rtol=0.0)


def test_a_hot_ranked_list_sees_the_hardest_negative_alone() -> None:
    x = rows(0)
    units = nn.functional.normalize(x)
    distance = (2.0 - 2.0 * units @ units.T).clamp(min=0.0).sqrt()
    labels = torch.arange(len(x))  # negatives alone
    hardest = distance.masked_fill(torch.eye(len(x), dtype=torch.bool), torch.inf).amin(1)
    expected = 0.5 * (1.2 - hardest).relu().mean()
    value = plain("ranked_list_simpler", x, labels, negative_temperature=1e6)
    torch.testing.assert_close(value, expected)


# Facility location

SIX, SIX_LABELS = on_circle(0, 30, 70, 80, 150, 160), torch.tensor([0, 0, 0, 1, 1, 1])


def test_clustering_worked_example() -> None:
    similarity = SIX @ SIX.T
    distance = (2.0 - 2.0 * similarity).clamp(min=0.0).sqrt().numpy()
    for rounds in (0, 5):
        assert find_medoids(distance, SIX_LABELS.numpy(), 1.0, rounds).tolist() == [2, 4]
    clusters = torch.tensor([[0, 0, 0, 0, 1, 1]]).numpy()
    assert disagreement(SIX_LABELS.numpy(), clusters)[0] == pytest.approx(0.520861, abs=6e-7)
    for margin, expected in {1.0: 0.864188, 0.5: 0.603757, 0.0: 0.343327}.items():
        six_digits(plain("facility_location", SIX, SIX_LABELS, margin=margin), expected)


@pytest.mark.parametrize("margin", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("seed", range(4))
def test_clustering_equals_its_formula(seed: int, margin: float) -> None:
    x = rows(seed)
    expected = literal.facility_location(x.tolist(), LABELS.tolist(), gamma=margin)
    value = plain("facility_location", x, LABELS, margin=margin)
    assert value.item() == pytest.approx(expected, rel=1e-6, abs=1e-7)
    # No search can be better than all lists of medoids.
    few, labels = x[:8], LABELS[:8]
    bound = literal.best_score(few.tolist(), labels.tolist(), margin)
    bound -= literal.true_score(few.tolist(), labels.tolist())
    assert plain("facility_location", few, labels, margin=margin).item() <= bound + 1e-7


def test_clustering_gradient_goes_to_the_chosen_distances() -> None:
    x = SIX.clone().requires_grad_()
    plain("facility_location", x, SIX_LABELS).backward()
    leaf = SIX.clone().requires_grad_()
    units = nn.functional.normalize(leaf)
    chosen = ((0, 2), (1, 2), (3, 2), (5, 4))  # the medoids 2 and 4 are at no distance
    true = ((0, 1), (2, 1), (3, 4), (5, 4))
    cost = sum(((units[i] - units[j]).norm() for i, j in true), torch.zeros(()))
    (cost - sum((units[i] - units[j]).norm() for i, j in chosen)).backward()
    torch.testing.assert_close(x.grad, leaf.grad)


def test_clustering_is_satisfied_by_classes_apart() -> None:
    x = torch.eye(6, dtype=torch.float64)[LABELS] + 0.01 * rows(0, 0.0)
    assert plain("facility_location", x, LABELS, margin=0.1).item() == pytest.approx(0.0)
    one_class = torch.zeros(len(x), dtype=torch.int64)
    assert plain("facility_location", rows(1), one_class, rounds=0).item() == pytest.approx(0.0)


# RankMI


def test_information_worked_example() -> None:
    near = torch.tensor([0.4, 0.7], dtype=torch.float64, requires_grad=True)
    far = torch.tensor([0.9, 1.2, 1.3, 1.5], dtype=torch.float64, requires_grad=True)
    bound = information(2.0 - 2.0 * near, 2.0 - 2.0 * far)
    six_digits(bound, 1.253674)
    (-bound).backward()
    assert near.grad is not None
    assert far.grad is not None
    assert near.grad.tolist() == pytest.approx([1.0, 1.0])
    expected = [-0.869817, -0.477366, -0.390834, -0.261984]
    assert far.grad.tolist() == pytest.approx(expected, abs=1.1e-6)
    six_digits(-information(2.0 - 2.0 * near[:1], 2.0 - 2.0 * far[:1]), -1.0)
    six_digits(information(0.0 * near + 3.0, 0.0 * far + 3.0), 0.0)
    six_digits(information(5.0 - 2.0 * near, 5.0 - 2.0 * far), 1.253674)
    assert information(2.0 - 2.0 * far, 2.0 - 2.0 * far) <= 0.0


def drawn_pairs(x: Tensor) -> tuple[Tensor, Tensor]:
    """What the first call of the loss draws."""
    units = nn.functional.normalize(x.detach())
    batch = Batch(anchors=units, labels=LABELS, columns=units, column_labels=LABELS)
    anchors, _, negatives = BASELINES["rank_mi"]()._draw(batch)
    return anchors, negatives


@pytest.mark.parametrize("seed", range(3))
def test_rank_mi_equals_its_formula(seed: int) -> None:
    x, loss = rows(seed), BASELINES["rank_mi"]().double()
    anchors, negatives = drawn_pairs(x)
    expected = literal.rank_mi(
        x.tolist(),
        LABELS.tolist(),
        list(zip(anchors.tolist(), negatives.tolist(), strict=True)),
        lambda d: loss.network(torch.tensor(d, dtype=torch.float64)).item(),
    )
    assert loss(x, LABELS).item() == pytest.approx(expected, rel=1e-7)


def test_each_player_of_rank_mi_climbs_its_own_objective() -> None:
    x, loss = rows(0).requires_grad_(), BASELINES["rank_mi"]().double()
    loss(x, LABELS).backward()
    units = nn.functional.normalize(x)
    distance = (2.0 - 2.0 * units @ units.T).clamp(min=1e-15).sqrt()
    same = LABELS[:, None] == LABELS[None, :]
    others = same & ~torch.eye(len(x), dtype=torch.bool)
    near = loss.network(distance[others])
    own = -information(near, loss.network(distance[drawn_pairs(x)]))
    torch.testing.assert_close(x.grad, torch.autograd.grad(own, x, retain_graph=True)[0])
    theirs = -information(near, loss.network(distance[~same]))
    parameters = list(loss.network.parameters())
    for parameter, gradient in zip(
        parameters, torch.autograd.grad(theirs, parameters), strict=True
    ):
        torch.testing.assert_close(parameter.grad, gradient)


def test_scores_of_rank_mi_fall_with_distance_and_stay_within_their_limit() -> None:
    network = BASELINES["rank_mi"](limit=1.5).network
    scores = network(torch.linspace(0.0, 2.0, 50))
    assert (scores.diff() < 0.0).all()
    with torch.no_grad():
        network.last.copy_(100.0 * network.last)
        assert (network(torch.linspace(0.0, 2.0, 50)).abs() <= 1.5).all()


# Optimal hard negatives

ARCS = {  # two pairs, the similarity of their arcs, and of their ends
    ((3, 1, 0), (1, 3, 0), (2, 2, 1), (0, 0, 1)): (0.942809, (0.843274, 0.0, 0.843274, 0.0)),
    ((3, 1, 0), (1, 3, 0), (3, 0, 1), (0, 3, 1)): (0.924416, (0.9, 0.3, 0.3, 0.9)),
    ((2, 1, 0, 0), (1, 2, 0, 0), (2, 1, 1, 1), (1, 2, 1, -1)): (
        0.904534,
        (0.845154, 0.676123, 0.676123, 0.845154),
    ),
}


def units_of(*vectors: tuple[float, ...]) -> Tensor:
    return nn.functional.normalize(torch.tensor(vectors, dtype=torch.float64))


@pytest.mark.parametrize("vectors", list(ARCS))
def test_arcs_worked_examples(vectors: tuple[tuple[float, ...], ...]) -> None:
    x = units_of(*vectors)
    expected, corners = ARCS[vectors]
    assert (x[:2] @ x[2:].T).flatten().tolist() == pytest.approx(corners, abs=6e-7)
    six_digits(arc_similarity(x[::2], x[1::2])[0, 1], expected)
    for order in ([1, 0, 2, 3], [0, 1, 3, 2], [2, 3, 0, 1]):
        y = x[order]
        six_digits(arc_similarity(y[::2], y[1::2])[0, 1], expected)


def test_optimal_negatives_worked_example() -> None:
    x = units_of(*list(ARCS)[2])
    six_digits(plain("multi_similarity_loop", x, FOUR), 0.690084 + 0.772705)
    six_digits(arc_similarity(QUARTET[::2], QUARTET[1::2])[0, 1], 0.906308)


@pytest.mark.parametrize("dim", [2, 3, 4, 8])
def test_arcs_equal_a_fine_grid(dim: int) -> None:
    generator = torch.Generator().manual_seed(dim)
    for spread in (0.4, 1.5):
        x = 1.0 + spread * torch.randn(8, dim, generator=generator, dtype=torch.float64)
        x = nn.functional.normalize(x)
        found = arc_similarity(x[::2], x[1::2])
        torch.testing.assert_close(found, found.T)
        for i in range(4):
            for j in range(i):
                ends = x[[2 * i, 2 * i + 1, 2 * j, 2 * j + 1]].tolist()
                by_grid = literal.arc_similarity(*ends)
                assert found[i, j].item() == pytest.approx(by_grid, abs=1e-6)
                corners = x[2 * i : 2 * i + 2] @ x[2 * j : 2 * j + 2].T
                assert found[i, j] >= corners.max() - 1e-12


def test_an_arc_without_length_is_its_image() -> None:
    x = nn.functional.normalize(rows(0))
    torch.testing.assert_close(arc_similarity(x, x), x @ x.T)
    near = nn.functional.normalize(x + 1e-9 * rows(1))
    torch.testing.assert_close(arc_similarity(x, near), x @ x.T)


@pytest.mark.parametrize("seed", range(3))
def test_optimal_negatives_equal_their_formula(seed: int) -> None:
    x = rows(seed)
    expected = literal.multi_similarity_loop(x.tolist(), LABELS.tolist())
    assert plain("multi_similarity_loop", x, LABELS).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_gradient_of_optimal_negatives(seed: int) -> None:
    x = rows(seed).requires_grad_()
    loss = BASELINES["multi_similarity_loop"](mining_margin=3.0)
    assert torch.autograd.gradcheck(lambda leaf: loss(leaf, LABELS), x)


# Memory-based virtual classes


def memvir(**options: int) -> nn.Module:
    loss = BASELINES["proxy_anchor_memvir"](num_classes=6, embedding_size=6, **options)
    return loss.double()


@pytest.mark.parametrize(
    ("steps", "gap", "chosen"),
    [
        (2, 1, [[], [], [1], [1], [1, 3]]),
        (3, 0, [[], [0], [0, 1], [0, 1, 2]]),
        (2, 2, [[], [], [], [2], [2], [2], [2, 5]]),
    ],
)
def test_chosen_steps_of_the_memory(steps: int, gap: int, chosen: list[list[int]]) -> None:
    assert len(chosen) == steps * (gap + 1) + 1
    assert [list(chosen_steps(length, gap)) for length in range(len(chosen))] == chosen


def test_virtual_classes_worked_example() -> None:
    x, proxies = units_of((1, 0), (0.8, 0.6)), units_of((1, 0.2), (0, 1))
    loss = BASELINES["proxy_anchor_memvir"](
        num_classes=2, embedding_size=2, virtual_steps=1, gap=0, warmup_steps=0, batch_rows=3
    ).double()
    labels = torch.tensor([0, 1])
    with torch.no_grad():
        loss.proxies.copy_(units_of((1, 0), (0.1, 1)))
    loss(units_of((0.9, 0.1), (0.2, 1)), labels)
    with torch.no_grad():
        loss.proxies.copy_(proxies)
    six_digits(loss.eval()(x, labels), 17.654124)
    assert loss.stored == 1
    six_digits(loss.train()(x, labels), 32.440000)


def test_virtual_classes_equal_the_formula_over_all_classes() -> None:
    loss, past = memvir(virtual_steps=2, gap=1, warmup_steps=1, batch_rows=20), []
    for step in range(8):
        size = len(LABELS) - step % 3  # batches need not be of one size
        x, labels = rows(step)[:size].requires_grad_(), LABELS[:size]
        rows_of, of, proxies = x.tolist(), labels.tolist(), loss.proxies.tolist()
        for age, (old, old_labels, old_proxies) in enumerate(past[::-1][1::2][:2], start=1):
            rows_of, proxies = rows_of + old, proxies + old_proxies
            of = of + [label + 6 * age for label in old_labels]
        value = loss(x, labels)
        expected = baseline_proxies.proxy_anchor(rows_of, of, proxies)
        assert value.item() == pytest.approx(expected, rel=1e-7)
        if step > 0:  # the first is the warm-up
            past.append((x.tolist(), labels.tolist(), loss.proxies.tolist()))
        loss.zero_grad()
        value.backward()
        assert not loss.memory.requires_grad
        with torch.no_grad():
            loss.proxies.sub_(0.1 * loss.proxies.grad)
    assert loss.stored == 7


def test_without_memory_it_is_proxy_anchor() -> None:
    base = BASELINES["proxy_anchor"](num_classes=6, embedding_size=6).double()
    for loss in (memvir(virtual_steps=0, warmup_steps=0), memvir(virtual_steps=1, gap=0)):
        torch.testing.assert_close(loss.proxies, base._loss.proxies)
        for seed in range(3):
            value, expected = loss(rows(seed), LABELS), base(rows(seed), LABELS)
            torch.testing.assert_close(value, expected)
            ours, theirs = (
                torch.autograd.grad(v, p)[0]
                for v, p in ((value, loss.proxies), (expected, base._loss.proxies))
            )
            torch.testing.assert_close(ours, theirs)


def test_a_batch_too_large_for_the_memory_is_named() -> None:
    with pytest.raises(ValueError, match="batch_rows is 5, too small for a batch of 14"):
        memvir(virtual_steps=1, gap=0, warmup_steps=9, batch_rows=5)(rows(0), LABELS)


def separation_gained(gap: int, virtual_steps: int) -> float:
    """How much farther apart classes are after sixty steps on one batch, from a common start."""
    generator = torch.Generator().manual_seed(0)
    images = torch.eye(6)[LABELS] + 0.1 * torch.randn(len(LABELS), 6, generator=generator)
    network = nn.Linear(6, 32, bias=False)
    with torch.no_grad():
        shared = torch.randn(32, 1, generator=generator)
        network.weight.copy_(shared + 0.5 * torch.randn(32, 6, generator=generator))
    loss = BASELINES["proxy_anchor_memvir"](
        num_classes=6, embedding_size=32, virtual_steps=virtual_steps, gap=gap, warmup_steps=5
    )
    optimizer = torch.optim.Adam([*network.parameters(), *loss.parameters()], lr=0.02)
    same, found = LABELS[:, None] == LABELS[None, :], []
    for _ in range(60):
        units = nn.functional.normalize(network(images))
        similarity = (units @ units.T).detach()
        found.append((similarity[same].mean() - similarity[~same].mean()).item())
        optimizer.zero_grad()
        loss(units, LABELS).backward()
        optimizer.step()
    return found[-1] - found[0]


def test_young_virtual_classes_keep_the_present_ones_from_forming() -> None:
    plain_gain, aged, young = (separation_gained(*case) for case in ((0, 0), (14, 2), (0, 2)))
    assert plain_gain > aged > 0.05
    assert abs(young) < 0.05
