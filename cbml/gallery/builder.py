"""Images and a model -> a gallery, or an older gallery brought up to date."""

import dataclasses
import time
import uuid
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray

from cbml.errors import BadData
from cbml.files import locked
from cbml.gallery.images import (
    Changes,
    GalleryImage,
    ImageRef,
    changes_since,
    write_bad_images,
)
from cbml.gallery.layout import layout
from cbml.gallery.loading import LoadedImage, Parts, embedded_chunks, fingerprint
from cbml.gallery.scores import Evaluate, score_queries
from cbml.gallery.storage import State, is_saved, open_vectors, read_state, trusted, write_state
from cbml.index import Index, Kind
from cbml.models import Embedder
from cbml.progress import Progress

if TYPE_CHECKING:
    from cbml.bayes import MatchProbability

BAD_IMAGES = "bad_images.csv"
# Match probabilities are fitted to the labels if so large a share of the images has one: a few
# images beside the folders change little, but among many the labeled ones have another cohort.
MOSTLY_LABELED = 0.9


@dataclass(frozen=True, kw_only=True)
class BuildSettings:
    """How a gallery is built.

    Args:
        source: What the images were listed from, for people.
        store: Where the vectors live, as `cbml.index.open_store` takes it; None keeps them where
            they are, which for a new gallery is its own folder.
        kind: Kind of a new index in the gallery's own folder, as `cbml.Index` takes it.
        recall: Recall of a new index of kind "pq4", as `cbml.Index` takes it.
        token: Password or key for servers that ask for one; never saved.
        rebuild: Embed all images again; needed when the model is another one.
        known_labels: Labels of images new to the model that it was trained on; None if unknown.
        save_every: Seconds after which what was embedded so far is saved; longer where saving takes
            more than a tenth of that.
    """

    source: str = ""
    store: str | None = None
    kind: Kind = "flat"
    recall: float | None = None
    token: str | None = None
    rebuild: bool = False
    known_labels: int | None = None
    save_every: float = 60.0


@dataclass(frozen=True, kw_only=True)
class BuildResult:
    """What a build changed in a gallery.

    Args:
        images: Images in the gallery now.
        embedded: How many went through the model.
        kept: How many did not have to.
        renamed: How many of those kept have another path than before.
        removed: How many left.
        labels: Number of different labels.
        duplicates: Images whose content is that of another one in the gallery.
        bad: Path and reason of every file that could not be read.
        probabilities: Whether search results have match probabilities.
        index: What the index says of itself, `cbml.Index.describe`; empty for other stores.
    """

    images: int
    embedded: int
    kept: int
    renamed: int
    removed: int
    labels: int
    duplicates: int
    bad: tuple[tuple[str, str], ...]
    probabilities: bool
    index: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return dataclasses.asdict(self)


def build(
    model: Embedder,
    refs: Sequence[ImageRef],
    folder: Path | str,
    *,
    evaluate: Evaluate | None = None,
    calibration: "MatchProbability | None" = None,
    trained_on: Collection[str] | None = None,
    settings: BuildSettings | None = None,
    group: dist.ProcessGroup | None = None,
) -> BuildResult:
    """Make a gallery of images, or bring one up to date: only new or changed files are embedded.

    Whatever ends it, also a kill, the folder holds a sound gallery, or none yet; the same call
    resumes where it stopped. A second process is refused while the first is at work.

    Args:
        model: The model that embeds the images; a copy of it becomes part of the gallery.
        refs: The images that should be in it, as `list_images` gives them.
        folder: Folder of the gallery; made if missing.
        evaluate: `cbml.evaluate`, to score every labeled image as a query; None scores nothing.
        calibration: Calibration of the model, for match probabilities; fitted to these images.
        trained_on: Absolute paths of the images that the model was trained on; None if unknown.
        settings: Where the vectors live and the like.
        group: Group of torch.distributed whose other processes call `embed_share`: they embed, this
            one writes.
    """
    with locked(Path(folder), wait=0):
        builder = GalleryBuilder(model, Path(folder), settings or BuildSettings())
        builder.trained_on = None if trained_on is None else set(trained_on)
        with trusted(builder.store, builder.state.store):
            changes = changes_since(builder.known(), refs)
            builder.drop(changes)
            embedded = builder.embed(changes.new, group)
            builder.finish(evaluate, calibration)
        return builder.result(changes, embedded)


def remove_images(
    folder: Path | str, names: Collection[str], *, evaluate: Evaluate | None = None
) -> BuildResult:
    """Take images out of a gallery by their names; their files stay where they are.

    Args:
        folder: Folder of the gallery.
        names: Names of the images, as results show them.
        evaluate: As in `build`.
    """
    folder = Path(folder)
    read_state(folder)  # the lock would make the folder of a gallery that is not there
    with locked(folder, wait=0):
        state = read_state(folder)
        missing = sorted(set(names) - {image.name for image in state.images})
        if missing:
            raise BadData(f"{missing[0]}: not a name in {folder}; search results show names")
        model = Embedder.load(state.model_folder(folder))
        builder = GalleryBuilder(model, folder, BuildSettings())
        builder.bad_before = ()
        if state.trained is not None:
            pairs = zip(state.images, state.trained, strict=True)
            builder.trained_on = {image.path for image, trained in pairs if trained}
        kept = [image for image in builder.known() if image.name not in names]
        gone = [image for image in builder.known() if image.name in names]
        changes = Changes(kept=kept, new=[], gone=gone, renamed=0, updated=0)
        with trusted(builder.store, state.store):
            builder.drop(changes)
            builder.finish(evaluate, None)
        return builder.result(changes, 0)


class GalleryBuilder:
    """A gallery while it is being built: its state, its vectors, and when they were last saved."""

    def __init__(self, model: Embedder, folder: Path, settings: BuildSettings) -> None:
        self.model, self.folder, self.settings = model, folder, settings
        made_by = fingerprint(model)
        exists = is_saved(folder)
        state = read_state(folder) if exists else _empty(settings)
        if exists and state.fingerprint != made_by and not settings.rebuild:
            raise BadData(
                f"{folder}: was made with another model; choose another folder, or embed all "
                "images again with --rebuild"
            )
        if settings.store not in (None, state.store):
            raise BadData(f"{folder}: its vectors live in {state.store!r}; choose another folder")
        self.trained_on: set[str] | None = None
        self.removed, self.changed, self.bad_before = 0, not exists, state.bad
        # Of another model's similarities nothing is known.
        same = state.fingerprint == made_by
        calibration = state.calibration if same else None
        self.state = dataclasses.replace(
            state,
            source=settings.source or state.source,
            fingerprint=made_by,
            model=model.describe(),
            calibration=calibration,
            parts=state.parts if same else {},
        )
        # A rebuild starts with the vectors of the next generation, which are none.
        generation = state.generation + settings.rebuild
        self.store = open_vectors(
            folder,
            dataclasses.replace(self.state, generation=generation),
            token=settings.token,
            kind=settings.kind,
            recall=settings.recall,
        )
        # What was embedded since the state was last made up: to copy all images for each chunk
        # would take a time that grows with the square of their number.
        self.pending: list[tuple[list[LoadedImage], NDArray[np.int64], Parts]] = []
        self.next_id = self.state.next_id
        self.saved, self.save_every = time.monotonic(), settings.save_every
        if self.store.immediate and not exists:
            self._write()  # at once: a kill must not forget the name of the server's collection

    def known(self) -> list[GalleryImage]:
        """The images that need not be embedded again, as far as their files have not changed."""
        if self.settings.rebuild:
            return []
        present = set(self.store.ids().tolist())  # a server may have lost some
        return [image for image in self.state.images if image.id in present]

    def drop(self, changes: Changes) -> None:
        """Let images go that are not kept, and vectors that never became images."""
        kept = {image.id for image in changes.kept}
        stored = self.store.ids()
        strangers = stored[~np.isin(stored, list(kept))]
        stay = [image.id in kept for image in self.state.images]
        self.removed = len(self.state.images) - len(kept)
        self.changed |= bool(self.removed or changes.updated or len(strangers))
        self.state = dataclasses.replace(
            self.state,
            images=tuple(changes.kept),
            signatures=self.state.signatures[stay],
            parts={name: part[stay] for name, part in self.state.parts.items()},
            bad=(),
            trained=None,
        )
        if self.removed or len(strangers):
            self._forget()
        if len(strangers):
            if self.store.immediate:
                self._write()  # before they go: an image that is listed must have its vector
            self.store.remove(strangers)

    def embed(self, new: Sequence[ImageRef], group: dist.ProcessGroup | None = None) -> int:
        """Embed files and add them; an interruption keeps what was done. Gives their number."""
        done = good = 0
        try:
            with Progress("images embedded", len(new)) as progress:
                for loaded, vectors, parts in embedded_chunks(
                    self.model, new, self.state.part_names, group
                ):
                    self._add(loaded, vectors, parts)
                    done, good = done + len(loaded), good + len(vectors)
                    progress.show(done)
                    if time.monotonic() - self.saved > self.save_every:
                        self._commit()
        except (KeyboardInterrupt, SystemExit):
            self._commit()
            raise
        self._settle()
        return good

    def finish(self, evaluate: Evaluate | None, calibration: "MatchProbability | None") -> None:
        """Scores, map and calibration, and the last commit, where anything is new."""
        state = self.state
        if not state.images:
            reason = f"; the first: {state.bad[0][0]}: {state.bad[0][1]}" if state.bad else ""
            raise BadData(f"{self.folder}: none of the images can be read{reason}")
        self.changed |= state.bad != self.bad_before
        wanted = evaluate is not None and any(image.label for image in state.images)
        unscored = state.scores is None or state.scores.nearest is None
        if self.changed or state.layout is None or (wanted and unscored):
            vectors = self.store.vectors(_ids(state.images))
            scores = score_queries(self.store, state, evaluate) if wanted and evaluate else None
            self.state = dataclasses.replace(state, layout=layout(vectors), scores=scores)
        self._mark_trained()
        self._calibrate(calibration)
        if self.changed or self.state is not state:
            self._commit()
        write_bad_images(self.folder / BAD_IMAGES, self.state.bad)
        self.store.close()

    def result(self, changes: Changes, embedded: int) -> BuildResult:
        """The counts of this build."""
        images = self.state.images
        contents = Counter(image.sha256 for image in images)
        return BuildResult(
            images=len(images),
            embedded=embedded,
            kept=len(changes.kept),
            renamed=changes.renamed,
            removed=self.removed,
            labels=len({image.label for image in images} - {None}),
            duplicates=len(images) - len(contents),
            bad=self.state.bad,
            probabilities=self.state.calibration is not None,
            index=self.store.describe() if isinstance(self.store, Index) else {},
        )

    def _mark_trained(self) -> None:
        """Note which images the model was trained on, where that is known."""
        trained, before = None, self.state.trained
        if self.trained_on is not None:
            trained = np.array([image.path in self.trained_on for image in self.state.images])
        same = trained is before or (
            trained is not None and before is not None and np.array_equal(trained, before)
        )
        known = self.settings.known_labels
        known = self.state.known_labels if known is None else known
        if not same or known != self.state.known_labels:
            self.state = dataclasses.replace(self.state, trained=trained, known_labels=known)

    def _calibrate(self, calibration: "MatchProbability | None") -> None:
        """Probabilities for these images, from the model's; as they were where nothing is new."""
        state, before = self.state, self.state.calibration
        calibration = calibration or before
        if calibration is None or len(state.images) < 2:
            return
        if before is not None and before.source == calibration.source and not self.changed:
            return
        from cbml.bayes import probability_for  # here, since it brings scikit-learn: seconds

        known = tuple(image for image in state.images if image.label is not None)
        if len(known) >= MOSTLY_LABELED * len(state.images):
            labels = np.array([image.label for image in known])
            fitted = probability_for(calibration, self.store.vectors(_ids(known)), labels)
        else:
            fitted = calibration.for_gallery(self.store.vectors(_ids(state.images)))
        self.state = dataclasses.replace(state, calibration=fitted)

    def _add(self, loaded: list[LoadedImage], vectors: NDArray[np.float32], parts: Parts) -> None:
        ids = np.arange(len(vectors)) + self.next_id
        if len(ids):
            self.store.add(vectors, ids)
            self._forget()
        self.next_id += len(ids)
        self.pending.append((loaded, ids, parts))

    def _settle(self) -> None:
        """Make what was added a part of the state."""
        added, self.pending = self.pending, []
        if not added:
            return
        state = self.state
        loaded = [one for chunk, _, _ in added for one in chunk]
        good = [one for one in loaded if not one.reason]
        ids = np.concatenate([ids for _, ids, _ in added]).tolist()
        names = {name for _, _, parts in added for name in parts}
        found = {name: [parts[name] for _, _, parts in added if name in parts] for name in names}
        self.state = dataclasses.replace(
            state,
            next_id=self.next_id,
            images=state.images + tuple(map(LoadedImage.as_listed, good, ids)),
            signatures=np.concatenate([state.signatures, *(one.signature[None] for one in good)]),
            parts=state.parts
            | {
                name: np.concatenate([state.parts[name], *new] if name in state.parts else new)
                for name, new in found.items()
            },
            bad=state.bad + tuple((one.ref.path, one.reason) for one in loaded if one.reason),
        )

    def _forget(self) -> None:
        """What was computed of the old vectors does not hold any more."""
        self.changed = True
        self.state = dataclasses.replace(self.state, layout=None, scores=None)

    def _commit(self) -> None:
        """Save vectors, model and list; readers see all of it or nothing."""
        start = time.monotonic()
        self._settle()
        self.state = dataclasses.replace(self.state, generation=self.state.generation + 1)
        self.store.save(self.state.index_folder(self.folder))
        self._write()
        self.saved = time.monotonic()
        # Each save writes everything: rarer where that takes long, so that it stays a tenth.
        self.save_every = self.settings.save_every * max(1.0, (self.saved - start) / 6.0)

    def _write(self) -> None:
        model_folder = self.state.model_folder(self.folder)
        if self.settings.rebuild or not is_saved(model_folder):  # it may be damaged
            self.model.save(model_folder)
        write_state(self.folder, self.state)


def _empty(settings: BuildSettings) -> State:
    return State(
        uid=uuid.uuid4().hex,
        source=settings.source,
        store=settings.store or "faiss",
        fingerprint="",
        model={},
    )


def _ids(images: Sequence[GalleryImage]) -> NDArray[np.int64]:
    return np.array([image.id for image in images], dtype=np.int64)
