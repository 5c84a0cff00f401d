"""Units to records: claimed, run or resumed, scored, and never repeated."""

import dataclasses
import functools
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from cbml.data import Splits
from cbml.errors import BadData, DamagedFile
from cbml.evaluation import evaluate
from cbml.experiments.claims import STALE_SECONDS, Claim, ClaimLost, claimed
from cbml.experiments.records import (
    add_records,
    build_record,
    package_versions,
    records_file,
)
from cbml.experiments.sources import Sources
from cbml.experiments.tools import TOOLS
from cbml.experiments.units import Unit, run_name
from cbml.files import write_json
from cbml.models import Embedder
from cbml.pseudo import train_unlabelled
from cbml.training import (
    BadNumbers,
    Listener,
    Recipe,
    StepReport,
    read_metrics,
    read_record,
    train_run,
)
from cbml.training.assembly import flat_scores, load_splits
from cbml.training.scoring import note_test_look, score_split

__all__ = ["Progress", "finished_scores", "run_units"]

# Every K of the paper's tables.
_score = functools.partial(evaluate, recall_at=(1, 2, 4, 8, 10, 20, 30, 100, 1000))

Word = Literal["finished", "done", "failed", "elsewhere"]


@dataclass
class Progress:
    """What became of each unit.

    Args:
        finished: had been done before.
        done: done now.
        failed: done now, but numbers went bad.
        elsewhere: another process works on it, or has taken it over.
        refused: what is missing or wrong -> the names of the units that wait for it.
    """

    finished: int = 0
    done: int = 0
    failed: int = 0
    elsewhere: int = 0
    refused: dict[str, list[str]] = field(default_factory=dict)


def run_units(
    units: Sequence[Unit],
    out: Path,
    *,
    sources: Sources,
    listener: Listener,
    stale_seconds: float = STALE_SECONDS,
) -> Progress:
    """Do what is not yet done, and write the records of all that is.

    Several processes, also of several machines, may do this with one folder: each takes what
    nobody else holds. Interrupted, the same call goes on where it stopped. A unit whose pictures
    or weights are missing, unreachable or damaged does not keep others from being run.

    Args:
        units: what is wanted.
        out: folder of runs and records.
        sources: places of pictures and weights.
        listener: hears of every step.
        stale_seconds: after which a claim that was not renewed is void.
    """
    progress = Progress()
    units = sources.named(units)
    for number, unit in enumerate(units, start=1):
        folder = out / "runs" / run_name(unit)
        word: Word = "finished"
        try:
            if finished_scores(unit, folder) is None:
                with claimed(folder, stale_seconds=stale_seconds) as claim:
                    if claim is None:
                        word = "elsewhere"
                    elif finished_scores(unit, folder) is None:  # nobody did it while we asked
                        listener.say(f"[{number} of {len(units)}] {unit.name}")
                        word = _run(unit, folder, sources, _Watched(listener, claim))
        except (BadData, DamagedFile, ConnectionError) as error:
            listener.end()
            progress.refused.setdefault(str(error), []).append(unit.name)
            continue
        except ClaimLost as error:
            listener.end()
            listener.say(str(error))
            word = "elsewhere"
        setattr(progress, word, getattr(progress, word) + 1)
        scores = finished_scores(unit, folder)
        if scores is not None:
            add_records(records_file(out, unit), [build_record(unit, folder, scores)])
            listener.say(f"[{number} of {len(units)}] {unit.name}: {word}, {_headline(scores)}")
    return progress


def finished_scores(unit: Unit, folder: Path) -> dict[str, Any] | None:
    """The scores of a unit's run if all that the unit asks for are there.

    Args:
        unit: names the splits.
        folder: of the run.
    """
    try:
        scores = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    done = "failed" in scores or all(split in scores for split in unit.scored)
    return dict(scores) if done else None


class _Watched(Listener):
    """Passes everything on, and stops the run where its claim was lost."""

    def __init__(self, inner: Listener, claim: Claim) -> None:
        self.inner = inner
        self.claim = claim

    def say(self, text: str) -> None:
        self.inner.say(text)

    def begin(self, step: int, steps: int) -> None:
        self.inner.begin(step, steps)

    def step(self, report: StepReport) -> None:
        self.claim.check()
        self.inner.step(report)

    def end(self) -> None:
        self.inner.end()


def _run(unit: Unit, folder: Path, sources: Sources, listener: _Watched) -> Word:
    recipe = sources.local(unit.recipe)
    load = load_splits if unit.protocol == "honest" else _chosen_on_test
    try:
        model, splits = _trained(recipe, folder, load, listener)
    except BadNumbers as error:  # a rate too high is a result as well
        listener.end()
        broken = {"failed": str(error), "packages": package_versions()}
        write_json(folder / "scores.json", broken)
        return "failed"
    known = {"packages": package_versions()} | _known_scores(folder)
    scores: dict[str, Any] = known | {"validation": _best_validation(folder)}
    for split in unit.scored:
        if split not in scores:
            listener.claim.check()
            listener.say(f"scoring {split} pictures")
            found = score_split(model, splits, split, _score)
            scores[split] = flat_scores(found)
            if split == "test":
                note_test_look(folder, found)
    write_json(folder / "scores.json", scores)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)  # the model is all that is left to do
    return "done"


def _trained(
    recipe: Recipe, folder: Path, load: Callable[[Recipe], Splits], listener: Listener
) -> tuple[Embedder, Splits]:
    started = (folder / "run.json").exists()
    if started and read_record(folder).get("finished"):
        return Embedder.load(folder / "model").eval(), load(recipe)
    if recipe.labels != "known":
        outcome = train_unlabelled(recipe, folder, TOOLS, resume=started, listener=listener)
        return outcome.model, load(recipe)
    outcome = train_run(recipe, folder, TOOLS, resume=started, load=load, listener=listener)
    return outcome.model, outcome.splits


def _chosen_on_test(recipe: Recipe) -> Splits:
    """All training classes train, and the test classes choose: optimistic, and called so."""
    splits = load_splits(dataclasses.replace(recipe, validation=0.0))
    held = splits.test if splits.test is not None else splits.query
    assert held is not None
    record = {**splits.record, "chosen_on": "test"}
    return dataclasses.replace(splits, validation=held, record=record)


def _known_scores(folder: Path) -> dict[str, Any]:
    path = folder / "scores.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def _best_validation(folder: Path) -> dict[str, float] | None:
    best = [line for line in read_metrics(folder) if line.get("best")]
    return dict(best[-1]["validation"]) if best else None


def _headline(scores: dict[str, Any]) -> str:
    if "failed" in scores:
        return str(scores["failed"])
    parts = [
        f"{split} recall@1 {scores[split]['recall@1']:.4f}"
        for split in ("train", "validation", "test")
        if scores.get(split)
    ]
    return ", ".join(parts)
