"""The folders and tables that people really have, built from small generated images."""

import json
import os
import shutil
import socket
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet

import cbml
from cbml.cli import main
from cbml.data import (
    ImageDataset,
    Splits,
    TrainTransform,
    check,
    datasets,
    load,
    load_anyway,
    pack,
    read_image,
)
from cbml.data.folder import find_pattern
from cbml.data.splits import hold_out_images
from cbml.errors import BadData
from cbml.gallery import list_images
from cbml.program import program_name
from cbml.runs import RunConfig, load_splits
from cbml.training import build_batches
from tests.data.image_files import save_image


def save_all(root: Path, names: list[str]) -> Path:
    for name in names:
        save_image(root / name, zlib.crc32(str(root / name).encode()))
    return root


def save_mask(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(zlib.crc32(str(path).encode())).integers(
        0, 3, (8, 9), dtype=np.uint8
    )
    Image.fromarray(values).save(path)


def classes(images: ImageDataset | None) -> set[str]:
    assert images is not None
    return set(images.class_names)


def notes(splits: Splits) -> str:
    return "\n".join(splits.record["notes"])


def grocery(root: Path) -> Path:
    """Nested categories whose splits share their classes, in a download with other things."""
    kinds = ["Fruit/Apple/Golden", "Fruit/Apple/Royal-Gala", "Fruit/Kiwi", "Packages/Milk/Arla"]
    splits = [("train", 6), ("val", 2), ("test", 3)]
    save_all(
        root,
        [
            f"dataset/{s}/{kind}/{n}{s}.png"
            for s, count in splits
            for kind in kinds
            for n in range(count)
        ],
    )
    save_all(root, [f"dataset/iconic/{n}.png" for n in range(3)] + ["docs/overview.png"])
    return root


def test_splits_beside_other_things_share_their_classes(tmp_path: Path) -> None:
    splits = load(grocery(tmp_path))
    assert classes(splits.train) == classes(splits.test) == classes(splits.validation)
    assert "Fruit/Apple/Royal-Gala" in classes(splits.train)
    assert (len(splits.train), len(splits.validation)) == (24, 8)
    assert splits.record["shared_classes"] == 4
    assert splits.record["scores_for"] == "new images of known classes"
    assert "4 of 4 test classes are also in train" in notes(splits)
    left_out = {row["folder"]: row["images"] for row in splits.record["left_out"]}
    assert left_out == {"dataset/iconic": 3, "docs": 1}
    assert "left out: dataset/iconic, 3 images, beside the splits" in notes(splits)
    json.dumps(splits.record)


def test_the_few_classes_that_are_not_shared_are_named(tmp_path: Path) -> None:
    save_all(
        tmp_path, [f"{s}/{c}/{s}{c}{n}.png" for s, n in (("train", 1), ("test", 2)) for c in "ab"]
    )
    save_all(tmp_path, ["train/Brown-Cap/1.png", "test/Mushroom/Brown-Cap/2.png"])
    assert "2 of 3 test classes are also in train, all but Mushroom/Brown-Cap: " in notes(
        load(tmp_path)
    )


def test_split_classes_keeps_the_classes_apart(tmp_path: Path) -> None:
    splits = load(grocery(tmp_path), split="classes")
    assert not classes(splits.train) & classes(splits.test)
    assert splits.record["shared_classes"] == 0
    assert splits.record["scores_for"] == "unseen classes"
    total = sum(len(images) for images in splits.parts().values())
    assert total == 44, "every image of every split is used"


def test_validation_is_on_known_classes_where_the_test_is(tmp_path: Path) -> None:
    shutil.rmtree(grocery(tmp_path) / "dataset" / "val")
    splits = load(tmp_path)
    assert classes(splits.train) == classes(splits.validation) == classes(splits.test)
    assert splits.validation.class_sizes().tolist() == [2, 2, 2, 2]
    assert len(splits.train) + len(splits.validation) == 24


def test_validation_images_of_known_classes_are_no_unseen_classes(tmp_path: Path) -> None:
    root = grocery(tmp_path / "grocery")
    shutil.rmtree(root / "dataset" / "test")
    splits = load(root)
    assert splits.test is None
    assert splits.record["shared_classes"] == 4
    assert splits.record["scores_for"] == "new images of known classes"
    assert "4 of 4 validation classes are also in train" in notes(splits)
    config = RunConfig({"source": str(root)}, model={"backbone": "conv4", "crop": 16})
    with pytest.raises(BadData, match="has no test images with labels; leave out --test"):
        cbml.run(config, tmp_path / "run", test=True)  # now, not after the training
    assert not (tmp_path / "run").exists()


def test_holding_out_images_leaves_two_of_each_class() -> None:
    sizes = [1, 2, 3, 4, 10, 50]
    labels = np.repeat(np.arange(6), sizes)
    paths = tuple(Path(str(n)) for n in range(len(labels)))
    images = ImageDataset(paths, labels, tuple("abcdef"))
    kept, held = hold_out_images(images, share=0.2, seed=0)
    assert sorted(kept.paths + held.paths) == sorted(paths)
    assert dict(zip(held.class_names, held.class_sizes().tolist(), strict=True)) == {
        "d": 2, "e": 2, "f": 10
    }  # fmt: skip
    assert kept.class_sizes().tolist() == [1, 2, 3, 2, 8, 40]


def test_classes_above_their_splits(tmp_path: Path) -> None:
    save_all(
        tmp_path,
        [
            f"{kind}/{split}/{n}{split}.png"
            for kind in ("cat", "dog")
            for split in ("train", "test")
            for n in range(3)
        ],
    )
    splits = load(tmp_path, validation=0)
    assert classes(splits.train) == classes(splits.test) == {"cat", "dog"}


def test_train_as_a_class_is_no_split(tmp_path: Path) -> None:
    save_all(
        tmp_path,
        [f"{name}/{n}{name}.png" for name in ("train", "bus", "car", "ship") for n in range(2)],
    )
    splits = load(tmp_path, validation=0)
    assert classes(splits.train) | classes(splits.test) == {"train", "bus", "car", "ship"}
    assert "left_out" not in splits.record or not splits.record["left_out"]


def pets(root: Path) -> Path:
    """A download root: flat images with the breed in their names, masks and annotations."""
    breeds = ["Abyssinian", "Bengal", "yorkshire_terrier", "pug", "boxer", "saint_bernard"]
    names = [f"{breed}_{n}" for breed in breeds for n in range(1, 5)]
    save_all(root, [f"images/{name}.jpg" for name in names])
    for name in names:
        save_mask(root / "annotations" / "trimaps" / f"{name}.png")
        (root / "annotations" / "xmls").mkdir(exist_ok=True)
        (root / "annotations" / "xmls" / f"{name}.xml").write_text("<a/>")
    return root


def test_labels_in_file_names_beside_masks(tmp_path: Path) -> None:
    splits = load(pets(tmp_path))
    assert splits.train.labels is None
    assert len(splits.train) == 24
    assert "left out: annotations/trimaps, 24 images, masks (by name, files named as others" in (
        notes(splits)
    )
    assert "6 classes by name ({label}_{n}): Abyssinian, Bengal, boxer" in notes(splits)
    named = load(tmp_path, labels="names", validation=0)
    assert classes(named.train) | classes(named.test) == {
        "Abyssinian", "Bengal", "yorkshire_terrier", "pug", "boxer", "saint_bernard"
    }  # fmt: skip
    assert "{label}_{n}" in named.record["layout"]


def test_a_stated_pattern(tmp_path: Path) -> None:
    save_all(tmp_path, [f"{i:04}_c{c}_{f}.jpg" for i in range(6) for c in (1, 2) for f in (7, 9)])
    by_id = load(tmp_path, label_from="{label}_{camera}_{n}", validation=0)
    assert classes(by_id.train) | classes(by_id.test) == {f"{i:04}" for i in range(6)}
    by_camera = load(tmp_path, label_from="{id}_{label}_{n}", validation=0)
    assert classes(by_camera.train) == {"c1", "c2"}
    with pytest.raises(BadData, match=r"24 of 24 file names do not follow .*\{label\}-\{n\}"):
        load(tmp_path, label_from="{label}-{n}")
    with pytest.raises(BadData, match="name the class once"):
        load(tmp_path, label_from="{n}_{camera}")


@pytest.mark.parametrize(
    ("names", "pattern"),
    [
        (["pug_1", "pug_2", "saint_bernard_1", "saint_bernard_2"], "{label}_{n}"),
        (["cat.0", "cat.1", "dog.0", "dog.1"], "{label}.{n}"),
        (["oak (1)", "oak (2)", "elm (1)", "elm (2)"], "{label} ({n})"),
        (["Laysan_Albatross_0001_5", "Laysan_Albatross_0002_6", "Ani_0001_7", "Ani_0003_8"],
         "{label}_{n}_{n}"),
        (["0001_c1s1_000151_00", "0001_c2s1_000776_00", "0002_c1s1_000151_01", "0002_c1s2_1_2"],
         "{label}_{camera}_{frame}_{frame}"),
        (["IMG_1", "IMG_2", "IMG_3", "IMG_4"], None),
        (["IMG_1", "IMG_2", "DSC_3", "DSC_4"], None),
        (["tom9x9", "tom9x10", "kit9x11", "kit9x12"], "{label}{n}"),
        (["a", "b", "c", "d"], None),
        (["one_1", "two_1", "three_1", "four_1"], None),
    ],
)  # fmt: skip
def test_patterns_are_recognized_or_not(names: list[str], pattern: str | None) -> None:
    assert find_pattern([Path(f"{name}.jpg") for name in names]) == pattern


def test_the_number_behind_a_label_is_a_whole_one(tmp_path: Path) -> None:
    save_all(tmp_path, [f"{kind}{n}.png" for kind in ("tom", "cat2x") for n in (1, 10, 11)])
    splits = load(tmp_path, labels="names", validation=0)
    assert classes(splits.train) == {"tom", "cat2x"}


def test_masks_need_two_signs(tmp_path: Path) -> None:
    numbered = save_all(
        tmp_path / "numbered",
        [f"{c}/{n}.png" for c in ("oak", "elm", "fir", "yew") for n in range(3)],
    )
    assert not load(numbered, validation=0).record["left_out"], "classes number their files alike"
    for kind in ("a", "b", "c", "d"):
        for n in range(3):
            save_mask(tmp_path / "drawings" / kind / f"{n}.png")
    assert not load(tmp_path / "drawings", validation=0).record["left_out"], "all are drawings"
    nested = save_all(
        tmp_path / "nested", [f"images/{c}/{n}{c}.jpg" for c in "abcd" for n in range(3)]
    )
    for c in "abcd":
        for n in range(3):
            save_mask(nested / "gt" / c / f"{n}{c}.png")
    splits = load(nested, validation=0)
    assert classes(splits.train) | classes(splits.test) == set("abcd")
    assert {row["folder"] for row in splits.record["left_out"]} == {f"gt/{c}" for c in "abcd"}


def test_copies_with_different_labels_come_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_all(tmp_path, [f"{c}/{n}{c}.png" for c in "abcd" for n in range(3)])
    shutil.copy(tmp_path / "a" / "0a.png", tmp_path / "b" / "copy.png")
    shutil.copy(tmp_path / "c" / "0c.png", tmp_path / "c" / "same.png")
    with pytest.warns(UserWarning, match="both in train and in test"):
        report = check(load_anyway(tmp_path))
    assert [sorted(group) for group in report.conflicts] == [["a/0a.png", "b/copy.png"]]
    assert len(report.duplicates) == 2
    with pytest.raises(SystemExit), pytest.warns(UserWarning, match="both"):
        main(["data", "check", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "  1 group of copies with different labels"
    assert sum("copy.png" in line for line in lines) == 1, "no group is listed twice"
    assert "  1 group of copies with the same label" in lines
    assert any("copies in both train and test: " in line for line in lines)


Rows = list[dict[str, str]]


def table_rows(root: Path) -> Rows:
    names = [f"pictures/{c}{n}.png" for c in "abcd" for n in range(3)]
    save_all(root, names)
    return [{"file": name, "class": Path(name).stem[0]} for name in names]


def delimited(
    delimiter: str, encoding: str, path: str = "file", label: str = "class"
) -> Callable[[Path, Rows], Path]:
    def write(root: Path, rows: Rows) -> Path:
        lines = [delimiter.join([path, label]), *(delimiter.join(row.values()) for row in rows)]
        (root / "t.csv").write_bytes("\r\n".join(lines).encode(encoding))
        return root / "t.csv"

    return write


def json_lines(root: Path, rows: Rows) -> Path:
    (root / "t.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return root / "t.jsonl"


COUNTED = """
import pathlib, sys, psutil
from pyarrow import parquet  # which starts threads of its own
from cbml.data.table import _read_parquet
before = psutil.Process().num_threads()
assert _read_parquet(pathlib.Path(sys.argv[1]))["label"] == ["oak"]
assert psutil.Process().num_threads() == before
"""


def test_reading_parquet_leaves_no_thread_that_outlives_python(tmp_path: Path) -> None:
    table = as_parquet(tmp_path, [{"path": "a.png", "label": "oak"}])
    child = [sys.executable, "-c", COUNTED, str(table)]
    read = subprocess.run(child, capture_output=True, text=True, check=False)
    assert read.returncode == 0, read.stderr


def as_parquet(root: Path, rows: Rows) -> Path:
    parquet.write_table(pyarrow.Table.from_pylist(rows), root / "t.parquet")
    return root / "t.parquet"


@pytest.mark.parametrize(
    "write",
    [
        delimited(";", "utf-8"),
        delimited("\t", "utf-16"),
        delimited(",", "utf-8-sig", "Image Path", "Category"),
        delimited(";", "utf-8", "filename", "target"),
        json_lines,
        as_parquet,
    ],
    ids=["semicolons", "UTF-16 tabs", "BOM", "synonyms", "JSON lines", "Parquet"],
)
def test_tables_as_programs_write_them(tmp_path: Path, write: Callable[[Path, Rows], Path]) -> None:
    splits = load(write(tmp_path, table_rows(tmp_path)), validation=0)
    assert classes(splits.train) | classes(splits.test) == set("abcd")
    assert all(path.is_file() for path in splits.train.paths)


def test_columns_can_be_named(tmp_path: Path) -> None:
    source = delimited(",", "utf-8", "photo", "species")(tmp_path, table_rows(tmp_path))
    with pytest.raises(BadData, match=r"no column 'path', only photo, species; .*--path-column"):
        load(source)
    splits = load(source, path_column="photo", label_column="species", validation=0)
    assert len(classes(splits.train)) == 2
    with pytest.raises(BadData, match="no column 'kind', only photo, species"):
        load(source, path_column="photo", label_column="kind")


@pytest.mark.parametrize("split", [False, True])
def test_metadata_of_hugging_face_folders(tmp_path: Path, split: bool) -> None:
    for number, part in enumerate(("train", "test") if split else ("",)):
        kinds = "abcd"[2 * number :][:2] if split else "abcd"
        names = [f"{c}{n}.png" for c in kinds for n in range(3)]
        save_all(tmp_path / part, names)
        rows = [f"{name},{name[0]}" for name in names]
        (tmp_path / part / "metadata.csv").write_text("file_name,label\n" + "\n".join(rows))
    splits = load(tmp_path, validation=0)
    assert splits.record["layout"] == "metadata with labels"
    assert classes(splits.train) | classes(splits.test) == set("abcd")
    if split:
        assert classes(splits.test) == {"c", "d"}


def test_metadata_without_labels_changes_nothing(tmp_path: Path) -> None:
    save_all(tmp_path, [f"{c}/{n}{c}.png" for c in "abcd" for n in range(2)])
    (tmp_path / "metadata.csv").write_text("file_name,text\na/0a.png,a bird\n")
    assert load(tmp_path, validation=0).record["layout"] == "a folder for each class"


def test_heic_needs_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heif = pytest.importorskip("pillow_heif")
    path = tmp_path / "phone.heic"
    image = heif.from_pillow(Image.new("RGB", (32, 24), (200, 30, 30)))
    image.save(path)
    assert read_image(path).size == (32, 24)
    monkeypatch.setattr("cbml.data.decode.reads_heic", lambda: False)
    with pytest.raises(BadData, match=r"phone.heic: HEIC needs an extra: .*cbml\[heic\]"):
        read_image(path)
    assert pack([path], tmp_path / "cache").reasons, "kept, so that it is not tried again"
    monkeypatch.undo()
    assert not pack([path], tmp_path / "cache").reasons, "read once the extra is there"


def test_more_unreadable_images_than_training_allows_are_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in "abcdefgh":
        for number in range(3):
            (tmp_path / name).mkdir(exist_ok=True)
            content = b"\0\0\0\x18ftypheic" + f"{name}{number}".encode()
            (tmp_path / name / f"{number}.heic").write_bytes(content)
    monkeypatch.setattr("cbml.data.decode.reads_heic", lambda: False)
    monkeypatch.setattr("sys.argv", ["somewhere/cbml/__main__.py"])
    monkeypatch.setattr("sys.executable", "/opt/own/bin/python")
    with pytest.raises(SystemExit) as ended:
        main(["data", "check", str(tmp_path)])
    assert not ended.value.code
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if "problem: " in line]
    assert "HEIC needs an extra: run  /opt/own/bin/python -m pip install 'cbml[heic]'" in line
    assert str(tmp_path) not in line
    images = load(tmp_path).train
    count = len(images)
    assert f"problem: {count} of {count} images cannot be read" in line
    assert "bad_limit" not in line, "half of them is less than all"
    assert lines[-1] == "  next:  solve the problem above, then check again"
    # Training is refused by the same words before its first step, not by what follows from it.
    source = pack(images.paths, tmp_path / "cache")
    with pytest.raises(BadData, match=f"^{count} of {count} images cannot be read"):
        build_batches(images, transform=TrainTransform(crop=8), source=source)


def test_check_never_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stray = save_all(
        tmp_path / "stray", [f"{c}/{n}{c}.png" for c in "ab" for n in range(2)] + ["x.png"]
    )
    (tmp_path / "empty").mkdir()
    table = tmp_path / "t.csv"
    table.write_text("path,label\nnowhere.png,a\n")
    (tmp_path / "cut.zip").write_bytes(b"no archive")
    deep = save_all(tmp_path / "deep", ["/".join("123456789") + "/x.png"])
    for source, problem in [
        (stray, "holds 1 image beside class folders"),
        (tmp_path / "empty", "no images found"),
        (table, "1 of 1 files are missing: row 1"),
        (tmp_path / "cut.zip", "not an intact archive"),
        (stray / "x.png", "neither a folder nor an archive"),
        (deep, "more than 8 folders deep"),
    ]:
        with pytest.raises(SystemExit) as ended:
            main(["data", "check", str(source)])
        assert not ended.value.code
        shown = capsys.readouterr().out
        assert problem in shown
        trained = f"next:  {program_name()} train {source} --labels none" in shown
        assert trained == (source == stray), "nothing to train on has no such command"


@pytest.mark.parametrize(
    "given", [["--labels", "names"], ["--label-from", "{foo}_{n}"], ["--label-from", "{label}-{n}"]]
)
def test_check_does_not_repeat_a_pattern_that_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: list[str]
) -> None:
    save_all(tmp_path, [f"{c}{c}.png" for c in "abcdefgh"])
    with pytest.raises(SystemExit) as ended:
        main(["data", "check", str(tmp_path), *given])
    assert not ended.value.code
    shown = capsys.readouterr().out
    assert "problem: " in shown
    assert f"next:  {program_name()} train {tmp_path} --labels none  " in shown


@pytest.mark.parametrize("beside", [False, True])
def test_check_names_the_extra_that_a_table_needs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    beside: bool,
) -> None:
    save_all(tmp_path / "photos", [f"{c}{n}.png" for c in "ab" for n in range(2)])
    table = tmp_path / "photos" / "metadata.parquet"
    table.write_bytes(b"PAR1")
    source = table.parent if beside else table
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SystemExit) as ended:
        main(["data", "check", str(source)])
    assert not ended.value.code
    shown = capsys.readouterr().out
    assert f"problem: {source}: the package 'pyarrow' is not installed: run  " in shown
    assert "cbml[table]" in shown
    assert f"train      {4 if beside else 0:>9} images" in shown
    assert "next:  solve the problem above" in shown, "what needs the extra cannot come next"


def test_check_says_how_to_get_a_benchmark_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CBML_DATA", raising=False)
    monkeypatch.setenv("CBML_CACHE", str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        main(["data", "check", "cub"])
    assert ended.value.code == 3
    assert f"fetch it with {program_name()} data get cub" in capsys.readouterr().err


def test_a_folder_taken_for_a_table_leads_on_as_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_all(tmp_path, ["x.png", "y.png"])
    with pytest.raises(SystemExit):
        main(["data", "check", str(tmp_path), "--as", "table"])
    assert f"train {tmp_path} --as folder --labels none " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (["run.json", "model/manifest.json"], "a run, not images; .*IMAGES --start .*--resume"),
        (["run.json", "metrics.jsonl", "analysis/pairs.png"], "a run, not images"),
        (["manifest.json", "arrays-1.safetensors"], "a gallery, not images; .*cbml serve"),
        (["manifest.json", "model-1.json"], "a saved model, not images"),
    ],
)
def test_our_own_results_are_no_images(tmp_path: Path, files: list[str], said: str) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    with pytest.raises(BadData, match=said):
        load(tmp_path)
    assert load_anyway(tmp_path).record["problems"]


def test_sizes_are_whole_pixels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, kind in enumerate("abcd"):
        (tmp_path / kind).mkdir()
        for n in range(2):
            image = Image.new("RGB", (8 + n, 6), (40 * number, 90 * n, 0))
            image.save(tmp_path / kind / f"{n}.png")
    with pytest.raises(SystemExit):
        main(["data", "check", str(tmp_path)])
    assert "  8 x 6 pixels (median)" in capsys.readouterr().out


def test_what_a_benchmark_lacks_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.data import layouts

    root = layouts.cub_official(tmp_path / "cub", dict.fromkeys(layouts.CUB_CLASSES, 2))
    for path in (root / "images" / "003.Sooty_Albatross").iterdir():
        path.unlink()
    with pytest.raises(BadData, match="is not the whole dataset"):
        load(root)
    with pytest.raises(SystemExit) as ended:
        main(["data", "check", str(root)])
    assert not ended.value.code
    shown = capsys.readouterr().out
    assert "1 class with missing images\n    003.Sooty_Albatross: 0 of 2 images" in shown


def test_a_folder_that_resembles_a_benchmark_is_read_as_a_folder(tmp_path: Path) -> None:
    names = ["001.Black_footed_Albatross", "002.Laysan_Albatross", "003.Sooty_Albatross", "Mine"]
    save_all(tmp_path, [f"{name}/{n}{name}.png" for name in names for n in range(2)])
    splits = load(tmp_path, validation=0)
    assert splits.record["dataset"] == "folder"
    assert "3 of 200 classes of Caltech-UCSD Birds-200-2011 are here; --as cub" in notes(splits)
    assert load(tmp_path, "cub", allow_partial=True, validation=0).record["dataset"] == "cub"
    with pytest.raises(BadData, match="--as folder"):
        load(tmp_path, "cub", split="classes", allow_partial=True)


def test_lists_like_those_of_cub_alone_do_not_make_a_folder_cub(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"images/species {k}/{n}.png" for k in range(8) for n in range(2)]
    save_all(tmp_path, names)
    listed = "".join(f"{row} {name.removeprefix('images/')}\n" for row, name in enumerate(names, 1))
    (tmp_path / "images.txt").write_text(listed)
    splits = load(tmp_path)
    assert splits.record["dataset"] == "folder"
    assert (
        "images.txt as in Caltech-UCSD Birds-200-2011, without image_class_labels.txt, which it "
        "needs: read as a plain folder" in notes(splits)
    )
    # NABirds has both files, with its own classes and their own numbers.
    (tmp_path / "image_class_labels.txt").write_text("1 817\n")
    splits = load(tmp_path)
    assert splits.record["dataset"] == "folder"
    assert "but for other classes: read as a plain folder" in notes(splits)
    for content, shown in ((b"", "for other classes"), (b"\xff", "images.txt: not a UTF-8 text")):
        (tmp_path / "images.txt").write_bytes(content)
        with pytest.raises(SystemExit) as ended:
            main(["data", "check", str(tmp_path)])
        assert not ended.value.code
        assert shown in capsys.readouterr().out


def make_special(folder: Path) -> set[str]:
    """A FIFO, a socket, links that loop, dangle and lead to a device or a folder, all as images."""
    os.mkfifo(folder / "fifo.png")
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(str(folder / "socket.png"))
    (folder / "loop.png").symlink_to("loop.png")
    (folder / "dangling.png").symlink_to("nowhere.png")
    (folder / "device.png").symlink_to("/dev/zero")
    return {"fifo.png", "socket.png", "loop.png", "dangling.png", "device.png"}


@pytest.mark.timeout(60)
def test_only_regular_files_are_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    save_all(Path("set"), [f"{c}/{n}{c}.png" for c in "abcd" for n in range(3)])
    special = make_special(Path("set/a"))
    report = check(load(Path("set"), validation=0))
    assert {Path(path).name for path, _ in report.bad} == special
    reasons = {Path(path).name: reason for path, reason in report.bad}
    assert "a named pipe, not a regular file" in reasons["fifo.png"]
    assert "a device" in reasons["device.png"]
    with pytest.raises(SystemExit) as ended:
        main(["data", "check", "set", "--bad", "bad_images.csv"])
    assert not ended.value.code
    assert special <= {
        Path(line.split(",")[0]).name for line in Path("bad_images.csv").read_text().splitlines()
    }
    for name in ("images.tgz", "t.csv", "images.txt"):
        os.mkfifo(name)
    with pytest.raises(BadData, match="neither a folder nor an archive"):
        load(Path("images.tgz"))
    with pytest.raises(BadData, match="no such table"):
        load(Path("t.csv"))
    (Path("birds") / "images").mkdir(parents=True)
    os.mkfifo("birds/images.txt")
    Path("birds/image_class_labels.txt").write_text("1 1\n")
    with pytest.raises(BadData, match="a named pipe"):
        load(Path("birds"))


def test_long_names_and_folders_for_files(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="no such folder"):
        load("x" * 5_000)
    with pytest.raises(BadData, match="no such table"):
        load("x" * 5_000 + ".csv")
    (tmp_path / "t.csv").write_text(f"path,label\n{'x' * 5_000}.png,a\n")
    with pytest.raises(BadData, match="1 of 1 files are missing") as caught:
        load(tmp_path / "t.csv")
    assert len(str(caught.value)) < 600
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(BadData, match="no such table"):
        datasets.table(tmp_path / "folder.csv")
    (tmp_path / "cub" / "images.txt").mkdir(parents=True)
    (tmp_path / "cub" / "image_class_labels.txt").mkdir()
    with pytest.raises(BadData, match="a folder, not a regular file"):
        load(tmp_path / "cub")


def test_train_reads_folders_as_check_does(tmp_path: Path) -> None:
    pets(tmp_path / "pets")
    named = load_splits(RunConfig({"source": str(tmp_path / "pets"), "label_from": "auto"}))
    assert "pug" in classes(named.train) | classes(named.validation) | classes(named.test)
    grocery(tmp_path / "grocery")
    config = RunConfig({"source": str(tmp_path / "grocery"), "split": "classes"})
    assert load_splits(config).record["scores_for"] == "unseen classes"
    assert load_splits(config.replace(data={"split": "stated"})).record["shared_classes"] == 4


def checked(capsys: pytest.CaptureFixture[str], *words: object) -> list[str]:
    with pytest.raises(SystemExit):
        main(["data", "check", *map(str, words)])
    return capsys.readouterr().out.splitlines()


def test_the_next_command_is_one_that_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = table_rows(tmp_path)
    (tmp_path / "gap.csv").write_text(
        "\n".join(["file,class", *(",".join(row.values()) for row in rows), "gone.png,a"])
    )
    assert (
        f"train {tmp_path / 'gap.csv'} --allow-partial "
        in checked(capsys, tmp_path / "gap.csv")[-1]
    )
    path = delimited(";", "utf-8-sig", "Bild", "Art")(tmp_path, rows)
    lines = checked(capsys, path)
    assert "no column 'path', only Bild, Art" in lines[1]
    assert lines[-1] == "  next:  solve the problem above, then check again"
    named = ("--path-column", "Bild", "--label-column", "Art")
    assert checked(capsys, path, *named)[-1].split("    #")[0].endswith(" ".join(named))


def test_what_is_left_of_a_benchmark_can_be_trained_on_as_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    products = tmp_path / "products"
    save_all(products, [f"bicycle_final/{n}.png" for n in range(8)])
    (products / "Ebay_test.txt").write_text("image_id class_id super_class_id path\n")
    lines = checked(capsys, products)
    assert f"sop: {products} lacks Ebay_train.txt" in lines[1]
    assert f"train {products} --as folder --labels none " in lines[-1]
    with pytest.raises(BadData, match="lacks Ebay_train"):
        load(products)
    assert len(load(products, "folder").train) == 8


def test_metadata_is_not_ignored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = table_rows(tmp_path)
    lines = ["file_name,label", *(",".join(row.values()) for row in rows)]
    (tmp_path / "metadata.csv").write_text("\n".join(lines))
    (tmp_path / "notes.txt").write_text("?")
    found = checked(capsys, tmp_path)
    assert "read as metadata with labels" in found[0]
    assert "  1 file ignored, by suffix not an image" in found
    assert not any(".csv" in line for line in found[1:])


def test_a_misspelled_dataset_is_recognized() -> None:
    with pytest.raises(BadData, match="no such folder or archive; did you mean 'emoji'"):
        load("emojy")


def test_a_gallery_labels_images_as_training_does(tmp_path: Path) -> None:
    labels = {one.name: one.label for one in list_images(grocery(tmp_path / "grocery"))}
    assert labels["dataset/train/Fruit/Kiwi/0train.png"] == "Fruit/Kiwi"
    assert labels["dataset/test/Fruit/Kiwi/0test.png"] == "Fruit/Kiwi"
    assert labels["dataset/iconic/0.png"] == "dataset/iconic", "beside the splits, and kept"
    with pytest.warns(UserWarning, match="left out: annotations/trimaps, 24 images, masks"):
        found = list_images(pets(tmp_path / "pets"), label_from="auto")
    assert {one.label for one in found} >= {"Abyssinian", "saint_bernard"}
    assert len(found) == 24, "no masks"


def test_masks_in_folders_of_their_own_are_one_line(tmp_path: Path) -> None:
    names = [f"{kind}/{n}{kind}" for kind in ("cat", "dog", "cow", "pig") for n in range(3)]
    save_all(tmp_path, [f"data/images/{name}.jpg" for name in names])
    for name in names:
        save_mask(tmp_path / "data" / "masks" / f"{name}.png")
    splits = load(tmp_path, validation=0)
    assert classes(splits.train) | classes(splits.test) == {"cat", "dog", "cow", "pig"}
    assert len(splits.record["left_out"]) == 4
    assert notes(splits).count("left out") == 1
    assert "left out: data/masks, 12 images in 4 folders, masks (" in notes(splits)


def test_a_table_beside_its_images_is_pointed_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_all(tmp_path, [f"photos/{n}.png" for n in range(4)])
    rows = [f"photos/{n}.png;{'ab'[n % 2]}" for n in range(4)]
    (tmp_path / "list.csv").write_text("\n".join(["file;kind", *rows]))
    assert "has labels" not in notes(load(tmp_path)), "no column of that table is a known one"
    (tmp_path / "list.csv").write_text("\n".join(["file;class", *rows]))
    wanted = f"list.csv has labels for 4 of these images; to use them, give {tmp_path / 'list.csv'}"
    assert wanted in notes(load(tmp_path))
    with pytest.raises(SystemExit):
        main(["data", "check", str(tmp_path)])
    assert f"next:  {program_name()} train {tmp_path / 'list.csv'} " in capsys.readouterr().out


def test_what_resembles_a_benchmark_is_trained_on_as_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ["001.Black_footed_Albatross", "101.White_Pelican"]:
        save_all(tmp_path, [f"{name}/{n}.png" for n in range(4)])
    with pytest.raises(SystemExit):
        main(["data", "check", str(tmp_path), "--as", "cub"])
    assert f"train {tmp_path} --as cub --allow-partial" in capsys.readouterr().out
    config = RunConfig({"source": str(tmp_path), "known_as": "cub", "allow_partial": True})
    splits = load_splits(config)
    assert splits.record["dataset"] == "cub"
    assert classes(splits.test) == {"101.White_Pelican"}
