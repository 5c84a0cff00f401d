"""A run that was stopped, killed or damaged ends with the weights of the unbroken run."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cbml.data import ImageDataset
from cbml.errors import BadData, DamagedFile
from cbml.losses import LOSSES
from cbml.training import Callback, Run, Settings, fit, read_metrics, read_record
from tests.training.small import CLASSES, batches, bayes_loss, embedder, make_images, run_small

STEPS = 9  # three passes of 3 batches


class Heard(Callback):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def on_message(self, text: str) -> None:
        self.lines.append(text)


def every_step() -> Settings:
    return Settings(steps=STEPS, checkpoint_every=1, keep_checkpoints=STEPS, clip_norm=2.0)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> ImageDataset:
    return make_images(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def unbroken(
    images: ImageDataset, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Tensor]]:
    folder = tmp_path_factory.mktemp("runs") / "unbroken"
    return folder, run_small(images, folder, every_step())[0]


def cut(run: Path, copy: Path, step: int) -> Path:
    """A copy of a run as a kill after `step` would have left it."""
    shutil.copytree(run, copy)
    for checkpoint in (copy / "checkpoints").iterdir():
        if int(checkpoint.name.removeprefix("step-")) > step:
            shutil.rmtree(checkpoint)
    shutil.rmtree(copy / "model")  # written at the end
    return copy


def assert_equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    different = [name for name in first if not torch.equal(first[name], second[name])]
    assert not different


def lines(run: Path) -> list[dict[str, object]]:
    return [
        {name: value for name, value in line.items() if name != "seconds"}
        for line in read_metrics(run)
    ]


FEW = [(0, 0), (1, 2), (2, 0), (3, 2), (5, 0), (6, 2)]
REST = [(step, workers) for step in range(STEPS) for workers in (0, 2)]


@pytest.mark.parametrize(
    ("step", "workers"),
    [*FEW, *(pytest.param(*case, marks=pytest.mark.slow) for case in REST if case not in FEW)],
)
def test_resume_is_equal_to_the_bit(
    images: ImageDataset,
    unbroken: tuple[Path, dict[str, Tensor]],
    tmp_path: Path,
    step: int,
    workers: int,
) -> None:
    run = cut(unbroken[0], tmp_path / "run", step)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 99, "lo')  # a line cut by the kill
    weights, fitted = run_small(images, run, every_step(), resume=True, workers=workers)
    assert fitted.steps == STEPS
    assert_equal(weights, unbroken[1])
    assert lines(run) == lines(unbroken[0])


@pytest.mark.parametrize("name", ["proxy_anchor", "multi_similarity_xbm"])
def test_losses_with_state_resume_to_the_bit(
    images: ImageDataset, tmp_path: Path, name: str
) -> None:
    def loss() -> torch.nn.Module:
        if name == "proxy_anchor":
            return LOSSES[name](num_classes=CLASSES, embedding_size=8)
        return LOSSES[name](embedding_size=8, memory_size=40, warmup_steps=2)

    settings = Settings(steps=6, checkpoint_every=1, keep_checkpoints=9, learning_rate=1e-3)
    first, second = loss(), loss()
    weights, _ = run_small(images, tmp_path / "a", settings, loss=first)
    run = cut(tmp_path / "a", tmp_path / "b", 4)
    again, _ = run_small(images, run, settings, resume=True, loss=second)
    assert_equal(weights, again)
    assert_equal(first.state_dict(), second.state_dict())
    assert any(not torch.equal(v, loss().state_dict()[n]) for n, v in first.state_dict().items())


def test_a_damaged_checkpoint_is_passed_over(
    images: ImageDataset, unbroken: tuple[Path, dict[str, Tensor]], tmp_path: Path
) -> None:
    run = cut(unbroken[0], tmp_path / "run", 5)
    newest = next((run / "checkpoints" / "step-000000005").glob("tensors-*"))
    newest.write_bytes(newest.read_bytes()[:-1])
    (run / "checkpoints" / "step-000000006").mkdir()  # killed before its manifest was written
    heard = Heard()
    weights, _ = run_small(images, run, every_step(), resume=True, callback=heard)
    assert_equal(weights, unbroken[1])
    assert any("damaged checkpoint" in line for line in heard.lines)
    assert "resumed after step 4 of 9" in heard.lines


def test_no_sound_checkpoint_is_said(
    images: ImageDataset, unbroken: tuple[Path, dict[str, Tensor]], tmp_path: Path
) -> None:
    run = cut(unbroken[0], tmp_path / "run", 1)
    next((run / "checkpoints" / "step-000000001").glob("state-*")).unlink()
    with pytest.raises(DamagedFile, match="missing"):
        run_small(images, run, every_step(), resume=True)


def test_other_conditions_are_said_aloud_and_recorded(
    images: ImageDataset, unbroken: tuple[Path, dict[str, Tensor]], tmp_path: Path
) -> None:
    run = cut(unbroken[0], tmp_path / "run", 5)
    heard, threads = Heard(), torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        run_small(images, run, every_step(), resume=True, callback=heard)
    finally:
        torch.set_num_threads(threads)
    said = [line for line in heard.lines if "other conditions: threads" in line]
    assert len(said) == 1
    assert f"threads was {threads} and is now {threads + 1}" in said[0]
    changed = read_record(run)["resumed"][0]["changed"]
    assert any(line.startswith("threads was") for line in changed)


def test_other_instruction_sets_are_said_aloud(
    images: ImageDataset,
    unbroken: tuple[Path, dict[str, Tensor]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, heard = cut(unbroken[0], tmp_path / "run", 5), Heard()
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")  # read by the library before; the record sees it
    run_small(images, run, every_step(), resume=True, callback=heard)
    assert any("instruction_sets was" in line and "COMPATIBLE" in line for line in heard.lines)
    assert "MKL_CBWR=COMPATIBLE" in read_record(run)["resumed"][0]["changed"][0]


@pytest.mark.parametrize("change", [{"learning_rate": 1.0}, {"optimizer": "adamw"}])
def test_other_settings_are_refused(
    images: ImageDataset,
    unbroken: tuple[Path, dict[str, Tensor]],
    tmp_path: Path,
    change: dict[str, object],
) -> None:
    run = cut(unbroken[0], tmp_path / "run", 5)
    settings = Settings(**(every_step().as_dict() | change))
    with pytest.raises(BadData, match=rf"{next(iter(change))} was .* not the same run"):
        run_small(images, run, settings, resume=True)


def test_other_images_are_refused(
    images: ImageDataset, unbroken: tuple[Path, dict[str, Tensor]], tmp_path: Path
) -> None:
    run = cut(unbroken[0], tmp_path / "run", 5)
    with pytest.raises(BadData, match=r"labels was .* the batches would differ"):
        run_small(images.subset(range(40)), run, every_step(), resume=True)


def test_a_run_is_never_overwritten(
    images: ImageDataset, unbroken: tuple[Path, dict[str, Tensor]]
) -> None:
    with pytest.raises(BadData, match="holds a run already"):
        run_small(images, unbroken[0], every_step())


def test_only_the_newest_checkpoints_stay(images: ImageDataset, tmp_path: Path) -> None:
    settings = Settings(steps=5, checkpoint_every=2, keep_checkpoints=2)
    run_small(images, tmp_path / "run", settings)
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert names == ["step-000000004", "step-000000005"]


def test_the_record_says_what_was_done(unbroken: tuple[Path, dict[str, Tensor]]) -> None:
    record = read_record(unbroken[0])
    assert record["learning_rates"] == {"backbone": 1e-4, "head": 1e-4}
    assert record["settings"]["clip_norm"] == 2.0
    assert record["environment"]["threads"] == torch.get_num_threads()
    assert record["model"]["batch_norm"] == "trained"
    assert record["crop"] == 16
    assert record["finished"] is True
    assert (unbroken[0] / "model" / "manifest.json").exists()
    json.dumps(record, allow_nan=False)


def test_a_resumed_run_keeps_the_start_where_that_was_best(
    images: ImageDataset, tmp_path: Path
) -> None:
    """Validation before the first update counts: step 0 is a step like any other."""
    settings = Settings(steps=2, validate_every=1, checkpoint_every=1)
    scores = iter([0.9, 0.5, 0.4])
    start = embedder().state_dict()
    run = tmp_path / "run"
    for resume in (False, True):
        model = embedder()
        fit(
            model,
            bayes_loss(),
            batches(images),
            settings=settings,
            validate=lambda model: {"recall@1": next(scores)},
            run=Run(run, resume=resume),
            callback=Callback(),
        )
        assert_equal(model.state_dict(), start)
