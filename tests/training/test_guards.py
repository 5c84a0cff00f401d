"""Numbers stay numbers, collapse is noticed, and both name the images."""

import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from cbml import CBMLLoss, Embedder, PairStatistics
from cbml.data import ImageDataset
from cbml.training import Callback, NonFiniteError, Run, Settings, fit, read_metrics
from cbml.training.guards import (
    CollapseWatch,
    Similarities,
    check_embeddings,
    collapse_reason,
    decline_reason,
    similarities,
)
from tests.training.small import batches, bayes_loss, embedder, make_images


class Heard(Callback):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def on_message(self, text: str) -> None:
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
def images(tmp_path_factory: pytest.TempPathFactory) -> ImageDataset:
    return make_images(tmp_path_factory.mktemp("images"))


@pytest.mark.parametrize("where", ["value", "gradient"])
def test_non_finite_values_stop_the_run_and_keep_the_good_checkpoint(
    images: ImageDataset, tmp_path: Path, where: str
) -> None:
    model, settings = embedder(), Settings(steps=6, checkpoint_every=1)
    with pytest.raises(NonFiniteError, match=r"step 3: .*nan.* not changed; the batch: .*\.png"):
        fit(
            model,
            Poisoned({3}, where),
            batches(images),
            settings=settings,
            run=tmp_path,
            callback=Callback(),
        )
    assert all(bool(torch.isfinite(value).all()) for value in model.state_dict().values())
    assert (tmp_path / "checkpoints" / "step-000000002" / "manifest.json").exists()
    again = fit(
        embedder(),
        Poisoned(set(), where),
        batches(images),
        settings=settings,
        run=Run(tmp_path, resume=True),
        callback=Callback(),
    )
    assert again.steps == 6


def test_non_finite_values_can_be_skipped_but_not_for_ever(
    images: ImageDataset, tmp_path: Path
) -> None:
    heard = Heard()
    settings = Settings(steps=6, non_finite="skip", skips_allowed=2)
    loss = Poisoned({2, 3}, "value")
    fit(embedder(), loss, batches(images), settings=settings, run=tmp_path, callback=heard)
    assert sum("update skipped" in line for line in heard.lines) == 2
    assert sum("skipped" in line for line in read_metrics(tmp_path)) == 2
    loss = Poisoned({2, 3, 4}, "value")
    with pytest.raises(NonFiniteError, match="step 4"):
        fit(embedder(), loss, batches(images), settings=settings, callback=heard)


def test_broken_weights_are_blamed(images: ImageDataset) -> None:
    model = embedder()
    with torch.no_grad():
        model.head.weight[0, 0] = math.nan
    with pytest.raises(NonFiniteError, match="16 of 16 images, probably because of the weights"):
        fit(model, bayes_loss(), batches(images), settings=Settings(steps=1), callback=Callback())


def test_single_images_are_named() -> None:
    rows = torch.ones(4, 2)
    rows[2, 1] = math.inf
    with pytest.raises(NonFiniteError, match=r"step 9: .* 1 of 4 images.*these images: c;"):
        check_embeddings(rows, ["a", "b", "c", "d"], 9)
    check_embeddings(torch.ones(4, 2), ["a", "b", "c", "d"], 9)


class Constant(nn.Module):
    """No gradient worth the name: the model stays as it is."""

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return embeddings.sum() * 0.0


def collapsed() -> Embedder:
    """All images have one embedding."""
    model = embedder()
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.fill_(1.0)
    return model


def test_collapse_is_said_and_named(images: ImageDataset, tmp_path: Path) -> None:
    model, heard = collapsed(), Heard()
    settings = Settings(steps=2)
    fit(model, Constant(), batches(images), settings=settings, run=tmp_path, callback=heard)
    said = [line for line in heard.lines if line.startswith("collapse at step 1: all similarities")]
    assert said
    assert ".png" in said[0]
    assert any("collapse" in line for line in read_metrics(tmp_path))
    settings = Settings(steps=2, collapse="stop")
    with pytest.raises(NonFiniteError, match="collapse at step 1"):
        fit(model, Constant(), batches(images), settings=settings, callback=heard)


def test_a_collapse_that_lasts_is_not_said_at_every_step(
    images: ImageDataset, tmp_path: Path
) -> None:
    model, heard = collapsed(), Heard()
    settings = Settings(steps=60)
    fit(model, Constant(), batches(images), settings=settings, run=tmp_path, callback=heard)
    said = [line.split(":")[0] for line in heard.lines if line.startswith("collapse")]
    assert said == ["collapse at step 1", "collapse at step 51"]
    seen = [line["positive_similarity"] for line in read_metrics(tmp_path) if "loss" in line]
    assert seen == pytest.approx([1.0] * 60)


def test_a_resumed_run_does_not_say_again_what_it_has_said(
    images: ImageDataset, tmp_path: Path
) -> None:
    heard = Heard()
    for steps in (30, 60):
        run = Run(tmp_path, resume=steps == 60)
        settings = Settings(steps=steps)
        fit(collapsed(), Constant(), batches(images), settings=settings, run=run, callback=heard)
    said = [line.split(":")[0] for line in heard.lines if line.startswith("collapse")]
    assert said == ["collapse at step 1", "collapse at step 51"]


class Gathering(nn.Module):
    """Draws all images to one point, slowly."""

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return 1.0 - (embeddings @ embeddings.T).mean()


def test_a_resumed_run_stops_at_a_collapse_where_an_unbroken_one_does(
    images: ImageDataset, tmp_path: Path
) -> None:
    def stopped(folder: str, *, interrupted_after: int = 0) -> str:
        settings = Settings(
            steps=interrupted_after or 200, checkpoint_every=1, learning_rate=1e-3, collapse="stop"
        )
        run = Run(tmp_path / folder, resume=(tmp_path / folder).exists())
        if interrupted_after:
            fit(embedder(), Gathering(), batches(images), settings=settings, run=run)
            return stopped(folder)
        with pytest.raises(NonFiniteError) as error:
            fit(embedder(), Gathering(), batches(images), settings=settings, run=run)
        return str(error.value).partition("; the batch")[0]

    unbroken = stopped("unbroken")
    assert "than negatives spread at the start" in unbroken, "told by the start alone"
    assert stopped("broken", interrupted_after=3) == unbroken


def test_what_a_watch_has_seen_survives_json() -> None:
    watch, again = CollapseWatch(), CollapseWatch()
    one_class = torch.zeros(4, dtype=torch.int64)  # no negatives: NaN, which JSON does not hold
    for step in range(1, 14):
        watch.look(functional.normalize(torch.randn(4, 8)), one_class + torch.arange(4) // 2, step)
    watch.look(functional.normalize(torch.randn(4, 8)), one_class, 14)
    again.load_state_dict(json.loads(json.dumps(watch.state_dict(), allow_nan=False)))
    assert repr(vars(again)) == repr(vars(watch))


def test_collapse_needs_ten_batches_that_tell_nothing_apart() -> None:
    lost = Similarities(0.31, 0.30, 0.05, -0.2)
    good = Similarities(0.6, 0.30, 1.5, -0.2)
    assert collapse_reason([lost] * 9) is None
    assert "cannot be told" in str(collapse_reason([lost] * 10))
    assert collapse_reason([*[lost] * 9, good]) is None


def test_similarities_within_the_spread_of_the_start_are_a_collapse() -> None:
    start = Similarities(0.53, 0.49, 0.4, 0.1, 0.11)
    assert collapse_reason([Similarities(0.97, 0.96, 0.4, 0.85, 0.02)], start) is None
    alike = Similarities(0.98, 0.97, 0.4, 0.90, 0.02)
    assert "closer together than negatives spread at the start" in str(
        collapse_reason([alike], start)
    )
    assert collapse_reason([alike]) is None, "nothing to compare with"


def test_positives_that_fall_back_to_the_negatives_are_a_collapse() -> None:
    start = Similarities(0.53, 0.49, 0.4, 0.1, 0.11)
    fallen, kept = (Similarities(0.8, 0.79, value, 0.4, 0.06) for value in (0.19, 0.21))
    assert collapse_reason([fallen] * 9, start) is None
    assert "half as far" in str(collapse_reason([fallen] * 10, start))
    assert collapse_reason([*[fallen] * 9, kept], start) is None


def alarm(loss_of: str, steps: int = 60) -> int | None:
    """The step at which a layer that learns from a poor start is said to collapse."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(20).repeat_interleave(8)
    centers = torch.randn(20, 64, generator=generator)
    rows = 0.8 + 0.35 * centers[labels] + torch.randn(160, 64, generator=generator)
    layer = nn.Linear(64, 32)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(32, 64, generator=generator) / 8)
        layer.bias.zero_()
    facts = PairStatistics.of(layer(rows).detach(), labels)
    loss = facts.suggest_loss()
    if loss_of == "likelihood ratio of the start":
        loss = CBMLLoss(ratio=facts.ratio("linear"), delta="derived", mining_margin=None)
    optimizer, recent = torch.optim.Adam(layer.parameters(), lr=5e-3), []
    for step in range(steps):
        embeddings = functional.normalize(layer(rows))
        recent.append(similarities(embeddings.detach(), labels))
        if collapse_reason(recent[-10:], recent[0]) is not None:
            return step
        optimizer.zero_grad()
        loss(embeddings, labels).backward()
        optimizer.step()
    return None


def test_the_collapse_of_a_flat_loss_is_noticed_in_the_first_steps() -> None:
    noticed = alarm("likelihood ratio of the start")
    assert noticed is not None
    assert noticed <= 40
    assert alarm("rule") is None


def test_a_held_out_score_that_keeps_falling_is_said_with_the_remedy() -> None:
    assert decline_reason([0.5, 0.4, 0.3]) is None
    assert decline_reason([0.2, 0.5, 0.4, 0.4, 0.3]) is None
    text = str(decline_reason([0.2, 0.5, 0.4, 0.35, 0.3]))
    assert "fallen 3 times in a row, from 0.5000 to 0.3000: lower learning_rate" in text
    assert "and is below the start's 0.3690:" in str(decline_reason([0.369, 0.19, 0.15, 0.14]))


def test_similarities_of_a_batch() -> None:
    rows = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    found = similarities(rows, torch.tensor([0, 0, 1, 1]))
    assert found.positive_mean == pytest.approx((1.0 + 0.8) / 2)
    assert found.negative_mean == pytest.approx((0.0 + 0.6 + 0.0 + 0.6) / 4)
    assert found.lowest == 0.0
    assert found.negative_std == pytest.approx(0.3)
    assert math.isnan(similarities(rows, torch.arange(4)).separation)
