"""Several processes embed what one would, in its order; an interrupted export resumes."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cbml.gallery import Gallery, build, embed_files, list_images, write_vectors
from cbml.gallery import export as module
from cbml.gallery.images import ImageRef
from cbml.gallery.loading import CHUNK, EmbeddedChunk, embedded_chunks
from cbml.models import Embedder, Preprocessing
from tests.fixtures import run_program
from tests.gallery import small
from tests.program import Program

HALF = (0.5, 0.5, 0.5)
SMALL = Preprocessing(resize=16, crop=16, mean=HALF, std=HALF)
NUMBER = 2 * CHUNK + 50  # three chunks, for two processes


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Many small images of three classes; one in each chunk but the last cannot be read."""
    folder = tmp_path_factory.mktemp("images")
    for number in range(NUMBER):
        path = folder / f"class {3 * number // NUMBER}" / f"{number:04}.png"
        path.parent.mkdir(exist_ok=True)
        small.draw(number, (12, 10)).save(path)
        if number in (5, CHUNK + 5):
            path.write_bytes(b"nothing to see")
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "model"
    Embedder("conv4", dim=8, preprocessing=SMALL).eval().save(folder)
    return folder


class Cbml:
    """The program in two processes: those of `--processes`, or two that found each other."""

    def __init__(self, patch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
        self.patch, self.capfd = patch, capfd
        patch.setenv("OMP_NUM_THREADS", "1")

    def start(self, *words: object) -> "subprocess.CompletedProcess[str]":
        """`cbml ... --processes 2`: torchrun and what it starts are programs of their own."""
        told = [*map(str, words), "--processes", "2"]
        self.patch.setattr(sys, "argv", ["cbml", *told])
        self.capfd.readouterr()
        code = run_program(told)
        return subprocess.CompletedProcess(told, code, *self.capfd.readouterr())

    def join(self, *words: object) -> "list[subprocess.CompletedProcess[str]]":
        """Two that begin with what torchrun tells those that it starts, by their rank."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        told = {"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2"}
        both = [
            Program(
                *words,
                env={
                    **os.environ,
                    **told,
                    "MASTER_PORT": str(port),
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                },
            )
            for rank in range(2)
        ]
        said = [program.communicate() for program in both]
        return [
            subprocess.CompletedProcess(words, program.wait(), *one)
            for program, one in zip(both, said, strict=True)
        ]


@pytest.fixture
def cbml(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Cbml:
    return Cbml(monkeypatch, capfd)


def arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as found:
        return dict(found)


@pytest.mark.parametrize("how", ["started", "joined"])
def test_two_processes_write_what_one_writes(
    files: Path, model: Path, tmp_path: Path, cbml: Cbml, how: str
) -> None:
    alone, out = tmp_path / "alone.npz", tmp_path / "two" / "together.npz"
    write_vectors(alone, embed_files(Embedder.load(model), list_images(files)))
    words = ("embed", model, files, "--out", out, "--json")
    if how == "started":
        done = cbml.start(*words)
    else:
        done, second = cbml.join(*words)
        assert (second.returncode, second.stdout) == (0, ""), second.stderr
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["images"] == NUMBER - 2
    assert len(json.loads(done.stdout)["bad"]) == 2
    one, two = arrays(alone), arrays(out)
    assert one.keys() == two.keys()
    for name in one:
        assert np.array_equal(one[name], two[name]), name
    left = sorted(path.name for path in out.parent.iterdir())
    assert left == ["bad_images.csv", "together.npz"], "no chunks are left over"


def test_two_processes_build_the_gallery_that_one_builds(
    files: Path, model: Path, tmp_path: Path, cbml: Cbml
) -> None:
    words = ("index", model, files, "--json", "--kind", "pq4", "--recall", 0.9, "--out")
    build(Embedder.load(model), list_images(files), tmp_path / "one")
    done = cbml.start(*words, tmp_path / "two")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["images"], told["embedded"]) == (NUMBER - 2, NUMBER - 2)
    assert told["index"]["recall"] == 0.9
    assert told["index"]["exact"], "so few images are compared with all"
    with Gallery(tmp_path / "one") as one, Gallery(tmp_path / "two") as two:
        assert [image.name for image in one.images] == [image.name for image in two.images]
        ids = one.store.ids()
        assert np.array_equal(ids, two.store.ids())
        assert np.array_equal(one.store.vectors(ids), two.store.vectors(ids))
    again, second = cbml.join(*words, tmp_path / "two")
    assert json.loads(again.stdout)["embedded"] == 0, "nothing is new, and nobody waits"
    assert (second.returncode, second.stdout) == (0, ""), second.stderr


def test_an_error_is_said_once_and_ends_all(model: Path, tmp_path: Path, cbml: Cbml) -> None:
    (tmp_path / "empty").mkdir()
    done = cbml.start("embed", model, tmp_path / "empty", "--out", tmp_path / "v.npz")
    assert done.returncode == 3
    assert done.stderr.count("no images") == 1, done.stderr


def counted(
    monkeypatch: pytest.MonkeyPatch, *, fail_after: int | None = None
) -> list[list[ImageRef]]:
    """Note what is embedded; an interruption comes after so many chunks."""
    asked: list[list[ImageRef]] = []

    def chunks(
        model: Embedder, refs: Sequence[ImageRef], **options: Any
    ) -> Iterator[EmbeddedChunk]:
        asked.append(list(refs))
        for number, chunk in enumerate(embedded_chunks(model, refs, **options)):
            if number == fail_after:
                raise KeyboardInterrupt
            yield chunk

    monkeypatch.setattr(module, "embedded_chunks", chunks)
    return asked


def test_an_interrupted_export_resumes(
    files: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, refs, out = Embedder.load(model), list_images(files), tmp_path / "v[1].npz"
    whole = embed_files(network, refs)
    counted(monkeypatch, fail_after=2)
    with pytest.raises(KeyboardInterrupt):
        embed_files(network, refs, out=out)
    asked = counted(monkeypatch)
    done = embed_files(network, refs, out=out)
    assert asked == [list(refs[2 * CHUNK :])], "only what was missing"
    assert done.refs == whole.refs
    assert done.bad == whole.bad
    assert np.array_equal(done.vectors, whole.vectors)
    (chunks,) = tmp_path.iterdir()
    (chunks / "000001.npz").write_bytes(b"PK\x03\x04 damaged")
    assert np.array_equal(embed_files(network, refs, out=out).vectors, whole.vectors)
    assert asked[-1] == list(refs[CHUNK:]), "a damaged chunk and those behind it are made again"
    write_vectors(out, done)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad_images.csv", "v[1].npz"]


def test_another_model_or_changed_files_start_from_scratch(
    files: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refs, out = list_images(files), tmp_path / "v.npz"
    asked = counted(monkeypatch)
    embed_files(Embedder.load(model), refs, out=out)
    other = Embedder("conv4", dim=8, seed=5, preprocessing=SMALL)
    embed_files(other.eval(), refs, out=out)
    os.utime(refs[7].path, (1, 1))
    embed_files(other, refs, out=out)
    embed_files(other, refs, out=out)
    assert [len(one) for one in asked] == [NUMBER, NUMBER, NUMBER, 0]
    assert len(list(tmp_path.iterdir())) == 1, "chunks of others are deleted"
