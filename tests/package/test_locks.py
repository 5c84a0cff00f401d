"""Writers take turns, a dead one lets go, and readers beside them never hear of damage."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cbml.errors import FolderInUse
from cbml.files import load_folder, locked
from cbml.index import Index
from cbml.models import Embedder

KIND = "test folder 1"

HOLDER = """
import os, sys, time
from pathlib import Path
from cbml.files import locked
with locked(Path(sys.argv[1])):
    if "fork" in sys.argv and os.fork() == 0:
        time.sleep(60)
    print("held", flush=True)
    time.sleep(60)
"""

WRITER = """
import sys
from pathlib import Path
from cbml.files import save_folder
folder, start = Path(sys.argv[1]), int(sys.argv[2])
for number in range(start, start + int(sys.argv[3])):
    content = b"%d " % number * 2000
    save_folder(folder, "test folder 1", {"a.bin": lambda path: path.write_bytes(content),
                "b.bin": lambda path: path.write_bytes(content[::-1])}, {"number": number})
"""


def hold(folder: Path, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", HOLDER, str(folder), *options]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    assert child.stdout is not None
    assert child.stdout.readline() == b"held\n"
    return child


def end(child: subprocess.Popen[bytes], *, group: bool = True) -> None:
    os.killpg(child.pid, signal.SIGKILL) if group else child.kill()
    child.wait()
    if group and child.stdout is not None:
        child.stdout.close()


def test_a_second_process_is_refused_and_a_killed_one_lets_go(tmp_path: Path) -> None:
    child = hold(tmp_path)
    try:
        with (
            pytest.raises(FolderInUse, match="another process is writing here"),
            locked(tmp_path, wait=0),
        ):
            pytest.fail("two hold the lock")
    finally:
        end(child)
    with locked(tmp_path, wait=0):
        pass


def test_the_child_of_a_dead_process_does_not_keep_its_lock(tmp_path: Path) -> None:
    child = hold(tmp_path, "fork")
    try:
        end(child, group=False)  # the forked one lives on
        with locked(tmp_path, wait=1):
            pass
    finally:
        end(child)


def test_waiting_ends_when_the_other_is_done(tmp_path: Path) -> None:
    child = hold(tmp_path)
    threading.Timer(0.3, end, [child]).start()
    start = time.monotonic()
    with locked(tmp_path, wait=20):
        assert 0.2 < time.monotonic() - start < 10


def test_two_names_of_a_folder_are_one_lock(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    child = hold(tmp_path / "link")
    try:
        with pytest.raises(FolderInUse), locked(tmp_path / "real", wait=0):
            pytest.fail("two hold the lock")
    finally:
        end(child)


def test_a_thread_may_take_its_lock_again_and_others_may_not(tmp_path: Path) -> None:
    refused: list[bool] = []

    def attempt() -> None:
        try:
            with locked(tmp_path, wait=0):
                refused.append(False)
        except FolderInUse:
            refused.append(True)

    def from_another_thread() -> bool:
        thread = threading.Thread(target=attempt)
        thread.start()
        thread.join()
        return refused[-1]

    with locked(tmp_path):
        with locked(tmp_path, wait=0):
            pass
        assert from_another_thread(), "the inner block does not let go of the lock"
    assert not from_another_thread()


def load_beside_writers(folder: Path, *, saves: int, loads: int) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(folder), str(first), str(saves)])
        for first in (0, 10**6)
    ]
    try:
        while not (folder / "manifest.json").exists():
            time.sleep(0.01)
        seen, done, last = set(), 0, time.monotonic() + 60
        # On a busy machine the writers may have no turn for a while.
        while done < loads or (len(seen) <= 2 and time.monotonic() < last):
            done += 1
            parts, metadata = load_folder(folder, KIND)
            seen.add(metadata["number"])
            assert set(parts) == {"a.bin", "b.bin"}
        assert len(seen) > 2, "no writer was at work beside the reader"
    finally:
        for writer in writers:
            writer.kill() if writer.poll() is None else None
    codes = [writer.wait() for writer in writers]
    assert set(codes) <= {0, -signal.SIGKILL}
    load_folder(folder, KIND)


def slow_reader(monkeypatch: pytest.MonkeyPatch, module: str, save: Callable[[], None]) -> None:
    """Two saves between the check of the parts and their reading: the parts are deleted."""
    left = [save, save]

    def slow(*arguments: Any) -> Any:
        checked = load_folder(*arguments)
        while left:
            left.pop()()
        return checked

    monkeypatch.setattr(f"{module}.load_folder", slow)


def test_a_model_replaced_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Embedder("conv4", dim=8).requires_grad_(False)

    def save() -> None:
        model.head.weight.add_(1.0)
        model.save(tmp_path)

    save()
    slow_reader(monkeypatch, "cbml.models.weights", save)
    assert torch.equal(Embedder.load(tmp_path).head.weight, model.head.weight)


def test_an_index_replaced_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Index(4)

    def save() -> None:
        index.add(np.eye(4, dtype=np.float32)[:1])
        index.save(tmp_path)

    save()
    slow_reader(monkeypatch, "cbml.index.index", save)
    assert len(Index.load(tmp_path)) == len(index) == 3


def test_readers_beside_two_writers_read_whole_folders(tmp_path: Path) -> None:
    load_beside_writers(tmp_path, saves=10**5, loads=300)


@pytest.mark.slow
def test_two_thousand_loads_beside_two_writers(tmp_path: Path) -> None:
    load_beside_writers(tmp_path, saves=10**6, loads=2000)
