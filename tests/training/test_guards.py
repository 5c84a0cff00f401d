"""Numbers stay numbers, collapse is noticed, and both name the pictures."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from cbml import Embedder
from cbml.data import ImageSet
from cbml.training import BadNumbers, Listener, Run, Settings, fit, read_metrics
from cbml.training.guards import Similarities, check_embeddings, collapse_reason, similarities
from tests.training.small import batches, bayes_loss, embedder, pictures


class Heard(Listener):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


class Poisoned(nn.Module):
    """A loss that goes wrong in some steps, in its value or in its gradient alone."""

    def __init__(self, steps: set[int], where: str) -> None:
        super().__init__()
        self.inner, self.steps, self.where, self.step = bayes_loss(), steps, where, 0

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        self.step += 1
        value: Tensor = self.inner(embeddings, labels)
        if self.step not in self.steps:
            return value
        if self.where == "value":
            return value * math.nan
        extra = (embeddings[0] * 0.0).abs().sqrt().sum()  # zero, its gradient infinite or NaN
        return value + extra


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> ImageSet:
    return pictures(tmp_path_factory.mktemp("pictures"))


@pytest.mark.parametrize("where", ["value", "gradient"])
def test_bad_numbers_stop_the_run_and_keep_the_good_checkpoint(
    images: ImageSet, tmp_path: Path, where: str
) -> None:
    model, settings = embedder(), Settings(steps=6, checkpoint_every=1)
    with pytest.raises(BadNumbers, match=r"step 3: .*nan.* not changed; the batch: .*\.png"):
        fit(
            model,
            Poisoned({3}, where),
            batches(images),
            settings=settings,
            run=tmp_path,
            listener=Listener(),
        )
    assert all(bool(torch.isfinite(value).all()) for value in model.state_dict().values())
    assert (tmp_path / "checkpoints" / "step-000000002" / "manifest.json").exists()
    again = fit(
        embedder(),
        Poisoned(set(), where),
        batches(images),
        settings=settings,
        run=Run(tmp_path, resume=True),
        listener=Listener(),
    )
    assert again.steps == 6


def test_bad_numbers_can_be_skipped_but_not_for_ever(images: ImageSet, tmp_path: Path) -> None:
    heard = Heard()
    settings = Settings(steps=6, bad_numbers="skip", skips_allowed=2)
    loss = Poisoned({2, 3}, "value")
    fit(embedder(), loss, batches(images), settings=settings, run=tmp_path, listener=heard)
    assert sum("update skipped" in line for line in heard.lines) == 2
    assert sum("skipped" in line for line in read_metrics(tmp_path)) == 2
    loss = Poisoned({2, 3, 4}, "value")
    with pytest.raises(BadNumbers, match="step 4"):
        fit(embedder(), loss, batches(images), settings=settings, listener=heard)


def test_broken_weights_are_blamed(images: ImageSet) -> None:
    model = embedder()
    with torch.no_grad():
        model.head.weight[0, 0] = math.nan
    with pytest.raises(BadNumbers, match="16 of 16 pictures, probably because of the weights"):
        fit(model, bayes_loss(), batches(images), settings=Settings(steps=1), listener=Listener())


def test_single_pictures_are_named() -> None:
    rows = torch.ones(4, 2)
    rows[2, 1] = math.inf
    with pytest.raises(BadNumbers, match=r"step 9: .* 1 of 4 pictures.*these pictures: c;"):
        check_embeddings(rows, ["a", "b", "c", "d"], 9)
    check_embeddings(torch.ones(4, 2), ["a", "b", "c", "d"], 9)


class Constant(nn.Module):
    """No gradient worth the name: the model stays as it is."""

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return embeddings.sum() * 0.0


def collapsed() -> Embedder:
    """All pictures have one embedding."""
    model = embedder()
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.fill_(1.0)
    return model


def test_collapse_is_said_and_named(images: ImageSet, tmp_path: Path) -> None:
    model, heard = collapsed(), Heard()
    settings = Settings(steps=2)
    fit(model, Constant(), batches(images), settings=settings, run=tmp_path, listener=heard)
    said = [line for line in heard.lines if line.startswith("collapse at step 1: all similarities")]
    assert said
    assert ".png" in said[0]
    assert any("collapse" in line for line in read_metrics(tmp_path))
    settings = Settings(steps=2, collapse="stop")
    with pytest.raises(BadNumbers, match="collapse at step 1"):
        fit(model, Constant(), batches(images), settings=settings, listener=heard)


def test_a_collapse_that_lasts_is_not_said_at_every_step(images: ImageSet, tmp_path: Path) -> None:
    model, heard = collapsed(), Heard()
    settings = Settings(steps=60)
    fit(model, Constant(), batches(images), settings=settings, run=tmp_path, listener=heard)
    said = [line.split(":")[0] for line in heard.lines if line.startswith("collapse")]
    assert said == ["collapse at step 1", "collapse at step 51"]
    seen = [line["positive_similarity"] for line in read_metrics(tmp_path) if "loss" in line]
    assert seen == pytest.approx([1.0] * 60)


def test_collapse_needs_ten_batches_that_tell_nothing_apart() -> None:
    lost = Similarities(0.31, 0.30, 0.05, -0.2)
    good = Similarities(0.6, 0.30, 1.5, -0.2)
    assert collapse_reason([lost] * 9) is None
    assert "cannot be told" in str(collapse_reason([lost] * 10))
    assert collapse_reason([*[lost] * 9, good]) is None


def test_similarities_of_a_batch() -> None:
    rows = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    found = similarities(rows, torch.tensor([0, 0, 1, 1]))
    assert found.positive_mean == pytest.approx((1.0 + 0.8) / 2)
    assert found.negative_mean == pytest.approx((0.0 + 0.6 + 0.0 + 0.6) / 4)
    assert found.lowest == 0.0
    assert math.isnan(similarities(rows, torch.arange(4)).separation)
