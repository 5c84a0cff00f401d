"""The packed cache: resumable after kill -9, one builder among many processes, damage found."""

import contextlib
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from cbml.data.decode import FileImages, UnreadableImage, read_image
from cbml.data.packed import PackedDataset, PackedImages, pack
from cbml.data.transforms import resized_short_side
from cbml.errors import DamagedFile
from tests.data.image_files import image_dataset, save_image
from tests.faults import failing_call, full_disk


def fresh(path: Path, length: int) -> torch.Tensor:
    pixels = torch.from_numpy(np.array(read_image(path))).permute(2, 0, 1)
    return resized_short_side(pixels, length)


def check_whole(packed: PackedImages, paths: tuple[Path, ...], length: int) -> None:
    assert len(packed) == len(paths)
    for index, path in enumerate(paths):
        assert torch.equal(packed.sized(index, length), fresh(path, length))


def test_packed_pixels_are_the_resized_images(tmp_path: Path) -> None:
    images = image_dataset(tmp_path / "set")
    calls: list[tuple[int, int]] = []
    packed = pack(
        images.paths, tmp_path / "pack", short_side=20, progress=lambda *a: calls.append(a)
    )
    check_whole(packed, images.paths, 20)
    assert calls == [(done, 30) for done in range(1, 31)]


def test_small_images_are_stored_as_they_are(tmp_path: Path) -> None:
    images = image_dataset(tmp_path / "set", classes=2, each=2)
    packed = pack(images.paths, tmp_path / "pack", short_side=256)
    sizes = [read_image(path).size for path in images.paths]
    assert (packed.folder / "pixels.u8").stat().st_size == sum(w * h * 3 for w, h in sizes)
    check_whole(packed, images.paths, 256)


def test_the_second_call_decodes_nothing(tmp_path: Path) -> None:
    images = image_dataset(tmp_path / "set")
    first = pack(images.paths, tmp_path / "pack", short_side=20)
    calls: list[int] = []
    again = pack(
        images.paths, tmp_path / "pack", short_side=20, progress=lambda *a: calls.append(1)
    )
    assert calls == []
    assert again.folder == first.folder
    save_image(images.paths[3], 999)
    os.utime(images.paths[3], ns=(1, 1))
    changed = pack(images.paths, tmp_path / "pack", short_side=20)
    assert changed.folder != first.folder
    check_whole(changed, images.paths, 20)


def test_bad_images_are_kept_by_name(tmp_path: Path) -> None:
    images = image_dataset(tmp_path / "set", classes=2)
    images.paths[0].write_bytes(b"")
    images.paths[4].unlink()
    images.paths[9].write_bytes(b"no image")
    packed = pack(images.paths, tmp_path / "pack", short_side=20)
    assert set(packed.reasons) == {0, 4, 9}
    with pytest.raises(UnreadableImage, match="empty file"):
        packed.sized(0, 20)
    assert torch.equal(packed.sized(5, 20), fresh(images.paths[5], 20))


def test_an_empty_set_and_a_wholly_bad_one(tmp_path: Path) -> None:
    assert len(pack([], tmp_path)) == 0
    (tmp_path / "a.jpg").write_bytes(b"x")
    assert len(pack([tmp_path / "a.jpg"], tmp_path).reasons) == 1


# One process imports torch, which takes seconds, and forks the ones that work and are killed.
WORKERS = """
import os, random, signal, sys, time
from pathlib import Path
from cbml.data.packed import pack

root, cache, how, count = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
paths = sorted(root.glob("*/*.png"))

def start(folder):
    child = os.fork()
    if not child:
        pack(paths, folder, short_side=40, workers=2)
        os._exit(0)
    return child

def tear(folder):  # what a power cut may leave behind
    for part in folder.glob("*/pixels.u8"):
        if not (part.parent / "manifest.json").exists():
            with part.open("ab") as file:
                file.write(b"torn")
            with (part.parent / "journal.jsonl").open("ab") as file:
                file.write(b"[40, 5")

if how == "kill":
    chance, killed = random.Random(0), 0
    for number in range(count):
        folder = cache / str(number % 3)  # each is taken up again several times
        child = start(folder)
        time.sleep(chance.uniform(0.0, 0.3))
        os.kill(child, signal.SIGKILL)
        killed += os.WIFSIGNALED(os.waitpid(child, 0)[1])
        if number % 2:
            tear(folder)
        if (folder.exists() and list(folder.glob("*/manifest.json"))):
            folder.rename(cache / f"finished{number}")
    print(killed)
else:
    children = [start(cache) for _ in range(count)]
    print([os.waitpid(child, 0)[1] for child in children])
"""


def run_workers(root: Path, cache: Path, how: str, count: int) -> str:
    command = [sys.executable, "-c", WORKERS, str(root), str(cache), how, str(count)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def kill_and_resume(tmp_path: Path, kills: int, images: int) -> None:
    image_dataset(tmp_path / "set", classes=1, each=images, size=(200, 150))
    paths = tuple(sorted((tmp_path / "set").glob("*/*.png")))
    killed = int(run_workers(tmp_path / "set", tmp_path / "cache", "kill", kills))
    assert killed > kills // 3, "most were killed at work"
    for cache in (tmp_path / "cache").iterdir():
        packed = pack(paths, cache, short_side=40)
        check_whole(packed, paths, 40)
        left = {path.name.partition("-")[0] for path in packed.folder.iterdir()}
        assert left - {"journal.jsonl"} == {".lock", "manifest.json", "pixels.u8", "table"}


def test_kill_at_random_moments_loses_nothing(tmp_path: Path) -> None:
    kill_and_resume(tmp_path, kills=8, images=250)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_two_hundred_kills_lose_nothing(tmp_path: Path) -> None:
    kill_and_resume(tmp_path, kills=200, images=1_000)


def test_work_goes_on_behind_the_sound_images(tmp_path: Path) -> None:
    images = image_dataset(tmp_path / "set")
    whole = pack(images.paths, tmp_path / "whole", short_side=20)

    class Stop(Exception):
        pass

    def stop(done: int, _: int) -> None:
        if done == 13:
            raise Stop

    with pytest.raises(Stop):
        pack(images.paths, tmp_path / "pack", short_side=20, progress=stop)
    (folder,) = (tmp_path / "pack").iterdir()
    journal = (folder / "journal.jsonl").read_bytes().splitlines(keepends=True)
    assert len(journal) == 13
    # The pixels of the tenth image are damaged while nobody looks: it and those behind go.
    pixels = bytearray((folder / "pixels.u8").read_bytes())
    pixels[whole._table[9][0]] ^= 1
    (folder / "pixels.u8").write_bytes(pixels)
    # And a kill while the table was written left its half.
    (folder / ".part-killed").mkdir()
    (folder / ".part-killed" / "table.npy").write_bytes(b"half")
    calls: list[int] = []
    packed = pack(
        images.paths, tmp_path / "pack", short_side=20, progress=lambda done, _: calls.append(done)
    )
    assert calls == list(range(10, 31))
    check_whole(packed, images.paths, 20)
    assert [path.name for path in folder.glob(".*")] == [".lock"]


def test_a_full_disk_is_gone_on_from_when_there_is_room(tmp_path: Path) -> None:
    images = image_dataset(tmp_path / "set")
    whole = pack(images.paths, tmp_path / "whole", short_side=20)
    size = (whole.folder / "pixels.u8").stat().st_size
    for limit in [1, 100, 700, 3_000, size // 2, size - 1]:
        with full_disk(limit), pytest.raises(OSError, match="File too large"):
            pack(images.paths, tmp_path / "pack", short_side=20)
        (folder,) = (tmp_path / "pack").iterdir()
        assert not (folder / "manifest.json").exists()
    check_whole(pack(images.paths, tmp_path / "pack", short_side=20), images.paths, 20)


@pytest.mark.parametrize("call", ["fsync", "replace", "open", "chmod"])
def test_a_fault_at_every_call_is_gone_on_from(tmp_path: Path, call: str) -> None:
    """Fail the n-th system call for n = 1, 2, 3 ... until packing succeeds without a fault."""
    images = image_dataset(tmp_path / "set", classes=2, each=2)
    for nth in range(1, 50):
        cache = tmp_path / f"pack{nth}"
        spared = str(tmp_path / "set")  # an image may be bad
        refused = contextlib.suppress(OSError, DamagedFile)  # the fault may be in reading
        with failing_call(call, nth, spared=spared) as calls, refused:
            pack(images.paths, cache, short_side=20)
        check_whole(pack(images.paths, cache, short_side=20), images.paths, 20)
        if calls.count < nth:
            assert nth > 1, f"{call} was never reached"
            return
    pytest.fail("never succeeded")


def test_many_processes_build_it_once(tmp_path: Path) -> None:
    image_dataset(tmp_path / "set", classes=2, each=60)
    assert run_workers(tmp_path / "set", tmp_path / "cache", "race", 4) == "[0, 0, 0, 0]"
    paths = tuple(sorted((tmp_path / "set").glob("*/*.png")))
    (folder,) = (tmp_path / "cache").iterdir()
    shapes = [fresh(path, min(40, *read_image(path).size)).numel() for path in paths]
    assert (folder / "pixels.u8").stat().st_size == sum(shapes), "each image once"
    check_whole(pack(paths, tmp_path / "cache", short_side=40), paths, 40)


def test_every_damaged_byte_is_found_before_it_is_used(tmp_path: Path) -> None:
    images = image_dataset(tmp_path / "set", classes=2, each=3)
    packed = pack(images.paths, tmp_path / "pack", short_side=20)
    path = packed.folder / "pixels.u8"
    sound = path.read_bytes()
    starts = packed._table[:, 0].tolist()
    chance = random.Random(0)
    for _ in range(60):
        place = chance.randrange(len(sound))
        broken = bytearray(sound)
        broken[place] ^= 1 << chance.randrange(8)
        path.write_bytes(broken)
        opened = PackedImages(packed.folder)
        victim = max(index for index, start in enumerate(starts) if start <= place)
        for index in range(6):
            if index == victim:
                with pytest.raises(DamagedFile, match=f"image {index} is damaged; delete"):
                    opened.sized(index, 20)
            else:
                opened.sized(index, 20)
    path.write_bytes(sound[:-1])
    with pytest.raises(DamagedFile, match="not the size"):
        PackedImages(packed.folder)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="RSS is counted as on Linux")
def test_pixels_that_were_read_do_not_stay_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = image_dataset(tmp_path / "set", classes=2, each=40, size=(90, 80))
    monkeypatch.setattr("cbml.data.packed._RESIDENT", 2**16)
    packed = pack(images.paths, tmp_path / "pack", short_side=80)
    first = packed.sized(0, 80)
    before = first.clone()
    largest = 0
    for index in range(len(packed)):
        packed.sized(index, 80)
        largest = max(largest, resident(packed.folder / "pixels.u8"))
    # The system maps up to 16 pages around one that is read.
    assert 0 < largest <= 2**16 + 2**17
    assert (packed.folder / "pixels.u8").stat().st_size > 2**20
    assert torch.equal(first, before)
    check_whole(packed, images.paths, 80)


def resident(path: Path) -> int:
    """Bytes of a mapped file that count as memory of this process."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    mapping = (line for line in lines if line.endswith(str(path)))
    return (
        sum(
            next(int(line.split()[1]) for line in lines if line.startswith("Rss:")) for _ in mapping
        )
        * 1024
    )


def test_a_damaged_table_is_refused(tmp_path: Path) -> None:
    images = image_dataset(tmp_path / "set", classes=2, each=3)
    packed = pack(images.paths, tmp_path / "pack", short_side=20)
    (table,) = packed.folder.glob("table-*.npy")
    table.write_bytes(table.read_bytes()[:-1] + b"x")
    with pytest.raises(DamagedFile, match="its content is not what"):
        PackedImages(packed.folder)


@pytest.mark.parametrize("name", ["manifest.json", "pixels.u8", "table-*.npy"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "gone", "pipe"])
def test_a_damaged_cache_says_that_it_can_be_deleted(
    tmp_path: Path, name: str, damage: str
) -> None:
    images = image_dataset(tmp_path / "set", classes=2, each=3)
    folder = pack(images.paths, tmp_path / "pack", short_side=20).folder
    (path,) = folder.glob(name)
    content = path.read_bytes()
    path.unlink()
    if damage == "pipe":
        os.mkfifo(path)
    elif damage != "gone":
        path.write_bytes(content[:-1] if damage == "cut" else bytes([content[0] ^ 1]) + content[1:])
    if (name, damage) != ("manifest.json", "gone"):  # without one it was never finished
        with pytest.raises(DamagedFile) as error:
            pack(images.paths, tmp_path / "pack", short_side=20).sized(0, 20)
        assert str(error.value).endswith(f"; delete {folder} and it will be made again")
        assert "restore" not in str(error.value)
        shutil.rmtree(folder)
    check_whole(pack(images.paths, tmp_path / "pack", short_side=20), images.paths, 20)


def test_the_digest_is_of_the_contents_alone(tmp_path: Path) -> None:
    images = image_dataset(tmp_path / "set", classes=2, each=3)
    bad = images.paths[1]
    bad.write_bytes(b"no image")
    packed = pack(images.paths, tmp_path / "cache", short_side=20)
    digest = packed.digest()
    assert digest == FileImages(images.paths).digest()
    assert digest == pack(images.paths, tmp_path / "cache", short_side=16).digest()
    for path in images.paths:  # a copy of the dataset, newer and elsewhere
        copy = tmp_path / "copy" / path.relative_to(tmp_path / "set")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    copies = tuple(tmp_path / "copy" / path.relative_to(tmp_path / "set") for path in images.paths)
    assert pack(copies, tmp_path / "cache", short_side=20).digest() == digest
    first, second = copies[0].read_bytes(), copies[2].read_bytes()
    copies[0].write_bytes(second)
    copies[2].write_bytes(first)  # other contents under the same names
    assert pack(copies, tmp_path / "cache", short_side=20).digest() != digest


def test_a_packed_dataset_leaves_out_what_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CBML_CACHE", str(tmp_path / "cache"))
    images = image_dataset(tmp_path / "set", classes=2, each=3)
    images.paths[1].write_bytes(b"no image")
    dataset = PackedDataset.of(images, 16)
    assert dataset.indices == (0, 2, 3, 4, 5)
    assert [path for path, _ in dataset.bad] == [str(images.paths[1])]
    assert len(dataset.images) == 5
    assert dataset.digest == FileImages(images.paths).digest()
