"""A resumed run is the same run, its newest checkpoint stays, and its best model has one step."""

import contextlib
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from cbml.data import ImageDataset, TrainTransform
from cbml.errors import BadData
from cbml.losses import LOSSES
from cbml.methods import PseudoLabels
from cbml.models import Embedder
from cbml.training import (
    Callback,
    Run,
    Settings,
    StepReport,
    build_batches,
    fit,
    read_metrics,
    read_record,
    state,
    update_record,
)
from cbml.training.checkpoints import newest_checkpoint, write_checkpoint
from tests.training.small import CROP, batches, bayes_loss, embedder, make_images


@pytest.fixture
def images(tmp_path: Path) -> ImageDataset:
    return make_images(tmp_path / "images")


CONFIG = {"loss": {"name": "cbml", "options": {"a": 1}}, "model": {"crop": 16}, "name": "first"}


def train(images: ImageDataset, folder: Path, steps: int, config: dict[str, Any]) -> None:
    run = Run(
        folder, resume=(folder / "run.json").exists(), config=config, free=frozenset({"name"})
    )
    settings = Settings(steps=steps, checkpoint_every=1)
    fit(embedder(), bayes_loss(), batches(images), settings=settings, run=run, callback=Callback())


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"loss": {"name": "contrastive", "options": {"a": 1}}}, "loss.name"),
        ({"loss": {"name": "cbml", "options": {"a": 2}}}, r"loss\.options\.a"),
        ({"loss": {"name": "cbml", "options": {}}}, r"loss\.options"),
        ({"method": {"options": {"steps": 3}}}, r"method\.options\.steps"),
        ({"loss": {"name": "cbml", "options": {"a": 1}, "patience": 2}}, r"loss\.patience"),
        ({"model": {"crop": 17}}, r"model\.crop"),
        ({"more": 1}, "more"),
    ],
)
def test_every_field_of_the_config_is_compared(
    images: ImageDataset, tmp_path: Path, change: dict[str, Any], name: str
) -> None:
    train(images, tmp_path / "run", 1, CONFIG)
    with pytest.raises(BadData, match=rf"^{name}.* was .* not the same run"):
        train(images, tmp_path / "run", 2, CONFIG | change)
    train(images, tmp_path / "run", 2, CONFIG | {"name": "another"})


def test_fewer_steps_than_are_done_are_refused(images: ImageDataset, tmp_path: Path) -> None:
    train(images, tmp_path / "run", 3, {})
    with pytest.raises(BadData, match="steps=2: the run has done 3 already"):
        train(images, tmp_path / "run", 2, {})


def test_other_contents_under_the_same_names_are_refused(
    images: ImageDataset, tmp_path: Path
) -> None:
    train(images, tmp_path / "run", 1, {})
    path, kept = images.paths[5], images.paths[5].read_bytes()
    with Image.open(path) as image:
        image.transpose(Image.Transpose.ROTATE_180).save(path)
    with pytest.raises(BadData, match="other contents than those of the run"):
        train(images, tmp_path / "run", 2, {})
    path.write_bytes(kept)
    train(images, tmp_path / "run", 2, {})


def save(folder: Path, step: int, keep: int) -> None:
    write_checkpoint(folder, step, {"weight": torch.tensor([float(step)])}, {}, keep=keep)


@pytest.mark.parametrize("count", [20, pytest.param(500, marks=pytest.mark.slow)])
def test_the_newest_checkpoint_is_never_deleted(tmp_path: Path, count: int) -> None:
    """Killed inside a write or damaged, resumed from what is whole, stopped again."""
    chance = random.Random(0)
    for number in range(count):
        folder, keep = tmp_path / str(number), chance.choice([1, 1, 2, 3])
        for step in sorted(chance.sample(range(1, 30), chance.randint(1, 4))):
            save(folder, step, keep)
        whole = newest_checkpoint(folder, print)
        assert whole is not None
        for _ in range(chance.randint(1, 3)):  # lost: no manifest, or a damaged part
            lost = folder / f"step-{whole.step + chance.randint(1, 9):09}"
            if chance.random() < 0.5:
                shutil.rmtree(lost, ignore_errors=True)
                lost.mkdir()
            elif not lost.exists():
                shutil.copytree(folder / f"step-{whole.step:09}", lost)
                next(lost.glob("tensors-*")).write_bytes(b"damaged")
        resumed = newest_checkpoint(folder, lambda text: None)
        assert resumed is not None
        assert resumed.step == whole.step
        save(folder, resumed.step + 1, keep)  # the answer to SIGTERM
        after = newest_checkpoint(folder, lambda text: None)
        assert after is not None
        assert after.step == resumed.step + 1
        left = sorted(folder.iterdir())
        assert len(left) <= keep
        assert all((path / "manifest.json").exists() for path in left)


def equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return all(torch.equal(first[name], second[name]) for name in first)


class Validation(Callback):
    """Scores by step, the weights that were scored, and an end as a kill would bring it."""

    def __init__(self, scores: list[float]) -> None:
        self.scores, self.seen = scores, dict[int, dict[str, Tensor]]()
        self.now, self.last = 0, -1

    def begin(self, step: int, steps: int) -> None:
        self.now = step

    def step(self, report: StepReport) -> None:
        self.now = report.step

    def __call__(self, model: Embedder) -> dict[str, float]:
        self.seen[self.now] = {name: v.clone() for name, v in model.state_dict().items()}
        return {"recall@1": self.scores[self.now]}

    def on_message(self, text: str) -> None:
        if text.startswith(f"step {self.last}: validation"):
            raise KeyboardInterrupt  # between a validation and the next checkpoint


@pytest.mark.parametrize("count", [6, pytest.param(60, marks=pytest.mark.slow)])
def test_the_best_model_and_its_record_name_one_step(
    images: ImageDataset, tmp_path: Path, count: int
) -> None:
    """Killed between a better validation and the next checkpoint, then resumed for fewer steps."""
    chance = random.Random(1)
    for number in range(count):
        folder, every, killed = tmp_path / str(number), chance.randint(2, 5), chance.randint(5, 9)
        scores = [chance.random() for _ in range(30)]
        scores[killed] = 2.0  # the best, and lost
        validation = Validation(scores)
        done = (killed - 1) // every * every  # the newest checkpoint
        validation.last = killed
        for steps in (12, done + (done + 1 < killed)):
            run = Run(folder, resume=steps < 12)
            settings = Settings(steps=steps, validate_every=1, checkpoint_every=every)
            validation.now = 0  # a run without a checkpoint begins anew, and scores its start
            with contextlib.suppress(KeyboardInterrupt):
                fit(
                    embedder(),
                    bayes_loss(),
                    batches(images),
                    settings=settings,
                    validate=validation,
                    run=run,
                    callback=validation,
                )
        record = read_record(folder)
        assert record["finished"]
        best = max(range(record["steps_done"] + 1), key=scores.__getitem__)
        assert record["best_step"] == best
        assert equal(validation.seen[best], Embedder.load(folder / "model").state_dict())


def extended(images: ImageDataset, folder: Path, steps: int, last: int = -1) -> Validation:
    """A run whose every validation is better than the one before, begun or resumed."""
    validation = Validation([number / 100 for number in range(30)])
    validation.last = last
    with contextlib.suppress(KeyboardInterrupt):
        fit(
            embedder(),
            bayes_loss(),
            batches(images),
            settings=Settings(steps=steps, validate_every=2, checkpoint_every=2),
            validate=validation,
            run=Run(
                folder,
                resume=(folder / "run.json").exists(),
                derived=frozenset({"test", "calibration.json"}),
            ),
            callback=validation,
        )
    return validation


def test_what_was_noted_of_a_model_goes_when_the_run_gets_another(
    images: ImageDataset, tmp_path: Path
) -> None:
    """A run that had ended, resumed for more steps and killed on the way."""
    extended(images, tmp_path, 4)
    update_record(tmp_path, {"test": {"recall@1": 0.5}, "test_evaluations": 3})
    (tmp_path / "calibration.json").write_text("of the model of step 4")
    (tmp_path / "test").mkdir()  # not ours, though an entry of the record has this name
    extended(images, tmp_path, 4)
    assert (tmp_path / "calibration.json").exists(), "the same model"
    record = read_record(tmp_path)
    assert (record["finished"], record["best_step"], "test" in record) == (True, 4, True)

    validation = extended(images, tmp_path, 12, last=8)
    assert equal(validation.seen[6], Embedder.load(tmp_path / "model").state_dict())
    record = read_record(tmp_path)
    assert not record["finished"]
    assert not {"best_step", "best_score", "steps_done", "test"} & record.keys()
    assert record["test_evaluations"] == 3
    assert not (tmp_path / "calibration.json").exists()
    assert (tmp_path / "test").exists()

    extended(images, tmp_path, 12)
    record = read_record(tmp_path)
    assert (record["finished"], record["best_step"], record["steps_done"]) == (True, 12, 12)


@pytest.mark.parametrize("done", [0, 2])
def test_a_model_is_written_behind_the_checkpoint_that_names_it(
    images: ImageDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: int
) -> None:
    """Killed in between, the run goes on; with a model and no checkpoint it could not."""

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    run, model = tmp_path / "run", tmp_path / "run" / "model"
    if done:
        extended(images, run, done)
    before = Embedder.load(model).state_dict() if done else {}
    with monkeypatch.context() as patch:
        patch.setattr(state, "write_checkpoint", killed)
        extended(images, run, 6)
    assert model.exists() == bool(done)
    assert not done or equal(before, Embedder.load(model).state_dict())
    best = extended(images, run, 6).seen[6]
    assert equal(best, Embedder.load(model).state_dict())
    assert read_record(run)["best_step"] == 6


def test_a_run_whose_checkpoints_are_gone_is_not_begun_anew(
    images: ImageDataset, tmp_path: Path
) -> None:
    extended(images, tmp_path, 2)
    before = Embedder.load(tmp_path / "model").state_dict()
    shutil.rmtree(tmp_path / "checkpoints")
    with pytest.raises(BadData, match="its checkpoints are gone"):
        extended(images, tmp_path, 4)
    assert equal(before, Embedder.load(tmp_path / "model").state_dict())
    assert read_record(tmp_path)["finished"]


def test_unreadable_images_have_a_label_of_their_own(images: ImageDataset, tmp_path: Path) -> None:
    """With every image a class, labels are indices: losses with class vectors need one for each."""
    (tmp_path / "images" / "bad.png").write_bytes(b"no image")
    paths = (*images.paths[:3], tmp_path / "images" / "bad.png", *images.paths[3:])
    known = ImageDataset(paths)
    loss = LOSSES["proxy_nca"](num_classes=len(known), embedding_size=8)
    made = build_batches(
        known, transform=TrainTransform(crop=CROP), samples_per_class=2, workers=0, bad_limit=0.1
    )
    method = PseudoLabels(loss, clusters=None)
    fit(
        embedder(),
        method,
        made,
        settings=Settings(steps=5),
        run=tmp_path / "run",
        callback=Callback(),
    )
    assert len([line for line in read_metrics(tmp_path / "run") if "loss" in line]) == 5
