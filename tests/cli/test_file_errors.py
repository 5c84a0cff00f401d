"""Every file error is ours: one line that names the file, exit code 3 or 4, never a traceback."""

import json
import os
import shutil
import socket
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cbml.cli import main
from cbml.data import datasets
from tests.faults import full_disk
from tests.training.small import class_folders

SMALL = ["--backbone", "conv4", "--crop", "16", "--steps", "2", "--set", "dim=8"]
ODD = {
    "NaN": b'{"kind": NaN}',
    "infinity": b'{"metadata": Infinity}',
    "a list": b"[]",
    "null": b"null",
    "nothing": b"",
    "no text": b"\0\xff",
    "brackets without end": b"[" * 100_000,
    "5,000 digits": b'{"bytes": ' + b"9" * 5000 + b"}",
    "a name of 5,000 characters": b'{"' + b"x" * 5000 + b'": 1}',
}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with images, a run and a gallery."""
    root = tmp_path_factory.mktemp("work")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CBML_CACHE", str(root / "cache"))
        images = class_folders(root)
        for words in (
            ["train", str(images), *SMALL, "--out", str(root / "run")],
            ["index", str(root / "run"), str(images), "--out", str(root / "gallery")],
        ):
            with pytest.raises(SystemExit) as end:
                main(words)
            assert not end.value.code
        yield root


def refused(words: list[str | Path], capsys: pytest.CaptureFixture[str], *codes: int) -> str:
    """The one line with which these words are refused."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("cbml: ")]
    assert len(lines) == 1
    assert end.value.code in codes, lines
    assert "Errno 2]" not in lines[0]
    assert "--debug" not in lines[0], "an error that nobody foresaw"
    assert len(lines[0]) < 400
    return lines[0]


@pytest.mark.parametrize(
    "place", ["run/run.json", "run/model/manifest.json", "gallery/manifest.json"]
)
def test_odd_manifests_are_damaged_files(
    work: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    path = work / place
    query = next((work / "classes").rglob("*.png"))
    words = (
        ["search", work / "gallery", query] if "gallery" in place else ["evaluate", work / "run"]
    )
    sound = path.read_bytes()
    for content in ODD.values():
        path.write_bytes(content)
        assert str(path) in refused(words, capsys, 4)
    path.unlink()
    path.mkdir()  # a folder where the file should be
    assert str(path) in refused(words, capsys, 4)
    path.rmdir()
    path.write_bytes(sound)


def test_a_folder_for_a_part_is_a_damaged_file(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    part = next((work / "run" / "model").glob("*.safetensors"))
    sound = part.read_bytes()
    part.unlink()
    part.mkdir()
    assert part.name in refused(["evaluate", work / "run"], capsys, 4)
    part.rmdir()
    part.write_bytes(sound)


@pytest.mark.parametrize(
    "rows",
    [
        "",
        "path,label\n",
        "path,label\nNaN,a\n",
        f"path,label\n{'x' * 5000},a\n",
        f"path,label\n{'x/' * 2500},a\n",
        "path,label\na\0b,a\n",
        'path,label\n"a',
        f"path,label\na,{'y' * 200_000}\n",
        "\udcff\udcfep\0a\0t\0h\0",
    ],
    ids=["empty", "head", "NaN", "long", "deep", "nul", "quote", "huge", "utf-16"],
)
def test_odd_tables_are_bad_data(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: str
) -> None:
    table = tmp_path / "t.csv"
    table.write_text(rows, encoding="utf-8", errors="surrogateescape")
    assert "t.csv" in refused(["train", table, *SMALL, "--out", tmp_path / "run"], capsys, 3)
    assert not (tmp_path / "run").exists()


def packed(images: Path, folder: Path) -> list[Path]:
    """The same images in an archive of each kind."""
    made = [folder / f"a.{kind}" for kind in ("zip", "tar", "tar.gz", "tgz", "tar.bz2", "tar.xz")]
    with zipfile.ZipFile(made[0], "w", zipfile.ZIP_DEFLATED) as archive:
        for path in images.rglob("*.png"):
            archive.write(path, path.relative_to(images))
    for path, mode in zip(made[1:], ["w:", "w:gz", "w:gz", "w:bz2", "w:xz"], strict=True):
        with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
            tar.add(images, "images")
    return made


def test_broken_archives_of_each_kind_are_bad_data(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tried = 0
    for archive in packed(work / "classes", tmp_path):
        sound = archive.read_bytes()
        assert len(datasets.folder(archive).train), "whole, it is read"
        half, third = len(sound) // 2, len(sound) // 3
        broken = [b"", b"junk" * 500, sound[:10], sound[:half], b"\0" * 8 + sound[8:]]
        broken += [sound[third:]]
        if archive.suffix != ".tar":  # which has no sums: what is damaged there is an image
            broken += [sound[:half] + bytes(256) + sound[half + 256 :]]
        for content in broken:
            archive.write_bytes(content)
            words = ["train", archive, *SMALL, "--out", tmp_path / "run"]
            assert archive.name in refused(words, capsys, 3)
            tried += 1
    assert tried == 41
    assert not (tmp_path / "run").exists()


def limited(words: list[str | Path], limit: int) -> object:
    """The exit code of words on a disk that takes no file longer than `limit`."""
    with full_disk(limit), pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    return end.value.code or 0


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("limits", "least"),
    [
        ((0, 5_000), 18),
        pytest.param((0, 1, 100, 500, 1_000, 2_000, 5_000, 20_000), 65, marks=pytest.mark.slow),
    ],
    ids=["fast", "all"],
)
def test_a_full_disk_is_one_line_and_harms_nothing(
    work: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    limits: tuple[int, ...],
    least: int,
) -> None:
    run, images = shutil.copytree(work / "run", tmp_path / "run"), work / "classes"
    gallery = shutil.copytree(work / "gallery", tmp_path / "gallery")
    query = next(images.rglob("*.png"))
    archive = packed(images, tmp_path)[0]
    query.with_name("new.png").write_bytes(query.read_bytes())
    writers: dict[str, list[str | Path]] = {
        "train": ["train", images, *SMALL, "--out", tmp_path / "new"],
        "resume": ["train", "--resume", run, "--steps", "3"],
        "index": ["index", run, images, "--out", gallery],
        "first index": ["index", run, images, "--out", tmp_path / "g"],
        "archive": ["train", archive, *SMALL, "--out", tmp_path / "new"],
        "embed": ["embed", run, images, "--out", tmp_path / "e.npz"],
        "table": ["embed", run, images, "--out", tmp_path / "e.parquet"],
        "test": ["evaluate", run, "--test"],
        "analyze": ["analyze", run, "--out", tmp_path / "analysis"],
        "export": ["export", run, "--output", tmp_path / "model.onnx"],
        "sheet": ["data", "check", images, "--sheet", tmp_path / "sheet.png"],
        "list": ["data", "check", images, "--bad", tmp_path / "bad.csv"],
        "search": ["search", gallery, query, "--html", tmp_path / "search.html"],
    }
    refusals = 0
    for name, words in writers.items():
        for limit in limits:
            capsys.readouterr()
            code = limited(words, limit)
            shutil.rmtree(tmp_path / "new", ignore_errors=True)
            said = capsys.readouterr().err
            assert code in (0, 3), (name, limit, said)
            assert "Traceback" not in said
            if code == 3:
                refusals += 1
                assert [line[:6] for line in said.splitlines()].count("cbml: ") == 1, said
                assert "File too large" in said
                assert not Path(words[-1]).is_file(), "half a file was left"
    query.with_name("new.png").unlink()
    assert refusals >= least
    for words in (["evaluate", run], ["search", gallery, query]):
        assert limited(words, 10**9) == 0, "what was there is whole"
    json.loads((run / "run.json").read_text())


def special_files(folder: Path) -> list[str]:
    """Files that must not be opened, named like images."""
    os.mkfifo(folder / "pipe.png")
    (folder / "self.png").symlink_to("self.png")
    (folder / "gone.png").symlink_to("nowhere")
    (folder / "zero.png").symlink_to("/dev/zero")
    (folder / "tty.png").symlink_to("/dev/tty")
    (folder / "above").symlink_to("..")
    with socket.socket(socket.AF_UNIX) as listener, pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)  # a socket's whole path may have 108 characters
        listener.bind("socket.png")
    return ["pipe.png", "self.png", "gone.png", "zero.png", "tty.png", "socket.png"]


@pytest.mark.timeout(240)
def test_special_files_are_listed_and_nothing_hangs_or_stops(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = shutil.copytree(work / "classes", tmp_path / "images")
    out, model = tmp_path / "out", work / "run"
    listed = {name for label in images.iterdir() for name in special_files(label)}
    commands: dict[Path, list[str | Path]] = {
        out / "check.csv": ["data", "check", images, "--bad", out / "check.csv"],
        out / "run" / "bad_images.csv": [
            *("train", images, *SMALL, "--steps", "20", "--set", "bad_limit=0.9"),
            *("--out", out / "run"),
        ],
        out / "gallery" / "bad_images.csv": [
            "index",
            work / "run",
            images,
            "--out",
            out / "gallery",
        ],
        out / "bad_images.csv": ["embed", model, images, "--out", out / "e.npz"],
    }
    out.mkdir()
    for report, words in commands.items():
        with pytest.raises(SystemExit) as end:
            main([str(word) for word in words])
        assert not end.value.code, capsys.readouterr().err
        text = report.read_text()
        assert {name for name in listed if name in text} == listed, words[0]
    for name in listed:
        refused(["search", work / "gallery", images / "0" / name], capsys, 3)


def test_no_image_that_can_be_read_is_bad_data(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images, run = tmp_path / "images", work / "run"
    images.mkdir()
    commands: list[list[str | Path]] = [
        *(["train", images, *SMALL, "--labels", kind, "--out", tmp_path / "r"] for kind in KINDS),
        ["index", run, images, "--out", tmp_path / "g"],
        ["embed", run, images, "--out", tmp_path / "e.npz"],
        ["evaluate", run, images],
        ["analyze", run, images],
    ]
    for words in commands:
        refused(words, capsys, 3)
    for number in range(4):
        (images / f"{number}.png").write_bytes(f"no image {number}".encode())
    for words in commands:
        refused(words, capsys, 3)


KINDS = ("known", "none", "each")
