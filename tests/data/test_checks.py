"""`check` tells what is there and what is wrong; the contact sheet shows it."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cbml.data import check, datasets, load, recognize
from cbml.data.checks import contact_sheet
from cbml.data.image_dataset import ImageDataset, Splits
from cbml.errors import BadData
from tests.data import layouts
from tests.data.image_files import image_dataset, save_image


def test_every_layout_is_recognized(tmp_path: Path) -> None:
    few = dict.fromkeys(layouts.CUB_CLASSES, 1)
    cases = {
        layouts.cub_official(tmp_path / "birds", few): "cub",
        layouts.cars_single(tmp_path / "one", [1] * 196): "cars",
        layouts.cars_devkit(tmp_path / "two", [1] * 196): "cars",
        layouts.car_folders(tmp_path / "three", [1] * 196, above=("train", "test")): "cars",
        layouts.inshop_official(tmp_path / "shop", parts=[("train", 4, 0, 2)]): "inshop",
        layouts.imagenet_mini(tmp_path / "net" / "ILSVRC/Data/CLS-LOC").parents[2]: "imagenet",
        layouts.imagenet_mini(tmp_path / "thousand", classes=1_000): "imagenet",
        layouts.imagenet_mini(tmp_path / "few"): "folder",
    }
    (tmp_path / "products").mkdir()
    (tmp_path / "products" / "Ebay_train.txt").touch()
    cases[tmp_path / "products"] = "sop"
    for root, classes in [
        ("copy", list(layouts.CUB_CLASSES)),
        ("resembles", ["002.Laysan_Albatross"]),
    ]:
        layouts.touch(tmp_path / root / "images" / name / "1.jpg" for name in classes)
    cases |= {tmp_path / "copy": "cub", tmp_path / "resembles": "folder"}
    image_dataset(tmp_path / "own", classes=2, each=1)
    cases[tmp_path / "own"] = "folder"
    cases[tmp_path / "list.csv"] = "table"
    cases[Path("emoji")] = "emoji"
    assert {path: recognize(path) for path in cases} == cases
    assert set(cases.values()) == {*datasets.DATASETS, "folder", "table"}


def test_a_report_of_a_troubled_folder(tmp_path: Path) -> None:
    for split, classes in [("train", "abc"), ("test", "de")]:
        for name in classes:
            for number in range(1 + ord(name) - ord("a")):
                save_image(tmp_path / split / name / f"{number}.png", ord(name) * 10 + number)
    (tmp_path / "train" / "b" / "0.png").write_bytes(b"no image")
    original = (tmp_path / "train" / "c" / "0.png").read_bytes()
    (tmp_path / "train" / "c" / "again.png").write_bytes(original)
    leaked = (tmp_path / "train" / "c" / "1.png").read_bytes()
    (tmp_path / "test" / "d" / "leak.png").write_bytes(leaked)
    with pytest.warns(UserWarning, match="both in train and in test"):
        splits = load(tmp_path)
    calls: list[tuple[int, int]] = []
    report = check(splits, progress=lambda *call: calls.append(call))
    assert report.recognized == "folder"
    assert [Path(path).name for path, _ in report.bad] == ["0.png"]
    assert "not an image" in report.bad[0][1]
    assert len(report.duplicates) == 2
    assert [sorted(Path(path).name for path in group) for group in report.across] == [
        ["1.png", "leak.png"]
    ]
    assert report.class_sizes["test"] == {"smallest": 5, "median": 5.0, "largest": 5}
    assert calls[-1] == (17, 17)
    json.dumps(report.as_dict())


def test_names_are_checked(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="birds: no such dataset; use one of cub"):
        load(tmp_path, "birds")
    with pytest.raises(BadData, match="did you mean 'inshop'"):
        load(tmp_path, "in-shop")
    with pytest.raises(BadData, match="no such folder"):
        load(tmp_path / "missing")


def test_a_sheet_shows_images_of_each_split(tmp_path: Path) -> None:
    for split, color in [("train", (250, 0, 0)), ("test", (0, 0, 250))]:
        for name in "abcdefghi":
            folder = tmp_path / "set" / split / (f"{split}-{name}-with_a_rather long name " * 3)
            folder.mkdir(parents=True)
            for number in range(10):
                Image.new("RGB", (30 + number, 20), color).save(folder / f"{number}.png")
            (folder / "0.png").write_bytes(b"broken")
    with pytest.warns(UserWarning, match="both"):
        splits = datasets.folder(tmp_path / "set", validation=0)
    contact_sheet(splits, tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as sheet:
        pixels = np.asarray(sheet.convert("RGB")).astype(int)
    half = pixels.shape[0] // 2
    red, blue = ((pixels == color).all(axis=2) for color in [(250, 0, 0), (0, 0, 250)])
    assert red[:half].sum() > 50_000
    assert blue[half:].sum() > 50_000
    assert not blue[:half].any()
    assert not red[half:].any()


def test_a_sheet_without_labels_and_with_odd_shapes(tmp_path: Path) -> None:
    shapes = [(1, 1), (400, 1), (1, 400), (30, 30)]
    paths = []
    for number, shape in enumerate(shapes):
        paths.append(tmp_path / f"{number}.png")
        Image.new("RGB", shape, (0, 99, 0)).save(paths[-1])
    contact_sheet(Splits(ImageDataset(tuple(paths)), ImageDataset(())), tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.height < 300


def test_a_bare_name_is_looked_for_where_it_was_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CBML_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CBML_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    for name in ("cub", "cars", "sop"):
        with pytest.raises(BadData, match=rf"{name}: not found .*cbml data get {name}.*CBML_DATA"):
            load(name)
    for name in ("inshop", "imagenet"):
        with pytest.raises(BadData, match=rf"{name}: not found .*ask its owners.*https://"):
            load(name)
    few = dict.fromkeys(layouts.CUB_CLASSES, 2)
    fetched = layouts.cub_official(tmp_path / "cache" / "downloads" / "CUB_200_2011", few)
    assert load("cub", allow_partial=True).record["root"] == str(fetched)
    own = layouts.cub_official(tmp_path / "data" / "birds", few)
    (tmp_path / "data" / "cub").symlink_to(own)
    monkeypatch.setenv("CBML_DATA", str(tmp_path / "data"))
    splits = load("cub", allow_partial=True, validation=0)
    assert str(tmp_path / "data" / "cub") in splits.record["root"]
    assert not len(splits.validation)
    (tmp_path / "cub").mkdir()  # a folder of that name comes first
    assert recognize("cub") == "folder"


def test_the_share_of_held_out_classes_is_passed_on(tmp_path: Path) -> None:
    image_dataset(tmp_path / "own", classes=16, each=2)
    sizes = [
        len(load(tmp_path / "own", validation=share).validation.class_names)
        for share in (0.0, 0.25, 0.5)
    ]
    assert sizes[0] < sizes[1] < sizes[2]
