"""A gallery that is open: its images, their neighbors, their scores."""

import threading
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from cbml.data import read_image
from cbml.errors import BadData
from cbml.files import consistent
from cbml.gallery.images import GalleryImage
from cbml.gallery.loading import FramedModel, as_outputs, reranked_order
from cbml.gallery.results import (
    Query,
    QueryInfo,
    Ranking,
    SearchOptions,
    SearchResponse,
    SearchResult,
)
from cbml.gallery.storage import State, is_saved, open_vectors, read_state
from cbml.gallery.thumbnails import Signature, mark_near_duplicates, signature_of
from cbml.index import Store
from cbml.models import Embedder, embed_outputs
from cbml.outputs import Reranker

# As deep as the stores can look; ranks below it are unknown.
DEPTH = 16_384
# As many images below it are compared one by one, where a filter leaves no more than these.
DEEP = 16_384
MISSED = 50
# Candidates for each wanted result, where near-duplicates are hidden.
SPARE = 4
# Candidates at least, where only probable results are wanted.
PROBABLE = 256

Indices = NDArray[np.int64]
Mask = NDArray[np.bool_]


class Gallery:
    """Images that can be searched, as they were when the gallery was opened.

    Searches may run in several threads at once. `cbml index` may bring the folder up to date
    meanwhile; open it again to see what is new.

    Args:
        folder: The folder that `build` made.
        token: Password or key for a vector server that asks for one.
    """

    def __init__(self, folder: Path | str, *, token: str | None = None) -> None:
        self.folder = Path(folder)
        self._token = token
        self.state, self.store = consistent(self.folder, lambda: _opened(self.folder, token))
        self.images: tuple[GalleryImage, ...] = self.state.images
        self.ids = np.array([image.id for image in self.images], dtype=np.int64)
        self.dim = int(self.state.model["dim"])
        self._loading = threading.Lock()
        self._model: Embedder | None = None

    def __len__(self) -> int:
        return len(self.images)

    def __enter__(self) -> "Gallery":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the vectors."""
        self.store.close()

    @property
    def name(self) -> str:
        """What to call it: the name of its folder, or of the run whose `gallery` it is."""
        folder = self.folder.resolve()
        own = folder.name == "gallery" and (folder.parent / "run.json").is_file()
        return folder.parent.name if own else folder.name

    @cached_property
    def label_names(self) -> tuple[str, ...]:
        """The labels, sorted."""
        return tuple(sorted({image.label for image in self.images if image.label is not None}))

    @cached_property
    def codes(self) -> NDArray[np.int64]:
        """The label of each image as an index into `label_names`; -1 for none. (N,)"""
        codes: dict[str | None, int] = {name: code for code, name in enumerate(self.label_names)}
        codes[None] = -1
        return np.array([codes[image.label] for image in self.images], dtype=np.int64)

    @property
    def has_probability(self) -> bool:
        """Whether results come with the probability that they belong with the query."""
        return self.state.calibration is not None

    def index_of(self, image_id: int) -> int:
        """Position of an image in `images`.

        Args:
            image_id: Its id.
        """
        index = int(np.searchsorted(self.ids, image_id))
        if index == len(self) or self.ids[index] != image_id:
            raise BadData(f"image {image_id}: not in this gallery")
        return index

    def matching(self, *, label: str | None = None, text: str = "") -> Indices:
        """Indices of the images that pass the filters, ascending.

        Args:
            label: As in `SearchOptions`.
            text: As in `SearchOptions`.
        """
        chosen = np.ones(len(self), dtype=np.bool_)
        if label is not None:
            wanted = label.casefold()
            names = enumerate(self.label_names)
            chosen &= np.isin(
                self.codes, [code for code, name in names if name.casefold() == wanted]
            )
        if text:
            wanted = text.casefold()
            chosen &= np.array([wanted in words for words in self._texts], dtype=np.bool_)
        return np.flatnonzero(chosen)

    def image_query(self, image_id: int) -> Query:
        """An image of the gallery as a query.

        Args:
            image_id: Its id.
        """
        index = self.index_of(image_id)
        vector = self.store.vectors(self.ids[index : index + 1])[0]
        parts = {name: part[index : index + 1] for name, part in self.state.parts.items()}
        return Query(vector, self.state.signatures[index], index, parts)

    def query(self, source: Path | bytes | Image.Image) -> Query:
        """An image from elsewhere as a query.

        Args:
            source: A file, the bytes of one, or a decoded RGB image.
        """
        image = source if isinstance(source, Image.Image) else read_image(source)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        framed = self.model().preprocessing.frame(pixels)
        return self.framed_queries([framed], [signature_of(image)])[0]

    def framed_queries(
        self, framed: Sequence[Tensor], signatures: Sequence[Signature]
    ) -> list[Query]:
        """Images from elsewhere that have been decoded and framed already, embedded together.

        Args:
            framed: uint8 pixels as the model's preprocessing frames them. (3, crop, crop)
            signatures: As `thumbnails.signature_of` gives them.
        """
        model = FramedModel(self.model())
        outputs = embed_outputs(model, list(framed), self.state.part_names)
        return [
            Query(
                outputs.embeddings[row].numpy(),
                signature,
                parts={name: part[row : row + 1].numpy() for name, part in outputs.parts.items()},
            )
            for row, signature in enumerate(signatures)
        ]

    def search(self, query: Query, options: SearchOptions | None = None) -> SearchResponse:
        """The images nearest to a query.

        Args:
            query: What `query` or `image_query` gave.
            options: How many results, and which filters.
        """
        options = options or SearchOptions()
        return self.respond(query, options, self.ranking(query, self._depth(query, options)))

    def ranking(self, query: Query, depth: int = DEPTH) -> Ranking:
        """The nearest images, nearest first.

        Args:
            query: What `query` or `image_query` gave.
            depth: How many; no more than every store can give.
        """
        depth = min(depth, DEPTH, max(len(self), 1))
        found = self.store.search(query.vector[None], depth)
        ids, similarities = found.ids[0], found.similarities[0]
        indices = np.searchsorted(self.ids, ids).clip(max=max(len(self) - 1, 0))
        # While a gallery is being built, a server may hold vectors that are not images yet.
        good = self.ids[indices] == ids if len(self) else np.zeros(len(ids), dtype=np.bool_)
        if query.index is not None:
            good &= indices != query.index
        indices, similarities = indices[good], similarities[good]
        order = self._reranked(query, indices)
        for column in (indices, similarities):
            column[: len(order)] = column[order]
        return Ranking(indices, similarities, np.arange(1, len(indices) + 1))

    def _reranked(self, query: Query, indices: Indices) -> Indices:
        """The new order of the first images, where the model names a reranker."""
        if self._reranker is None or self.state.reranker is None or not len(indices):
            return np.empty(0, dtype=np.int64)
        nearest = indices[: self.state.reranker.candidates]
        parts = {name: part[nearest] for name, part in self.state.parts.items()}
        found = as_outputs(self.store.vectors(self.ids[nearest]), parts)
        return reranked_order(self._reranker, as_outputs(query.vector[None], query.parts), found)

    @cached_property
    def _reranker(self) -> Reranker | None:
        return None if self.state.reranker is None else self.state.reranker.load()

    def respond(self, query: Query, options: SearchOptions, ranking: Ranking) -> SearchResponse:
        """The results that the options ask for.

        Args:
            query: What was searched with.
            options: How many results, and which filters.
            ranking: As `ranking` gave it.
        """
        name = "sort" if options.sort == "probability" else "min_probability"
        if not self.has_probability and (name == "sort" or options.min_probability is not None):
            raise BadData(
                f"{name}: this gallery has no calibration, so no probabilities; make it "
                "from a run that has one (cbml train and cbml analyze write calibration.json)"
            )
        allowed = np.zeros(len(self), dtype=np.bool_)
        allowed[self.matching(label=options.label, text=options.text)] = True
        candidates = self._candidates(query, ranking, allowed, options)
        duplicate = mark_near_duplicates(
            self.state.signatures[candidates.indices], [query.signature]
        )
        shown = ~duplicate if options.hide_duplicates else np.ones(len(candidates), dtype=np.bool_)
        # Up to the k-th that is shown.
        seen = slice(int(np.searchsorted(np.cumsum(shown), options.k)) + 1)
        results = candidates.select(seen).select(shown[seen])
        allowed[candidates.indices[seen]] = False
        return SearchResponse(
            query=self.query_info(query.index),
            results=options.ordered(
                self._results(query, ranking, results, duplicate[seen][shown[seen]])
            ),
            missed=self._missed(query, ranking, allowed),
            hidden_duplicates=len(candidates.indices[seen]) - len(results),
            searched=len(self) - (query.index is not None),
        )

    def query_info(self, index: int | None) -> QueryInfo:
        """What is known of an image as a query.

        Args:
            index: Its position in `images`; None for an image from elsewhere.
        """
        if index is None:
            return QueryInfo()
        image, scores = self.images[index], self.state.scores
        known: dict[str, Any] = {}
        if image.label is not None:
            known["positives"] = int((self.codes == self.codes[index]).sum()) - 1
        if scores is not None and scores.positives[index] > 0:
            known["first_hit_rank"] = int(scores.first_hits[index])
            known["average_precision"] = float(scores.average_precisions[index])
        return QueryInfo(id=image.id, name=image.name, label=image.label, **known)

    def model(self) -> Embedder:
        """The model, read at its first use."""
        with self._loading:
            if self._model is None:
                folder = self.state.model_folder(self.folder)
                if not is_saved(folder):
                    raise BadData(f"{self.folder}: was rebuilt with another model; open it again")
                self._model = Embedder.load(folder)
            return self._model

    def reopened(self) -> "Gallery":
        """The gallery as it is now, with the model that was read already where it is the same."""
        fresh = Gallery(self.folder, token=self._token)
        if fresh.state.fingerprint == self.state.fingerprint:
            fresh._model = self._model
        return fresh

    def warm_up(self) -> None:
        """Do once what would make the first search slow."""
        self.search(self.query(Image.new("RGB", (64, 64), "white")))

    def _depth(self, query: Query, options: SearchOptions) -> int:
        """How deep a ranking has to be: most of a search's time is spent on the depth."""
        if options.label is not None or options.text or query.index is not None:
            return DEPTH  # what passes the filter, or is missed, may be anywhere
        return max(SPARE * options.k, self._least_depth)

    @property
    def _least_depth(self) -> int:
        """How many of the nearest images probabilities and the reranker have to see."""
        calibration, reranker = self.state.calibration, self.state.reranker
        cohort = 0 if calibration is None else calibration.depth
        return max(PROBABLE, cohort, 0 if reranker is None else reranker.candidates)

    def _candidates(
        self, query: Query, ranking: Ranking, allowed: Mask, options: SearchOptions
    ) -> Ranking:
        """The images that pass all filters; also those too deep in the ranking, if needed."""
        found = ranking.select(allowed[ranking.indices])
        if len(found) < SPARE * options.k:
            found = self._with_deep(query, found, ranking.unreached(allowed, query))
        if options.min_probability is not None:
            found = found.select(slice(max(PROBABLE, SPARE * options.k)))
            probabilities = self._probabilities(query, found, ranking)
            if probabilities is not None:
                found = found.select(probabilities >= options.min_probability)
        return found.select(slice(options.k * (SPARE if options.hide_duplicates else 1)))

    def _with_deep(self, query: Query, found: Ranking, deep: Indices) -> Ranking:
        if not 0 < len(deep) <= DEEP:
            return found
        # Row by row: a matrix product may give equal rows unequal similarities.
        similarities = (self.store.vectors(self.ids[deep]) * query.vector).sum(axis=1)
        order = np.lexsort((deep, -similarities))
        return Ranking(
            np.concatenate([found.indices, deep[order]]),
            np.concatenate([found.similarities, similarities[order]]),
            np.concatenate([found.ranks, np.zeros(len(deep), dtype=np.int64)]),
        )

    def _missed(self, query: Query, ranking: Ranking, left: Mask) -> tuple[SearchResult, ...]:
        """The best of the images that are left and have the query's label."""
        if query.index is None or self.codes[query.index] < 0:
            return ()
        positive = left & (self.codes == self.codes[query.index])
        found = ranking.select(positive[ranking.indices])
        missed = self._with_deep(query, found, ranking.unreached(positive, query))
        missed = missed.select(slice(MISSED))
        signatures = self.state.signatures[missed.indices]
        duplicate = mark_near_duplicates(signatures, [query.signature])
        return self._results(query, ranking, missed, duplicate)

    def _results(
        self, query: Query, ranking: Ranking, chosen: Ranking, duplicate: Mask
    ) -> tuple[SearchResult, ...]:
        own = -1 if query.index is None else int(self.codes[query.index])
        probabilities = self._probabilities(query, chosen, ranking)
        results = []
        for number, index in enumerate(chosen.indices.tolist()):
            image, code = self.images[index], int(self.codes[index])
            results.append(
                SearchResult(
                    rank=int(chosen.ranks[number]) or None,
                    id=image.id,
                    name=image.name,
                    label=image.label,
                    similarity=float(chosen.similarities[number]),
                    probability=None if probabilities is None else float(probabilities[number]),
                    relevant=None if min(own, code) < 0 else own == code,
                    duplicate=bool(duplicate[number]),
                )
            )
        return tuple(results)

    def _probabilities(
        self, query: Query, results: Ranking, ranking: Ranking
    ) -> NDArray[np.float64] | None:
        """How probable it is that each result belongs with the query; None if not calibrated.

        What the query's similarities mean is told by its unfiltered ranking.
        """
        if (calibration := self.state.calibration) is None:
            return None
        return calibration.probability(
            results.similarities,
            cohort_mean=calibration.cohort_mean(ranking.similarities[: self._least_depth]),
            own=query.index is not None,
        )

    @cached_property
    def _texts(self) -> list[str]:
        return [f"{image.name}\n{image.label or ''}".casefold() for image in self.images]


def _opened(folder: Path, token: str | None) -> tuple[State, Store]:
    state = read_state(folder)
    return state, open_vectors(folder, state, token=token)
