"""The pictures whose pairs `cbml analyze` looks at: a set, or queries and a gallery."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cbml.pseudo import load_pictures
from cbml.training import note_test_look
from cbml.training.assembly import Shelf, load_splits
from cbml.training.measured import sample_places
from cbml.training.scoring import shows_test_pictures

if TYPE_CHECKING:
    from cbml.data import ImageSet
    from cbml.models import Embedder
    from cbml.training import Recipe

__all__ = ["Looked", "count_look", "looked_sets"]


@dataclass(frozen=True, eq=False)
class Looked:
    """Pictures that ask, and those that answer.

    Args:
        images: that ask.
        gallery: that answer; None where every picture does both.
        whole: what `images` are a sample of; None where they are all there are.
    """

    images: "ImageSet"
    gallery: "ImageSet | None" = None
    whole: "ImageSet | None" = None

    def __len__(self) -> int:
        return len(self.images) + (0 if self.gallery is None else len(self.gallery))

    @property
    def paths(self) -> tuple[Path, ...]:
        """Of all pictures on both sides."""
        return self.images.paths + (() if self.gallery is None else self.gallery.paths)

    @classmethod
    def of(cls, images: "ImageSet", seed: int) -> "Looked":
        """A set, or a sample of a large one.

        Args:
            images: the pictures.
            seed: of the sample.
        """
        places = sample_places(images.known_labels, seed)
        if len(places) == len(images):
            return cls(images)
        return cls(images.subset(places), whole=images)

    @classmethod
    def across(cls, query: "ImageSet", gallery: "ImageSet", seed: int) -> "Looked":
        """Queries and what they search, or a sample of both, of the same classes.

        Args:
            query: the pictures that ask.
            gallery: the pictures that answer.
            seed: of the sample.
        """
        places = sample_places(query.joined(gallery).known_labels, seed)
        asked = places < len(query)
        return cls(query.subset(places[asked]), gallery.subset(places[~asked] - len(query)))

    def embedded(self, model: "Embedder") -> dict[str, Any]:
        """Unit vectors and labels, as the functions of `cbml.bayes.analysis` take them.

        Args:
            model: in evaluation mode.
        """
        crop = model.preprocessing.crop
        asking = Shelf.of(self.images, crop)
        if self.gallery is None:
            return {"embeddings": asking.embedded(model), "labels": asking.images.known_labels}
        answering = Shelf.of(self.gallery, crop)
        return {
            "embeddings": asking.embedded(model),
            "labels": _names(asking.images),
            "gallery_embeddings": answering.embedded(model),
            "gallery_labels": _names(answering.images),
        }


def looked_sets(recipe: "Recipe", *, whole: bool, test: bool) -> dict[str, Looked]:
    """The pictures to look at: classes that were learned, and classes that were not.

    Args:
        recipe: names the set.
        whole: all pictures as one set.
        test: the test pictures too.
    """
    parts = {name: images for name, images in load_splits(recipe).parts().items() if len(images)}
    if whole:
        return {"given": Looked.of(_joined(parts.values()), recipe.seed)}
    if recipe.labels != "known" and not recipe.study:
        parts = _as_trained(recipe, parts)
    names = ("train", "validation", "test") if test else ("train", "validation")
    chosen = {name: Looked.of(parts[name], recipe.seed) for name in names if name in parts}
    if test and "query" in parts and "gallery" in parts:
        chosen["query × gallery"] = Looked.across(parts["query"], parts["gallery"], recipe.seed)
    return chosen


def count_look(run: Path, sets: Mapping[str, Looked]) -> None:
    """Note a look at test pictures in a run's record, whichever words have led to it.

    Args:
        run: its folder.
        sets: what is looked at.
    """
    if shows_test_pictures(run, (path for looked in sets.values() for path in looked.paths)):
        note_test_look(run)


def _as_trained(recipe: "Recipe", parts: Mapping[str, "ImageSet"]) -> dict[str, "ImageSet"]:
    """The parts for a run that knew no labels: nothing was held out but what is only for testing.

    Args:
        recipe: of the run.
        parts: as a run with labels would have them.
    """
    learned = _joined(parts[name] for name in ("train", "validation") if name in parts)
    # Of a plain folder all pictures are trained on; then none of them can test anything.
    seen = set(load_pictures(recipe).train.paths)
    rest = {name: images for name, images in parts.items() if name not in ("train", "validation")}
    unseen = {name: images for name, images in rest.items() if seen.isdisjoint(images.paths)}
    return {"train": learned, **unseen}


def _joined(sets: Iterable["ImageSet"]) -> "ImageSet":
    joined, *rest = sets
    for images in rest:
        joined = joined.joined(images)
    return joined


def _names(images: "ImageSet") -> Any:
    """The class of each picture: two sets name one class by one name, not by one number."""
    return np.array(images.class_names)[images.known_labels]
