"""Pipes, devices and links in a circle in the place of our own files: refused, never waited for."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cbml.cli import main
from tests.training.small import class_folders

SMALL = ["--backbone", "conv4", "--crop", "16", "--steps", "2", "--set", "dim=8"]
KINDS: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "loop": lambda path: path.symlink_to(path.name),
}

pytestmark = pytest.mark.timeout(600)  # what waits for a pipe waits for ever


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with images, a run that has ended, a gallery, and a cache of packed images."""
    root = tmp_path_factory.mktemp("sound")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CBML_CACHE", str(root / "cache"))
        images = class_folders(root)
        assert code(["train", images, *SMALL, "--out", root / "run"]) == 0
        assert code(["index", root / "run", images, "--out", root / "gallery"]) == 0
        yield root


@pytest.fixture
def work(sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place for copies of what is sound, and for a cache of its own."""
    monkeypatch.setenv("CBML_CACHE", str(tmp_path / "cache"))
    renew(sound, tmp_path)
    return tmp_path


def renew(sound: Path, work: Path) -> None:
    for name in ("run", "gallery", "cache", "new"):
        shutil.rmtree(work / name, ignore_errors=True)
        if name != "new":
            shutil.copytree(sound / name, work / name)


def code(words: list[str | Path]) -> int:
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    return int(end.value.code or 0)


def in_its_place(path: Path, kind: str) -> None:
    path.unlink(missing_ok=True)
    KINDS[kind](path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", ["run", "gallery", "cache"])
def test_no_file_of_ours_is_waited_for(
    sound: Path, work: Path, capsys: pytest.CaptureFixture[str], part: str, kind: str
) -> None:
    images = sound / "classes"
    query = next(images.rglob("*.png"))
    commands: dict[str, list[list[str | Path]]] = {
        "run": [["evaluate", work / "run"], ["train", "--resume", work / "run", "--steps", "3"]],
        "gallery": [
            ["search", work / "gallery", query],
            ["index", work / "run", images, "--out", work / "gallery"],
        ],
        "cache": [["train", images, *SMALL, "--out", work / "new"]],
    }
    files = sorted(path.relative_to(work) for path in (work / part).rglob("*") if path.is_file())
    assert len(files) > 2
    for name in files:
        for words in commands[part]:
            in_its_place(work / name, kind)
            capsys.readouterr()
            end, said = code(words), capsys.readouterr().err
            assert end in (0, 3, 4), (name, said)
            lines = [line for line in said.splitlines() if line.startswith("cbml: ")]
            assert len(lines) == bool(end), (name, said)
            assert "--debug" not in said, (name, said)
            renew(sound, work)


@pytest.mark.parametrize("kind", KINDS)
def test_what_lies_in_the_place_of_probabilities_is_named(
    sound: Path, work: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    in_its_place(work / "run" / "calibration.json", kind)
    words = ["index", work / "run", sound / "classes", "--out", work / "new"]
    assert code(words) == 3
    (line,) = [said for said in capsys.readouterr().err.splitlines() if said.startswith("cbml: ")]
    assert str(work / "run" / "calibration.json") in line
    (work / "run" / "report.html").unlink()
    assert code(["evaluate", work / "run"]) == 0, "the report goes on without it, and says so"
    said = (work / "run" / "report.html").read_text()
    assert "calibration.json is damaged; write it again" in said


# What a run can do without is missing at its end, and said if it was to be written.
REFUSED = ("metrics.jsonl", "run.json", "model", "checkpoints", "tensorboard")
DONE_WITHOUT = ("calibration.json", "bad_images.csv", "report.html", "probe")


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_run_waits_for_no_file_that_lies_in_its_folder(
    sound: Path, work: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    for name in (".lock", *REFUSED, *DONE_WITHOUT):
        (work / "new").mkdir()
        in_its_place(work / "new" / name, kind)
        words = ["train", sound / "classes", *SMALL, "--set", "tensorboard=true"]
        capsys.readouterr()
        end, said = code([*words, "--out", work / "new"]), capsys.readouterr().err
        wanted = (3,) if name in REFUSED else (0,) if name in DONE_WITHOUT else (0, 3)
        assert end in wanted, (name, said)
        assert "--debug" not in said, (name, said)
        if name == "report.html":
            assert "no report.html: " in said
        if end == 0:
            assert (work / "new" / "model" / "manifest.json").is_file(), name
        renew(sound, work)
