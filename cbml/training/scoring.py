"""Scores of a model on the splits of a set, and the record of every look at the test."""

import functools
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cbml.data import ImageSet, Splits
from cbml.errors import BadData, MissingExtra
from cbml.files import write_json
from cbml.models import Embedder
from cbml.training.assembly import Evaluate, Shelf, flat_scores, load_splits
from cbml.training.recipe import recipe_of
from cbml.training.runs import read_record
from cbml.training.team import Team

__all__ = [
    "evaluate_split",
    "note_test_look",
    "score_conditions",
    "score_split",
    "shows_test_pictures",
]

_CONDITIONS = ("queries", "lone_queries", "gallery", "classes")
_KMEANS = ("kmeans_seed", "kmeans_iterations", "kmeans_attempts")


def score_split(
    model: Embedder, splits: Splits, split: str, evaluate: Evaluate, team: Team | None = None
) -> Any:
    """What `evaluate` says of a model on one split; "test" searches the gallery where there is one.

    Args:
        model: in evaluation mode.
        splits: the pictures.
        split: "train", "validation", "test", or "all" for every picture.
        evaluate: as `cbml.evaluate`.
        team: the processes that share the work.
    """
    crop = model.preprocessing.crop
    if split == "test" and splits.query is not None and splits.gallery is not None:
        query, gallery = Shelf.of(splits.query, crop), Shelf.of(splits.gallery, crop)
        names = [np.array(shelf.images.class_names) for shelf in (query, gallery)]
        return evaluate(
            query.embedded(model, team),
            names[0][query.images.known_labels],
            gallery_embeddings=gallery.embedded(model, team),
            gallery_labels=names[1][gallery.images.known_labels],
        )
    shelf = Shelf.of(_pictures(splits, split), crop)
    return evaluate(shelf.embedded(model, team), shelf.images.known_labels)


def evaluate_split(
    model: Embedder, splits: Splits, split: str, evaluate: Evaluate, team: Team | None = None
) -> dict[str, float]:
    """The scores of `score_split` alone, by names such as "recall@1".

    Args:
        model: in evaluation mode.
        splits: the pictures.
        split: "train", "validation", "test", or "all" for every picture.
        evaluate: as `cbml.evaluate`.
        team: the processes that share the work.
    """
    return flat_scores(score_split(model, splits, split, evaluate, team))


def score_conditions(scores: Any) -> dict[str, Any]:
    """How many pictures were scored, and how they were clustered.

    Args:
        scores: of `score_split`.
    """
    plain = scores.as_dict()
    return {name: plain[name] for name in (*_CONDITIONS, *_KMEANS) if plain.get(name) is not None}


def note_test_look(
    folder: Path, scores: Any = None, reliability: Mapping[str, Any] | None = None
) -> None:
    """Write into run.json that the test classes were looked at, and what was seen.

    Args:
        folder: of the run.
        scores: of `score_split` on the test classes; None where they were mixed with others.
        reliability: how far match probabilities held there; None where it was not asked.
    """
    record: dict[str, Any] = read_record(folder)
    record["test_looks"] = int(record.get("test_looks", 0)) + 1
    if scores is not None:
        record["test"] = flat_scores(scores)
        record["test_conditions"] = score_conditions(scores)
    if reliability is not None:
        record["test_reliability"] = dict(reliability)
    write_json(folder / "run.json", record)


def shows_test_pictures(folder: Path, paths: Iterable[Path]) -> bool:
    """Whether any of these files is a test picture of a run, under whatever name.

    A run whose own pictures are not there any more, or a model without a run, has none to show.

    Args:
        folder: of the run.
        paths: of the pictures that are looked at.
    """
    if not (folder / "run.json").exists():
        return False
    try:
        splits = load_splits(recipe_of(read_record(folder).get("recipe", {})))
    except (BadData, MissingExtra, OSError):
        return False
    parts = splits.parts()
    tested = [parts[name].paths for name in ("test", "query", "gallery") if name in parts]
    # Few folders hold many files, and each folder is looked up once.
    real = functools.cache(os.path.realpath)
    known = {(real(path.parent), path.name) for part in tested for path in part}
    return any((real(path.parent), path.name) in known for path in paths)


def _pictures(splits: Splits, split: str) -> ImageSet:
    parts = {name: images for name, images in splits.parts().items() if len(images)}
    if split == "all":
        whole, *rest = parts.values()
        for images in rest:
            whole = whole.joined(images)
        return whole
    if split not in parts:
        raise BadData(f"{splits.record.get('root')}: has no {split} pictures; has {sorted(parts)}")
    return parts[split]
