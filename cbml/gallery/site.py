"""A gallery while it is being built."""

import dataclasses
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cbml.errors import BadData
from cbml.gallery.changes import Changes
from cbml.gallery.layout import layout
from cbml.gallery.pictures import Listed, Picture, write_bad
from cbml.gallery.reading import Opened, embedded_chunks, fingerprint
from cbml.gallery.scoring import Evaluate, scored
from cbml.gallery.storage import (
    State,
    drop_unnamed,
    is_gallery,
    read_state,
    write_state,
)
from cbml.index import FolderStore, Store, open_store
from cbml.index.index import Kind
from cbml.models import Embedder
from cbml.models.progress import Progress

if TYPE_CHECKING:
    from cbml.bayes import MatchProbability

__all__ = ["Settings", "Site"]

BAD_IMAGES = "bad_images.csv"
# So large a share of the pictures must have labels for these to teach match probabilities: a few
# pictures beside the folders change little, but among many the known ones have another crowd.
MOSTLY = 0.9


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a gallery is built.

    Args:
        source: what the pictures were listed from, for people.
        store: where the vectors live, as `cbml.index.open_store` takes it; None keeps them where
            they are, which for a new gallery is its own folder.
        kind: of a new index in the gallery's own folder, as `cbml.Index` takes it.
        token: for servers that ask for one; never saved.
        rebuild: embed everything anew; needed when the model is another one.
        save_every: seconds after which what was embedded so far is saved.
    """

    source: str = ""
    store: str | None = None
    kind: Kind = "flat"
    token: str | None = None
    rebuild: bool = False
    save_every: float = 60.0


class Site:
    """A gallery while it is being built: its state, its vectors, and when they were last saved.

    Args:
        model: gives the vectors.
        folder: of the gallery.
        settings: where the vectors live and the like.
    """

    def __init__(self, model: Embedder, folder: Path, settings: Settings) -> None:
        self.model, self.folder, self.settings = model, folder, settings
        made_by = fingerprint(model)
        exists = is_gallery(folder)
        self.state = read_state(folder) if exists else _empty(settings)
        if exists and self.state.fingerprint != made_by and not settings.rebuild:
            raise BadData(
                f"{folder}: was made with another model; choose another folder, or embed all "
                "pictures anew with --rebuild"
            )
        if settings.store not in (None, self.state.store):
            there = self.state.store
            raise BadData(f"{folder}: its vectors live in {there!r}; choose another folder")
        self.removed, self.changed, self.bad_before = 0, not exists, self.state.bad
        self.store = self._opened_store()
        self.state = dataclasses.replace(
            self.state,
            source=settings.source or self.state.source,
            fingerprint=made_by,
            model=model.describe(),
            # Of another model's similarities nothing is known.
            calibration=self.state.calibration if self.state.fingerprint == made_by else None,
        )
        self.saved = time.monotonic()
        if not (exists or isinstance(self.store, FolderStore)):
            self._write()  # at once: a kill must not forget the name of the server's collection

    def known(self) -> list[Picture]:
        """The pictures that need not be embedded again, as far as their files have not changed."""
        if self.settings.rebuild:
            return []
        present = set(self.store.ids().tolist())  # a server may have lost some
        return [picture for picture in self.state.pictures if picture.id in present]

    def drop(self, changes: Changes) -> None:
        """Let pictures go that are not kept, and vectors that never became pictures.

        Args:
            changes: what has happened to the files.
        """
        kept = {picture.id for picture in changes.kept}
        stored = self.store.ids()
        strangers = stored[~np.isin(stored, list(kept))]
        looks = self.state.looks[[picture.id in kept for picture in self.state.pictures]]
        self.removed = len(self.state.pictures) - len(kept)
        self.changed |= bool(self.removed or changes.updated or len(strangers))
        self.state = dataclasses.replace(
            self.state, pictures=tuple(changes.kept), looks=looks, bad=()
        )
        if self.removed or len(strangers):
            self._forget()
        if len(strangers):
            if not isinstance(self.store, FolderStore):
                self._write()  # before they go: a picture that is listed must have its vector
            self.store.remove(strangers)

    def embed(self, new: Sequence[Listed]) -> int:
        """Embed files and add them; an interruption keeps what was done. Gives their number.

        Args:
            new: the files.
        """
        before = len(self.state.pictures)
        try:
            with Progress("pictures embedded", len(new)) as progress:
                for opened, vectors in embedded_chunks(self.model, new):
                    self._add(opened, vectors)
                    progress.show(len(self.state.pictures) - before + len(self.state.bad))
                    if time.monotonic() - self.saved > self.settings.save_every:
                        self._commit()
        except (KeyboardInterrupt, SystemExit):
            self._commit()
            raise
        return len(self.state.pictures) - before

    def finish(self, evaluate: Evaluate | None, calibration: "MatchProbability | None") -> None:
        """Scores, map and calibration, and the last commit, where anything is new.

        Args:
            evaluate: as in `build`.
            calibration: as in `build`.
        """
        state = self.state
        if not state.pictures:
            reason = f"; the first: {state.bad[0][0]}: {state.bad[0][1]}" if state.bad else ""
            raise BadData(f"{self.folder}: none of the pictures can be read{reason}")
        self.changed |= state.bad != self.bad_before
        wanted = evaluate is not None and any(picture.label for picture in state.pictures)
        missing = state.layout is None or (wanted and state.scores is None)
        if self.changed or missing:
            vectors = self.store.vectors(_ids(state.pictures))
            scores = scored(vectors, state.pictures, evaluate) if wanted and evaluate else None
            self.state = dataclasses.replace(state, layout=layout(vectors), scores=scores)
        self._calibrate(calibration)
        if self.changed or self.state is not state:
            self._commit()
        write_bad(self.folder / BAD_IMAGES, self.state.bad)
        self.store.close()

    def _calibrate(self, calibration: "MatchProbability | None") -> None:
        """Probabilities for these pictures, from the model's; as they were where nothing is new."""
        state, before = self.state, self.state.calibration
        calibration = calibration or before
        if calibration is None or len(state.pictures) < 2:
            return
        if before is not None and before.source == calibration.source and not self.changed:
            return
        known = tuple(picture for picture in state.pictures if picture.label is not None)
        if len(known) >= MOSTLY * len(state.pictures):
            labels = np.array([picture.label for picture in known])
            fitted = calibration.for_gallery(self.store.vectors(_ids(known)), labels)
        else:
            fitted = calibration.for_gallery(self.store.vectors(_ids(state.pictures)))
        self.state = dataclasses.replace(state, calibration=fitted)

    def _opened_store(self) -> Store:
        generation = self.state.generation + self.settings.rebuild  # a new folder is an empty one
        return open_store(
            self.state.store,
            dim=self.model.dim,
            folder=dataclasses.replace(self.state, generation=generation).index_folder(self.folder),
            name=f"cbml_{self.state.uid}",
            kind=self.settings.kind,
            token=self.settings.token,
        )

    def _add(self, opened: list[Opened], vectors: NDArray[np.float32]) -> None:
        good = [one for one in opened if not one.reason]
        bad = tuple((one.listed.path, one.reason) for one in opened if one.reason)
        ids = np.arange(len(good)) + self.state.next_id
        if good:
            self.store.add(vectors, ids)
            self._forget()
        state = self.state
        self.state = dataclasses.replace(
            state,
            next_id=state.next_id + len(good),
            pictures=state.pictures + tuple(map(_picture, ids.tolist(), good)),
            looks=np.concatenate([state.looks, *(one.look[None] for one in good)]),
            bad=state.bad + bad,
        )

    def _forget(self) -> None:
        """What was computed of the old vectors does not hold any more."""
        self.changed = True
        self.state = dataclasses.replace(self.state, layout=None, scores=None)

    def _commit(self) -> None:
        """Save vectors, model and list; readers see all of it or nothing."""
        if isinstance(self.store, FolderStore):
            self.state = dataclasses.replace(self.state, generation=self.state.generation + 1)
            self.store.folder = self.state.index_folder(self.folder)
        self.store.save()
        self._write()
        self.saved = time.monotonic()

    def _write(self) -> None:
        model_folder = self.state.model_folder(self.folder)
        if not is_gallery(model_folder):
            self.model.save(model_folder)
        write_state(self.folder, self.state)
        drop_unnamed(self.folder, self.state)


def _empty(settings: Settings) -> State:
    return State(
        uid=uuid.uuid4().hex,
        source=settings.source,
        store=settings.store or "faiss",
        fingerprint="",
        model={},
    )


def _picture(number: int, one: Opened) -> Picture:
    listed = one.listed
    facts = (one.bytes, one.modified, one.sha256, one.width, one.height)
    return Picture(number, listed.path, listed.name, listed.label, *facts)


def _ids(pictures: Sequence[Picture]) -> NDArray[np.int64]:
    return np.array([picture.id for picture in pictures], dtype=np.int64)
