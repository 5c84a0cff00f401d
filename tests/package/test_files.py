"""Saved files are old or new, never between, and damage is found."""

import contextlib
import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cbml.errors import DamagedFile
from cbml.files import load_folder, replaced_file, save_folder, write_json
from tests.faults import failing_call, full_disk

KIND = "test folder 1"


def writer(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


def save(folder: Path, content: bytes) -> None:
    parts = {"vectors.bin": writer(content), "names.txt": writer(content[::-1])}
    save_folder(folder, KIND, parts, {"length": len(content)})


def read(folder: Path) -> bytes:
    parts, about = load_folder(folder, KIND)
    content = parts["vectors.bin"].read_bytes()
    assert parts["names.txt"].read_bytes() == content[::-1]
    assert about == {"length": len(content)}
    return content


def test_a_saved_folder_is_read_back_and_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    save(folder, b"first")
    save(folder, b"second one")
    assert read(folder) == b"second one"
    assert len(list(folder.glob("vectors-*"))) == 2, "a slow reader may still need the first"
    save(folder, b"third")
    assert read(folder) == b"third"
    names = {path.name.split("-")[0] for path in folder.iterdir()}
    assert names == {".lock", "manifest.json", "names", "vectors"}
    assert len(list(folder.iterdir())) == 6, "parts of the first save are gone"


def test_umask_is_respected_and_symbolic_links_stay(tmp_path: Path) -> None:
    real = tmp_path / "real.json"
    real.write_text("{}")
    link = tmp_path / "link.json"
    link.symlink_to(real)
    before = os.umask(0o027)
    try:
        write_json(link, {"a": 1})
    finally:
        os.umask(before)
    assert link.is_symlink()
    assert json.loads(real.read_text()) == {"a": 1}
    assert real.stat().st_mode & 0o777 == 0o640


def test_a_failing_block_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def fail() -> None:
        with replaced_file(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


CALLS = ["open", "replace", "fsync", "chmod"]


@pytest.mark.parametrize("call", CALLS)
def test_a_fault_at_every_call_leaves_old_or_new(tmp_path: Path, call: str) -> None:
    """Fail the n-th system call for n = 1, 2, 3 ... until the save succeeds without a fault."""
    folder = tmp_path / "saved"
    save(folder, b"old")
    for nth in range(1, 100):
        failed = True
        with failing_call(call, nth), contextlib.suppress(OSError):
            save(folder, b"new content")
            failed = False
        assert read(folder) in {b"old", b"new content"}
        if not failed:
            assert nth > 1, f"{call} was never reached"
            assert read(folder) == b"new content"
            return
        save(folder, b"old")
    pytest.fail("never succeeded")


def test_a_full_disk_leaves_the_old_folder(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    save(folder, b"old")
    for limit in [1, 10, 100, 300, 500]:
        with full_disk(limit), contextlib.suppress(OSError):
            save(folder, b"x" * 2000)
        assert read(folder) == b"old"


KILLED = """
import sys
from pathlib import Path
from cbml.files import save_folder
folder = Path(sys.argv[1])
print("ready", flush=True)
for i in range(10**6):
    content = bytes([i % 256]) * 50_000
    save_folder(folder, "test folder 1", {"vectors.bin": lambda p: p.write_bytes(content),
                "names.txt": lambda p: p.write_bytes(content[::-1])}, {"length": len(content)})
"""


def test_kill_at_random_moments_leaves_a_readable_folder(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    save(folder, b"old")
    chance = random.Random(0)
    for _ in range(8):
        child = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(folder)], stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        with child.stdout as output:
            output.readline()
            try:
                child.wait(chance.uniform(0.0, 0.1))
            except subprocess.TimeoutExpired:
                child.kill()
            child.wait()
        assert len(set(read(folder))) <= 3


def test_every_kind_of_damage_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    chance = random.Random(1)
    content = bytes(chance.randrange(256) for _ in range(300))
    for round_number in range(300):
        save(folder, content)
        victim = chance.choice(sorted(path for path in folder.iterdir() if path.name != ".lock"))
        damaged = bytearray(victim.read_bytes())
        place = chance.randrange(len(damaged))
        how = round_number % 3
        if how == 0:
            damaged[place] ^= 1 << chance.randrange(8)
        elif how == 1:
            del damaged[place:]
        else:
            damaged.insert(place, 65)
        victim.write_bytes(damaged)
        with pytest.raises(DamagedFile):
            read(folder)
        victim.unlink()


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/b", ".."])
def test_a_manifest_cannot_lead_out_of_its_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "saved"
    save(folder, b"x")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["parts"]["vectors.bin"]["file"] = name
    del manifest["sha256"]  # an attacker can compute it as well as we can
    manifest["sha256"] = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    write_json(folder / "manifest.json", manifest)
    with pytest.raises(DamagedFile, match="not a manifest"):
        load_folder(folder, KIND)


def test_the_wrong_kind_and_no_manifest_are_named(tmp_path: Path) -> None:
    save(tmp_path / "saved", b"x")
    with pytest.raises(DamagedFile, match="expected 'other'"):
        load_folder(tmp_path / "saved", "other")
    with pytest.raises(DamagedFile, match=r"no manifest\.json"):
        load_folder(tmp_path, KIND)


def test_a_manifest_nested_without_end_is_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("[" * 100_000)
    with pytest.raises(DamagedFile, match="not readable as JSON"):
        load_folder(tmp_path, KIND)


def test_the_next_save_deletes_what_a_killed_one_left(tmp_path: Path) -> None:
    write = {"a.txt": lambda path: path.write_text("a")}
    (tmp_path / ".part-young").mkdir()
    (tmp_path / ".part-young" / "a.txt").write_text("half")
    (tmp_path / ".a-0.txt.xyz.tmp").write_text("half")
    (tmp_path / ".notes").write_text("mine")
    save_folder(tmp_path, "cbml test 1", write, {})
    assert {path.name for path in tmp_path.glob(".*")} == {".notes", ".lock"}


def sealed(folder: Path, manifest: dict[str, object]) -> None:
    """Write a manifest with the digest that goes with it."""
    content = json.dumps(manifest, sort_keys=True)
    write_json(
        folder / "manifest.json",
        {**manifest, "sha256": hashlib.sha256(content.encode()).hexdigest()},
    )


def test_a_folder_of_an_earlier_version_is_named_so(tmp_path: Path) -> None:
    sealed(tmp_path, {"kind": KIND, "parts": {}, "about": {}})
    with pytest.raises(DamagedFile, match="earlier version of cbml; make it again"):
        load_folder(tmp_path, KIND)


@pytest.mark.parametrize("how", ["NaN", "a folder", "a long name", "a folder for a part"])
def test_odd_manifests_are_refused_in_one_line(tmp_path: Path, how: str) -> None:
    manifest = tmp_path / "manifest.json"
    if how == "NaN":
        manifest.write_text('{"kind": NaN}')
    elif how == "a folder":
        manifest.mkdir()
    else:
        name = "x" * 5000 if how == "a long name" else "part"
        (tmp_path / "part").mkdir()
        entry = {"file": name, "bytes": (tmp_path / "part").stat().st_size, "sha256": "0" * 64}
        sealed(tmp_path, {"kind": KIND, "parts": {"a": entry}, "metadata": {}})
    with pytest.raises(DamagedFile) as raised:
        load_folder(tmp_path, KIND)
    assert "\n" not in str(raised.value)


def test_who_reads_the_old_file_goes_on_reading_it(tmp_path: Path) -> None:
    """The new file takes the name of the old one; nothing is written into what others read."""
    path = tmp_path / "a.json"
    write_json(path, {"old": [1] * 1000})
    old = path.read_text()
    with path.open() as reader:
        write_json(path, {"new": 2})
        assert reader.read() == old
    assert json.loads(path.read_text()) == {"new": 2}
