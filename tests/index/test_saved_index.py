"""A saved index comes back bit for bit; a fault leaves the old or the new one; damage is found."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from cbml.errors import DamagedFile
from cbml.files import load_folder, save_folder
from cbml.index import KINDS, Index
from tests.faults import failing_call, full_disk
from tests.index.vectors import random_ids, random_rows

Arrays = dict[str, np.ndarray]


def an_index(kind: str = "flat", seed: int = 0, number: int = 60) -> Index:
    """Rows of 16 numbers; of a kind with codes so many that it has some."""
    number = number + 1000 if kind == "pq4" else number
    index = Index(16, kind=kind)  # type: ignore[arg-type]
    index.add(random_rows(seed, number), random_ids(seed, number))
    index.remove(index.ids()[:5])
    return index


def same(left: Index, right: Index) -> bool:
    wanted = random_rows(99, 5)
    first, second = left.search(wanted, 1000), right.search(wanted, 1000)
    return (
        repr(left) == repr(right)
        and np.array_equal(first.ids, second.ids)
        and np.array_equal(first.similarities, second.similarities)
        and np.array_equal(left.vectors(left.ids()), right.vectors(right.ids()))
    )


@pytest.mark.parametrize("number", [5, 60])
@pytest.mark.parametrize("kind", KINDS)
def test_an_index_comes_back_bit_for_bit(kind: str, number: int, tmp_path: Path) -> None:
    index = an_index(kind, number=number)
    index.save(tmp_path / "a")
    loaded = Index.load(str(tmp_path / "a"))
    assert same(index, loaded)
    loaded.save(tmp_path / "b")
    names = [sorted(path.name for path in (tmp_path / side).glob("[!.]*")) for side in "ab"]
    assert names[0] == names[1], "equal content gives equal names"
    more = random_rows(5, 20)
    assert loaded.add(more).tolist() == index.add(more).tolist(), "ids go on where they were"
    assert same(index, loaded)


@pytest.mark.parametrize("call", ["open", "replace", "fsync", "chmod"])
def test_a_fault_at_every_call_leaves_the_old_or_the_new_index(tmp_path: Path, call: str) -> None:
    """Fail the n-th system call for n = 1, 2, 3 ... until a save succeeds without a fault."""
    old, new = an_index(seed=1), an_index(seed=2)
    old.save(tmp_path)
    for nth in range(1, 50):
        with failing_call(call, nth), contextlib.suppress(OSError):
            new.save(tmp_path)
            break
        found = Index.load(tmp_path)
        assert same(found, old) or same(found, new)
        old.save(tmp_path)
    assert 1 < nth < 49, "the call was reached, and the last save met no fault"
    assert same(Index.load(tmp_path), new)
    new.save(tmp_path)
    assert len(list(tmp_path.glob("[!.]*"))) == 2, "the parts of the old index are gone"


def test_a_full_disk_leaves_the_old_index(tmp_path: Path) -> None:
    old, new = an_index(seed=1), an_index(seed=2)
    old.save(tmp_path)
    size = max(path.stat().st_size for path in tmp_path.iterdir())
    for limit in [1, 100, *range(200, size, size // 20)]:
        with full_disk(limit), pytest.raises((OSError, safetensors.SafetensorError)):
            new.save(tmp_path)
        assert same(Index.load(tmp_path), old)
    new.save(tmp_path)
    assert same(Index.load(tmp_path), new)


# Imports once. For every number that it reads it gives birth to a saver, which kills itself before
# its n-th system call; for 0 the saver goes on and on, and is killed from outside.
NURSERY = """
import os, signal, sys
sys.path.insert(0, sys.argv[2])
from tests.index.test_saved_index import an_index
indexes = [an_index(seed=seed, number=1000) for seed in (1, 2)]

def deadly(real):
    def call(*arguments, **options):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **options)
    return call

for line in sys.stdin:
    left = int(line)
    child = os.fork()
    if child == 0:
        if left:
            for name in ("open", "close", "replace", "fsync", "chmod", "mkdir", "unlink", "rmdir"):
                setattr(os, name, deadly(getattr(os, name)))
            indexes[1].save(sys.argv[1])
            os._exit(0)
        while True:
            for index in indexes:
                index.save(sys.argv[1])
    print(child, flush=True)
    print(os.waitpid(child, 0)[1], flush=True)
"""


class Nursery:
    """Savers that are killed, and the two indexes of which one must be found afterwards."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.indexes = [an_index(seed=seed, number=1000) for seed in (1, 2)]
        self.indexes[0].save(folder)
        self.process = subprocess.Popen(
            [sys.executable, "-c", NURSERY, str(folder), str(Path(__file__).parents[2])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )

    def read(self) -> int:
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())

    def save(self, number: int, moment: float = 0.0) -> int:
        """The exit status of a saver that dies at its n-th call, or at a moment from outside."""
        print(number, file=self.process.stdin, flush=True)
        child = self.read()
        if not number:
            time.sleep(moment)
            os.kill(child, signal.SIGKILL)
        return self.read()

    def found(self) -> int:
        """Which of the two indexes is in the folder."""
        matching = [same(Index.load(self.folder), index) for index in self.indexes]
        assert sum(matching) == 1
        return matching.index(True)


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    nursery = Nursery(tmp_path)
    with nursery.process:
        yield nursery


def test_kill_before_every_system_call_leaves_the_old_or_the_new_index(nursery: Nursery) -> None:
    outcomes = []
    for number in range(1, 200):
        nursery.indexes[0].save(nursery.folder)
        status = nursery.save(number)
        outcomes.append(nursery.found())
        if status == 0:
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
    assert outcomes == sorted(outcomes), "there is one commit point"
    assert outcomes.count(0) >= 10
    assert outcomes.count(1) >= 2, "also between the commit and the end"


@pytest.mark.slow
def test_kill_at_200_moments_leaves_the_old_or_the_new_index(nursery: Nursery) -> None:
    chance = random.Random(0)
    found = set()
    for _ in range(200):
        nursery.save(0, chance.uniform(0.0, 0.2))
        found.add(nursery.found())
    assert found == {0, 1}


def mutate(path: Path, how: int, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    place = chance.randrange(len(content))
    if how == 0:
        content[place] ^= 1 << chance.randrange(8)
    elif how == 1:
        del content[place:]
    elif how == 2:
        content.insert(place, chance.randrange(256))
    elif how == 3:
        content[place : place + 64] = bytes(len(content[place : place + 64]))
        content += b"\0"
    else:
        path.unlink()
        return
    path.write_bytes(content)


def refuse_mutations(tmp_path: Path, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(path: Path) -> None:
        raise AssertionError("damaged bytes were read before they were compared")

    chance = random.Random(7)
    for kind in KINDS:
        an_index(kind).save(tmp_path / kind)
    monkeypatch.setattr(safetensors.numpy, "load_file", never)
    for round_number in range(times):
        copy = tmp_path / "copy"
        shutil.copytree(tmp_path / chance.choice(list(KINDS)), copy)
        victim = chance.choice(sorted(copy.glob("[!.]*")))
        mutate(victim, round_number % 5, chance)
        with pytest.raises(DamagedFile, match=str(tmp_path)):
            Index.load(copy)
        shutil.rmtree(copy)


def test_mutated_folders_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_mutations(tmp_path, 150, monkeypatch)


@pytest.mark.slow
def test_2000_mutated_folders_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_mutations(tmp_path, 2000, monkeypatch)


def put(name: str, value: Any) -> Callable[[Arrays], None]:
    return lambda arrays: arrays.update({name: np.asarray(value(arrays[name]))})


def at(place: int, value: Any) -> Callable[[np.ndarray], np.ndarray]:
    def change(array: np.ndarray) -> np.ndarray:
        array = array.copy()
        array.reshape(-1)[place] = value
        return array

    return change


# Whoever computes the right SHA-256 can write anything; faiss must still not be led astray.
FORGERIES: list[tuple[str, Callable[[Arrays], None]]] = [
    ("flat", put("vectors", at(7, np.nan))),
    ("flat", put("vectors", lambda rows: rows * 2)),
    ("flat", put("vectors", lambda rows: rows[:, :-1])),
    ("flat", put("vectors", lambda rows: rows[:-1])),
    ("flat", put("vectors", lambda rows: rows.astype(np.float64))),
    ("flat", put("ids", at(0, -1))),
    ("flat", put("ids", lambda ids: ids[[0, *range(len(ids) - 1)]])),
    ("flat", put("ids", at(0, 2**61))),
    ("flat", put("ids", lambda ids: ids.astype(np.float32))),
    ("flat", lambda arrays: arrays.update(more=np.zeros(1))),
    ("flat", lambda arrays: arrays.clear()),
    ("sq8", put("codes", lambda codes: codes.astype(np.int8))),
    ("sq8", put("codes", lambda codes: codes.reshape(-1))),
    ("sq8", put("codes", lambda codes: codes[:, :-1])),
    ("sq8", put("reach", at(0, np.nan))),
    ("sq8", put("reach", at(0, 0.0))),
    ("sq8", put("reach", lambda reach: reach[:-1])),
    ("pq4", put("codes", lambda codes: codes.astype(np.int8))),
    ("pq4", put("codes", lambda codes: codes[:-1])),
    ("pq4", put("codes", lambda codes: codes[:, :-1])),
    ("pq4", put("codebook", at(0, np.nan))),
    ("pq4", put("codebook", at(0, 5.0))),
    ("pq4", put("codebook", lambda book: book[:-1])),
    ("pq4", put("codebook", lambda book: book.astype(np.float64))),
    ("pq4", lambda arrays: arrays.pop("codebook")),
    ("pq4", lambda arrays: arrays.update(more=np.zeros(1))),
]


@pytest.mark.parametrize("number", range(len(FORGERIES)))
def test_forged_arrays_are_refused(number: int, tmp_path: Path) -> None:
    kind, forge = FORGERIES[number]
    an_index(kind).save(tmp_path)
    parts, about = load_folder(tmp_path, "cbml index 1")
    arrays = safetensors.numpy.load_file(parts["index.safetensors"])
    save_arrays(tmp_path, arrays, about)
    assert same(Index.load(tmp_path), an_index(kind)), "the forger can write"
    forge(arrays)
    save_arrays(tmp_path, arrays, about)
    with pytest.raises(DamagedFile, match="not a saved index"):
        Index.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("recall", 1.0),
        ("recall", "0.9"),
        ("trained_on", 3),
        ("measured", {}),
        ("candidates", [5, 200]),
        ("candidates", [None, 10**6]),
        ("candidates", [20.0, 200]),
        ("candidates", [20]),
        ("recalls", ["a", 1.0]),
        ("queries", 0),
    ],
)
def test_forged_measurements_are_refused(name: str, value: object, tmp_path: Path) -> None:
    an_index("pq4", number=3000).save(tmp_path)
    parts, about = load_folder(tmp_path, "cbml index 1")
    arrays = safetensors.numpy.load_file(parts["index.safetensors"])
    facts = about["approximation"]
    (facts if name in facts else facts["measured"])[name] = value
    save_arrays(tmp_path, arrays, about)
    with pytest.raises(DamagedFile, match="not a saved index"):
        Index.load(tmp_path)


@pytest.mark.parametrize("number", [0, 60])
def test_a_graph_of_older_versions_is_read_as_codes(number: int, tmp_path: Path) -> None:
    """Kind "hnsw" is gone; what it saved is not."""
    rows, live = random_rows(0, number), np.arange(1, number, 2)
    arrays = {
        "vectors": rows,
        "live": live,
        "levels": np.ones(number, dtype=np.int32),
        "neighbors": np.full(64 * number, -1, dtype=np.int32),
        "entry": np.zeros(1, dtype=np.int64),
        "ids": live + 100,
    }
    about = {"dim": 16, "kind": "hnsw", "rows": len(live), "next_id": 1000}
    save_arrays(tmp_path, arrays, about)
    index = Index.load(tmp_path)
    assert index.kind == "pq4"
    assert index.ids().tolist() == (live + 100).tolist()
    assert np.array_equal(index.vectors(index.ids()), rows[live])
    index.save()
    assert same(Index.load(tmp_path), index)
    for forged in (live - 2, live[::-1], live + number, live.astype(np.float64), live[:, None]):
        if number:
            save_arrays(tmp_path, arrays | {"live": forged}, about)
            with pytest.raises(DamagedFile, match="not a saved index"):
                Index.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [("dim", 17), ("dim", "16"), ("kind", "ivf"), ("kind", "sq8"), ("rows", 54), ("next_id", 3)],
)
def test_forged_facts_are_refused(name: str, value: object, tmp_path: Path) -> None:
    an_index().save(tmp_path)
    parts, about = load_folder(tmp_path, "cbml index 1")
    arrays = safetensors.numpy.load_file(parts["index.safetensors"])
    for facts in (about | {name: value}, {key: about[key] for key in about if key != name}):
        save_arrays(tmp_path, arrays, facts)
        with pytest.raises(DamagedFile, match="not a saved index"):
            Index.load(tmp_path)


def save_arrays(folder: Path, arrays: Arrays, about: dict[str, Any]) -> None:
    plain = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    write = {"index.safetensors": lambda path: safetensors.numpy.save_file(plain, path)}
    save_folder(folder, "cbml index 1", write, about)


def test_other_parts_and_no_index_are_named(tmp_path: Path) -> None:
    with pytest.raises(DamagedFile, match=r"no manifest\.json"):
        Index.load(tmp_path)
    save_folder(tmp_path, "cbml index 1", {"a.txt": lambda path: path.write_text("a")}, {})
    with pytest.raises(DamagedFile, match="has one part"):
        Index.load(tmp_path)
    write = {"index.safetensors": lambda path: path.write_bytes(b"\x80\x04pickle")}
    save_folder(tmp_path, "cbml index 1", write, {})
    with pytest.raises(DamagedFile, match="not a saved index"):
        Index.load(tmp_path)
