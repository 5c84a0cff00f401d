"""`cbml train --labels none` from the words of the command line to the files of the run."""

import csv
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from cbml.data import ImageDataset, PackedDataset
from cbml.methods import METHODS, chain_count, image_features, whitened
from cbml.models import Embedder
from cbml.runs import (
    RunConfig,
    build_model,
    parameters,
    parse_overrides,
    parts,
    recorded_config,
    runner,
    training_splits,
    with_larger_views,
)
from cbml.training import embed_dataset, read_metrics, read_record
from cbml.training.checkpoints import newest_checkpoint
from tests.fixtures import run_program as run

SMALL = [
    *("--backbone", "conv4", "--crop", "16", "--steps", "8"),
    *("--set", "dim=8", "--set", "batch_range=12-20", "--set", "samples_per_class=2"),
    *("--set", "bad_limit=0.2"),
]

# What a method needs to learn from so few images.
OPTIONS = {
    "mom": [
        *("--set", "method.neighbors=5", "--set", "method.positive_list=5"),
        *("--set", "method.negative_list=12"),
    ]
}


def unlabeled(source: str) -> RunConfig:
    return RunConfig({"source": source, "labels": "none"})


@pytest.fixture
def flat(images: ImageDataset, tmp_path: Path) -> Path:
    """Images without any order, some below, and one that cannot be read."""
    root = tmp_path / "my_images"
    (root / "2026" / "summer").mkdir(parents=True)
    for number, path in enumerate(images.paths):
        shutil.copy(path, root / ("2026/summer" if number % 3 else ".") / path.name)
    (root / "0-3a.png").write_bytes(b"no image")
    return root


@pytest.fixture
def labeled(images: ImageDataset, tmp_path: Path) -> Path:
    root = tmp_path / "labeled"
    for number in range(2):
        for path in images.paths:
            target = root / f"{number}{path.name.partition('-')[0]}" / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes() + bytes(number))
    return root


@pytest.mark.parametrize(
    "words", [["--loss", "proxy_anchor"], ["--loss", "proxy_nca"], ["--method", "nce"]], ids=str
)
def test_unreadable_images_have_a_class_where_each_image_is_one(
    flat: Path, tmp_path: Path, words: list[str]
) -> None:
    """Labels run over all images: a vector for each readable one would be too few."""
    out = tmp_path / "run"
    words = ["train", str(flat), "--labels", "each", *words, *SMALL, "--set", "bad_limit=0.5"]
    assert run([*words, "--out", str(out)]) == 0
    count = len(list(flat.rglob("*.png")))
    assert read_record(out)["clusters"] == count
    tensors = newest_checkpoint(out / "checkpoints", print).tensors  # type: ignore[union-attr]
    sizes = {value.shape[:1] for name, value in tensors.items() if name.startswith("method.")}
    assert (count,) in sizes


def test_the_table_of_clusters_cannot_fail_the_run(
    flat: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(runner, "_write_clusters", full)
        assert run(["train", str(flat), "--labels", "none", *SMALL, "--out", str(out)]) == 0
    again = f"cbml train --resume {out}"
    said = capsys.readouterr().err
    assert f"no clusters.csv: [Errno 28] No space left on device; to try again:  {again}" in said
    assert (out / "report.html").exists()
    assert run(again.split()[1:]) == 0
    assert (out / "clusters.csv").exists()


def test_a_folder_of_images_is_all_it_takes(
    flat: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    words = ["train", str(flat), "--labels", "none", *SMALL, "--out", str(out), "--json"]
    assert run(words) == 0
    printed = capsys.readouterr()
    best = json.loads(printed.out)["best_step"]
    views = [line["validation"] for line in read_metrics(out) if "validation" in line]
    scores = [view["view_agreement"] for view in views]
    assert best == (0 if scores[0] >= scores[1] else 8), (
        "the model that agrees best with other views"
    )
    record = read_record(out)
    clusters = record["clusters"]
    assert 2 <= clusters <= 21, "chains of nearest neighbors have two images or more"
    assert f"{clusters} clusters: the number of pairs of images that are" in printed.err
    assert f"clusters alive of {clusters}" in printed.err
    assert "mining_margin=None" in record["loss"]
    refreshes = [line["plan"] for line in read_metrics(out) if "plan" in line]
    assert (
        len(refreshes) == len({line["epoch"] for line in read_metrics(out) if "epoch" in line}) >= 2
    )
    assert not [name for facts in refreshes for name in facts if name == "study"]
    rows = list(csv.DictReader((out / "clusters.csv").read_text().splitlines()))
    assert len(rows) == 43
    assert {int(row["cluster"]) for row in rows} <= set(range(clusters))
    listed = list(csv.DictReader((out / "bad_images.csv").read_text().splitlines()))
    assert [os.path.basename(row["path"]) for row in listed] == ["0-3a.png"]
    assert "<svg" in (out / "report.html").read_text()
    last = Embedder.load(out / "model")
    assert last.dim == 8


def test_clusters_are_as_many_as_a_sample_of_the_images_proposes(
    flat: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = ["train", str(flat), "--labels", "none", *SMALL, "--steps", "1"]
    counts = {}
    for most in (42, 21):
        monkeypatch.setattr(parameters, "CLUSTERED", most)
        assert run([*few, "--out", str(tmp_path / str(most))]) == 0
        counts[most] = read_record(tmp_path / str(most))["clusters"]
    config = recorded_config(tmp_path / "42")
    model = build_model(config).at_crop(16)
    dataset = PackedDataset.of(training_splits(config).train, 16)
    features = image_features(model.eval(), lambda network: embed_dataset(network, dataset))
    assert counts[42] == chain_count(whitened(features, 8))
    drawn = np.sort(np.random.default_rng(0).permutation(42)[:21])
    assert counts[21] == 2 * chain_count(whitened(features[drawn], 8)), "the share that is kept"


def test_a_resumed_run_keeps_its_number_of_clusters(
    flat: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    assert run(["train", str(flat), "--labels", "none", *SMALL, "--out", str(out)]) == 0
    count = read_record(out)["clusters"]
    monkeypatch.setattr(parts, "estimate_clusters", None)  # not asked again
    assert run(["train", "--resume", str(out), "--steps", "9"]) == 0
    assert read_record(out)["clusters"] == count


def test_a_run_that_forgets_its_images_keeps_the_start(
    flat: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    words = ["train", str(flat), "--labels", "none", *SMALL, "--out", str(out)]
    assert run([*words, "--set", "learning_rate=100"]) == 0
    printed = capsys.readouterr()
    assert "the start model is kept: no later one had a better view_agreement" in printed.err
    assert "TRAINING DID NOT IMPROVE ON THE START" in printed.out
    scores = [line["validation"] for line in read_metrics(out) if "validation" in line]
    assert scores[0]["view_agreement"] > scores[-1]["view_agreement"]
    text = (out / "report.html").read_text()
    assert "Other views of the training images chose the model of step 0." in text


@pytest.mark.parametrize(("crop", "rate"), [(32, 4e-4), (64, 4e-4), (96, 1.78e-4), (128, 1e-4)])
def test_larger_crops_change_a_network_less(crop: int, rate: float) -> None:
    changes = parse_overrides([f"crop={crop}"])
    plain = RunConfig({"source": "photos", "labels": "none"}, **changes)
    found = with_larger_views(plain, changes)
    assert found.optimizer.learning_rate == pytest.approx(rate, rel=0.01)


@pytest.mark.parametrize(
    "words",
    [
        *([], ["crop=64", "dim=32", "learning_rate=1e-5"], ["study=true"]),
        ["method.averaged=0", "method.enlarge=1.5"],
    ],
)
def test_a_pretrained_network_learns_from_larger_views(words: list[str]) -> None:
    changes = parse_overrides(words)
    plain = RunConfig({"source": "photos", "labels": "none"}, **changes)
    found = with_larger_views(plain, changes)
    assert (found.method.name, found.data.labels) == ("larger_views", "each")
    assert found.training.choose_by == "agreement"
    if "optimizer" not in changes:
        assert found.optimizer.learning_rate == 1e-4, "at 128 pixels"
    assert found.method.options == changes.pop("method", {})
    for section, fields in changes.items():
        for field, value in fields.items():
            assert getattr(getattr(found, section), field) == value


@pytest.mark.parametrize(
    "words",
    [
        *(["clusters=10"], ["refresh_epochs=2"], ["loss=proxy_anchor"], ["loss.averaging=log"]),
        *(["parameters=from-data"], ["method=ortho"], ["weights=none"], ["backbone=conv4"]),
        *(["start=runs/earlier"], ["crop=200"], ["backbone=package.module:network"]),
    ],
)
def test_clusters_remain_where_they_are_meant_or_larger_views_show_nothing(
    words: list[str],
) -> None:
    changes = parse_overrides(words)
    for labels in ("none", "known"):
        plain = RunConfig({"source": "photos", "labels": labels}, **changes)
        assert with_larger_views(plain, changes) is plain


def test_the_clusters_of_a_run_without_any_are_those_of_its_model(
    flat: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    words = ["train", str(flat), "--labels", "each", "--method", "larger_views", *SMALL]
    assert run([*words, "--set", "samples_per_class=1", "--out", str(out)]) == 0
    assert "neighbors and similarities of enlarged images" in capsys.readouterr().err
    rows = list(csv.DictReader((out / "clusters.csv").read_text().splitlines()))
    assert len(rows) == 43
    model = Embedder.load(out / "model").eval()
    images = ImageDataset(tuple(Path(row["path"]) for row in rows))
    vectors = embed_dataset(model, PackedDataset.of(images, model.preprocessing.crop))
    assert len({row["cluster"] for row in rows}) == chain_count(vectors)
    page = (out / "report.html").read_text()
    assert "<svg" in page
    assert "Held-out images are never trained on" in page
    assert "clusters of the training images" in page
    assert "training classes" not in page, "there are none"


def test_a_stopped_run_goes_on_by_its_folder(flat: Path, tmp_path: Path) -> None:
    words = ["train", str(flat), "--labels", "none", *SMALL, "--parameters", "from-data"]
    words += ["--set", "head_start=random"]  # few directions show near-copies as equal
    words += ["--set", "choose_by=recall@1"]  # the last model: a stopped run is judged more often
    whole, part = tmp_path / "whole", tmp_path / "part"
    assert run([*words, "--out", str(whole)]) == 0
    assert run([*words, "--out", str(part), "--steps", "5"]) == 0
    killed = tmp_path / "killed"  # before its first checkpoint
    shutil.copytree(part, killed)
    for name in ("checkpoints", "model"):
        shutil.rmtree(killed / name)
    for out in (part, killed):
        assert run(["train", "--resume", str(out), "--steps", "8"]) == 0
    first, *others = (Embedder.load(out / "model").state_dict() for out in (whole, part, killed))
    for other in others:
        assert all(torch.equal(value, other[name]) for name, value in first.items())
    options = [line["plan"]["options"] for line in read_metrics(whole) if "plan" in line]
    assert len({str(one) for one in options}) == len(options) >= 2, "estimated at each clustering"


def test_study_looks_at_labels_and_training_does_not(labeled: Path, tmp_path: Path) -> None:
    words = ["train", str(labeled), "--labels", "none", *SMALL, "--set", "study=true"]
    assert run([*words, "--out", str(tmp_path / "a"), "--set", "validation=0.4"]) == 0
    found = [line["plan"]["study"] for line in read_metrics(tmp_path / "a") if "plan" in line]
    assert all(0.0 <= scores["nmi"] <= 1.0 for scores in found)
    assert all(0.0 <= scores["held-out recall@1"] <= 1.0 for scores in found)
    assert read_record(tmp_path / "a")["study"].keys() == found[0].keys()
    judged = [line["validation"] for line in read_metrics(tmp_path / "a") if "validation" in line]
    assert {name for scores in judged for name in scores} == {"view_agreement"}


def test_labels_of_folders_are_not_even_read(labeled: Path, tmp_path: Path) -> None:
    splits = training_splits(unlabeled(str(labeled)))
    assert splits.train.labels is None
    assert len(splits.train) == 84, "nothing is held out"
    stated = tmp_path / "stated"
    for place, folder in enumerate(sorted(labeled.iterdir())):
        shutil.copytree(folder, stated / ("train", "test")[place % 2] / folder.name)
    assert len(training_splits(unlabeled(str(stated))).train) == 42, "never the test"
    emoji = training_splits(unlabeled("emoji"))
    assert emoji.train.labels is None
    assert emoji.test is not None


def test_every_image_can_be_a_class_of_its_own(flat: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["train", str(flat), "--labels", "each", "--loss", "tuplet_margin", *SMALL]
    assert run([*words, "--set", "loss.margin=0", "--out", str(out)]) == 0
    assert not [line for line in read_metrics(out) if "plan" in line]
    assert read_record(out)["sampler"]["samples_per_class"] == 2


@pytest.mark.parametrize("name", [name for name, row in METHODS.items() if row.labels != "known"])
def test_every_method_without_labels_is_chosen_by_its_name(
    name: str, flat: Path, tmp_path: Path
) -> None:
    entry, out = METHODS[name], tmp_path / "run"
    words = ["train", str(flat), "--labels", entry.labels, *SMALL, "--out", str(out)]
    if name != "pseudo_labels":
        words += ["--method", name, *OPTIONS.get(name, [])]
    assert run(words) == 0
    record = read_record(out)
    assert record["method"] == entry.load().__name__
    for section, fields in entry.defaults.items():
        for field, value in fields.items():
            if field not in ("batch_range", "samples_per_class", "dim", "test_crop"):  # see SMALL
                assert record["config"][section][field] == value
    assert run(["train", "--resume", str(out), "--steps", "9"]) == 0


def test_cross_entropy_on_the_clusters(
    flat: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    words = ["train", str(flat), "--labels", "none", "--loss", "normalized_softmax", *SMALL]
    assert run([*words, "--clusters", "5", "--out", str(out)]) == 0
    assert read_record(out)["clusters"] == 5
    assert "  view_agreement: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--set", "batch_range=many"], 2, "write 100, or 80-200"),
        (["--clusters", "1000"], 3, "give between 2 and the 43 images"),
        (["--loss", "proxy_anchor", "--parameters", "from-data"], 2, "only the loss cbml"),
        (["--set", "bad_limit=0"], 3, "cannot be read"),
        (["--test"], 3, "has no test images"),
        (["--labels", "each", "--clusters", "5"], 2, "only with labels=none"),
        (["--method", "nce"], 2, "--method nce: learns with --labels each, not none"),
        (["--labels", "known", "--method", "nce"], 2, "learns with --labels each, not known"),
        (["--labels", "known", "--method", "pseudo_labels"], 2, "--labels none, not known"),
        (["--method", "pseudo_labels"], 2, "is what --labels none does; leave --method out"),
        (["--labels", "each", "--method", "nce", "--loss", "proxy_anchor"], 2, "leave --loss out"),
        (["--labels", "each", "--method", "nce", "--set", "method.negative=3"], 2, "'negatives'"),
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
    config = unlabeled("emoji")
    assert (config.model.dim, config.pseudo_labels.batch_sizes) == (128, (80, 200))
    assert config.loss.options == {"mining_margin": None}
    mining = RunConfig({"source": "x", "labels": "none"}, loss={"mining_margin": 0.1})
    assert mining.loss.options == {"mining_margin": 0.1}
    assert RunConfig({"source": "x", "labels": "none"}, loss="proxy_anchor").loss.options == {}
    each = RunConfig({"source": "x", "labels": "each"})
    assert each.training.samples_per_class == 2
