"""The packed cache: resumable after kill -9, one builder among many processes, damage found."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from cbml.data.decode import BadPicture, read_picture
from cbml.data.packed import PackedImages, pack
from cbml.data.transforms import resized_short_side
from cbml.errors import DamagedFile
from tests.data.pictures import picture_set, save_picture


def fresh(path: Path, length: int) -> torch.Tensor:
    pixels = torch.from_numpy(np.array(read_picture(path))).permute(2, 0, 1)
    return resized_short_side(pixels, length)


def check_whole(packed: PackedImages, paths: tuple[Path, ...], length: int) -> None:
    assert len(packed) == len(paths)
    for index, path in enumerate(paths):
        assert torch.equal(packed.sized(index, length), fresh(path, length))


def test_packed_pixels_are_the_resized_pictures(tmp_path: Path) -> None:
    images = picture_set(tmp_path / "set")
    calls: list[tuple[int, int]] = []
    packed = pack(
        images.paths, tmp_path / "pack", short_side=20, progress=lambda *a: calls.append(a)
    )
    check_whole(packed, images.paths, 20)
    assert calls == [(done, 30) for done in range(1, 31)]


def test_small_pictures_are_stored_as_they_are(tmp_path: Path) -> None:
    images = picture_set(tmp_path / "set", classes=2, each=2)
    packed = pack(images.paths, tmp_path / "pack", short_side=256)
    sizes = [read_picture(path).size for path in images.paths]
    assert (packed.folder / "pixels.u8").stat().st_size == sum(w * h * 3 for w, h in sizes)
    check_whole(packed, images.paths, 256)


def test_the_second_call_decodes_nothing(tmp_path: Path) -> None:
    images = picture_set(tmp_path / "set")
    first = pack(images.paths, tmp_path / "pack", short_side=20)
    calls: list[int] = []
    again = pack(
        images.paths, tmp_path / "pack", short_side=20, progress=lambda *a: calls.append(1)
    )
    assert calls == []
    assert again.folder == first.folder
    save_picture(images.paths[3], 999)
    os.utime(images.paths[3], ns=(1, 1))
    changed = pack(images.paths, tmp_path / "pack", short_side=20)
    assert changed.folder != first.folder
    check_whole(changed, images.paths, 20)


def test_bad_pictures_are_kept_by_name(tmp_path: Path) -> None:
    images = picture_set(tmp_path / "set", classes=2)
    images.paths[0].write_bytes(b"")
    images.paths[4].unlink()
    images.paths[9].write_bytes(b"no picture")
    packed = pack(images.paths, tmp_path / "pack", short_side=20)
    assert set(packed.reasons) == {0, 4, 9}
    with pytest.raises(BadPicture, match="empty file"):
        packed.sized(0, 20)
    assert torch.equal(packed.sized(5, 20), fresh(images.paths[5], 20))


def test_an_empty_set_and_a_wholly_bad_one(tmp_path: Path) -> None:
    assert len(pack([], tmp_path)) == 0
    (tmp_path / "a.jpg").write_bytes(b"x")
    assert len(pack([tmp_path / "a.jpg"], tmp_path).reasons) == 1


PACKER = """
import sys
from pathlib import Path
from cbml.data.packed import pack
root = Path(sys.argv[1])
paths = sorted(root.glob("*/*.png"))
print("ready", flush=True)
pack(paths, Path(sys.argv[2]), short_side=40, workers=2)
print("done", flush=True)
"""


def start(root: Path, cache: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PACKER, str(root), str(cache)], stdout=subprocess.PIPE, text=True
    )


def kill_and_resume(tmp_path: Path, kills: int, pictures: int) -> None:
    images = picture_set(tmp_path / "set", classes=1, each=pictures, size=(200, 150))
    paths = tuple(sorted((tmp_path / "set").glob("*/*.png")))
    assert len(paths) == len(images)
    chance = random.Random(0)
    interrupted = 0
    for number in range(kills):
        cache = tmp_path / f"cache{number % 3}"  # each is taken up again several times
        child = start(tmp_path / "set", cache)
        assert child.stdout is not None
        with child.stdout as output:
            assert output.readline() == "ready\n"
            try:
                child.wait(chance.uniform(0.0, 0.5))
            except subprocess.TimeoutExpired:
                os.kill(child.pid, signal.SIGKILL)
                interrupted += 1
            child.wait()
        for part in cache.glob("*/pixels.u8"):  # a torn end, as after a power cut
            if not (part.parent / "manifest.json").exists() and number % 2:
                with part.open("ab") as file:
                    file.write(b"torn")
                with (part.parent / "journal.jsonl").open("ab") as file:
                    file.write(b"[40, 5")
    assert interrupted >= kills // 3
    for number in range(3):
        done: list[int] = []
        cache = tmp_path / f"cache{number}"
        packed = pack(paths, cache, short_side=40, progress=lambda now, _, to=done: to.append(now))
        check_whole(packed, paths, 40)
        folder = packed.folder
        assert {path.name.partition("-")[0] for path in folder.iterdir()} == {
            "lock",
            "manifest.json",
            "pixels.u8",
            "table",
        }


def test_kill_at_random_moments_loses_nothing(tmp_path: Path) -> None:
    kill_and_resume(tmp_path, kills=3, pictures=400)


@pytest.mark.slow
def test_two_hundred_kills_lose_nothing(tmp_path: Path) -> None:
    kill_and_resume(tmp_path, kills=200, pictures=3_000)


def test_work_goes_on_behind_the_sound_pictures(tmp_path: Path) -> None:
    images = picture_set(tmp_path / "set")
    whole = pack(images.paths, tmp_path / "whole", short_side=20)

    class Stop(Exception):  # noqa: N818 - not an error
        pass

    def stop(done: int, _: int) -> None:
        if done == 13:
            raise Stop

    with pytest.raises(Stop):
        pack(images.paths, tmp_path / "pack", short_side=20, progress=stop)
    (folder,) = (tmp_path / "pack").iterdir()
    journal = (folder / "journal.jsonl").read_bytes().splitlines(keepends=True)
    assert len(journal) == 13
    # The pixels of the tenth picture are damaged while nobody looks: it and those behind go.
    pixels = bytearray((folder / "pixels.u8").read_bytes())
    pixels[whole._table[9][0]] ^= 1
    (folder / "pixels.u8").write_bytes(pixels)
    calls: list[int] = []
    packed = pack(
        images.paths, tmp_path / "pack", short_side=20, progress=lambda done, _: calls.append(done)
    )
    assert calls == list(range(10, 31))
    check_whole(packed, images.paths, 20)


def test_many_processes_build_it_once(tmp_path: Path) -> None:
    picture_set(tmp_path / "set", classes=2, each=60)
    children = [start(tmp_path / "set", tmp_path / "cache") for _ in range(4)]
    for child in children:
        output, _ = child.communicate(timeout=120)
        assert output == "ready\ndone\n"
    paths = tuple(sorted((tmp_path / "set").glob("*/*.png")))
    assert len(list((tmp_path / "cache").iterdir())) == 1
    check_whole(pack(paths, tmp_path / "cache", short_side=40), paths, 40)


def test_every_damaged_byte_is_found_before_it_is_used(tmp_path: Path) -> None:
    images = picture_set(tmp_path / "set", classes=2, each=3)
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
                with pytest.raises(DamagedFile, match=f"picture {index} is damaged; delete"):
                    opened.sized(index, 20)
            else:
                opened.sized(index, 20)
    path.write_bytes(sound[:-1])
    with pytest.raises(DamagedFile, match="not the size"):
        PackedImages(packed.folder)


def test_a_damaged_table_is_refused(tmp_path: Path) -> None:
    images = picture_set(tmp_path / "set", classes=2, each=3)
    packed = pack(images.paths, tmp_path / "pack", short_side=20)
    (table,) = packed.folder.glob("table-*.npy")
    table.write_bytes(table.read_bytes()[:-1] + b"x")
    with pytest.raises(DamagedFile, match="its content is not what"):
        PackedImages(packed.folder)
