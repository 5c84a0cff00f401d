"""Constants of the loss from the data: estimated once, recorded, never again."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cbml.errors import BadData, DamagedFile
from cbml.runs import RunConfig, parameters, run
from cbml.runs.parameters import (
    IMAGES,
    SAMPLED_OF_CLASS,
    recorded_parameters,
    sample_indices,
    with_chosen_parameters,
    with_estimate,
)
from cbml.training import read_record, update_record
from tests.training.small import class_folders


class Estimates:
    """Constants that tell how often they were asked for, and from what."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def __call__(self, embeddings: Any, labels: Any, odds: float) -> Mapping[str, Any]:
        self.calls.append(embeddings.shape)
        same = labels[:, None] == labels[None, :]
        assert odds == pytest.approx((same.sum() - len(labels)) / (~same).sum())
        assert np.allclose(np.linalg.norm(embeddings, axis=1), 1.0, atol=1e-5)
        return {"options": {"ratio.negative_center": 0.625, "variance_weight": 3.0}, "seen": 1}


@pytest.fixture
def estimates(monkeypatch: pytest.MonkeyPatch) -> Estimates:
    counted = Estimates()
    monkeypatch.setattr(parameters, "estimate_options", counted)
    return counted


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    monkeypatch.setenv("CBML_CACHE", str(tmp_path / "cache"))
    return RunConfig(
        {"source": str(class_folders(tmp_path)), "validation": 0.4},
        model={"backbone": "conv4", "dim": 8, "crop": 16},
        loss={"variance_weight": 1.5, "parameters": "from-data"},
        training={"steps": 2, "classes_per_batch": 2, "samples_per_class": 3},
    )


def test_estimated_once_recorded_and_kept(
    config: RunConfig, tmp_path: Path, estimates: Estimates
) -> None:
    folder = tmp_path / "run"
    run(config, folder)
    record = read_record(folder)
    assert len(estimates.calls) == 1
    assert record["parameters"]["options"]["ratio.negative_center"] == 0.625
    assert record["parameters"]["images"] == estimates.calls[0][0]
    assert "negative_center=0.625" in record["loss"]
    assert "variance_weight=1.5" in record["loss"]  # what the config gives stays
    run(config.replace(training={"steps": 3}), folder, resume=True)
    assert len(estimates.calls) == 1


def test_a_resumed_run_takes_the_recorded_ones(
    config: RunConfig, tmp_path: Path, estimates: Estimates, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(config, tmp_path / "run")
    changed = {"options": {"ratio.negative_center": 0.6875}}
    update_record(tmp_path / "run", {"parameters": changed})
    built = []
    monkeypatch.setattr(
        "cbml.runs.parts.with_estimate",
        lambda config, options: built.append(options) or with_estimate(config, options),
    )
    run(config, tmp_path / "run", resume=True)
    assert (len(estimates.calls), built) == (1, [changed["options"]])


def test_runs_that_cannot_have_them(tmp_path: Path) -> None:
    for found, kind, words in (
        (None, BadData, "was not started with"),
        ({"options": 3}, DamagedFile, "not a record of this program"),
    ):
        update_record(tmp_path, {"parameters": found})
        with pytest.raises(kind, match=words):
            recorded_parameters(tmp_path)
    with pytest.raises(BadData, match=r"loss\.ratio and parameters=from-data"):
        RunConfig("x", loss={"ratio": "products", "parameters": "from-data"})
    with pytest.raises(BadData, match="only the loss cbml"):
        RunConfig("x", loss={"name": "proxy_anchor", "parameters": "from-data"})


def test_samples_are_whole_small_classes_and_parts_of_large_ones() -> None:
    small = np.arange(IMAGES) // 4
    assert sample_indices(small, 0).tolist() == list(range(IMAGES))
    many = np.random.default_rng(0).permutation(np.arange(40_000) // 4)
    indices = sample_indices(many, 0)
    assert len(indices) == IMAGES
    assert set(np.unique(many[indices], return_counts=True)[1].tolist()) == {4}
    assert (np.diff(indices) > 0).all()
    assert sample_indices(many, 1).tolist() != indices.tolist() == sample_indices(many, 0).tolist()
    large = np.arange(90_000) % 300
    sizes = np.unique(large[sample_indices(large, 0)], return_counts=True)[1]
    assert set(sizes.tolist()) == {SAMPLED_OF_CLASS}
    assert len(sizes) == IMAGES // SAMPLED_OF_CLASS


def test_cbml_on_a_pretrained_network_estimates_unless_something_speaks_against_it() -> None:
    def chosen(**sections: Any) -> str:
        return with_chosen_parameters(RunConfig(**({"data": "emoji"} | sections))).loss.parameters

    assert chosen() == "from-data"
    assert chosen(loss={"variance_weight": 2.0}) == "from-data"
    for sections in (
        {"loss": "multi_similarity"},
        {"model": {"weights": "none"}},
        {"model": "conv4"},
        {"data": {"source": "emoji", "labels": "none"}},
        {"loss": {"ratio": "products"}},
        {"loss": {"ratio.positive_scale": 0.5}},
        {"loss": {"parameters": "given"}},
    ):
        assert chosen(**sections) == "given", sections
