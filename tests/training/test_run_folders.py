"""A run folder under random interruptions, kills, damage and jumps of the clock."""

import random
import shutil
import tempfile
import time
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    precondition,
    rule,
    run_state_machine_as_test,
)
from torch import Tensor

from cbml.data import ImageDataset
from cbml.errors import BadData
from cbml.training import Callback, Run, Settings, StepReport, fit, read_metrics, read_record
from cbml.training.checkpoints import newest_checkpoint
from tests.training.small import batches, bayes_loss, embedder, make_images

STEPS = 9
IMAGES: dict[Path, ImageDataset] = {}
UNBROKEN: dict[int, dict[str, Tensor]] = {}


class Ends(Callback):
    """Ends a run after a step: in order, or by keeping what a kill would leave at that moment."""

    def __init__(self, at: int, kept: Path | None = None) -> None:
        self.at, self.kept = at, kept

    def step(self, report: StepReport) -> None:
        if report.step >= self.at:
            if self.kept is not None:
                shutil.copytree(report_folder(self), self.kept)
            raise KeyboardInterrupt


def report_folder(ends: Ends) -> Path:
    assert ends.kept is not None
    return ends.kept.with_name("run")


def train(folder: Path, callback: Callback | None = None) -> dict[str, Tensor]:
    model = embedder()
    fit(
        model,
        bayes_loss(),
        batches(IMAGES[folder.parent.parent]),
        settings=Settings(steps=STEPS, checkpoint_every=2, keep_checkpoints=2),
        run=Run(folder, resume=(folder / "run.json").exists()),
        callback=callback or Callback(),
    )
    return {name: value.clone() for name, value in model.state_dict().items()}


class RunMachine(RuleBasedStateMachine):
    """Whatever happens to a run on its way, it ends with the weights of one that nothing broke."""

    home: Path

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(dir=self.home))
        self.folder = self.root / "run"
        self.done = False

    def attempt(self, callback: Callback) -> None:
        try:
            train(self.folder, callback)
            self.done = True
        except KeyboardInterrupt:
            pass

    @precondition(lambda self: not self.done)
    @rule(at=st.integers(1, STEPS))
    def interrupt(self, at: int) -> None:
        self.attempt(Ends(at))

    @precondition(lambda self: not self.done)
    @rule(at=st.integers(1, STEPS))
    def kill(self, at: int) -> None:
        kept = self.root / "kept"
        self.attempt(Ends(at, kept))
        if kept.exists():  # as if nothing had been written since
            shutil.rmtree(self.folder)
            kept.rename(self.folder)

    @rule()
    def leave_half_a_checkpoint(self) -> None:
        half = self.folder / "checkpoints" / "step-000000008" / ".part-x"
        if self.folder.exists() and not half.parent.exists():
            half.mkdir(parents=True)
            (half / "tensors.safetensors").write_bytes(b"half")

    @rule(choice=st.integers(0, 10**6))
    def damage_the_newest(self, choice: int) -> None:
        whole = sorted(self.folder.glob("checkpoints/step-*/manifest.json"))
        if len(whole) > 1 and not self.done:
            tensors = next(whole[-1].parent.glob("tensors-*"))
            content = bytearray(tensors.read_bytes())
            content[choice % len(content)] ^= 0x10
            tensors.write_bytes(content)

    @rule(length=st.integers(1, 30))
    def cut_the_last_line(self, length: int) -> None:
        metrics = self.folder / "metrics.jsonl"
        if metrics.exists() and not self.done:
            metrics.write_bytes(metrics.read_bytes()[:-length])

    def teardown(self) -> None:
        weights = train(self.folder)
        unbroken = UNBROKEN[0]
        assert [name for name in unbroken if not torch.equal(unbroken[name], weights[name])] == []
        record, lines = read_record(self.folder), read_metrics(self.folder)
        steps = [line["step"] for line in lines if "loss" in line]
        assert record["finished"]
        assert record["steps_done"] == STEPS
        assert steps == sorted(set(steps))
        newest = newest_checkpoint(self.folder / "checkpoints", print)
        assert newest is not None
        assert newest.step == STEPS
        shutil.rmtree(self.root)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    torch.set_num_threads(1)
    IMAGES[tmp_path] = make_images(tmp_path / "images")
    (tmp_path / "unbroken").mkdir()
    UNBROKEN[0] = train(tmp_path / "unbroken" / "run")
    return tmp_path


@pytest.mark.parametrize(
    ("examples", "steps"), [(5, 8), pytest.param(200, 15, marks=pytest.mark.slow)]
)
def test_whatever_happens_the_run_ends_as_if_nothing_had(
    home: Path, examples: int, steps: int
) -> None:
    RunMachine.home = home
    run_state_machine_as_test(
        RunMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )


class Moves(Callback):
    """Takes the folder of a run away while it is trained."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def step(self, report: StepReport) -> None:
        if report.step == 4:
            self.folder.rename(self.folder.with_name("moved"))


def test_a_run_whose_folder_is_moved_ends_and_goes_on_when_it_is_back(home: Path) -> None:
    (home / "moving").mkdir()
    folder = home / "moving" / "run"
    with pytest.raises(BadData, match="was moved or deleted while it was trained"):
        train(folder, Moves(folder))
    assert not folder.exists(), "nothing was made anew"
    folder.with_name("moved").rename(folder)
    weights = train(folder)
    assert all(torch.equal(UNBROKEN[0][name], weights[name]) for name in weights)


def test_a_clock_that_jumps_changes_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Years ahead, back before the epoch, and the same second twice."""
    chance, real = random.Random(0), time.time
    jumps = [0.0, 3e8, -3e8, -2e9, 1e10]

    def jumping() -> float:
        return real() + chance.choice(jumps)

    monkeypatch.setattr(time, "time", jumping)
    monkeypatch.setattr(time, "time_ns", lambda: int(jumping() * 1e9))
    (home / "jumping").mkdir()
    folder = home / "jumping" / "run"
    with pytest.raises(KeyboardInterrupt):
        train(folder, Ends(4))
    weights = train(folder)
    assert all(torch.equal(UNBROKEN[0][name], weights[name]) for name in weights)
