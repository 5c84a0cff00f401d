"""A whole run: what may fail at its end, what may change when it resumes, and code of one's own."""

import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cbml.bayes import MatchProbability, check_results
from cbml.cli import main
from cbml.data import ImageDataset
from cbml.errors import BadData, DamagedFile
from cbml.query_gallery import QueryGallery
from cbml.runs import RunConfig, evaluate, parse_overrides, resumed_config, run, runner
from cbml.runs.compare import FREE, check_same_run
from cbml.runs.sections import FLAT_KEYS
from cbml.training import Callback, Method, read_record, update_record
from tests.training.small import class_folders


class Messages(Callback):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def on_message(self, text: str) -> None:
        self.lines.append(text)


class OwnLoss(nn.Module):
    """Pulls all images of a batch together."""

    def __init__(self, *, strength: float = 1.0) -> None:
        super().__init__()
        self.strength = strength

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return self.strength * (1.0 - (embeddings @ embeddings.T).mean())


class OwnMethod(Method):
    """The loss, and nothing more."""

    def __init__(self, loss: nn.Module, *, patience: int = 1) -> None:
        super().__init__(loss)
        self.patience = patience


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    monkeypatch.setenv("CBML_CACHE", str(tmp_path / "cache"))
    return RunConfig(
        {"source": str(class_folders(tmp_path)), "validation": 0.4},
        model={"backbone": "conv4", "dim": 8, "crop": 16},
        training={"steps": 2, "checkpoint_every": 1},
    )


def test_what_follows_the_model_cannot_fail_the_run(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*words: Any, **options: Any) -> Any:
        raise FloatingPointError("no fit")

    monkeypatch.setattr(MatchProbability, "fit", broken)
    monkeypatch.setattr(runner, "report_run", broken)
    heard = Messages()
    config = config.replace(data={"validation": 0.6})  # classes enough for a fit
    result = run(config, tmp_path / "run", test=True, callback=heard)
    assert result.test is not None
    assert (tmp_path / "run" / "model" / "manifest.json").exists()
    folder = tmp_path / "run"
    assert f"no calibration.json: no fit; to try again:  cbml analyze {folder}" in heard.lines
    assert f"no report.html: no fit; to try again:  cbml evaluate {folder}" in heard.lines


def test_the_report_shows_first_what_the_training_gained(config: RunConfig, tmp_path: Path) -> None:
    run(config, tmp_path / "run", test=True)
    page = (tmp_path / "run" / "report.html").read_text()
    titles = re.findall(r"<h2>([^<]*quer[^<]*)</h2>", page, flags=re.IGNORECASE)
    assert titles[0] == "Queries that gained most among unseen classes, test"
    assert [title.split()[0] for title in titles[1:]] == ["Worst", "Best"]
    assert page.count("<p>before</p>") == page.count("<p>after</p>") > 0
    run(config.replace(method="horde"), tmp_path / "horde")
    assert "gained most" not in (tmp_path / "horde" / "report.html").read_text()


CHANGES = [
    *("source=elsewhere", "validation=0.3", "model_selection=test", "bad_limit=0.1"),
    *("label_from=auto", "split=classes", "path_column=file", "label_column=kind"),
    *(
        "known_as=folder",
        "allow_partial=true",
        "min_area=0.3",
        "flip=0.1",
        "backbone=resnet18",
        "dim=16",
    ),
    *(
        "start=elsewhere",
        "pooling=max",
        "batch_norm=frozen",
        "weights=none",
        "crop=32",
        "test_crop=64",
        "precision=bfloat16",
    ),
    *(
        "compile=true",
        "loss=triplet",
        "parameters=from-data",
        "proxy_weight=0.3",
        "optimizer=adamw",
        "momentum=0.5",
    ),
    *("learning_rate=1e-3", "weight_decay=0", "backbone_factor=2", "head_factor=2"),
    *("loss_factor=2", "schedule=cosine", "drop_at=7", "drop_factor=0.5", "warmup_steps=3"),
    *("clip_norm=1", "seed=1", "classes_per_batch=2", "samples_per_class=2", "chunk_size=4"),
    *("choose_by=map@r", "refresh_epochs=2", "cluster_by=features", "head_start=whitened"),
    *(
        "dampening=0.5",
        "ema=0.5",
        "batch_range=7",
        "study=true",
        "labels=none",
        "clusters=3",
        "method=pseudo_labels",
    ),
]


def test_every_field_that_is_not_free_is_compared_when_a_run_resumes(tmp_path: Path) -> None:
    started = RunConfig("x", training={"classes_per_batch": 3, "samples_per_class": 3})
    update_record(tmp_path, {"config": started.as_dict()})
    tried = set()
    for change in [*CHANGES, "loss.variance_weight=3", "method.depth=3"]:
        change = change.replace("source=", "data=")
        key = change.partition("=")[0]
        place = ".".join(FLAT_KEYS.get(key, tuple(key.split("."))))
        with pytest.raises(BadData, match=f"{place} was .* not the same run"):
            check_same_run(tmp_path, started.replace(**parse_overrides([change])))
        tried.add(place)
    every = {f"{section}.{field}" for section, field in FLAT_KEYS.values()}
    assert every - tried == FREE


def test_free_fields_may_change_and_open_sizes_are_those_of_the_run(tmp_path: Path) -> None:
    started = RunConfig("x", training={"classes_per_batch": 3, "samples_per_class": 3})
    update_record(tmp_path, {"config": started.as_dict()})
    words = ["steps=9", "patience=3", "validate_every=1", "keep_checkpoints=7", "workers=0"]
    assert check_same_run(tmp_path, resumed_config(tmp_path, words)).training.steps == 9
    assert check_same_run(tmp_path, RunConfig("x")).training.classes_per_batch == 3


def test_a_changed_byte_in_the_record_is_found(tmp_path: Path) -> None:
    update_record(tmp_path, {"config": RunConfig("x").as_dict(), "test_evaluations": 0})
    path = tmp_path / "run.json"
    whole, chance = path.read_bytes(), random.Random(0)
    read_record(tmp_path)
    for _ in range(200):
        index = chance.randrange(len(whole))
        damaged = bytearray(whole)
        damaged[index] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(DamagedFile, match=r"run\.json"):
            read_record(tmp_path)


def test_a_loss_and_a_method_of_ones_own_and_the_flags_to_resume(
    config: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    own = ["--loss", f"{__name__}:OwnLoss", "--method", f"{__name__}:OwnMethod"]
    words = ["--set", "loss.strength=2.0", "--set", "method.patience=3", "--set", "dim=8"]
    small = ["--backbone", "conv4", "--crop", "16", "--steps", "1"]
    for given, code, message in (
        (["train", config.data.source, *own, *words, *small, "--out", str(out)], 0, ""),
        (["train", "--resume", str(out), "--steps", "2"], 2, f"--loss {__name__}:OwnLoss"),
        (["train", "--resume", str(out), "--steps", "2", *own], 0, ""),
        (["train", "emoji", "--loss", "no.such:Loss"], 2, "package.module:Class"),
        (["train", "emoji", "--method", "pseudo_label"], 2, "did you mean 'pseudo_labels'"),
        (["train", "emoji", *own[2:], "--set", "method.patient=3"], 2, "did you mean 'patience'"),
    ):
        with pytest.raises(SystemExit) as end:
            main(given)
        assert int(end.value.code or 0) == code, capsys.readouterr().err
        assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert read_record(out)["config"]["loss"]["options"] == {"strength": 2.0}
    assert read_record(out)["steps_done"] == 2
    torch.manual_seed(0)


def test_every_loss_and_method_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    from cbml import LOSSES, METHODS

    with pytest.raises(SystemExit):
        main(["methods"])
    printed = capsys.readouterr().out
    for name in (*LOSSES, *METHODS):
        assert f"  {name} " in printed
    assert "against a memory of all images (--labels each)" in printed


class _Drawn:
    """Stands for `embed_images`: points around the centers of classes, in a space of their own."""

    def __init__(self) -> None:
        self.asked: list[ImageDataset] = []

    def __call__(self, model: object, images: ImageDataset, *_: object) -> QueryGallery:
        self.asked.append(images)
        names = np.array(images.class_names)[images.known_labels]
        random = np.random.default_rng(len(images))
        centers = {name: np.random.default_rng(int(name)).normal(size=16) for name in set(names)}
        rows = np.array([centers[name] for name in names]) + random.normal(size=(len(names), 16))
        return QueryGallery.of(rows, images.known_labels)


def _images(names: Sequence[str], each: int) -> ImageDataset:
    labels = np.repeat(np.arange(len(names)), each)
    paths = tuple(Path(f"{number}.jpg") for number in range(len(labels)))
    return ImageDataset(paths, labels, tuple(names))


def test_probabilities_are_fitted_among_images_of_other_classes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn: Any = _Drawn()
    monkeypatch.setattr(evaluate, "embed_images", drawn)
    names = [str(number) for number in range(80)]
    train, held_out = _images(names[:60], 60), _images(names[60:], 5)
    embedded = drawn(None, held_out)
    for seed in (3, 3, 4):
        fitted = evaluate.fit_probability(drawn, held_out, embedded, train, seed=seed)
        assert fitted.positives == fitted.fitted_positives == 4.0
    first, again, other = (images.paths for images in drawn.asked[1:])
    assert len(set(first)) == 2048
    assert first == again != other


def test_probabilities_of_known_classes_expect_as_many_images_as_training_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn: Any = _Drawn()
    monkeypatch.setattr(evaluate, "embed_images", drawn)
    names = [str(number) for number in range(80)]
    train, held_out, test = _images(names, 30), _images(names[:60], 5), _images(names, 31)
    fitted = evaluate.fit_probability(drawn, held_out, drawn(None, held_out), train, seed=0)
    others, known = (set(images.class_names) for images in drawn.asked[1:])
    assert known == set(held_out.class_names), "the others are relevant to no held-out image"
    assert others == set(names) - known
    assert fitted.positives == 30.0
    searched = drawn(None, test)
    assert fitted.for_gallery(searched.embeddings).positives == 30.0, "no labels, nothing new"
    modest = MatchProbability.fit(drawn(None, held_out))
    errors = [check_results(one, searched)[10].ece for one in (fitted, modest)]
    assert errors[0] < 0.5 * errors[1], errors
