"""Images are read as people see them; what cannot be shown is refused by name."""

import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cbml.data.decode import FORMATS, UnreadableImage, read_image
from tests.data.kinds import NOISE, REFUSED, SEEN, UPRIGHT, saved


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
@pytest.mark.parametrize("name", SEEN)
def test_seen_as_people_see_it(name: str, tmp_path: Path) -> None:
    content, expected, off = SEEN[name]
    path = tmp_path / "image.jpg"  # the extension says nothing: most of these are no JPEG
    path.write_bytes(content)
    for source in (content, path):
        image = read_image(source)
        assert image.mode == "RGB"
        found = np.asarray(image)
        assert found.shape == expected.shape
        assert np.abs(found.astype(int) - expected.astype(int)).max() <= off


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name: str, tmp_path: Path) -> None:
    content, reason = REFUSED[name]
    path = tmp_path / "image.jpg"
    path.write_bytes(content)
    with pytest.raises(UnreadableImage, match=reason) as caught:
        read_image(path)
    assert caught.value.path == path
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_the_table_has_its_forty_kinds() -> None:
    assert len(SEEN) + len(REFUSED) >= 40
    assert sum(name.startswith("EXIF turn ") and name[-1].isdigit() for name in SEEN) == 8


def test_files_that_are_not_there_or_no_files(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.jpg", tmp_path):
        with pytest.raises(UnreadableImage, match="cannot be opened"):
            read_image(path)


def test_the_limit_is_a_parameter_and_comes_before_decoding() -> None:
    with pytest.raises(UnreadableImage, match="48 x 32 is above 100 pixels"):
        read_image(saved(UPRIGHT, "PNG"), pixel_limit=100)


CHILD = """
import json, resource, sys, time, warnings
warnings.simplefilter("ignore")
from cbml.data.decode import UnreadableImage, read_image
import PIL.Image
for kind in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"): PIL.Image.preinit()
gigabyte = 1 << 30
def peak():  # Not `ru_maxrss`, which begins with the memory of the parent.
    words = open("/proc/self/status").read().split()
    return int(words[words.index("VmHWM:") + 1])
start = peak()
resource.setrlimit(resource.RLIMIT_AS, (4 * gigabyte, 4 * gigabyte))
counts = {"read": 0, "refused": 0, "slowest": 0.0}
for line in sys.stdin:
    began = time.perf_counter()
    try:
        read_image(bytes.fromhex(line))
        counts["read"] += 1
    except UnreadableImage:
        counts["refused"] += 1
    counts["slowest"] = max(counts["slowest"], time.perf_counter() - began)
counts["megabytes"] = (peak() - start) // 1024
print(json.dumps(counts))
"""


def mutated(content: bytes, chance: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(chance.choice([1, 1, 2, 4, 16])):
        place = chance.randrange(len(changed))
        how = chance.randrange(4)
        if how == 0:
            changed[place] = chance.randrange(256)
        elif how == 1:
            del changed[place : place + chance.randrange(1, 40)]
        elif how == 2:
            changed[place:place] = bytes(chance.randrange(256) for _ in range(4))
        else:
            changed[place : place + 4] = chance.choice([b"\xff\xff\xff\xff", b"\0\0\0\0"])
        if not changed:
            return b""
    return bytes(changed)


def check_mutated(count: int) -> None:
    chance = random.Random(0)
    seeds = [saved(NOISE, kind) for kind in FORMATS] + [content for content, _, _ in SEEN.values()]
    seeds = [content for content in seeds if len(content) < 20_000]
    lines = "\n".join(mutated(chance.choice(seeds), chance).hex() for _ in range(count))
    child = subprocess.run(
        [sys.executable, "-c", CHILD], input=lines, capture_output=True, text=True, check=False
    )
    assert child.returncode == 0, child.stderr[-2_000:]
    counts = json.loads(child.stdout)
    assert counts["read"] + counts["refused"] == count
    assert min(counts["read"], counts["refused"]) > count // 20
    assert counts["slowest"] < 5
    assert counts["megabytes"] < 1_000


def test_mutated_images_do_no_harm() -> None:
    check_mutated(600)


@pytest.mark.slow
def test_five_thousand_mutated_images_do_no_harm() -> None:
    check_mutated(5_000)
