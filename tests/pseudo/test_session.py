"""`cbml train --labels none` from the words of the command line to the files of the run."""

import csv
import json
import os
import shutil
from pathlib import Path

import pytest

from cbml.cli import main
from cbml.data import ImageSet
from cbml.errors import BadData
from cbml.models import Embedder
from cbml.pseudo import load_pictures, unlabelled_recipe
from cbml.training import read_metrics, read_record

SMALL = [
    *("--backbone", "conv4", "--crop", "16", "--steps", "8"),
    *("--set", "dim=8", "--set", "batch_range=12-20", "--set", "pictures_per_class=2"),
    *("--set", "bad_limit=0.2"),
]


def run(words: list[str]) -> int:
    with pytest.raises(SystemExit) as end:
        main(words)
    return int(end.value.code or 0)


@pytest.fixture
def flat(images: ImageSet, tmp_path: Path) -> Path:
    """Pictures without any order, some below, and one that cannot be read."""
    root = tmp_path / "my_pictures"
    (root / "2026" / "summer").mkdir(parents=True)
    for number, path in enumerate(images.paths):
        shutil.copy(path, root / ("2026/summer" if number % 3 else ".") / path.name)
    (root / "0-3a.png").write_bytes(b"no picture")
    return root


@pytest.fixture
def labelled(images: ImageSet, tmp_path: Path) -> Path:
    root = tmp_path / "labelled"
    for number in range(2):
        for path in images.paths:
            target = root / f"{number}{path.name.partition('-')[0]}" / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes() + bytes(number))
    return root


def test_a_folder_of_pictures_is_all_it_takes(
    flat: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    words = ["train", str(flat), "--labels", "none", *SMALL, "--out", str(out), "--json"]
    assert run(words) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["best_step"] is None, "nothing chooses a model"
    assert "clusters alive of 10" in printed.err
    record = read_record(out)
    assert record["clusters"] == 10, "a quarter of the 42 readable pictures"
    assert "mining_margin=None" in record["loss"]
    refreshes = [line["labels"] for line in read_metrics(out) if "labels" in line]
    assert len(refreshes) == len({line["epoch"] for line in read_metrics(out)}) >= 2
    assert not [name for facts in refreshes for name in facts if name == "study"]
    rows = list(csv.DictReader((out / "clusters.csv").read_text().splitlines()))
    assert len(rows) == 43
    assert {int(row["cluster"]) for row in rows} <= set(range(10))
    listed = list(csv.DictReader((out / "bad_images.csv").read_text().splitlines()))
    assert [os.path.basename(row["path"]) for row in listed] == ["0-3a.png"]
    assert "<svg" in (out / "report.html").read_text()
    last = Embedder.load(out / "model")
    assert last.dim == 8


def test_a_stopped_run_goes_on_by_its_folder(flat: Path, tmp_path: Path) -> None:
    words = ["train", str(flat), "--labels", "none", *SMALL, "--parameters", "from-data"]
    whole, part = tmp_path / "whole", tmp_path / "part"
    assert run([*words, "--out", str(whole)]) == 0
    assert run([*words, "--out", str(part), "--steps", "5"]) == 0
    killed = tmp_path / "killed"  # before its first checkpoint
    shutil.copytree(part, killed)
    shutil.rmtree(killed / "checkpoints")
    for out in (part, killed):
        assert run(["train", "--resume", str(out), "--steps", "8"]) == 0
    models = [next((out / "model").glob("*.safetensors")) for out in (whole, part, killed)]
    assert len({path.read_bytes() for path in models}) == 1
    options = [line["labels"]["options"] for line in read_metrics(whole) if "labels" in line]
    assert len({str(one) for one in options}) == len(options) >= 2, "estimated at each clustering"


def test_study_looks_at_labels_and_training_does_not(labelled: Path, tmp_path: Path) -> None:
    words = ["train", str(labelled), "--labels", "none", *SMALL, "--set", "study=true"]
    assert run([*words, "--out", str(tmp_path / "a"), "--set", "validation=0.4"]) == 0
    found = [line["labels"]["study"] for line in read_metrics(tmp_path / "a") if "labels" in line]
    assert all(0.0 <= scores["nmi"] <= 1.0 for scores in found)
    assert all(0.0 <= scores["held-out recall@1"] <= 1.0 for scores in found)
    assert read_record(tmp_path / "a")["study"].keys() == found[0].keys()
    assert read_record(tmp_path / "a")["best_step"] is None


def test_labels_of_folders_are_not_even_read(labelled: Path, tmp_path: Path) -> None:
    splits = load_pictures(unlabelled_recipe(str(labelled)))
    assert splits.train.labels is None
    assert len(splits.train) == 84, "nothing is held out"
    stated = tmp_path / "stated"
    for place, folder in enumerate(sorted(labelled.iterdir())):
        shutil.copytree(folder, stated / ("train", "test")[place % 2] / folder.name)
    assert len(load_pictures(unlabelled_recipe(str(stated))).train) == 42, "never the test"
    emoji = load_pictures(unlabelled_recipe("emoji"))
    assert emoji.train.labels is None
    assert emoji.test is not None


def test_every_picture_can_be_a_class_of_its_own(flat: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["train", str(flat), "--labels", "each", "--loss", "tuplet_margin", *SMALL]
    assert run([*words, "--set", "loss.margin=0", "--out", str(out)]) == 0
    assert not [line for line in read_metrics(out) if "labels" in line]
    assert read_record(out)["sampler"]["pictures_per_class"] == 2


def test_cross_entropy_on_the_clusters(
    flat: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    words = ["train", str(flat), "--labels", "none", "--loss", "normalized_softmax", *SMALL]
    assert run([*words, "--clusters", "5", "--out", str(out)]) == 0
    assert read_record(out)["clusters"] == 5
    assert "the last model is kept" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--set", "batch_range=many"], 2, "write 100, or 80-200"),
        (["--clusters", "1000"], 3, "between 2 and the 42 readable pictures"),
        (["--loss", "proxy_anchor", "--parameters", "from-data"], 2, "only the loss cbml"),
        (["--set", "bad_limit=0"], 3, "cannot be read"),
        (["--test"], 3, "has no test pictures"),
        (["--labels", "each", "--clusters", "5"], 2, "only with --labels none"),
    ],
)
def test_what_cannot_be_is_refused(
    flat: Path,
    tmp_path: Path,
    words: list[str],
    code: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = ["train", str(flat), "--labels", "none", *SMALL, *words]
    assert run([*given, "--out", str(tmp_path / "run")]) == code
    assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_the_start_is_the_papers() -> None:
    recipe = unlabelled_recipe("emoji")
    assert (recipe.dim, recipe.batch_range) == (128, "80-200")
    assert recipe.loss_options == {"mining_margin": None}
    assert unlabelled_recipe("emoji", ["loss.mining_margin=0.1"]).loss_options == {
        "mining_margin": 0.1
    }
    assert unlabelled_recipe("emoji", ["loss=proxy_anchor"]).loss_options == {}
    with pytest.raises(BadData, match="no such setting"):
        unlabelled_recipe("emoji", ["cluster=7"])
