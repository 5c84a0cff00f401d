"""What every loss of the table must do; a member without a case here fails."""

import inspect
import io
import math
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from cbml import LOSSES
from cbml.losses import BASELINES, PRODUCTS
from cbml.losses.interop import LibraryLoss

CLASSES, EACH, WIDTH = 4, 4, 8


class Case(NamedTuple):
    """How to build a member, and which of its parameters has the classes in which dimension."""

    options: dict[str, Any] = {}  # noqa: RUF012  # a tuple's default, never changed
    parameter: str | None = None
    network: str | None = None  # the name before its parameters, which know no classes
    class_dimension: int = 0
    uses_all_pairs: bool = False
    floor: float = 0.0  # what the loss tends to when every pair is right
    separates: bool = True  # whether it alone tells classes apart
    gain: float = 0.05  # by how much, at least, in forty steps


PROXIES = {"num_classes": CLASSES, "embedding_size": WIDTH}
CASES = {
    "angular": Case(uses_all_pairs=True),
    "arcface": Case(PROXIES, "_loss.W", class_dimension=1),
    "binomial_deviance": Case(uses_all_pairs=True),
    # The constants for CUB push negatives above 0.85 only, where so few images stay crowded.
    "cbml": Case({"ratio": PRODUCTS}),
    "cbml_authors": Case({"dataset": "sop"}),
    "cbml_const": Case({"dataset": "sop"}, floor=2.0),
    "cbml_sqrt": Case({"dataset": "sop"}, floor=2.0),
    "circle": Case(uses_all_pairs=True),
    "contrastive": Case(uses_all_pairs=True),
    "facility_location": Case(),
    "fast_ap": Case(),
    "histogram": Case(uses_all_pairs=True),
    "lifted_structure": Case(uses_all_pairs=True),
    "margin": Case({"num_classes": CLASSES}, "_loss.beta"),
    "metric_variance": Case(separates=False),
    "multi_similarity": Case(),
    "multi_similarity_dr": Case(),
    "multi_similarity_ee": Case(),
    "multi_similarity_loop": Case(),
    "multi_similarity_xbm": Case({"embedding_size": WIDTH, "memory_size": 40, "warmup_steps": 1}),
    "n_pair": Case(uses_all_pairs=True),
    # Its class vectors do half the work.
    "normalized_softmax": Case(PROXIES, "_loss.W", class_dimension=1, gain=0.02),
    "nt_xent": Case(uses_all_pairs=True),
    "proxy_anchor": Case(PROXIES, "_loss.proxies"),
    # A class one step old is all but the class itself, and pushing it away keeps classes from
    # forming; with a longer gap they form (test_systems.py), but these tests take few steps.
    "proxy_anchor_memvir": Case(
        {**PROXIES, "virtual_steps": 1, "gap": 0, "warmup_steps": 1, "batch_rows": 20},
        "proxies",
        separates=False,
    ),
    "proxy_nca": Case(PROXIES, "proxies"),
    "proxy_nca_pp": Case(PROXIES, "proxies"),
    "rank_mi": Case(network="network."),
    "ranked_list": Case(uses_all_pairs=True),
    "ranked_list_simpler": Case(uses_all_pairs=True),
    "selectively_contrastive_triplet": Case(),
    "soft_triple": Case({**PROXIES, "centers_per_class": 3}, "_loss.fc", class_dimension=1),
    "triplet_easy_positive": Case(),
    "triplet_semihard": Case(),
    "tuplet_margin": Case(uses_all_pairs=True),
}
every_loss = pytest.mark.parametrize("name", sorted(LOSSES))
every_baseline = pytest.mark.parametrize("name", sorted(BASELINES))


def test_every_loss_has_a_case() -> None:
    assert set(CASES) == set(LOSSES)


def build(name: str) -> nn.Module:
    return LOSSES[name](**CASES[name].options)


def parameter_of(name: str, loss: nn.Module) -> Tensor:
    return dict(loss.named_parameters())[str(CASES[name].parameter)]


def batch(seed: int = 0, noise: float = 1.0) -> tuple[Tensor, Tensor]:
    """Classes around their own axes; with noise 1 they overlap, so that no loss is satisfied."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(CLASSES).repeat(EACH)
    embeddings = torch.randn(len(labels), WIDTH, generator=generator) * noise
    return embeddings + 2.0 * torch.eye(WIDTH)[labels], labels


@every_loss
def test_is_finite_and_more_than_zero(name: str) -> None:
    value = build(name)(*batch())
    assert value.shape == ()
    assert value.dtype == torch.float32
    assert value.isfinite()
    if name not in {"proxy_nca", "rank_mi"}:  # those that have no lower bound
        assert value > 0.0


def separation(embeddings: Tensor, labels: Tensor) -> float:
    """How much more similar positives are than negatives."""
    units = nn.functional.normalize(embeddings.detach(), dim=1)
    same = labels[:, None] == labels[None, :]
    similarity = units @ units.T
    return float(similarity[same].mean() - similarity[~same].mean())


@every_loss
def test_decreases_on_separable_data(name: str) -> None:
    images, labels = batch(noise=0.3)
    generator = torch.Generator().manual_seed(0)
    network = nn.Linear(WIDTH, WIDTH, bias=False)
    with torch.no_grad():  # it starts with one direction that all images share
        shared = torch.randn(WIDTH, 1, generator=generator).expand(-1, WIDTH)
        network.weight.copy_(shared + 0.5 * torch.randn(WIDTH, WIDTH, generator=generator))
    loss = build(name)
    optimizer = torch.optim.Adam([*network.parameters(), *loss.parameters()], lr=0.02)
    values, before = [], separation(network(images), labels)
    for _ in range(40):
        value = loss(network(images), labels)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        values.append(value.item())
    case = CASES[name]
    first = sum(values[1:5]) - 4 * case.floor  # step 0 of the memory is its warm-up
    assert sum(values[-4:]) - 4 * case.floor < 0.8 * first
    if case.separates:
        assert separation(network(images), labels) > before + case.gain


def check_network(loss: nn.Module, prefix: str) -> None:
    """Every parameter of a loss's own network moves."""
    own = dict(loss.named_parameters())
    assert own
    assert all(key.startswith(prefix) for key in own)
    before = {key: value.detach().clone() for key, value in own.items()}
    loss(*batch()).backward()
    torch.optim.SGD(loss.parameters(), lr=0.1).step()
    for key, value in own.items():
        assert value.isfinite().all()
        assert not torch.equal(value, before[key]), key
    assert loss.learning_rate_factor >= 1.0


@every_loss
def test_own_parameters_are_learned(name: str) -> None:
    loss = build(name)
    if CASES[name].network is not None:
        check_network(loss, str(CASES[name].network))
        return
    if CASES[name].parameter is None:
        assert not list(loss.parameters())
        return
    assert [key for key, _ in loss.named_parameters()] == [CASES[name].parameter]
    own = parameter_of(name, loss)
    assert own.requires_grad
    before = own.detach().clone()
    assert before.shape[CASES[name].class_dimension] % CLASSES == 0
    optimizer = torch.optim.SGD(loss.parameters(), lr=0.1)
    loss(*batch()).backward()
    assert own.grad is not None
    assert own.grad.isfinite().all()
    optimizer.step()
    changed = (own.detach() != before).unflatten(CASES[name].class_dimension, (CLASSES, -1))
    others = [d for d in range(changed.dim()) if d != CASES[name].class_dimension]
    moved = changed.any(dim=others)
    # A class whose positives and negatives pull its β alike may leave it where it is.
    assert moved.any() if name == "margin" else moved.all()
    assert loss.learning_rate_factor >= 1.0


def forced_batch() -> tuple[Tensor, Tensor]:
    """One negative for each anchor that has positives: what is drawn at random is drawn anyway."""
    embeddings, _ = batch(noise=0.5)
    return embeddings[:5], torch.tensor([0, 0, 0, 0, 1])


def orderly_batch(name: str) -> tuple[Tensor, Tensor]:
    """A batch whose order decides nothing, also for losses that draw or pair its images."""
    if name in {"margin", "rank_mi"}:  # draw negatives
        return forced_batch()
    embeddings, labels = batch()
    # These pair the images of a class by their order: of two images there is one pair.
    if name in {"multi_similarity_ee", "multi_similarity_loop"}:
        return embeddings[: 2 * CLASSES], labels[: 2 * CLASSES]
    return embeddings, labels


@every_loss
def test_order_does_not_matter(name: str) -> None:
    embeddings, labels = orderly_batch(name)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(5))
    losses = build(name), build(name)
    for _ in range(3):  # the memory has something in it the second time
        values = losses[0](embeddings, labels), losses[1](embeddings[order], labels[order])
        torch.testing.assert_close(*values)


@every_loss
def test_names_of_labels_do_not_matter(name: str) -> None:
    embeddings, labels = orderly_batch(name)
    renamed = torch.tensor([2, 0, 3, 1])
    losses = build(name), build(name), build(name)
    if CASES[name].parameter is not None:
        old, new = (parameter_of(name, loss) for loss in losses[:2])
        dimension = CASES[name].class_dimension
        with torch.no_grad():  # what belongs to class c goes where class c goes
            by_class = torch.randn_like(old).unflatten(dimension, (CLASSES, -1))
            old.copy_(by_class.flatten(dimension, dimension + 1))
            back = by_class.index_select(dimension, renamed.argsort())
            new.copy_(back.flatten(dimension, dimension + 1))
    for _ in range(3):
        values = losses[0](embeddings, labels), losses[1](embeddings, renamed[labels])
        torch.testing.assert_close(*values)
        if CASES[name].parameter is None:
            far_names = torch.tensor([10**12, -7, 0, 3])[labels]
            torch.testing.assert_close(values[0], losses[2](embeddings, far_names))


@every_loss
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_computes_in_float32(name: str, dtype: torch.dtype) -> None:
    embeddings, labels = batch()
    half = embeddings.to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        value = build(name)(half, labels)
    value.backward()
    assert half.grad is not None
    assert half.grad.isfinite().all()
    assert torch.equal(value, build(name)(half.detach().float(), labels))


def corner_batches() -> dict[str, tuple[Tensor, Tensor]]:
    embeddings, labels = batch()
    same = embeddings[:1].expand(4, -1)
    return {
        "no positives": (embeddings[:4], torch.arange(4)),
        "one class": (embeddings[:5], torch.zeros(5, dtype=torch.int64)),
        "no image": (embeddings[:0], labels[:0]),
        "one image": (embeddings[:1], labels[:1]),
        "one image twice": (same[:2], torch.zeros(2, dtype=torch.int64)),
        "the same in two classes": (same, torch.tensor([0, 0, 1, 1])),
        "opposite": (torch.cat([same[:2], -same[:2]]), torch.tensor([0, 1, 0, 1])),
        "apart": (torch.eye(WIDTH)[labels], labels),
        "one pair of each kind": (embeddings[:3], torch.tensor([0, 0, 1])),
    }


@every_loss
@pytest.mark.filterwarnings("ignore:no two images of this batch share a label")
@pytest.mark.parametrize("corner", sorted(corner_batches()))
def test_corners_are_finite_and_have_a_graph(name: str, corner: str) -> None:
    loss = build(name)
    for _ in range(3):
        embeddings, labels = corner_batches()[corner]
        leaf = embeddings.clone().requires_grad_()
        value = loss(leaf, labels)
        value.backward()
        assert value.isfinite()
        assert leaf.grad is not None
        assert leaf.grad.isfinite().all()


@every_loss
def test_the_batch_as_its_own_reference_is_no_reference(name: str) -> None:
    """As pytorch-metric-learning hands it over; no image becomes its own positive."""
    embeddings, labels = batch()
    plain, again = build(name), build(name)
    for _ in range(3):
        value = plain(embeddings, labels)
        assert torch.equal(again(embeddings, labels, None, embeddings, labels), value)
        assert torch.equal(LibraryLoss(build(name))(embeddings, labels), build(name)(*batch()))
    with pytest.raises(ValueError, match="ref_labels differ from labels"):
        plain(embeddings, labels, None, embeddings, labels + 1)


@every_loss
def test_lists_and_arrays_are_taken(name: str) -> None:
    embeddings, labels = batch()
    value = build(name)(embeddings, labels)
    assert torch.equal(build(name)(embeddings.numpy(), labels.numpy()), value)
    assert torch.equal(build(name)(embeddings.tolist(), labels.tolist()), value)


NUMBERS = [
    (name, option)
    for name in sorted(BASELINES)
    for option, parameter in inspect.signature(BASELINES[name]).parameters.items()
    if not isinstance(parameter.default, str | bool)
]


@pytest.mark.parametrize(("name", "option"), NUMBERS)
def test_numbers_that_make_no_sense_are_refused(name: str, option: str) -> None:
    """Each option by its name, in one line."""
    signs = {"base", "mining_margin", "threshold"}  # may be any finite number
    wrong: list[Any] = [math.nan, math.inf, "1", True, *([] if option in signs else [-1])]
    for value in wrong:
        with pytest.raises((TypeError, ValueError), match=f"^{option} must be [^\n]+$"):
            BASELINES[name](**{**CASES[name].options, option: value})


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("angular", {"angle": 90.0}),
        ("facility_location", {"rounds": 0.5}),
        ("fast_ap", {"bins": 0}),
        ("histogram", {"bins": 2.5}),
        ("lifted_structure", {"unit_rows": "no"}),
        ("margin", {"far": 0.4}),
        ("multi_similarity", {"positive_scale": 0.0}),
        ("multi_similarity_xbm", {"memory_size": 0}),
        ("nt_xent", {"temperature": 0.0}),
        ("multi_similarity_ee", {"points": -1}),
        ("proxy_anchor_memvir", {"batch_rows": 0}),
        ("proxy_nca", {"scale": 0.0}),
        ("proxy_nca_pp", {"temperature": 0.0}),
        ("rank_mi", {"limit": 0.0}),
        ("ranked_list", {"negative_share": 2.0}),
        ("ranked_list", {"gallery_gradient": 1}),
        ("selectively_contrastive_triplet", {"hard_above": 1.5}),
        ("triplet_easy_positive", {"negatives": "hardest"}),
    ],
)
def test_bounds_are_where_the_formula_ends(name: str, options: dict[str, Any]) -> None:
    (option,) = options
    with pytest.raises((TypeError, ValueError), match=f"^{option} must be "):
        BASELINES[name](**{**CASES[name].options, **options})


@every_baseline
def test_no_references_are_no_pairs(name: str) -> None:
    embeddings, labels = batch()
    loss = build(name)
    if loss._takes_references:
        value = loss(embeddings.requires_grad_(), labels, None, embeddings[:0], labels[:0])
        value.backward()
        assert value == 0.0
    else:
        with pytest.raises(ValueError, match="ref_emb"):
            loss(embeddings, labels, None, embeddings[:2], labels[:2])


@every_loss
def test_misspelled_and_nameless_options_are_refused(name: str) -> None:
    with pytest.raises(TypeError, match="no_such_option"):
        LOSSES[name](**CASES[name].options, no_such_option=1)
    with pytest.raises(TypeError, match="positional"):
        LOSSES[name](1.0, **CASES[name].options)


@every_loss
def test_a_saved_loss_goes_on_equally(name: str) -> None:
    unbroken = build(name)
    optimizer = torch.optim.SGD([*unbroken.parameters(), nn.Parameter(torch.zeros(1))], lr=0.1)
    for seed in range(4):  # the memory of 40 has wrapped around by then
        embeddings, labels = batch(seed)
        optimizer.zero_grad()
        unbroken(embeddings.requires_grad_(), labels).backward()
        optimizer.step()
    file = io.BytesIO()
    torch.save(unbroken.state_dict(), file)
    file.seek(0)
    resumed = build(name)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    for seed in range(4, 7):
        assert torch.equal(unbroken(*batch(seed)), resumed(*batch(seed)))


@every_loss
def test_global_randomness_is_neither_read_nor_moved(name: str) -> None:
    values = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        values.append(build(name)(*batch()))
        assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(*values)


@every_baseline
def test_listing_all_pairs_is_the_same_as_listing_none(name: str) -> None:
    embeddings, labels = batch()
    same = labels[:, None] == labels[None, :]
    pairs = ((same & ~torch.eye(len(labels), dtype=torch.bool)).nonzero().T, (~same).nonzero().T)
    loss = build(name)
    if not loss._takes_indices:
        with pytest.raises(ValueError, match="indices_tuple"):
            loss(embeddings, labels, (*pairs[0], *pairs[1]))
        return
    value = loss(embeddings, labels, (*pairs[0], *pairs[1]))
    assert value.isfinite()
    if CASES[name].uses_all_pairs:
        torch.testing.assert_close(value, loss(embeddings, labels))


@every_loss
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gives_the_same_on_a_gpu(name: str) -> None:
    embeddings, labels = orderly_batch(name)
    here, there = build(name), build(name).cuda()
    for _ in range(2):
        value = there(embeddings.cuda(), labels.cuda())
        torch.testing.assert_close(here(embeddings, labels), value.cpu(), rtol=1e-4, atol=1e-4)


@every_loss
def test_bad_input_is_named(name: str) -> None:
    embeddings, labels = batch()
    loss = build(name)
    broken = embeddings.clone()
    broken[3, 2] = torch.nan
    for arguments, argument in [
        ((embeddings[0], labels), "embeddings"),
        ((embeddings, labels[:-1]), "labels"),
        ((embeddings, labels[:, None]), "labels"),
        ((broken, labels), "embeddings.*3"),
        ((embeddings, labels, None, embeddings), "ref_labels|ref_emb"),
        ((embeddings, labels, None, embeddings[:, :3], labels), "ref_emb"),
        ((embeddings, labels, (labels, labels)), "indices_tuple"),
    ]:
        with pytest.raises(ValueError, match=argument):
            loss(*arguments)
    if CASES[name].options.get("num_classes"):
        with pytest.raises(ValueError, match=r"labels must be within 0 \.\.\. 3"):
            loss(embeddings, labels + 1)
    if CASES[name].options.get("embedding_size"):
        with pytest.raises(ValueError, match="embedding_size is 8"):
            loss(embeddings[:, :5], labels)


@every_baseline
def test_the_table_in_the_documents_is_right(name: str) -> None:
    table = Path(__file__).parents[2] / "docs" / "baselines.md"
    rows = table.read_text().split("\n## ")[0].splitlines()
    (row,) = [line for line in rows if line.startswith(f"| `{name}` |")]
    for option, parameter in inspect.signature(BASELINES[name]).parameters.items():
        if option == "learning_rate_factor":
            assert f"| {parameter.default:g} |" in row
        elif parameter.default is parameter.empty:
            assert f"`{option}`" in row
        elif isinstance(parameter.default, float):
            shown = row.split(f"`{option}=")[1].split("`")[0]
            assert float(shown) == pytest.approx(parameter.default, rel=1e-3)
        elif option != "seed":
            assert f"`{option}={parameter.default!r}`" in row
