"""A gallery that is open: its pictures, their neighbours, their scores."""

import threading
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cbml.data.decode import read_picture
from cbml.errors import BadData
from cbml.gallery.answers import Answer, Asked, Query, Wish
from cbml.gallery.likeness import look_of
from cbml.gallery.pictures import Picture
from cbml.gallery.search import Ranking, answered, ranked
from cbml.gallery.storage import State, read_state
from cbml.gallery.surroundings import Surroundings
from cbml.index import Store, open_store
from cbml.models import Embedder, embed

__all__ = ["Gallery"]


class Gallery:
    """Pictures that can be searched.

    Searches may run in several threads at once.

    Args:
        folder: as `build` made it.
        token: for a vector server that asks for one.
    """

    def __init__(self, folder: Path | str, *, token: str | None = None) -> None:
        self.folder = Path(folder)
        self.state: State = read_state(self.folder)
        self.pictures: tuple[Picture, ...] = self.state.pictures
        self.ids = np.array([picture.id for picture in self.pictures], dtype=np.int64)
        self.dim = int(self.state.model["dim"])
        self.store: Store = open_store(
            self.state.store,
            dim=self.dim,
            folder=self.state.index_folder(self.folder),
            name=f"cbml_{self.state.uid}",
            token=token,
        )
        self._surroundings: Surroundings | None = None
        if self.state.calibration is not None:
            self._surroundings = Surroundings(self.store, self.ids, self.state.calibration)
        self._loading = threading.Lock()
        self._model: Embedder | None = None

    def __len__(self) -> int:
        return len(self.pictures)

    def __enter__(self) -> "Gallery":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the vectors."""
        self.store.close()

    @property
    def name(self) -> str:
        """What to call it: the name of its folder."""
        return self.folder.resolve().name

    @cached_property
    def label_names(self) -> tuple[str, ...]:
        """The labels, sorted."""
        return tuple(
            sorted({picture.label for picture in self.pictures if picture.label is not None})
        )

    @cached_property
    def codes(self) -> NDArray[np.int64]:
        """The label of each picture as an index into `label_names`; -1 for none. (N,)"""
        numbers: dict[str | None, int] = {
            name: place for place, name in enumerate(self.label_names)
        }
        numbers[None] = -1
        return np.array([numbers[picture.label] for picture in self.pictures], dtype=np.int64)

    @cached_property
    def worst(self) -> NDArray[np.int64]:
        """Places of the pictures with a positive: lowest average precision first. (M,)"""
        scores = self.state.scores
        if scores is None:
            return np.empty(0, dtype=np.int64)
        order = np.lexsort((self.ids, -scores.first_hits, scores.average_precisions))
        return order[scores.positives[order] > 0]

    def place(self, number: int) -> int:
        """Where the picture of an id stands.

        Args:
            number: the id.
        """
        place = int(np.searchsorted(self.ids, number))
        if place == len(self) or self.ids[place] != number:
            raise BadData(f"picture {number}: not in this gallery")
        return place

    def places(self, *, label: str | None = None, text: str = "") -> NDArray[np.int64]:
        """Places of the pictures that pass the filters, ascending.

        Args:
            label: as in `Wish`.
            text: as in `Wish`.
        """
        chosen = np.ones(len(self), dtype=np.bool_)
        if label is not None:
            known = label in self.label_names
            chosen &= self.codes == (self.label_names.index(label) if known else -2)
        if text:
            wanted = text.casefold()
            chosen &= np.array([wanted in words for words in self._texts], dtype=np.bool_)
        return np.flatnonzero(chosen)

    def picture_query(self, number: int) -> Query:
        """A picture of the gallery as a query.

        Args:
            number: its id.
        """
        place = self.place(number)
        vector = self.store.vectors(self.ids[place : place + 1])[0]
        return Query(vector, self.state.looks[place], place)

    def query(self, source: Path | bytes) -> Query:
        """A picture from elsewhere as a query.

        Args:
            source: a file, or the bytes of one.
        """
        return self._as_query(read_picture(source))

    def search(self, query: Query, wish: Wish | None = None) -> Answer:
        """The pictures nearest to a query.

        Args:
            query: from `query` or `picture_query`.
            wish: how many, and which filters.
        """
        return answered(self, query, wish or Wish(), self.ranking(query))

    def ranking(self, query: Query) -> Ranking:
        """All pictures, nearest first, as deep as every store can look.

        Args:
            query: from `query` or `picture_query`.
        """
        return ranked(self, query)

    def asked(self, place: int | None) -> Asked:
        """What is known of a picture as a query.

        Args:
            place: where it stands; None for a picture from elsewhere.
        """
        if place is None:
            return Asked()
        picture, scores = self.pictures[place], self.state.scores
        facts: dict[str, Any] = {}
        if picture.label is not None:
            facts["positives"] = int((self.codes == self.codes[place]).sum()) - 1
        if scores is not None and scores.positives[place] > 0:
            facts["first_hit_rank"] = int(scores.first_hits[place])
            facts["average_precision"] = float(scores.average_precisions[place])
        return Asked(id=picture.id, name=picture.name, label=picture.label, **facts)

    @property
    def has_probability(self) -> bool:
        """Whether similarities can be told as probabilities."""
        return self.state.calibration is not None

    def probabilities(
        self, query: Query, results: Ranking, ranking: Ranking
    ) -> NDArray[np.float64] | None:
        """How probable it is that each result belongs with the query; None without a calibration.

        Args:
            query: what was searched with.
            results: some of its results. (K,)
            ranking: all of its results, unfiltered: they tell what its similarities mean.
        """
        if self._surroundings is None:
            return None
        calibration = self._surroundings.calibration
        return calibration.probability(
            results.similarities,
            background=calibration.background(ranking.similarities[: calibration.depth]),
            result_background=self._surroundings.of(results.places),
            own=query.place is not None,
        )

    def model(self) -> Embedder:
        """The model, read at its first use."""
        with self._loading:
            if self._model is None:
                self._model = Embedder.load(self.state.model_folder(self.folder))
            return self._model

    def warm_up(self) -> None:
        """Do once what would make the first search slow."""
        self.search(self._as_query(Image.new("RGB", (64, 64), "white")))

    def _as_query(self, picture: Image.Image) -> Query:
        vector = embed(self.model(), [np.array(picture)], progress=False)[0]
        return Query(vector, look_of(picture))

    @cached_property
    def _texts(self) -> list[str]:
        return [f"{picture.name}\n{picture.label or ''}".casefold() for picture in self.pictures]
