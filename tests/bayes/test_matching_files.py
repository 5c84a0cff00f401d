"""Match probabilities on disk: what is read back, and what is refused."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from cbml import MatchProbability
from cbml.bayes.calibration import KIND, MonotoneCurve, Odds, sealed
from cbml.errors import DamagedFile
from tests.bayes.cases import crowded


@pytest.fixture(scope="module")
def fitted() -> MatchProbability:
    return MatchProbability.fit(*crowded(0))


def test_save_and_load(fitted: MatchProbability, tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    straight = Odds(fitted.odds.line)
    curved = Odds(fitted.odds.line, MonotoneCurve((0.0, 1.0), (-2.0, 3.0)))
    for one in (fitted, *(dataclasses.replace(fitted, odds=odds) for odds in (straight, curved))):
        one.save(path)
        assert MatchProbability.load(path) == one


def test_a_file_of_an_earlier_kind_is_refused_with_the_remedy(
    fitted: MatchProbability, tmp_path: Path
) -> None:
    path = tmp_path / "calibration.json"
    fields = fitted.as_record()
    del fields["kind"], fields["sha256"]
    path.write_text(json.dumps(sealed("cbml match probability 4", fields)))
    with pytest.raises(DamagedFile, match=r"another version of cbml; write it again.*analyze RUN"):
        MatchProbability.load(path)


def test_altered_files_are_refused(fitted: MatchProbability, tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    fitted.save(path)
    text = path.read_text()
    damaged = [
        "",
        "[]",
        "{}",
        text[: len(text) // 2],
        text.replace("match probability", "index"),
        text.replace('"positives": 5.0', '"positives": 6.0'),
    ]
    for content in damaged:
        assert content != text
        path.write_text(content)
        with pytest.raises(DamagedFile, match=r"calibration\.json"):
            MatchProbability.load(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(DamagedFile):
        MatchProbability.load(path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"odds": {"line": [1.0, 2.0], "curve": None}},
        {"odds": {"line": [1.0, 2.0, math.nan], "curve": None}},
        {"odds": {"line": [-1.0, 2.0, 3.0], "curve": None}},
        {"odds": {"line": [1.0, 2.0, 3.0], "curve": [[1], []]}},
        {"odds": {"line": [1.0, 2.0, 3.0], "curve": [[0.5], [math.nan]]}},
        {"odds": {"line": [1.0, 2.0, 3.0], "curve": [[math.nan], [0.5]]}},
        {"odds": {"line": [1.0, 2.0, 3.0], "curve": [[0.0, 1.0], [1.0, 0.0]]}},
        {"odds": None},
        {"odds": [1.0, 2.0, 3.0]},
        {"source": [1.0]},
        {"cohort": [30, 4]},
        {"cohort": [3]},
        {"positives": -1.0},
        {"own_positives": 0.0},
        {"positives": None},
        {"positives": 10**400},
        {"cohort": [math.inf, math.inf]},
        {"check": 5},
        {"check": {}},
        {
            "check": {
                "confidence": "all",
                "accuracy": "well",
                "counts": [],
                "ece": "0",
                "brier": [],
                "x": 1,
            }
        },
    ],
)
def test_a_sealed_file_of_other_content_is_refused(
    fitted: MatchProbability, tmp_path: Path, wrong: dict[str, Any]
) -> None:
    path = tmp_path / "calibration.json"
    facts = {**fitted.as_record(), **wrong}
    del facts["kind"], facts["sha256"]
    path.write_text(json.dumps(sealed(KIND, facts)))
    with pytest.raises(DamagedFile, match="not a file that cbml wrote"):
        MatchProbability.load(path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"ece": math.nan},
        {"ece": "small"},
        {"log_loss": None},
        {"confidence": [0.5]},
        {"counts": ["many"] * 10},
        {"counts": [math.inf] * 10},
        {"accuracy": 0.5},
    ],
)
def test_a_file_with_a_check_of_other_content_is_refused(
    fitted: MatchProbability, tmp_path: Path, wrong: dict[str, Any]
) -> None:
    path = tmp_path / "calibration.json"
    facts = fitted.as_record()
    del facts["kind"], facts["sha256"]
    facts["check"] = {**facts["check"], **wrong}
    path.write_text(json.dumps(sealed(KIND, facts)))
    with pytest.raises(DamagedFile, match="not a file that cbml wrote"):
        MatchProbability.load(path)
