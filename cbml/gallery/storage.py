"""A gallery's folder: one manifest names the list of images, the model and the vectors.

    manifest.json                 the commit point; parts carry their hash in their names
    images-<hash>.json            what is known of each image
    arrays-<hash>.safetensors     signatures, map positions, scores of the single images, and
                                  their parts where the model names a reranker
    calibration-<hash>.json       similarities to probabilities, where the run has one
    model-<fingerprint>/          the model that made the vectors
    index-<generation>/           the vectors, unless they live on a server
    bad_images.csv                files that could not be read, for people

A new state is written beside the old one, then the manifest is replaced by one rename. The state
before it stays until the commit after the next, so that a reader can finish. A kill at any moment
leaves the old gallery or the new one.
"""

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from cbml.errors import BadData, DamagedFile
from cbml.files import MANIFEST, load_folder, save_folder
from cbml.gallery.images import GalleryImage
from cbml.gallery.thumbnails import SIGNATURE_SIZE
from cbml.index import Kind, RerankerEntry, Store, WrongIds, find_reranker, open_store
from cbml.program import command
from cbml.regular import read_text

if TYPE_CHECKING:
    from cbml.bayes import MatchProbability

KIND = "cbml gallery 2"
IMAGES, ARRAYS, CALIBRATION = "images.json", "arrays.safetensors", "calibration.json"
_PART = "part "
_COLUMNS = tuple(column.name for column in dataclasses.fields(GalleryImage))
_ROWS = [[int, str, str, label, int, int, str, int, int] for label in (str, type(None))]


@dataclass(frozen=True, eq=False)
class QueryScores:
    """How well each image finds those of its label, in the order of the images.

    `totals` are Recall@K, MAP@R and the like, ready for JSON; `first_hits` the rank of the nearest
    positive, 0 where there is none; `average_precisions` at R, NaN where there is no positive;
    `nearest` the index of the nearest other image, -1 for none, unknown in older galleries. (N,)
    """

    totals: dict[str, Any]
    first_hits: NDArray[np.int64]
    positives: NDArray[np.int64]
    average_precisions: NDArray[np.float64]
    nearest: NDArray[np.int64] | None = None


@dataclass(frozen=True, eq=False)
class State:
    """All that a gallery's folder says.

    `uid` is made once for each gallery and names its collection on a server; `source` says what
    the images were listed from; `store` is the address of the vectors; `fingerprint` and
    `generation` name the folders of the model and of the vectors; `trained` says of each image
    whether the model was trained on it, and `known_labels` how many labels of the others it was
    trained on, where that is known; `parts` are what the model's reranker reads of each image,
    where it names one.
    """

    uid: str
    source: str
    store: str
    fingerprint: str
    model: dict[str, Any]
    generation: int = 0
    next_id: int = 0
    images: tuple[GalleryImage, ...] = ()
    signatures: NDArray[np.uint8] = field(
        default_factory=lambda: np.empty((0, SIGNATURE_SIZE), np.uint8)
    )
    layout: NDArray[np.uint16] | None = None
    scores: QueryScores | None = None
    bad: tuple[tuple[str, str], ...] = ()
    calibration: "MatchProbability | None" = None
    trained: NDArray[np.bool_] | None = None
    parts: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    known_labels: int | None = None

    @property
    def reranker(self) -> RerankerEntry | None:
        """What the model wants its results to be reranked by."""
        name = self.model.get("reranker")
        return None if name is None else find_reranker(name)

    @property
    def part_names(self) -> tuple[str, ...]:
        """The parts that the model's reranker reads; none where it names no reranker."""
        return () if self.reranker is None else self.reranker.parts

    def model_folder(self, folder: Path) -> Path:
        """Where the model is, in the gallery's folder."""
        return folder / f"model-{self.fingerprint}"

    def index_folder(self, folder: Path) -> Path:
        """Where the vectors are, in the gallery's folder, unless on a server."""
        return folder / f"index-{self.generation}"


def is_saved(folder: Path) -> bool:
    """Whether a folder holds something saved."""
    return (folder / MANIFEST).is_file()


def open_vectors(
    folder: Path,
    state: State,
    *,
    token: str | None = None,
    kind: Kind | None = None,
    recall: float | None = None,
) -> Store:
    """The vectors of a gallery; `kind` allows them to be made, where they do not exist yet."""
    target = state.index_folder(folder)
    if kind is None and state.store == "faiss" and not is_saved(target):
        raise DamagedFile(
            f"{target}: the vectors are missing; run {command('index')} again with --rebuild"
        )
    return open_store(
        state.store,
        dim=int(state.model["dim"]),
        folder=target,
        name=f"cbml_{state.uid}",
        kind=kind or "flat",
        recall=recall,
        token=token,
    )


@contextlib.contextmanager
def trusted(store: Store, address: str) -> Iterator[None]:
    """A block whose ids are those that the store gave; it is to blame where it knows them no more.

    A server that was just started may contradict itself for a while. Nothing is lost by it: what
    is missing on the server is embedded again, and what is too much there is removed.
    """
    try:
        yield
    except WrongIds as error:
        if not store.immediate:
            raise
        raise ConnectionError(
            f"{address}: {error}, against what the server said before; repeat the command"
        ) from None


def write_state(folder: Path, state: State) -> None:
    """Commit a state, whose model and vectors have been saved already."""
    parts = {
        IMAGES: lambda path: path.write_text(_images_text(state), encoding="ascii"),
        ARRAYS: lambda path: safetensors.numpy.save_file(_arrays(state), path),
    }
    if state.calibration is not None:
        parts[CALIBRATION] = state.calibration.save
    metadata = {
        name: getattr(state, name)
        for name in ("uid", "source", "store", "fingerprint", "model", "generation", "next_id")
    }
    metadata["scores"] = None if state.scores is None else state.scores.totals
    if state.known_labels is not None:
        metadata["known_labels"] = state.known_labels
    replaced = _folders_in_use(folder)
    save_folder(folder, KIND, parts, metadata)
    now = {state.model_folder(folder).name, state.index_folder(folder).name}
    in_use = replaced | now
    for path in [*folder.glob("model-*"), *folder.glob("index-*")]:
        if path.is_dir() and path.name not in in_use:
            shutil.rmtree(path, ignore_errors=True)


def _folders_in_use(folder: Path) -> set[str]:
    """Names of the folders that the present manifest speaks of; OSError if it cannot be read."""
    try:
        metadata = json.loads(read_text(folder / MANIFEST))["metadata"]
        return {f"model-{metadata['fingerprint']}", f"index-{metadata['generation']}"}
    except (FileNotFoundError, KeyError, RecursionError, TypeError, ValueError):
        return set()


def read_state(folder: Path) -> State:
    """The state of a gallery; damage is found before it is used."""
    _refuse_what_is_no_gallery(folder)
    parts, metadata = load_folder(folder, KIND)
    try:
        rows, bad = _read_images(parts[IMAGES])
        arrays = safetensors.numpy.load_file(parts[ARRAYS])
        state = State(
            **{name: value for name, value in metadata.items() if name != "scores"},
            images=rows,
            signatures=arrays["signatures"],
            layout=arrays.get("layout"),
            scores=None if metadata["scores"] is None else _scores(metadata["scores"], arrays),
            bad=bad,
            trained=arrays.get("trained"),
            calibration=_calibration(parts[CALIBRATION]) if CALIBRATION in parts else None,
        )
        named = {name: arrays[f"{_PART}{name}"] for name in state.part_names if state.images}
        state = dataclasses.replace(state, parts=named)
        _check(state)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise DamagedFile(f"{folder}: not a gallery of this program ({reason})") from None
    return state


def _refuse_what_is_no_gallery(folder: Path) -> None:
    make = command("index", "RUN", "IMAGES", "--out", folder)
    if not folder.is_dir():
        raise BadData(f"{folder}: no such gallery; make one:  {make}")
    if (folder / "run.json").is_file() or is_saved(folder / "model"):
        make = command("index", folder, "IMAGES", "--out", "gallery")
        raise BadData(f"{folder}: a run, not a gallery; make a gallery with it:  {make}")
    if not (folder / MANIFEST).exists() and not any(folder.glob("arrays-*")):
        make = command("index", "RUN", folder, "--out", "gallery")
        raise BadData(f"{folder}: not a gallery; make one of the images in it:  {make}")
    try:
        manifest = json.loads(read_text(folder / MANIFEST))
        kind = str(manifest["kind"])
    except (OSError, KeyError, RecursionError, TypeError, ValueError):
        return  # what is wrong with it is said when it is read
    if kind.startswith("cbml gallery ") and kind != KIND:
        raise DamagedFile(
            f"{folder}: a gallery of an earlier version; delete the folder and make it again:  "
            f"{make}"
        )
    if kind.startswith("cbml model "):
        make = command("index", folder, "IMAGES", "--out", "gallery")
        raise BadData(f"{folder}: a model, not a gallery; make a gallery with it:  {make}")


def _images_text(state: State) -> str:
    rows = [[getattr(image, name) for name in _COLUMNS] for image in state.images]
    # ASCII: a file name may hold bytes that are no text, which JSON can only carry escaped.
    return json.dumps({"columns": _COLUMNS, "rows": rows, "bad": state.bad}, allow_nan=False)


def _read_images(path: Path) -> tuple[tuple[GalleryImage, ...], tuple[tuple[str, str], ...]]:
    content = json.loads(read_text(path))
    if tuple(content["columns"]) != _COLUMNS:
        raise ValueError(f"other columns than {', '.join(_COLUMNS)}")
    for row in content["rows"]:
        if list(map(type, row)) not in _ROWS:
            raise ValueError("a row of images.json is not that of an image")
    images = tuple(GalleryImage(*row) for row in content["rows"])
    return images, tuple((str(path), str(reason)) for path, reason in content["bad"])


def _arrays(state: State) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {"signatures": state.signatures}
    if state.layout is not None:
        arrays["layout"] = state.layout
    if state.scores is not None:
        for name in ("first_hits", "positives", "average_precisions", "nearest"):
            if getattr(state.scores, name) is not None:
                arrays[name] = getattr(state.scores, name)
    if state.trained is not None:
        arrays["trained"] = state.trained
    arrays |= {f"{_PART}{name}": part for name, part in state.parts.items()}
    return {name: np.ascontiguousarray(array) for name, array in arrays.items()}


def _calibration(path: Path) -> "MatchProbability":
    from cbml.bayes import MatchProbability  # here, since it brings scikit-learn: seconds

    return MatchProbability.load(path)


def _scores(totals: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> QueryScores:
    # The manifest sorts its keys as texts: recall@1, recall@10, recall@100, recall@2 ...
    metrics = sorted(totals["metrics"].items(), key=lambda pair: (len(pair[0]), pair[0]))
    recall = {name: value for name, value in metrics if name.startswith("recall@")}
    return QueryScores(
        {**totals, "metrics": {**recall, **dict(metrics)}},
        arrays["first_hits"],
        arrays["positives"],
        arrays["average_precisions"],
        arrays.get("nearest"),
    )


def _check(state: State) -> None:
    ids = np.array([image.id for image in state.images], dtype=np.int64)
    lengths = {len(ids), len(state.signatures), *map(len, state.parts.values())}
    if state.layout is not None:
        lengths.add(len(state.layout))
    if state.scores is not None:
        lengths.add(len(state.scores.first_hits))
    if state.trained is not None:
        lengths.add(len(state.trained))
    if not isinstance(state.known_labels, int | None):
        raise ValueError(f"known_labels {state.known_labels!r} is not a number of labels")
    if len(lengths) != 1:
        raise ValueError(f"parts of {sorted(lengths)} images")
    if len(ids) and (ids[0] < 0 or (np.diff(ids) <= 0).any() or ids[-1] >= state.next_id):
        raise ValueError("its ids are out of order")
