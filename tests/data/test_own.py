"""Anybody's folder and anybody's table."""

import csv
import json
import os
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from cbml.data import datasets
from cbml.data.discovery import same_bytes
from cbml.data.image_dataset import ImageDataset, Splits
from cbml.data.splits import hold_out
from cbml.errors import BadData
from tests.data.image_files import image_dataset, save_image


def names(images: ImageDataset | None) -> set[str]:
    assert images is not None
    return set(images.class_names)


def test_a_folder_for_each_class(tmp_path: Path) -> None:
    image_dataset(tmp_path, classes=20, each=3)
    splits = datasets.folder(tmp_path)
    assert len(names(splits.test)) == 10
    assert len(names(splits.validation)) == 3
    assert len(names(splits.train)) == 7
    assert not names(splits.train) & names(splits.test)
    assert not names(splits.validation) & (names(splits.train) | names(splits.test))
    assert splits.record["seed"] == 0
    assert splits.record["layout"] == "a folder for each class"
    assert splits.record["counts"]["test"] == {"images": 30, "classes": 10}
    json.dumps(splits.record)
    again, other = datasets.folder(tmp_path), datasets.folder(tmp_path, seed=1)
    assert names(again.test) == names(splits.test) != names(other.test)
    for images in (splits.train, splits.validation, splits.test):
        assert images is not None
        for path, label in zip(images.paths, images.known_labels.tolist(), strict=True):
            assert path.parent.name == images.class_names[label]


def test_shares(tmp_path: Path) -> None:
    image_dataset(tmp_path, classes=12, each=2)
    everything = datasets.folder(tmp_path, test=0, validation=0)
    assert everything.test is None
    assert len(everything.train) == 24
    with pytest.raises(BadData, match="test=1"):
        datasets.folder(tmp_path, test=1)
    with pytest.raises(BadData, match="validation=-1"):
        datasets.folder(tmp_path, validation=-1)


def test_nested_classes_keep_their_paths(tmp_path: Path) -> None:
    for kind in ("cats/black", "cats/white", "dogs/black", "dogs/white"):
        save_image(tmp_path / kind / "1.jpg", hash(kind) % 100)
    splits = datasets.folder(tmp_path, test=0, validation=0)
    assert splits.train.class_names == ("cats/black", "cats/white", "dogs/black", "dogs/white")


def test_folders_above_the_classes_are_passed_over(tmp_path: Path) -> None:
    for split, name in [("train", "a"), ("train", "b"), ("test", "c"), ("test", "d")]:
        save_image(tmp_path / "data" / "v2" / split / name / "1.png", ord(name))
    splits = datasets.folder(tmp_path, validation=0)
    assert names(splits.train) == {"a", "b"}
    assert names(splits.test) == {"c", "d"}
    image_dataset(tmp_path / "one" / "more", classes=1)
    assert datasets.folder(tmp_path / "one").train.labels is None, "one class is none"


def test_a_flat_folder_has_no_labels(tmp_path: Path) -> None:
    for number in range(5):
        save_image(tmp_path / f"{number}.JPG", number)
    (tmp_path / "notes.txt").write_text("not an image")
    splits = datasets.folder(tmp_path)
    assert splits.train.labels is None
    assert len(splits.train) == 5
    assert splits.test is None
    assert len(splits.validation) == 0
    with pytest.raises(BadData, match="have no labels"):
        splits.train.known_labels  # noqa: B018


def test_stated_splits_are_respected(tmp_path: Path) -> None:
    for split, classes in [("train", "abcdef"), ("Val", "gh"), ("test", "ij")]:
        for name in classes:
            save_image(tmp_path / split / name / "1.png", ord(name))
    splits = datasets.folder(tmp_path)
    assert names(splits.train) == set("abcdef")
    assert names(splits.validation) == set("gh")
    assert names(splits.test) == set("ij")
    for name in "ij":
        save_image(tmp_path / "query" / name / "2.png", ord(name) + 50)
    with pytest.raises(BadData, match="query and gallery need each other"):
        datasets.folder(tmp_path)
    for name in "ij":
        save_image(tmp_path / "gallery" / name / "3.png", ord(name) + 90)
    splits = datasets.folder(tmp_path)
    assert splits.query is not None
    assert splits.query.roles == ("query", "query")
    assert names(splits.gallery) == set("ij")


def test_what_is_wrong_with_a_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="no images found; looked for"):
        datasets.folder(tmp_path)
    image_dataset(tmp_path, classes=3)
    save_image(tmp_path / "stray.png", 1)
    with pytest.raises(BadData, match=r"holds 1 image beside class folders, such as stray.png"):
        datasets.folder(tmp_path)
    (tmp_path / "text.rtf").write_text("x")
    with pytest.raises(BadData, match="neither a folder nor an archive"):
        datasets.folder(tmp_path / "text.rtf")


def test_hidden_files_and_strange_names(tmp_path: Path) -> None:
    for number, name in enumerate(["été 夏", "a b", "-x", "100%", "quote'\"s"]):
        save_image(tmp_path / name / "ünï \u202e.jpeg", number)
        save_image(tmp_path / name / ".hidden.png", number)
    save_image(tmp_path / ".thumbnails" / "1.png", 9)
    splits = datasets.folder(tmp_path, test=0, validation=0)
    assert len(splits.train) == 5
    assert "été 夏" in splits.train.class_names


def test_links_in_a_circle_are_left_out(tmp_path: Path) -> None:
    image_dataset(tmp_path, classes=4, each=1)
    before = datasets.folder(tmp_path)
    (tmp_path / "class0" / "loop").symlink_to(tmp_path)
    (tmp_path / "class1" / "self").symlink_to(tmp_path / "class1")
    after = datasets.folder(tmp_path)
    assert after.train.paths == before.train.paths
    assert after.test.paths == before.test.paths
    deep = tmp_path.joinpath(*"abcdefghi")
    deep.mkdir(parents=True)
    with pytest.raises(BadData, match="folders deep"):
        datasets.folder(tmp_path)


def test_duplicates_across_the_split_are_reported(tmp_path: Path) -> None:
    for split, name in [("train", "a"), ("train", "b"), ("test", "c"), ("test", "d")]:
        save_image(tmp_path / split / name / "1.png", ord(name))
    copy = tmp_path / "test" / "c" / "copy.png"
    copy.write_bytes((tmp_path / "train" / "a" / "1.png").read_bytes())
    with pytest.warns(UserWarning, match="1 file is both in train and in test"):
        splits = datasets.folder(tmp_path, validation=0)
    assert splits.record["duplicates_across"]["groups"] == 1
    assert str(copy) in splits.record["duplicates_across"]["examples"][0]


def test_same_bytes_against_plain_comparison(tmp_path: Path) -> None:
    contents = [b"a", b"b", b"a", b"", b"", b"long", b"b", b"gnol", b"a"]
    paths = []
    for number, content in enumerate(contents):
        paths.append(tmp_path / str(number))
        paths[-1].write_bytes(content)
    paths.append(tmp_path / "missing")
    groups = same_bytes(paths)
    assert groups == [[0, 2, 8], [1, 6], [3, 4]]


Row = dict[str, str]


def write_csv(path: Path, rows: list[Row]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_parquet(path: Path, rows: list[Row]) -> Path:
    parquet.write_table(
        pyarrow.table({name: [row[name] for row in rows] for name in rows[0]}), path
    )
    return path


def table_rows(folder: Path, splits: dict[str, str] | None = None) -> list[Row]:
    images = image_dataset(folder, classes=8, each=2)
    rows = []
    for path, label in zip(images.paths, images.known_labels.tolist(), strict=True):
        row = {"path": str(path.relative_to(folder)), "label": images.class_names[label]}
        if splits is not None:
            row["split"] = splits[images.class_names[label]]
        rows.append(row)
    return rows


@pytest.mark.parametrize(("write", "suffix"), [(write_csv, "csv"), (write_parquet, "parquet")])
def test_a_table_of_paths_and_labels(tmp_path: Path, write: object, suffix: str) -> None:
    table = write(tmp_path / f"t.{suffix}", table_rows(tmp_path))  # type: ignore[operator]
    splits = datasets.table(table, validation=0.5)
    assert (len(names(splits.train)), len(names(splits.validation)), len(names(splits.test))) == (
        2, 2, 4
    )  # fmt: skip
    assert all(path.exists() for path in splits.train.paths)
    json.dumps(splits.record)
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    os.replace(table, moved / table.name)
    assert len(datasets.table(moved / table.name, root=tmp_path).train) > 0


def test_splits_and_roles_of_a_table(tmp_path: Path) -> None:
    stated = {f"class{n}": ("train", "train", "val", "test")[n % 4] for n in range(8)}
    rows = table_rows(tmp_path, stated)
    splits = datasets.table(write_csv(tmp_path / "t.csv", rows))
    assert names(splits.test) == {"class3", "class7"}
    assert names(splits.validation) == {"class2", "class6"}
    for number, row in enumerate(rows):
        row["role"] = ("query", "gallery")[number % 2] if row["split"] == "test" else ""
    splits = datasets.table(write_csv(tmp_path / "t.csv", rows))
    assert splits.test is None
    assert splits.query is not None
    assert splits.gallery is not None
    assert len(splits.query) == len(splits.gallery) == 2
    assert splits.query.class_names == splits.gallery.class_names
    for row in rows:
        del row["split"]
    again = datasets.table(write_csv(tmp_path / "t.csv", rows), validation=0)
    assert again.query is not None
    assert again.query.paths == splits.query.paths


def test_a_table_without_labels(tmp_path: Path) -> None:
    rows = [{"path": row["path"]} for row in table_rows(tmp_path)]
    splits = datasets.table(write_csv(tmp_path / "t.csv", rows))
    assert splits.train.labels is None
    assert len(splits.train) == 16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"path": ""}, "row 3 has no path"),
        ({"label": ""}, "row 3 has no label"),
        ({"path": "nowhere.png"}, "1 of 16 files are missing: row 3 .*nowhere.png"),
        ({"split": "tset"}, "row 3 has the split 'tset', not one of train, validation, test"),
        ({"role": "asker"}, "row 3 has the role 'asker'"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, change: Row, message: str) -> None:
    rows = table_rows(tmp_path, {f"class{n}": "train" for n in range(8)})
    for row in rows:
        row["role"] = ""
    rows[2] |= change
    with pytest.raises(BadData, match=message):
        datasets.table(write_csv(tmp_path / "t.csv", rows))


def test_bad_tables_are_named(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    for content, message in [
        (b"", "no column 'path', only nothing"),
        (b"photo,label\na,b\n", "no column 'path', only photo, label"),
        (b"path,label\n", "has no rows"),
        (b"path,label\na\n", "row 1 has 1 values for 2 columns"),
        (b"path\n\xff\xfe\n", "not a UTF-8 CSV table"),
    ]:
        table.write_bytes(content)
        with pytest.raises(BadData, match=message):
            datasets.table(table)
    (tmp_path / "t.parquet").write_bytes(b"PAR1 nonsense")
    with pytest.raises(BadData, match="not a Parquet table"):
        datasets.table(tmp_path / "t.parquet")
    with pytest.raises(BadData, match="no such table"):
        datasets.table(tmp_path / "missing.csv")


def test_missing_files_can_be_left_out_on_request(tmp_path: Path) -> None:
    rows = table_rows(tmp_path)
    (tmp_path / rows[0]["path"]).unlink()
    table = write_csv(tmp_path / "t.csv", rows)
    splits = datasets.table(table, test=0, validation=0, allow_partial=True)
    assert len(splits.train) == 15
    assert splits.record["allow_partial"] is True
    assert splits.record["missing"] == 1


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 3), min_size=2, max_size=60), st.floats(0, 0.9), st.integers(0, 9))
def test_holding_out_is_a_partition(sizes: list[int], share: float, seed: int) -> None:
    classes, usable = len(sizes), sum(size > 1 for size in sizes)
    wanted = round(share * classes)
    if share:
        wanted = max(wanted, min(4, classes // 3))
    wanted = wanted if wanted >= 2 else 0
    wanted = min(wanted, usable) if usable > 1 else 0
    if classes - wanted < 2 <= classes - 2:
        with pytest.raises(BadData, match="fewer than two would be left"):
            hold_out(np.array(sizes), share=share, seed=seed)
        return
    kept, held = hold_out(np.array(sizes), share=share, seed=seed)
    assert sorted([*kept.tolist(), *held.tolist()]) == list(range(classes))
    assert len(held) == (wanted if classes - wanted >= 2 else 0)
    assert all(sizes[place] > 1 for place in held.tolist())


@pytest.mark.parametrize(("classes", "tested"), [(2, 0), (3, 0), (4, 2)])
def test_small_folders_train_and_say_what_they_cannot(
    tmp_path: Path, classes: int, tested: int
) -> None:
    image_dataset(tmp_path, classes=classes, each=2)
    splits = datasets.folder(tmp_path)
    assert len(names(splits.train)) == classes - tested
    assert len(splits.validation) == 0
    notes = splits.record["notes"]
    assert any("too few to hold some out for validation" in note for note in notes)
    assert any("too few to keep some for the test" in note for note in notes) == (tested == 0)
    assert datasets.folder(tmp_path, test=0, validation=0).record["notes"] == []


def test_other_files_are_named_where_there_are_no_images(tmp_path: Path) -> None:
    for name in ("a.xml", "b.XML", "notes"):
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(BadData, match=r"no images found among its files \(2 .xml, 1 no suffix"):
        datasets.folder(tmp_path)


def test_an_image_set_checks_itself() -> None:
    paths = (Path("a"), Path("b"))
    with pytest.raises(BadData, match="labels: 1 given for 2 images"):
        ImageDataset(paths, np.array([0]), ("x",))
    with pytest.raises(BadData, match="labels: from 0 to 2"):
        ImageDataset(paths, np.array([0, 2]), ("x", "y"))
    with pytest.raises(BadData, match="'asker' is neither"):
        ImageDataset(paths, roles=("query", "asker"))
    images = ImageDataset(paths, np.array([0, 1]), ("x", "y"))
    with pytest.raises(ValueError, match="read-only"):
        images.known_labels[0] = 1
    with pytest.raises(BadData, match="one of the two sets has labels"):
        images.joined(ImageDataset(paths))


def test_subsets_and_joins_keep_names() -> None:
    paths = tuple(Path(name) for name in "abcdef")
    images = ImageDataset(paths, np.array([0, 1, 2, 0, 1, 2]), ("x", "y", "z"))
    part = images.subset([5, 1, 4])
    assert part.class_names == ("y", "z")
    assert part.known_labels.tolist() == [1, 0, 0]
    joined = images.of_classes([1]).joined(images.of_classes([2, 0]))
    found = {
        str(path): joined.class_names[label]
        for path, label in zip(joined.paths, joined.known_labels.tolist(), strict=True)
    }
    assert found == {"a": "x", "b": "y", "c": "z", "d": "x", "e": "y", "f": "z"}
    assert len(ImageDataset(())) == 0
    assert list(Splits(images, ImageDataset(())).parts()) == ["train", "validation"]


def test_a_million_images_are_no_burden() -> None:
    import time

    paths = (Path("a.jpg"),) * 1_000_000
    labels = np.arange(1_000_000) % 100_000
    start = time.perf_counter()
    images = ImageDataset(paths, labels, tuple(map(str, range(100_000))))
    kept, held = hold_out(np.full(100_000, 10), share=0.1, seed=0)
    assert len(images.of_classes(kept)) + len(images.of_classes(held)) == len(images)
    assert time.perf_counter() - start < 20
