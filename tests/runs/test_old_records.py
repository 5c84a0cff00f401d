"""Records from before a renaming are read under today's names."""

import json
from pathlib import Path

from cbml.experiments import read_records
from cbml.runs import RunConfig, with_current_names


def test_renamed_keys_are_found_at_any_depth() -> None:
    old = {"scores": {"test": {"map_at_r": 0.5, "recall@1": 0.7}}, "lines": [{"map_at_r": 0.1}]}
    new = {"scores": {"test": {"map@r": 0.5, "recall@1": 0.7}}, "lines": [{"map@r": 0.1}]}
    assert with_current_names(old) == new
    assert with_current_names(new) == new
    assert "map_at_r" in old["scores"]["test"]  # type: ignore[call-overload]


def test_tables_read_old_records(tmp_path: Path) -> None:
    scores = {"test": {"map_at_r": 0.25}}
    record = {"table": "t", "row": "r", "trial": False, "settings": {}, "scores": scores}
    (tmp_path / "old.jsonl").write_text(json.dumps(record) + "\n")
    assert read_records(tmp_path)[0]["scores"] == {"test": {"map@r": 0.25}}


def test_no_record_of_the_project_keeps_an_old_name() -> None:
    records = read_records(Path(__file__).parents[2] / "results")
    assert records
    assert "map_at_r" not in json.dumps(records)
    assert any("map@r" in one for record in records for one in record["scores"].values() if one)


def test_choices_and_overrides_of_old_records_are_read_as_today() -> None:
    old = {"protocol": "paper", "rate_from": "recipe", "overrides": ["steps=9", "averaging=log"]}
    new = {
        "model_selection": "test",
        "learning_rate_from": "config",
        "overrides": {"steps": 9, "averaging": "log"},
    }
    assert with_current_names(old) == new
    assert with_current_names(new) == new
    assert with_current_names({"rates": {"head": 0.1}}) == {"learning_rates": {"head": 0.1}}


def test_a_config_from_before_a_renaming_is_read() -> None:
    config = RunConfig("emoji", training={"non_finite": "skip"})
    facts = config.as_dict()
    old = dict(facts["training"])
    old["bad_numbers"] = old.pop("non_finite")
    assert RunConfig.from_dict({**facts, "training": old}) == config
