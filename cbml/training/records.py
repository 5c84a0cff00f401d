"""The run folder: run.json, metrics.jsonl, tensorboard/, checkpoints/, model/, report.html."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cbml.errors import BadData, DamagedFile, MissingExtra
from cbml.files import replaced_file, write_json
from cbml.regular import open_regular, read_text

_NO_CURVES = ("step", "best", "seconds")


class TensorBoard:
    """Writes every number of a line to event files, each under its own name."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtra("tensorboard", "tensorboard") from None
        self._make: Any = SummaryWriter
        self._folder = folder
        self._writer: Any = None

    def add(self, line: Mapping[str, Any]) -> None:
        """Add the numbers of one line."""
        step = int(line["step"])
        if self._writer is None:
            # A resumed run does some steps again: tensorboard forgets what it had from them.
            self._writer = self._make(str(self._folder), purge_step=step)
        for name, value in _numbers(line):
            self._writer.add_scalar(name, value, step)

    def flush(self) -> None:
        """Bring all that was added to the disk."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """End the event file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _numbers(line: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, value in line.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and (prefix or name not in _NO_CURVES):
            yield f"{prefix}{name}", float(value)


@dataclass(frozen=True)
class Fitted:
    """The result of `fit`.

    Args:
        steps: Updates done, those of earlier parts of the run included.
        best_step: The step after which the model was best in validation; None without validation.
        best_score: Validation score of that step.
        start_score: Validation score before the first step; None without validation.
        last_score: Validation score after the last step.
        learning_rates: The learning rate of each group before the schedule.
        stopped_early: Whether patience ran out before the last step.
    """

    steps: int
    best_step: int | None
    best_score: float | None
    start_score: float | None
    last_score: float | None
    learning_rates: dict[str, float]
    stopped_early: bool


@dataclass(frozen=True)
class Run:
    """Where a training run keeps its records.

    Args:
        folder: Made if missing; one that holds a run already is only continued, never replaced.
        metadata: Further plain values for run.json, such as where the images come from.
        resume: Go on from the newest checkpoint.
        tensorboard: Write all numbers to `tensorboard/` as well.
        config: Every choice of the run as plain values, nested or not. It is kept in checkpoints
            and compared when a run is resumed.
        free: Dotted names within `config`, such as "data.workers", that may differ then.
        derived: Names of files, each with a suffix, and of entries of run.json, none with one, that
            speak of the trained model: they are deleted before another one takes its place.
    """

    folder: Path
    metadata: Mapping[str, Any] = field(default_factory=dict)
    resume: bool = False
    tensorboard: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)
    free: frozenset[str] = frozenset()
    derived: frozenset[str] = frozenset()


class Records:
    """The files of one run that grow while it is trained; silent where nobody asked for them.

    Args:
        run: The folder and what to note; None keeps nothing.
        writes: Whether this process writes; the others of a distributed only read.
    """

    def __init__(self, run: Run | None, *, writes: bool) -> None:
        self.folder = None if run is None else run.folder
        self.writes = writes and run is not None
        self.record: dict[str, Any] = {}
        self._derived = frozenset() if run is None else run.derived
        self._tensorboard: TensorBoard | None = None
        if run is None:
            return
        exists = (run.folder / "run.json").exists()
        if exists and not run.resume:
            raise BadData(
                f"{run.folder}: holds a run already; continue it with --resume {run.folder}, or "
                "choose another folder"
            )
        if run.resume:
            self.record = read_record(run.folder)
        if self.writes:
            if run.tensorboard:
                self._tensorboard = TensorBoard(run.folder / "tensorboard")
            (run.folder / "checkpoints").mkdir(parents=True, exist_ok=True)

    def note(self, metadata: Mapping[str, Any]) -> None:
        """Add entries to run.json."""
        self.record |= metadata
        if self.writes and self.folder is not None:
            _write_record(self.folder, self.record)

    def withdraw(self, step: int) -> None:
        """Delete what was noted of the trained model, unless it is the one of this step.

        A run that had ended and was resumed for more steps gets another model.
        """
        known = self.record.get("best_step")
        known = self.record.get("steps_done") if known is None else known
        if self.folder is None or known == step:
            return
        for name in self._derived:
            if Path(name).suffix:  # a file "test" is not ours, nor is a folder of that name
                (self.folder / name).unlink(missing_ok=True)
        spoken = {"steps_done", "best_step", "best_score", *self._derived}
        if spoken & self.record.keys():
            self.record = {key: self.record[key] for key in self.record.keys() - spoken}
            self.note({})

    def add(self, line: Mapping[str, Any]) -> None:
        """Add one line to metrics.jsonl.

        Args:
            line: Plain values; NaN and infinity become null.
        """
        if self.writes and self.folder is not None:
            clean = {name: _number(value) for name, value in line.items()}
            self._check_folder()
            text = json.dumps(clean, allow_nan=False) + "\n"
            with open_regular(self.folder / "metrics.jsonl", "ab") as file:
                file.write(text.encode())
            if self._tensorboard is not None:
                self._tensorboard.add(clean)

    def validations(self, name: str) -> list[float]:
        """The scores of this name of all validations so far, those before a resume included."""
        if self.folder is None:
            return []
        lines = [line["validation"] for line in read_metrics(self.folder) if "validation" in line]
        return [scores[name] for scores in lines if scores.get(name) is not None]

    def cut_back(self, step: int) -> None:
        """Forget the lines of steps that a resumed run will do again."""
        if not (self.writes and self.folder is not None):
            return
        kept = [line for line in read_metrics(self.folder) if line["step"] <= step]
        with replaced_file(self.folder / "metrics.jsonl") as temporary:
            temporary.write_text("".join(json.dumps(line) + "\n" for line in kept))

    def flush(self) -> None:
        """Bring metrics.jsonl to the disk, so that it is never behind a checkpoint."""
        self._check_folder()
        path = None if self.folder is None else self.folder / "metrics.jsonl"
        if self.writes and path is not None and path.exists():
            with open_regular(path) as file:
                os.fsync(file.fileno())
        if self._tensorboard is not None:
            self._tensorboard.flush()

    def _check_folder(self) -> None:
        """A folder that is gone would be made anew, and each of the two would hold half a run."""
        if not (self.writes and self.folder is not None and self.record):
            return
        if not (self.folder / "run.json").exists():
            raise BadData(
                f"{self.folder}: was moved or deleted while it was trained; put it back, or resume "
                "it where it is now"
            )

    def close(self) -> None:
        """End what was open."""
        if self._tensorboard is not None:
            self._tensorboard.close()


def read_record(folder: Path) -> dict[str, Any]:
    """The content of run.json in a run folder, checked against its checksum.

    Args:
        folder: Folder of the run.
    """
    path = folder / "run.json"
    try:
        record = json.loads(read_text(path))
    except FileNotFoundError:
        raise BadData(f"{folder}: no run.json; not the folder of a run") from None
    except OSError as error:
        raise DamagedFile(f"{path}: cannot be read ({error.strerror}); restore a copy") from None
    except (ValueError, RecursionError) as error:
        raise DamagedFile(f"{path}: not readable as JSON ({error}); restore a copy") from None
    if not isinstance(record, dict) or record.pop("sha256", None) != _seal(record):
        raise DamagedFile(
            f"{path}: damaged, edited, or written by an earlier version; restore a copy, or train "
            "from scratch in another folder"
        )
    return record


def update_record(folder: Path, metadata: Mapping[str, Any]) -> None:
    """Add entries to run.json of a run folder, made if missing.

    Args:
        folder: Folder of the run.
        metadata: Plain values; a name that is there already is replaced.
    """
    before = read_record(folder) if (folder / "run.json").exists() else {}
    folder.mkdir(parents=True, exist_ok=True)
    _write_record(folder, {**before, **metadata})


def _write_record(folder: Path, record: Mapping[str, Any]) -> None:
    write_json(folder / "run.json", {**record, "sha256": _seal(record)})


def _seal(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The whole lines of metrics.jsonl; what a kill has cut or damage has changed is left out.

    Args:
        folder: Folder of the run.
    """
    path = folder / "metrics.jsonl"
    lines: list[dict[str, Any]] = []
    if not path.exists():
        return lines
    for text in read_text(path, errors="replace").splitlines():
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(line, dict) and type(line.get("step")) is int and _are_scores(line):
            lines.append(line)
    return lines


def _are_scores(line: Mapping[str, Any]) -> bool:
    """Whether the validation of a line, if it has one, is numbers: the file has no seal."""
    scores = line.get("validation", {})
    return isinstance(scores, dict) and all(
        value is None or type(value) in (int, float) for value in scores.values()
    )


def _number(value: Any) -> Any:
    if isinstance(value, float) and not abs(value) < float("inf"):
        return None
    if isinstance(value, Mapping):
        return {name: _number(entry) for name, entry in value.items()}
    return value
