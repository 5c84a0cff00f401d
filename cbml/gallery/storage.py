"""A gallery's folder: one manifest names the list of pictures, the model and the vectors.

    manifest.json                 the commit point; parts carry their hash in their names
    pictures-<hash>.json          what is known of each picture
    arrays-<hash>.safetensors     looks, places on the map, scores of the single pictures
    calibration-<hash>.json       similarities to probabilities, where the run has one
    model-<fingerprint>/          the model that made the vectors
    index-<number>/               the vectors, unless they live on a server
    bad_images.csv                files that could not be read, for people

A new state is written beside the old one, then the manifest is replaced by one rename, and only
then the old state is deleted. So a kill at any moment leaves the old gallery or the new one.
"""

import dataclasses
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from cbml.errors import BadData, DamagedFile
from cbml.files import MANIFEST, load_folder, save_folder
from cbml.gallery.likeness import LOOK
from cbml.gallery.pictures import Picture

if TYPE_CHECKING:
    from cbml.bayes import MatchProbability

__all__ = [
    "KIND",
    "QueryScores",
    "State",
    "drop_unnamed",
    "is_gallery",
    "read_state",
    "write_state",
]

KIND = "cbml gallery 1"
PICTURES, ARRAYS, CALIBRATION = "pictures.json", "arrays.safetensors", "calibration.json"
_COLUMNS = tuple(about.name for about in dataclasses.fields(Picture))
_ROWS = [[int, str, str, label, int, int, str, int, int] for label in (str, type(None))]


@dataclass(frozen=True, eq=False)
class QueryScores:
    """How well each picture finds those of its label, in the order of the pictures.

    Args:
        totals: Recall@K, MAP@R and the like, ready for JSON.
        first_hits: rank of the nearest positive, 0 where there is none. (N,)
        positives: how many there are. (N,)
        average_precisions: at R; NaN where there is no positive. (N,)
    """

    totals: dict[str, Any]
    first_hits: NDArray[np.int64]
    positives: NDArray[np.int64]
    average_precisions: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class State:
    """All that a gallery's folder says.

    Args:
        uid: made once for each gallery; names its collection on a server.
        source: what the pictures were listed from, for people.
        store: address of the vectors, as `open_store` takes it.
        fingerprint: of the model; names its folder.
        model: the model's settings.
        generation: of the saved vectors; names their folder.
        next_id: the id of the next picture.
        pictures: by ascending id.
        looks: (N, LOOK) uint8.
        layout: (N, 2) uint16 places on the map, or None.
        scores: None where nothing is labelled, or not yet computed.
        bad: path and reason of each file that could not be read.
        calibration: from similarities to probabilities in this gallery, or None.
    """

    uid: str
    source: str
    store: str
    fingerprint: str
    model: dict[str, Any]
    generation: int = 0
    next_id: int = 0
    pictures: tuple[Picture, ...] = ()
    looks: NDArray[np.uint8] = field(default_factory=lambda: np.empty((0, LOOK), np.uint8))
    layout: NDArray[np.uint16] | None = None
    scores: QueryScores | None = None
    bad: tuple[tuple[str, str], ...] = ()
    calibration: "MatchProbability | None" = None

    def model_folder(self, folder: Path) -> Path:
        """Where the model is.

        Args:
            folder: of the gallery.
        """
        return folder / f"model-{self.fingerprint}"

    def index_folder(self, folder: Path) -> Path:
        """Where the vectors are, unless on a server.

        Args:
            folder: of the gallery.
        """
        return folder / f"index-{self.generation}"


def is_gallery(folder: Path) -> bool:
    """Whether a folder holds something saved.

    Args:
        folder: to look at.
    """
    return (folder / MANIFEST).is_file()


def write_state(folder: Path, state: State) -> None:
    """Commit a state; model and vectors must have been saved already.

    Args:
        folder: of the gallery; made if missing.
        state: what to write.
    """
    parts = {
        PICTURES: lambda path: path.write_text(_pictures_text(state), encoding="ascii"),
        ARRAYS: lambda path: safetensors.numpy.save_file(_arrays(state), path),
    }
    if state.calibration is not None:
        parts[CALIBRATION] = state.calibration.save
    about = {
        name: getattr(state, name)
        for name in ("uid", "source", "store", "fingerprint", "model", "generation", "next_id")
    }
    about["scores"] = None if state.scores is None else state.scores.totals
    save_folder(folder, KIND, parts, about)


def drop_unnamed(folder: Path, state: State) -> None:
    """Delete models and vectors of earlier states.

    Args:
        folder: of the gallery.
        state: the one that was committed.
    """
    named = {state.model_folder(folder), state.index_folder(folder)}
    for path in [*folder.glob("model-*"), *folder.glob("index-*")]:
        if path.is_dir() and path not in named:
            shutil.rmtree(path, ignore_errors=True)


def read_state(folder: Path) -> State:
    """The state of a gallery; damage is found before it is used.

    Args:
        folder: of the gallery.
    """
    if not folder.is_dir():
        raise BadData(
            f"{folder}: no such gallery; make one:  cbml index RUN PICTURES --out {folder}"
        )
    parts, about = load_folder(folder, KIND)
    try:
        rows, bad = _read_pictures(parts[PICTURES])
        arrays = safetensors.numpy.load_file(parts[ARRAYS])
        state = State(
            **{name: value for name, value in about.items() if name != "scores"},
            pictures=rows,
            looks=arrays["looks"],
            layout=arrays.get("layout"),
            scores=None if about["scores"] is None else _scores(about["scores"], arrays),
            bad=bad,
            calibration=_calibration(parts[CALIBRATION]) if CALIBRATION in parts else None,
        )
        _check(state)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise DamagedFile(f"{folder}: not a gallery of this program ({reason})") from None
    return state


def _pictures_text(state: State) -> str:
    rows = [[getattr(picture, name) for name in _COLUMNS] for picture in state.pictures]
    # ASCII: a file name may hold bytes that are no text, which JSON can only carry escaped.
    return json.dumps({"columns": _COLUMNS, "rows": rows, "bad": state.bad}, allow_nan=False)


def _read_pictures(path: Path) -> tuple[tuple[Picture, ...], tuple[tuple[str, str], ...]]:
    content = json.loads(path.read_text(encoding="ascii"))
    if tuple(content["columns"]) != _COLUMNS:
        raise ValueError(f"other columns than {', '.join(_COLUMNS)}")
    for row in content["rows"]:
        if list(map(type, row)) not in _ROWS:
            raise ValueError("a row of pictures.json is not that of a picture")
    pictures = tuple(Picture(*row) for row in content["rows"])
    return pictures, tuple((str(path), str(reason)) for path, reason in content["bad"])


def _arrays(state: State) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {"looks": state.looks}
    if state.layout is not None:
        arrays["layout"] = state.layout
    if state.scores is not None:
        for name in ("first_hits", "positives", "average_precisions"):
            arrays[name] = getattr(state.scores, name)
    return {name: np.ascontiguousarray(array) for name, array in arrays.items()}


def _calibration(path: Path) -> "MatchProbability":
    from cbml.bayes import MatchProbability  # here, since it brings scikit-learn: seconds

    return MatchProbability.load(path)


def _scores(totals: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> QueryScores:
    # The manifest sorts its keys as texts: 1, 10, 100, 2 ...
    recall = sorted(totals["recall"].items(), key=lambda pair: int(pair[0]))
    return QueryScores(
        {**totals, "recall": dict(recall)},
        arrays["first_hits"],
        arrays["positives"],
        arrays["average_precisions"],
    )


def _check(state: State) -> None:
    ids = np.array([picture.id for picture in state.pictures], dtype=np.int64)
    lengths = {len(ids), len(state.looks)}
    if state.layout is not None:
        lengths.add(len(state.layout))
    if state.scores is not None:
        lengths.add(len(state.scores.first_hits))
    if len(lengths) != 1:
        raise ValueError(f"parts of {sorted(lengths)} pictures")
    if len(ids) and (ids[0] < 0 or (np.diff(ids) <= 0).any() or ids[-1] >= state.next_id):
        raise ValueError("its ids are out of order")
