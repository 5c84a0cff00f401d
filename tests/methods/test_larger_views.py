"""Larger views: worked numbers, plain loops, batches, and a choice of the model without labels."""

from collections.abc import Mapping
from math import exp, log
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from cbml.data import ImageDataset, PackedDataset, PackedImages, TrainTransform
from cbml.errors import BadData
from cbml.methods import LargerViews
from cbml.methods.larger_views import (
    average_with_nearest,
    neighbor_batches,
    neighbor_pairs,
    similarity_distillation,
)
from cbml.methods.unlabeled import head_outputs
from cbml.models import Embedder
from cbml.outputs import Outputs
from cbml.training import (
    BatchInfo,
    Callback,
    Distributed,
    Run,
    Settings,
    TrainingView,
    build_batches,
    fit,
)
from cbml.training.checkpoints import newest_checkpoint
from tests.training.small import CROP, embedder

ROWS = torch.tensor([[1, 0], [0.8, 0.6], [0, 1], [-0.6, 0.8]])
WANTED = torch.tensor([[1, 0, 0], [0.6, 0.8, 0], [0, 0.6, 0.8], [0, 0, 1]])
OTHERS = ~torch.eye(4, dtype=torch.bool)


def small_model() -> Embedder:
    model = embedder()
    model.preprocessing = model.preprocessing.with_crop(CROP)
    return model


def view_of(
    images: ImageDataset, model: Embedder, packed: PackedImages | None = None
) -> TrainingView:
    batches = build_batches(
        ImageDataset(images.paths),
        transform=TrainTransform(crop=CROP),
        samples_per_class=1,
        batch_range=(13, 13),
        source=packed,
    )
    return TrainingView(model, batches, Distributed(), step=0, steps=10)


@pytest.mark.parametrize(
    ("temperature", "counted", "value"),
    [(1.0, OTHERS | True, 0.013215), (0.2, OTHERS | True, 0.001683), (0.2, OTHERS, 0.002408)],
)
def test_the_worked_divergence(temperature: float, counted: Tensor, value: float) -> None:
    similarities, wanted = ROWS @ ROWS.T, WANTED @ WANTED.T
    found = similarity_distillation(similarities, wanted, counted, temperature)
    assert found.item() * temperature**2 == pytest.approx(value, abs=1e-6)
    same = similarity_distillation(wanted, wanted, counted, temperature)
    assert same.item() == pytest.approx(0, abs=1e-7)


def test_the_divergence_in_plain_loops() -> None:
    generator = torch.Generator().manual_seed(0)
    student, teacher = torch.rand(2, 6, 6, generator=generator) * 2 - 1
    counted = torch.rand(6, 6, generator=generator) < 0.7
    counted[2] = False  # a row that is compared with nobody
    total = 0.0
    for i in range(6):
        places = [j for j in range(6) if counted[i, j]]
        p, q = ([exp(table[i, j].item() / 0.3) for j in places] for table in (teacher, student))
        for mine, other in zip(p, q, strict=True):
            total += mine / sum(p) * log((mine / sum(p)) / (other / sum(q)))
    found = similarity_distillation(student, teacher, counted, 0.3)
    assert found.item() == pytest.approx(total / 6, rel=1e-5)


def test_pairs_are_mutual_neighbors_and_doubtful_ones_are_left_out() -> None:
    images = torch.tensor([4, 7, 4, 9, 2])
    nearest = torch.tensor([[7, 1, 2], [4, 9, 0], [7, 1, 2], [3, 7, 5], [4, 6, 5]])
    a, p, b, n = neighbor_pairs(images, nearest, 1)
    positive = set(zip(a.tolist(), p.tolist(), strict=True))
    # 4 and 7 name each other first, 2 names 4 without an answer; rows 0 and 2 are one image.
    assert positive == {(0, 1), (1, 0), (1, 2), (2, 1), (0, 2), (2, 0)}
    negative = set(zip(b.tolist(), n.tolist(), strict=True))
    # 7 and 9 know each other, 4 names 2: neither is a negative.
    assert negative == {(0, 3), (3, 0), (2, 3), (3, 2), (1, 4), (4, 1), (3, 4), (4, 3)}


def test_batches_hold_images_with_their_neighbors_once() -> None:
    nearest = np.array([[1, 2], [0, 2], [1, 0], [4, 5], [3, 5], [4, -1], [0, 1]])
    trained = np.array([0, 1, 2, 3, 4, 5])
    found = neighbor_batches(nearest, trained, (20, 4), np.random.default_rng(0))
    assert found.shape == (20, 4)
    assert 6 not in found
    assert all(len(set(rows)) == 4 for rows in found.tolist())
    assert all(rows[1] == nearest[rows[0], 0] for rows in found)
    large = neighbor_batches(nearest, trained, (1, 13), np.random.default_rng(0))
    assert np.bincount(large[0]).max() <= 3


def test_the_teacher_sees_enlarged_images_and_their_mirror_images(images: ImageDataset) -> None:
    seen = {}
    for enlarge in (1.0, 2.0):
        model = small_model()
        method = LargerViews(num_images=42, doubtful=5, enlarge=enlarge)
        method.attach(model)
        method.start(view_of(images, model))
        lengths = method.teacher.norm(dim=1)
        torch.testing.assert_close(lengths, torch.ones(42))
        assert int(method.held_out.sum()) == 4
        similarities = (method.teacher @ method.teacher.T).fill_diagonal_(-2)
        first = similarities.gather(1, method.nearest[:, :1])
        torch.testing.assert_close(first[:, 0], similarities.max(dim=1).values)
        seen[enlarge] = method.teacher.clone()
    assert not torch.allclose(seen[1.0], seen[2.0], atol=1e-2)


def test_vectors_are_averaged_with_their_nearest() -> None:
    rows = torch.tensor([[1.0, 0.0, 0.0], [0.8, 0.6, 0.0], [0.0, 0.0, -1.0], [0.0, 0.6, -0.8]])
    torch.testing.assert_close(average_with_nearest(rows, 0), rows)
    once = average_with_nearest(rows, 1)
    expected = torch.tensor([1.0 + 0.8 * 0.8, 0.8 * 0.6, 0.0])  # the second, by 0.8
    torch.testing.assert_close(once[0], expected / expected.norm())
    apart = average_with_nearest(-rows[[0, 2]] * torch.tensor([[1.0], [-1.0]]), 1)
    torch.testing.assert_close(apart[0], -rows[0])  # nothing is alike
    generator = torch.Generator().manual_seed(0)
    rows = functional.normalize(torch.randn(12, 5, generator=generator), dim=1)
    found = average_with_nearest(rows, 3)
    for place, row in enumerate(rows.tolist()):
        others = [other for number, other in enumerate(rows.tolist()) if number != place]
        likest = sorted((-sum(a * b for a, b in zip(row, o, strict=True)), o) for o in others)[:3]
        total = list(row)
        for unlike, other in likest:
            total = [t + max(-unlike, 0) * o for t, o in zip(total, other, strict=True)]
        length = sum(value**2 for value in total) ** 0.5
        assert found[place].tolist() == pytest.approx([value / length for value in total], abs=1e-6)


def test_the_teacher_is_averaged_with_its_nearest(images: ImageDataset) -> None:
    seen = []
    for averaged in (0, 3):
        model = small_model()
        method = LargerViews(num_images=42, doubtful=5, averaged=averaged)
        method.attach(model)
        method.start(view_of(images, model))
        seen.append(method.teacher)
    torch.testing.assert_close(seen[1], average_with_nearest(seen[0], 3))
    assert not torch.allclose(*seen, atol=1e-2)


@pytest.mark.parametrize(("searched", "enlarge"), [(CROP, 2.0), (CROP + 8, 2.0), (2 * CROP, 4.0)])
def test_the_teacher_sees_more_than_searches_do(
    images: ImageDataset, searched: int, enlarge: float
) -> None:
    seen = []
    for given in (None, enlarge):
        model = small_model()
        model.preprocessing = model.preprocessing.with_crop(searched)
        method = LargerViews(num_images=42, doubtful=5, enlarge=given)
        method.attach(model)
        method.start(view_of(images, model))
        seen.append(method.teacher)
    torch.testing.assert_close(*seen)


def test_larger_views_come_from_the_files(images: ImageDataset) -> None:
    view = view_of(images, small_model(), PackedDataset.of(images, CROP).packed)
    larger = small_model()
    larger.preprocessing = larger.preprocessing.with_crop(2 * CROP)
    with pytest.raises(BadData, match="packed with a short side"):
        view.embed(larger)
    plain = view_of(images, small_model()).embed(larger)
    np.testing.assert_array_equal(view.embed(larger, from_files=True), plain)


def test_the_loss_is_the_sum_of_its_terms(images: ImageDataset) -> None:
    model = small_model()
    method = LargerViews(num_images=42, doubtful=5, pair_weight=0.5)
    method.attach(model)
    method.start(view_of(images, model))
    x = functional.normalize(torch.randn(6, 8, generator=torch.Generator().manual_seed(0)), dim=1)
    indices = torch.tensor([3, 8, 1, 30, 31, 3])
    step = method(Outputs(x), BatchInfo(indices, indices))
    torch.testing.assert_close(step.total, step.terms["keep"] + 0.5 * step.terms["pairs"])
    method.pair_weight = 0.0
    assert set(method(Outputs(x), BatchInfo(indices, indices)).terms) == {"keep"}


class Listening(Callback):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def on_message(self, text: str) -> None:
        self.said.append(text)


class Judging(LargerViews):
    """Finds each later model better, or worse, than those before it."""

    trend = 1.0

    def judge(self, view: TrainingView) -> Mapping[str, float]:
        assert 0 <= super().judge(view)["agreement"] <= 1
        return {"agreement": self.trend * view.step}


@pytest.mark.parametrize("trend", [1.0, -1.0])
def test_a_model_that_agrees_less_is_given_up_for_the_start(
    images: ImageDataset, tmp_path: Path, trend: float
) -> None:
    model, method, heard = small_model(), Judging(num_images=42, doubtful=5), Listening()
    method.trend = trend
    settings = Settings(steps=4, validate_every=2, learning_rate=1e-2, choose_by="agreement")
    batches = view_of(images, model).batches
    fitted = fit(model, method, batches, settings=settings, run=Run(tmp_path), callback=heard)
    kept = [line for line in heard.said if line.startswith("the start model is kept")]
    assert (fitted.best_step, len(kept)) == ((4, 0) if trend > 0 else (0, 1))
    fresh = small_model()  # the backbone of the start; its linear layer was whitened since
    moved = [
        not torch.equal(one, other)
        for one, other in zip(model.backbone.parameters(), fresh.backbone.parameters(), strict=True)
    ]
    assert all(moved) if trend > 0 else not any(moved)


class Finishing(LargerViews):
    """Finds the whitened layer better, or worse, than the trained one."""

    whitened, asked = 1.0, 0

    def judge(self, view: TrainingView) -> Mapping[str, float]:
        return {"agreement": float(view.step)}

    def _agreement(self, readable: NDArray[np.int64], embeddings: NDArray[np.float32]) -> float:
        assert embeddings.shape == (len(readable), 8)
        self.asked += 1
        return self.asked * self.whitened


@pytest.mark.parametrize("whitened", [1.0, -1.0])
@pytest.mark.parametrize("choose_by", ["agreement", "recall@1"])
def test_at_the_end_the_linear_layer_whitens_what_the_network_learned(
    images: ImageDataset, tmp_path: Path, whitened: float, choose_by: str
) -> None:
    settings = Settings(steps=3, validate_every=2, learning_rate=1e-2, choose_by=choose_by)

    def finished(*, resume: bool) -> Embedder:
        model, method = small_model(), Finishing(num_images=42, doubtful=5)
        method.whitened = whitened
        batches, run = view_of(images, model).batches, Run(tmp_path, resume=resume)
        fit(model, method, batches, settings=settings, run=run, callback=Callback())
        return model

    model = finished(resume=False)
    checkpoint = newest_checkpoint(tmp_path / "checkpoints", print)
    assert checkpoint is not None
    kept = model.get_parameter("head.weight").detach()
    assert torch.equal(kept, checkpoint.part("model")["head.weight"]) == (whitened < 0)
    rows = head_outputs(model, view_of(images, model).embed)
    used = kept.abs().sum(dim=1).numpy() > 0
    white = np.allclose(np.cov(rows[:, used].T, bias=True), np.eye(used.sum()), atol=1e-2)
    assert white == (whitened > 0)
    assert torch.equal(Embedder.load(tmp_path / "model").get_parameter("head.weight"), kept)
    # A run that has ended is finished again from its checkpoint, and not twice.
    assert torch.equal(finished(resume=True).get_parameter("head.weight"), kept)
    assert torch.equal(Embedder.load(tmp_path / "model").get_parameter("head.weight"), kept)


def test_without_being_asked_nothing_is_chosen(images: ImageDataset) -> None:
    model = small_model()
    method, settings = LargerViews(num_images=42, doubtful=5), Settings(steps=2)
    fitted = fit(
        model, method, view_of(images, model).batches, settings=settings, callback=Callback()
    )
    assert fitted.best_step is None


def test_three_images_are_too_few(images: ImageDataset) -> None:
    model, method = small_model(), LargerViews(num_images=3)
    few = ImageDataset(images.paths[:3])
    with pytest.raises(BadData, match="at least 4 are needed"):
        method.start(view_of(few, model))


@pytest.mark.parametrize("option", ["temperature", "enlarge", "positives", "group", "pair_weight"])
def test_impossible_options_are_refused_by_name(option: str) -> None:
    with pytest.raises(ValueError, match=option):
        LargerViews(num_images=3, **{option: -1})
