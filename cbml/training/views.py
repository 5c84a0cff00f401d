"""What report.html shows of the trained model: similarities of pairs, best and worst queries."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cbml.data import ImageSet, Splits
from cbml.models import Embedder
from cbml.training.assembly import Shelf
from cbml.training.report import (
    Distribution,
    Retrieval,
    distribution,
    thumbnail,
    write_report,
)
from cbml.training.runs import read_record

__all__ = ["report_run"]

# Enough for smooth histograms; all pairs of them fit into a few dozen megabytes.
_PICTURES = 1500
_QUERIES = 6
_NEIGHBOURS = 8
_FEWEST = 3


def report_run(folder: Path, model: Embedder, splits: Splits) -> None:
    """Write report.html with pictures of training classes and of unseen ones.

    Unseen are the held-out classes; the test classes are shown as well, and their queries, once the
    run's record says that they were looked at.

    Args:
        folder: of the run.
        model: the trained one.
        splits: the pictures.
    """
    distributions: list[Distribution] = []
    worst: list[Retrieval] = []
    best: list[Retrieval] = []
    titles = [("training classes", splits.train), ("unseen, held-out classes", splits.validation)]
    test = splits.query if splits.test is None else splits.test
    if test is not None and read_record(folder).get("test_looks"):
        titles.append(("unseen, test classes", test))
    for title, images in titles:
        if len(images) < 2:
            continue
        shelf = Shelf.of(_some_classes(images), model.preprocessing.crop)
        rows, labels = shelf.embedded(model), shelf.images.known_labels
        distributions.append(distribution(title, rows, labels))
        worst, best = _retrievals(shelf, rows, model.preprocessing.resize)
    write_report(folder, distributions, worst, best)


def _some_classes(images: ImageSet) -> ImageSet:
    """Whole classes in a fixed random order, as many as fit."""
    sizes = images.class_sizes()
    order = np.random.default_rng(0).permutation(len(sizes))
    count = max(2, int((np.cumsum(sizes[order]) <= _PICTURES).sum()))
    return images if len(images) <= _PICTURES else images.of_classes(np.sort(order[:count]))


def _retrievals(
    shelf: Shelf, rows: NDArray[np.float32], length: int
) -> tuple[list[Retrieval], list[Retrieval]]:
    labels = shelf.images.known_labels
    similarity = rows @ rows.T  # (N, N)
    np.fill_diagonal(similarity, -np.inf)
    same = labels[:, None] == labels[None, :]
    np.fill_diagonal(same, False)
    asked = np.flatnonzero(same.any(axis=1))
    # How far the nearest right picture is behind the nearest wrong one, or before it.
    right = np.where(same, similarity, -np.inf).max(axis=1)[asked]
    wrong = np.where(same, -np.inf, similarity).max(axis=1)[asked]
    order = asked[np.argsort(right - wrong, kind="stable")]

    def shown(query: int) -> Retrieval:
        # Behind the last right picture all are wrong, and nobody is to blame for it.
        count = min(_NEIGHBOURS, max(_FEWEST, int(same[query].sum())))
        nearest = np.argsort(-similarity[query], kind="stable")[:count].tolist()
        names = shelf.images.class_names
        found = [
            (
                _picture(shelf, place, length),
                float(similarity[query, place]),
                names[labels[place]],
                bool(same[query, place]),
            )
            for place in nearest
            if place != query
        ]
        return Retrieval(_picture(shelf, query, length), names[labels[query]], found)

    worst = [shown(query) for query in _one_per_class(order, labels)]
    best = [shown(query) for query in _one_per_class(order[::-1], labels)]
    return worst, best


def _one_per_class(order: NDArray[np.int64], labels: NDArray[np.int64]) -> list[int]:
    """The first few queries whose classes differ: near copies of one query tell nothing new."""
    first = np.sort(np.unique(labels[order], return_index=True)[1])
    places: list[int] = order[first][:_QUERIES].tolist()
    return places


def _picture(shelf: Shelf, place: int, length: int) -> str:
    return thumbnail(shelf.packed.sized(shelf.numbers[place], length))
