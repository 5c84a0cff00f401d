"""Several processes embed what one would, in its order; an interrupted export resumes."""

import json
import os
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
from tests.gallery import small

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


def cbml(*words: object, torchrun: bool = False) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", "from cbml.cli import main; main()"]
    if torchrun:
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python"]
        command = [*launch, "--nproc-per-node", "2", *command]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, *map(str, words)], env=environment, capture_output=True, text=True, check=False
    )


def arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as found:
        return dict(found)


@pytest.mark.parametrize("torchrun", [False, True])
def test_two_processes_write_what_one_writes(
    files: Path, model: Path, tmp_path: Path, torchrun: bool
) -> None:
    alone, out = tmp_path / "alone.npz", tmp_path / "two" / "together.npz"
    write_vectors(alone, embed_files(Embedder.load(model), list_images(files)))
    more = () if torchrun else ("--processes", 2)
    done = cbml("embed", model, files, "--out", out, "--json", *more, torchrun=torchrun)
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
    files: Path, model: Path, tmp_path: Path
) -> None:
    words = ("index", model, files, "--json", "--kind", "pq4", "--recall", 0.9, "--out")
    build(Embedder.load(model), list_images(files), tmp_path / "one")
    done = cbml(*words, tmp_path / "two", "--processes", 2)
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
    again = cbml(*words, tmp_path / "two", "--processes", 2)
    assert json.loads(again.stdout)["embedded"] == 0, "nothing is new, and nobody waits"


def test_an_error_is_said_once_and_ends_all(model: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = cbml("embed", model, tmp_path / "empty", "--out", tmp_path / "v.npz", "--processes", 2)
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
