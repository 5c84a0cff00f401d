"""A checkpoint is old or new, never between; damaged and hostile ones run nothing."""

import contextlib
import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch

from cbml.data import ImageDataset
from cbml.errors import DamagedFile
from cbml.training import Settings
from cbml.training.checkpoints import newest_checkpoint, write_checkpoint
from tests.faults import failing_call, full_disk
from tests.models.test_saved import forge, hostile_files, mutated
from tests.training.small import make_images, run_small


def save(folder: Path, step: int, keep: int = 1) -> None:
    tensors = {"model.weight": torch.full((400,), float(step)), "random.torch": torch.arange(3)}
    write_checkpoint(folder, step, tensors, {"sampler": {"step": step}}, keep=keep)


def newest(folder: Path) -> int:
    found = newest_checkpoint(folder, print)
    assert found is not None
    assert float(found.tensors["model.weight"][0]) == found.step == found.state["sampler"]["step"]
    return found.step


def test_halves_do_not_count_as_kept(tmp_path: Path) -> None:
    for step in (2, 4):
        save(tmp_path, step, keep=2)
    (first, second) = sorted(tmp_path.iterdir())
    (second / "manifest.json").unlink()  # killed while it was written
    save(tmp_path, 5, keep=2)
    assert first.exists()
    assert not second.exists()
    shutil.rmtree(max(tmp_path.iterdir()))
    assert newest(tmp_path) == 2


@pytest.mark.parametrize("call", ["open", "replace", "fsync", "chmod", "unlink", "rmdir"])
def test_a_fault_at_every_call_leaves_the_old_or_the_new_one(tmp_path: Path, call: str) -> None:
    """Fail the n-th system call for n = 1, 2, 3 ... until a save meets none."""
    nth, reached = 0, True
    while reached:
        nth += 1
        folder, done = tmp_path / str(nth), False
        save(folder, 1)
        with failing_call(call, nth) as calls, contextlib.suppress(OSError):
            save(folder, 2)
            done = True
        reached = calls.count >= nth
        assert newest(folder) in ((2,) if done else (1, 2))
        save(folder, 3)
        assert newest(folder) == 3
    assert nth > 1, "the call was reached"


def test_the_new_one_is_on_the_disk_before_the_old_one_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut loses what was not flushed: contents of files, and entries of folders."""
    folder, fsync, unlink = tmp_path / "checkpoints", os.fsync, os.unlink
    contents: set[int] = set()
    entries: dict[str, set[str]] = {}
    checked: list[Path] = []

    def flushed(descriptor: int) -> None:
        fsync(descriptor)
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        contents.add(os.fstat(descriptor).st_ino)
        if os.path.isdir(path):
            entries[path] = set(os.listdir(path))

    def deleting(path: Any, **options: Any) -> None:
        if str(path) == str(folder / "step-000000001" / "manifest.json"):
            new = folder / "step-000000002"
            assert new.name in entries.get(str(folder), set())
            for part in new.glob("[!.]*"):
                assert part.name in entries[str(new)]
                assert part.stat().st_ino in contents
                checked.append(part)
        unlink(path, **options)

    save(folder, 1)
    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "unlink", deleting)
    save(folder, 2)
    assert len(checked) == 3


def test_a_full_disk_leaves_the_old_one(tmp_path: Path) -> None:
    save(tmp_path, 1)
    for limit in (1, 40, 500, 1_500):
        with full_disk(limit), pytest.raises((OSError, safetensors.SafetensorError)):
            save(tmp_path, 2)
        assert newest(tmp_path) == 1


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_mutated_checkpoints_are_refused(tmp_path: Path, count: int) -> None:
    save(tmp_path, 1)
    chance, done = random.Random(0), 0
    originals = {path: path.read_bytes() for path in sorted(tmp_path.glob("*/[!.]*"))}
    assert len(originals) == 3
    while done < count:
        victim = chance.choice(list(originals))
        damaged = mutated(originals[victim], chance)
        if damaged != originals[victim]:
            victim.write_bytes(damaged)
            with pytest.raises(DamagedFile, match=r"^[^\n]*step-000000001[^\n]*$"):
                newest_checkpoint(tmp_path, lambda text: None)
            victim.write_bytes(originals[victim])
            done += 1
    assert newest(tmp_path) == 1


def test_hostile_checkpoints_run_nothing(tmp_path: Path) -> None:
    mark, files = tmp_path / "mark", list(hostile_files(tmp_path / "mark"))
    assert len(files) >= 50
    save(tmp_path / "sound", 1)
    for part in ("tensors.safetensors", "state.json"):
        for _, content in files:
            folder = tmp_path / "hostile"
            shutil.copytree(tmp_path / "sound", folder)
            forge(folder / "step-000000001", part, content)
            with pytest.raises(DamagedFile, match=r"^[^\n]*$"):
                newest_checkpoint(folder, lambda text: None)
            assert not mark.exists()
            shutil.rmtree(folder)


def test_a_checkpoint_that_lacks_something_is_named(tmp_path: Path) -> None:
    images: ImageDataset = make_images(tmp_path / "images")
    run_small(images, tmp_path / "run", Settings(steps=1))
    folder = tmp_path / "run" / "checkpoints" / "step-000000001"
    state = json.loads(next(folder.glob("state-*")).read_text())
    del state["sampler"]
    forge(folder, "state.json", json.dumps(state).encode())
    with pytest.raises(DamagedFile, match="no 'sampler'"):
        run_small(images, tmp_path / "run", Settings(steps=2), resume=True)
