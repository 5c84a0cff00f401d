"""Two runs side by side, also where one has been edited by hand or is of other images."""

import random
from pathlib import Path
from typing import Any

import pytest

from cbml.runs import compare_runs
from cbml.training import Run, read_metrics
from cbml.training.records import Records

DATA = {"dataset": "folder", "validation": 0.2, "seed": 0, "counts": {"train": {"images": 9}}}


def make_run(folder: Path, *, source: str = "pets", **data: Any) -> Path:
    records = Records(Run(folder), writes=True)
    config = {"data": {"source": source}}
    records.note(
        {"config": config, "data": {**DATA, **data}, "best_step": 2, "finished": True, "test": {}}
    )
    records.add({"step": 0, "validation": {"recall@1": 0.25, "map@r": 0.125}})
    records.add({"step": 1, "loss": 2.0})
    records.add({"step": 2, "validation": {"recall@1": 0.5, "map@r": 0.25}, "best": True})
    return folder


def test_the_same_images_need_no_note(tmp_path: Path) -> None:
    found = compare_runs(make_run(tmp_path / "a"), make_run(tmp_path / "b"))
    assert found.scores["held-out recall@1"] == (0.5, 0.5)
    assert found.notes == []


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"counts": {"train": {"images": 8}}}, "different images or splits"),
        ({"dataset": "cub"}, "different images or splits"),
        ({"source": "cars"}, "pets and cars"),
        ({"seed": 1}, "other training classes were held out"),
        ({"validation": 0.4}, "other training classes were held out"),
    ],
)
def test_scores_of_other_images_are_said_to_be_incomparable(
    tmp_path: Path, other: dict[str, Any], said: str
) -> None:
    (note,) = compare_runs(make_run(tmp_path / "a"), make_run(tmp_path / "b", **other)).notes
    assert said in note


@pytest.mark.parametrize(
    "line",
    [
        '{"step": 2, "validation": 3}',
        '{"step": 2, "validation": null}',
        '{"step": 2, "validation": {"recall@1": "high"}}',
        '{"step": 2, "validation": {"recall@1": {"deep": 1}}}',
        '{"step": true, "validation": {"recall@1": 0.75}}',
        "[" * 100_000,
        "NaN",
    ],
    ids=["number", "null", "text", "nested", "true", "deep", "NaN"],
)
def test_lines_that_nobody_wrote_are_left_out(tmp_path: Path, line: str) -> None:
    one, two = make_run(tmp_path / "a"), make_run(tmp_path / "b")
    with (two / "metrics.jsonl").open("a") as file:
        file.write(f"{line}\n")
    assert compare_runs(one, two).scores["held-out recall@1"] == (0.5, 0.5)


def test_damaged_metrics_are_read_as_far_as_they_are_whole(tmp_path: Path) -> None:
    one, two = make_run(tmp_path / "a"), make_run(tmp_path / "b")
    path, chance = two / "metrics.jsonl", random.Random(0)
    sound = path.read_bytes()
    for _ in range(500):
        content = bytearray(sound)
        for _ in range(chance.randint(1, 4)):
            content[chance.randrange(len(content))] = chance.randrange(256)
        path.write_bytes(bytes(content[: chance.randint(0, len(content))]))
        compare_runs(one, two)
        assert all(type(line["step"]) is int for line in read_metrics(two))
