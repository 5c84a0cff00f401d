"""Constants of the loss from the data: estimated once, recorded, never again."""

import functools
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from cbml.errors import BadData, DamagedFile
from cbml.evaluation import evaluate
from cbml.losses import build_loss
from cbml.training import Recipe, Settings, Tools, read_record, train_run
from cbml.training.measured import (
    PICTURES,
    PICTURES_PER_CLASS,
    sample_places,
    with_default_parameters,
    with_parameters,
)
from tests.training.small import class_folders


class Estimates:
    """Constants that tell how often they were asked for, and from what."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def __call__(self, rows: Any, labels: Any) -> Mapping[str, Any]:
        self.calls.append(rows.shape)
        assert np.allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-5)
        return {"options": {"ratio.negative_center": 0.625, "variance_weight": 3.0}, "seen": 1}


def make_loss(recipe: Recipe, classes: int) -> nn.Module:
    return build_loss(recipe.loss, recipe.loss_options, classes=classes, dim=8, seed=0)


TOOLS = Tools(make_loss=make_loss, evaluate=evaluate)


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    monkeypatch.setenv("CBML_CACHE", str(tmp_path / "cache"))
    return Recipe(
        data=str(class_folders(tmp_path)),
        backbone="conv4",
        dim=8,
        crop=16,
        classes_per_batch=2,
        pictures_per_class=3,
        validation=0.4,
        parameters="from-data",
        loss_options={"variance_weight": 1.5},
        settings=Settings(steps=2),
    )


def test_estimated_once_recorded_and_kept(recipe: Recipe, tmp_path: Path) -> None:
    estimates, folder = Estimates(), tmp_path / "run"
    train_run(recipe, folder, replace(TOOLS, estimate=estimates))
    record = read_record(folder)
    assert len(estimates.calls) == 1
    assert record["parameters"]["options"]["ratio.negative_center"] == 0.625
    assert record["parameters"]["pictures"] == estimates.calls[0][0]
    assert "negative_center=0.625" in record["loss"]
    assert "variance_weight=1.5" in record["loss"]  # what the recipe gives stays
    record["parameters"]["options"]["ratio.negative_center"] = 0.6875
    (folder / "run.json").write_text(json.dumps(record))
    seen = []

    def watched(chosen: Recipe, classes: int) -> nn.Module:
        seen.append(chosen.loss_options["ratio.negative_center"])
        return make_loss(chosen, classes)

    watching = Tools(make_loss=watched, evaluate=evaluate, estimate=estimates)
    train_run(recipe, folder, watching, resume=True)
    assert (len(estimates.calls), seen) == (1, [0.6875])


def test_runs_that_cannot_have_them(recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="need estimate"):
        train_run(recipe, tmp_path / "run", TOOLS)
    estimates = Estimates()
    estimating = replace(TOOLS, estimate=estimates)
    (tmp_path / "run").mkdir(exist_ok=True)
    for parameters, kind, words in (
        (None, BadData, "was not started with"),
        ({"options": 3}, DamagedFile, "not a record of this program"),
    ):
        (tmp_path / "run" / "run.json").write_text(json.dumps({"parameters": parameters}))
        with pytest.raises(kind, match=words):
            train_run(recipe, tmp_path / "run", estimating, resume=True)
    with pytest.raises(BadData, match=r"loss\.ratio and parameters=from-data"):
        with_parameters(Recipe(data="x", loss_options={"ratio": "products"}), {"options": {}})
    named = replace(recipe, loss_options={"ratio": "products"})
    with pytest.raises(BadData, match=r"loss\.ratio and parameters=from-data"):
        train_run(named, tmp_path / "named", estimating)
    assert estimates.calls == [], "nothing is embedded for what cannot be used"


def test_calibration_is_written_where_there_is_one(recipe: Recipe, tmp_path: Path) -> None:
    for name, answer in (("with", {"said": 1}), ("without", None)):
        calibrate = functools.partial(lambda answer, rows, labels: answer, answer)
        tools = replace(TOOLS, estimate=Estimates(), calibrate=calibrate)
        train_run(recipe, tmp_path / name, tools)
        path = tmp_path / name / "calibration.json"
        assert path.exists() == (answer is not None)
    assert json.loads((tmp_path / "with" / "calibration.json").read_text()) == {"said": 1}


def test_samples_are_whole_small_classes_and_parts_of_large_ones() -> None:
    small = np.arange(PICTURES) // 4
    assert sample_places(small, 0).tolist() == list(range(PICTURES))
    many = np.random.default_rng(0).permutation(np.arange(40_000) // 4)
    places = sample_places(many, 0)
    assert len(places) == PICTURES
    assert set(np.unique(many[places], return_counts=True)[1].tolist()) == {4}
    assert (np.diff(places) > 0).all()
    assert sample_places(many, 1).tolist() != places.tolist() == sample_places(many, 0).tolist()
    large = np.arange(90_000) % 300
    sizes = np.unique(large[sample_places(large, 0)], return_counts=True)[1]
    assert set(sizes.tolist()) == {PICTURES_PER_CLASS}
    assert len(sizes) == PICTURES // PICTURES_PER_CLASS


def test_cbml_on_a_pretrained_network_estimates_unless_something_speaks_against_it() -> None:
    assert with_default_parameters(Recipe(data="emoji")).parameters == "from-data"
    others = [
        Recipe(data="emoji", loss="multi_similarity"),
        Recipe(data="emoji", weights="none"),
        Recipe(data="emoji", backbone="conv4"),
        Recipe(data="emoji", labels="none"),
        Recipe(data="emoji", loss_options={"ratio": "products"}),
        Recipe(data="emoji", loss_options={"ratio.positive_scale": 0.5}),
    ]
    for recipe in others:
        assert with_default_parameters(recipe) == recipe
    weighted = Recipe(data="emoji", loss_options={"variance_weight": 2.0})
    assert with_default_parameters(weighted).parameters == "from-data"
