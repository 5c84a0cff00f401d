"""The leaderboard: its frozen protocol, its jobs on a tiny dataset, and its table."""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import cbml
from cbml.errors import BadData
from cbml.experiments import Sources, find_entries, read_records, run_leaderboard
from cbml.experiments import leaderboard_markdown as markdown
from cbml.experiments.document import draw_leaderboard
from cbml.experiments.leaderboard import (
    Entry,
    Protocol,
    leaderboard_lines,
    plan_final,
    read_protocol,
)
from cbml.losses import LOSSES
from cbml.methods import METHODS
from cbml.runs import build_run_loss, with_current_names
from cbml.training import Callback
from tests.experiments.small import job

PROTOCOL = Path(cbml.__file__).parent / "experiments" / "leaderboard.json"
ENTRIES = [Entry("cbml", "loss"), Entry("proxy_nca", "loss")]


def tiny() -> Protocol:
    return dataclasses.replace(
        read_protocol(),
        config=job().config.replace(loss={"options": {}}),
        learning_rates=(1e-3, 1e-2),
        trial_steps=2,
        trial_data="tiny",
        losses={},
    )


def run(root: Path, out: Path, **changes: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"seeds": [0], "protocol": tiny()} | changes
    sources, data = Sources(str(root)), given.pop("data", "tiny")
    entries = given.pop("entries", ENTRIES)
    found = run_leaderboard(entries, data, out, sources=sources, callback=Callback(), **given)
    return {key: value for key, value in dataclasses.asdict(found).items() if value}


def test_the_protocol_is_frozen() -> None:
    text = PROTOCOL.read_bytes()
    assert hashlib.sha256(text).hexdigest() == (
        "d16f5ea10127f112eba31e54314453f5fd50f461abb7dd5ef5dcda41b60d735c"
    ), "records under results/leaderboard-laptop were made with another protocol"
    config = read_protocol().config
    written = with_current_names(json.loads(text)["config"])
    # Came later: as if they were not there.
    written["optimizer"]["ema"], written["data"]["known_as"] = 0.0, None
    written["loss"]["proxy_weight"], written["model"]["test_crop"] = 0.0, None
    assert written == config.as_dict(), "every setting is written out"
    assert (config.model.backbone, config.model.crop) == ("efficientnet_lite0", 64)
    assert config.augmentation.min_area == 0.5
    assert (config.training.classes_per_batch, config.training.samples_per_class) == (30, 4)
    assert (config.training.steps, read_protocol().trial_steps) == (200, 60)
    assert len(read_protocol().learning_rates) == 3


def test_every_loss_and_method_with_labels_is_an_entry_that_can_be_built() -> None:
    entries = find_entries()
    labeled = {name for name, one in METHODS.items() if one.labels == "known"}
    assert {entry.name for entry in entries} == {*LOSSES, *labeled}
    for entry in entries:
        config = read_protocol().config_of(entry, "emoji", 1e-4, 0)
        if entry.kind == "loss" and config.loss.parameters == "given":
            build_run_loss(config, 3)
    own = find_entries(losses=["mine:Loss"])
    assert own == [Entry("mine:Loss", "loss")]
    with pytest.raises(BadData, match="matches no entry"):
        find_entries(["nothing"])


def test_trials_then_one_run_at_the_best_rate_and_nothing_twice(root: Path, tmp_path: Path) -> None:
    assert run(root, tmp_path) == {"done": 2 * (2 + 1)}
    assert run(root, tmp_path) == {"finished": 2 * (2 + 1)}
    folder = tmp_path / "leaderboard-laptop"
    trials = read_records(folder / "tiny-trials.jsonl")
    assert all("test" not in record["scores"] for record in trials)
    assert {record["settings"]["steps"] for record in trials} == {2}
    for record in read_records(folder / "tiny.jsonl"):
        own = [one for one in trials if one["row"] == record["row"]]
        best = max(own, key=lambda one: one["scores"]["validation"]["recall@1"])
        assert record["settings"]["learning_rate"] == best["settings"]["learning_rate"]
        assert record["test_evaluations"] == 1
        assert record["seconds_per_step"] > 0
    assert run(root, tmp_path, seeds=[0, 1])["done"] == 2
    text = markdown(read_records(tmp_path), tiny())
    assert "2 of " in text
    assert "still to run: cbml_authors" in text
    assert text.count(" ± ") == 4, "Recall@1 and MAP@R of two entries with two seeds"
    elsewhere = dataclasses.replace(tiny(), trial_data="emoji")
    text = markdown(read_records(tmp_path), elsewhere)
    assert "2 entries, at their learning rates on emoji." in text
    assert "still to run" not in text, "other datasets are for some entries alone"


def test_methods_without_labels_have_a_table_of_their_own(root: Path, tmp_path: Path) -> None:
    entries = find_entries(["nce", "pseudo_labels"], labels="none")
    assert [entry.labels for entry in entries] == ["none", "each"]
    with pytest.raises(BadData, match="matches no entry"):
        find_entries(["cbml"], labels="none")
    protocol = tiny()
    config = protocol.config.replace(model={"crop": 16}, pseudo_labels={"clusters": 3})
    protocol = dataclasses.replace(protocol, config=config)
    assert run(root, tmp_path, entries=[*ENTRIES[:1], *entries], protocol=protocol) == {"done": 9}
    records = read_records(tmp_path)
    trials = [one for one in records if one["trial"]]
    assert all(0 <= one["scores"]["validation"]["recall@1"] <= 1 for one in trials), "they choose"
    with_labels, without = markdown(records, protocol).split(", without labels\n")
    assert "| 1 | cbml |" in with_labels
    assert "| nce |" not in with_labels
    assert "| nce |" in without
    assert "| pseudo_labels |" in without
    boards = leaderboard_lines(records, protocol)
    assert list(boards) == [("tiny", "known"), ("tiny", "none")]
    draw_leaderboard(boards["tiny", "none"], "tiny, without labels", tmp_path / "board.png")
    with Image.open(tmp_path / "board.png") as image:
        assert image.width > 700


def test_another_dataset_takes_the_rates_of_the_first(root: Path, tmp_path: Path) -> None:
    entries = ENTRIES[:1]
    refused = run(root, tmp_path, data="other", entries=entries)["refused"]
    assert "no learning rate yet; first run" in next(iter(refused))
    run(root, tmp_path, entries=entries)
    assert run(root, tmp_path, data="other", entries=entries) == {"done": 1}
    assert not (tmp_path / "leaderboard-laptop" / "other-trials.jsonl").exists()


def test_half_of_the_trials_choose_nothing_and_a_broken_one_never_wins() -> None:
    def trial(rate: float, recall: float, failed: str | None = None) -> dict[str, Any]:
        settings = {"steps": 2, "learning_rate": rate}
        scores = {"validation": {"recall@1": recall}}
        return {"row": "cbml", "settings": settings, "scores": scores, "failed": failed}

    entry, protocol = ENTRIES[0], tiny()
    assert plan_final(entry, "tiny", 0, [trial(1e-3, 0.5)], protocol) is None
    trials = [trial(1e-3, 0.5), trial(1e-2, 0.9, failed="NaN")]
    chosen = plan_final(entry, "tiny", 0, trials, protocol)
    assert chosen is not None
    assert chosen.config.optimizer.learning_rate == 1e-3


def test_the_table_is_sorted_and_leaves_other_protocols_out() -> None:
    def record(row: str, recall: float, **settings: Any) -> dict[str, Any]:
        config = read_protocol().config_of(Entry(row, "loss"), "emoji", 1e-4, 0)
        made = dataclasses.replace(job(), config=config).settings() | settings
        scores = {"test": {"recall@1": recall, "map@r": 0.25}}
        return {
            "table": "leaderboard",
            "row": row,
            "data": "emoji",
            "seed": 0,
            "trial": False,
            "settings": made,
            "failed": None,
            "scores": scores,
            "seconds_per_step": 0.5,
            "peak_bytes": 2e9,
        }

    records = [record("circle", 0.5), record("margin", 0.75), record("angular", 0.9, steps=300)]
    lines = markdown(records).splitlines()
    assert "| 1 | margin | 1 | 0.0001 | 75.0 | 25.0 | 0.50 | 2.0 |" in lines
    assert "| 2 | circle | 1 | 0.0001 | 50.0 | 25.0 | 0.50 | 2.0 |" in lines
    assert not any(line.startswith("| 3") for line in lines)
    assert markdown([]) == "No records yet.\n"
