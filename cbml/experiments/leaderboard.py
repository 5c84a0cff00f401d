"""The leaderboard: every loss and method under one frozen protocol.

leaderboard.json is the protocol, with every setting written out, so that later defaults of the
library do not change it. Each entry tries the same few learning rates for a few steps, judged on
held-out training classes; one full run at the best of them is scored on the test classes.
"""

import dataclasses
import fnmatch
import functools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cbml.data import find_dataset
from cbml.errors import BadData
from cbml.experiments.jobs import Job, Record, read_records, records_file, validation_score
from cbml.experiments.plans import best_learning_rate
from cbml.experiments.rendering import Estimate, estimate
from cbml.experiments.rows import DATA_NAMES
from cbml.experiments.running import JobCounts, run_jobs
from cbml.experiments.sources import Cost, Sources, config_cost
from cbml.losses import LOSSES
from cbml.methods import METHODS
from cbml.program import command
from cbml.runs import RunConfig
from cbml.training import Callback

LEADERBOARD = "leaderboard"
LEADERBOARD_TITLE = "Every loss and method under one frozen protocol"
# Settings in which entries differ; in all others a record must agree with the protocol.
_OWN = {
    *("seed", "learning_rate", "loss", "loss_options", "method", "method_options", "parameters"),
    *("data", "weights"),
}
# Sections of the config in which a method without labels keeps what its authors chose.
_OWN_SECTIONS = ("augmentation", "training", "pseudo_labels")


@dataclass(frozen=True)
class Entry:
    """A row of the leaderboard.

    Args:
        name: Name of a loss or method, or "package.module:Class" for one of your own.
        kind: What it is a name of.
    """

    name: str
    kind: Literal["loss", "method"]

    @property
    def labels(self) -> Literal["known", "none", "each"]:
        """The labels it learns from; classes of your own learn from known ones."""
        known = self.kind == "loss" or self.name not in METHODS
        return "known" if known else METHODS[self.name].labels


@dataclass(frozen=True)
class Protocol:
    """What all entries share.

    Args:
        config: Every setting but the loss, the method, the seed and the learning rate.
        trial_data: The dataset of the trials; other datasets take the learning rates found there.
        losses: Settings of the section `loss` that single losses need.
    """

    config: RunConfig
    learning_rates: tuple[float, ...]
    trial_steps: int
    trial_data: str
    losses: dict[str, dict[str, Any]]

    def config_of(self, entry: Entry, data: str, learning_rate: float, seed: int) -> RunConfig:
        """The config of a full run of an entry.

        Without labels, crops and batches are those that the method's authors chose: some learn
        from two views of an image, some from one. Labels of held-out classes choose the learning
        rate and the model, as for all entries.
        """
        changes: dict[str, Any] = {
            "data": {"source": data},
            "optimizer": {"learning_rate": learning_rate},
            "training": {"seed": seed},
        }
        if entry.name == "pseudo_labels":
            pass  # what learning without labels means unless a method is named
        elif entry.kind == "method":
            changes["method"] = entry.name
        else:
            changes["loss"] = {"name": entry.name, **self.losses.get(entry.name, {})}
        config = self.config
        if entry.labels != "known":
            own = METHODS[entry.name].defaults
            config = config.replace(**{name: own[name] for name in _OWN_SECTIONS if name in own})
            learning = {"study": True, "head_start": "whitened"}  # as `cbml train` starts it
            config = config.replace(data={"labels": entry.labels}, pseudo_labels=learning)
        return config.replace(**changes)


@functools.cache
def read_protocol() -> Protocol:
    """The frozen protocol."""
    text = Path(__file__).with_name("leaderboard.json").read_text(encoding="utf-8")
    content = json.loads(text)
    return Protocol(
        config=RunConfig.from_dict(content["config"]),
        learning_rates=tuple(content["learning_rates"]),
        trial_steps=content["trial_steps"],
        trial_data=content["trial_data"],
        losses=content["losses"],
    )


def find_entries(
    only: Sequence[str] = (),
    *,
    losses: Sequence[str] = (),
    methods: Sequence[str] = (),
    labels: Literal["known", "none"] = "known",
) -> list[Entry]:
    """Every loss and method by name, or those that fit a pattern, and classes of your own.

    Args:
        only: Patterns with * and ?, in any case; none takes all but where classes are your own.
        losses: Losses of your own, "package.module:Class" each.
        methods: Methods of your own, "package.module:Class" each.
        labels: Learn with labels or without; their numbers are in different tables.
    """
    own = [Entry(name, "loss") for name in losses] + [Entry(name, "method") for name in methods]
    known = [Entry(name, "loss") for name in LOSSES] + [Entry(name, "method") for name in METHODS]
    known = [entry for entry in known if (entry.labels == "known") == (labels == "known")]
    patterns = only or ([] if own else ["*"])
    fits = [e for e in known if any(fnmatch.fnmatchcase(e.name, one.lower()) for one in patterns)]
    if only and not fits:
        names = ", ".join(entry.name for entry in known)
        raise BadData(f"--only {' '.join(only)}: matches no entry; the entries are {names}")
    return fits + own


def entry_cost(entry: Entry, data: str) -> Cost:
    """What an entry needs and about how long it takes: its trials, where they belong, and a run.

    What a method computes besides the network's passes is not counted.

    Args:
        entry: One that `find_entries` gives.
        data: Name of the dataset.
    """
    protocol = read_protocol()
    find_dataset(data)  # the error has the nearest name
    config = protocol.config_of(entry, data, protocol.learning_rates[0], seed=0)
    full = config_cost(config, data, "laptop")
    if data != protocol.trial_data:
        return full
    short = config.replace(training={"steps": protocol.trial_steps})
    trial = config_cost(short, data, "laptop").hours
    return dataclasses.replace(full, hours=full.hours + len(protocol.learning_rates) * trial)


def plan_leaderboard_trials(entry: Entry, protocol: Protocol) -> list[Job]:
    """A short run for each learning rate; the test classes are never scored."""
    jobs = []
    for rate in protocol.learning_rates:
        config = protocol.config_of(entry, protocol.trial_data, rate, seed=0)
        steps = {"steps": protocol.trial_steps}
        jobs.append(
            Job(
                table=LEADERBOARD,
                row=entry.name,
                config=config.replace(training=steps),
                scale="laptop",
                scored=("validation",),
                overrides={"learning_rate": rate, **steps},
                learning_rate_from="trial",
            )
        )
    return jobs


def plan_final(
    entry: Entry, data: str, seed: int, trials: Iterable[Record], protocol: Protocol
) -> Job | None:
    """The full run of an entry at its best learning rate; None while its trials are not done."""
    scores: dict[float, float] = {}
    for record in trials:
        settings = record["settings"]
        if record["row"] == entry.name and settings["steps"] == protocol.trial_steps:
            scores[settings["learning_rate"]] = validation_score(record)
    if not scores.keys() >= set(protocol.learning_rates):
        return None
    tried = {rate: scores[rate] for rate in protocol.learning_rates}
    return Job(
        table=LEADERBOARD,
        row=entry.name,
        config=protocol.config_of(entry, data, best_learning_rate(tried), seed),
        scale="laptop",
        learning_rate_from="trials on validation classes",
    )


def run_leaderboard(
    entries: Sequence[Entry],
    data: str,
    out: Path,
    *,
    seeds: Sequence[int],
    sources: Sources,
    callback: Callback,
    protocol: Protocol | None = None,
) -> JobCounts:
    """Trials and full runs of the entries, one entry after the other, seed by seed.

    Like `run_jobs`, it repeats nothing that is done, and several processes may share `out`.

    Args:
        entries: The entries that `find_entries` gives.
        data: Name of the dataset; learning rates are always those of the protocol's own.
        out: Folder of runs and records.
        seeds: Random seeds of the full runs.
        sources: Places of images and weights.
        callback: Called at every step.
        protocol: Another protocol than the frozen one; its numbers never enter the table.
    """
    protocol = protocol or read_protocol()
    counts = JobCounts()
    common = {"out": out, "sources": sources, "callback": callback}
    planned = [plan_leaderboard_trials(entry, protocol) for entry in entries]
    here = {"data": {"source": data}}
    firsts = [dataclasses.replace(job, config=job.config.replace(**here)) for job, *_ in planned]
    counts.refuse(sources.missing(firsts))
    if counts.refused:  # at once, and not entry by entry
        return counts
    for seed in seeds:
        for entry, trials in zip(entries, planned, strict=True):
            file = records_file(out, trials[0])
            if seed == seeds[0] and data == protocol.trial_data:
                counts.add(run_jobs(trials, **common))  # type: ignore[arg-type]
            job = plan_final(entry, data, seed, read_records(file), protocol)
            if job is not None:
                counts.add(run_jobs([job], **common))  # type: ignore[arg-type]
            elif data != protocol.trial_data:
                words = ("--data", protocol.trial_data, "--only", entry.name, "--out", out)
                first = command("reproduce", "leaderboard", *words)
                reason = f"{entry.name}: no learning rate yet; first run  {first}"
                counts.refused.setdefault(reason, []).append(f"{entry.name}, seed {seed}")
    return counts


def leaderboard_markdown(records: Iterable[Record], protocol: Protocol | None = None) -> str:
    """The tables of all datasets, the best Recall@1 first, and what is complete.

    Args:
        records: Records of any tables; those of other protocols are left out.
        protocol: Another protocol than the frozen one.
    """
    protocol = protocol or read_protocol()
    tables = leaderboard_lines(records, protocol)
    parts = [_section(*key, lines, protocol.trial_data) for key, lines in tables.items()]
    return "\n".join(parts) if parts else "No records yet.\n"


def leaderboard_lines(
    records: Iterable[Record], protocol: Protocol | None = None
) -> "dict[tuple[str, str], list[Line]]":
    """The lines of each dataset, with labels "known" and "none", the best Recall@1 first."""
    protocol = protocol or read_protocol()
    found: dict[tuple[str, str], dict[str, dict[int, Record]]] = {}
    for record in records:
        if record["table"] != LEADERBOARD or record["trial"]:
            continue
        name = record["row"]
        is_method = name in METHODS or record["settings"].get("method")
        entry = Entry(name, "method" if is_method else "loss")
        if _agrees(record, entry, protocol):
            labels = "known" if entry.labels == "known" else "none"
            entries = found.setdefault((record["data"], labels), {})
            entries.setdefault(record["row"], {})[record["seed"]] = record
    tables = {}
    for data, labels in sorted(found, key=lambda key: (key[0] != protocol.trial_data, key)):
        entries = found[data, labels]
        lines = [Line.of(name, list(seeds.values())) for name, seeds in entries.items()]
        lines.sort(key=lambda line: (-line.recall.mean if line.recall else 1.0, line.name))
        tables[data, labels] = lines
    return tables


def _agrees(record: Record, entry: Entry, protocol: Protocol) -> bool:
    wanted = Job(
        table=LEADERBOARD,
        row=entry.name,
        config=protocol.config_of(entry, record["data"], 1.0, 0),
        scale="laptop",
    ).settings()
    kept = {key: value for key, value in record["settings"].items() if key not in _OWN}
    return kept == {key: value for key, value in wanted.items() if key not in _OWN}


def _section(data: str, labels: str, lines: "Sequence[Line]", trial_data: str) -> str:
    state = f"{len(lines)} entries, at their learning rates on {trial_data}"
    if len(lines) == 1:
        state = f"One entry, at its learning rate on {trial_data}"
    if data == trial_data:  # the only dataset on which all of them are to run
        everything = [e.name for e in find_entries(labels="known" if labels == "known" else "none")]
        here = {line.name for line in lines}
        missing = [name for name in everything if name not in here]
        state = f"{len(everything) - len(missing)} of {len(everything)} entries are complete"
        state += f"; still to run: {', '.join(missing)}" if missing else ""
    heads = ["", "entry", "seeds", "learning rate", "Recall@1", "MAP@R", "seconds per step", "GB"]
    table = ["| " + " | ".join(heads) + " |", "|---:|---" + "|---:" * 6 + "|"]
    table += [f"| {rank} | {line} |" for rank, line in enumerate(lines, start=1)]
    title = leaderboard_title(data, labels)
    figure = f"![Recall@1 and seconds per step: {title}](images/{leaderboard_figure(data, labels)})"
    return "\n".join([f"## {title}", "", f"{state}.", "", figure, "", *table]) + "\n"


def leaderboard_title(data: str, labels: str) -> str:
    """What a table is called."""
    return f"{DATA_NAMES.get(data, data)}{'' if labels == 'known' else ', without labels'}"


def leaderboard_figure(data: str, labels: str) -> str:
    """The file of a table's figure."""
    return f"leaderboard-{data}{'' if labels == 'known' else '-without-labels'}.png"


@dataclass(frozen=True)
class Line:
    """One entry of a table.

    Args:
        recall: Recall@1 over the seeds, in percent; None where every run broke off.
        precision: MAP@R, likewise.
        seconds: Seconds per step of the quickest seed.
        gigabytes: The plan's estimate of peak memory.
    """

    name: str
    seeds: int
    rates: tuple[float, ...]
    recall: Estimate | None
    precision: Estimate | None
    seconds: float | None
    gigabytes: float | None

    @classmethod
    def of(cls, name: str, records: Sequence[Record]) -> "Line":
        """The line of an entry."""
        scores = [one["scores"]["test"] for one in records if one["failed"] is None]
        seconds = [s for one in records if (s := one.get("seconds_per_step")) is not None]
        peaks = [p / 1e9 for one in records if (p := one.get("peak_bytes")) is not None]
        return cls(
            name=name,
            seeds=len(records),
            rates=tuple(sorted({one["settings"]["learning_rate"] for one in records})),
            recall=estimate([100 * one["recall@1"] for one in scores]) if scores else None,
            precision=estimate([100 * one["map@r"] for one in scores]) if scores else None,
            seconds=min(seconds, default=None),
            gigabytes=max(peaks, default=None),
        )

    def __str__(self) -> str:
        rates = ", ".join(f"{rate:g}" for rate in self.rates)
        seconds = "–" if self.seconds is None else f"{self.seconds:.2f}"
        memory = "–" if self.gigabytes is None else f"{self.gigabytes:.1f}"
        recall = self.recall or "broke off"
        note = METHODS[self.name].note if self.name in METHODS else ""
        name = f"{self.name} ({note})" if note else self.name
        cells = (name, self.seeds, rates, recall, self.precision or "–", seconds, memory)
        return " | ".join(map(str, cells))
