"""Names that are no text, times beyond all clocks and numbers beyond all bounds."""

import os
from pathlib import Path

import pytest

from cbml.cli import main
from cbml.gallery import Gallery
from tests.training.small import CLASSES, class_folders

SMALL = ["--backbone", "conv4", "--crop", "16", "--steps", "2", "--set", "dim=8"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CBML_CACHE", str(tmp_path / "cache"))


def run(*words: object) -> int:
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    return int(end.value.code or 0)


def odd(folder: Path, name: bytes) -> Path:
    """A path whose last part need not be UTF-8."""
    return Path(os.fsdecode(os.fsencode(folder) + b"/" + name))


def test_names_that_are_no_text(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    images = class_folders(odd(tmp_path, b"caf\xe9"))
    (images / "0").rename(odd(images, b"b\xe8"))
    (images / "1").rename(odd(images, b"b\xe9"))
    assert run("train", images, *SMALL, "--out", tmp_path / "run") == 0
    assert (tmp_path / "run" / "report.html").exists()
    assert run("index", tmp_path / "run", images, "--out", tmp_path / "gallery") == 0
    with Gallery(tmp_path / "gallery") as gallery:
        assert len(gallery.label_names) == 2 * CLASSES, "two classes stay two"
    for file in ("vectors.npz", "vectors.parquet"):
        out = odd(tmp_path, b"caf\xe9") / file
        assert run("embed", tmp_path / "run", images, "--out", out) == 0
        assert out.stat().st_size > 0

    for words in (["train", images, *SMALL], ["index", tmp_path / "run", images]):
        capfd.readouterr()
        out = odd(tmp_path, b"\xff")
        assert run(*words, "--out", out) == 3  # what is saved there could not be read again
        assert "its name is not UTF-8; choose another folder" in capfd.readouterr().err
        assert not list(out.glob("[!.]*"))


def test_times_before_and_after_all_clocks(tmp_path: Path) -> None:
    images = class_folders(tmp_path)
    times = [-3e9, 0, 4e10, 13_569_465_600]  # 1874, 1970, 3237, 2400: more than 64 bits of ns
    for number, path in enumerate(sorted(images.rglob("*.png"))):
        os.utime(path, (times[number % 4], times[number % 4]))
    assert run("train", images, *SMALL, "--out", tmp_path / "run") == 0
    for _ in range(2):
        assert run("index", tmp_path / "run", images, "--out", tmp_path / "gallery") == 0
    with Gallery(tmp_path / "gallery") as gallery:
        assert min(image.modified for image in gallery.images) < 0


@pytest.mark.parametrize(
    "option",
    [
        f"steps={'9' * 30}",
        f"steps={'9' * 400}",
        "steps=1000000000",
        f"keep_checkpoints={'9' * 400}",
        f"seed={'9' * 30}",
        "seed=-1",
    ],
    ids=lambda option: option[:20],
)
def test_numbers_beyond_all_bounds_are_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], option: str
) -> None:
    images = class_folders(tmp_path)
    assert run("train", images, *SMALL, "--set", option, "--out", tmp_path / "run") in (2, 3)
    said = capfd.readouterr().err
    assert f"{option.partition('=')[0]} must be" in said
    assert not (tmp_path / "run").exists()
