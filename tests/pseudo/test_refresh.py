"""What a refresh says, whom it stops, and where unreadable pictures go."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cbml.data import ImageSet
from cbml.losses import CBMLLoss
from cbml.models import Embedder
from cbml.pseudo import Refresh
from cbml.training import BadNumbers, Team
from cbml.training.assembly import Shelf
from tests.pseudo.small import batches
from tests.training.small import CROP, embedder


def model() -> Embedder:
    made = embedder("frozen_statistics")
    made.preprocessing = made.preprocessing.with_crop(CROP)
    return made


def refresh(shelf: Shelf, **options: object) -> Refresh:
    given = {"clusters": 6, "every": 2, "cluster_by": "embedding", **options}
    return Refresh(shelf=shelf, loss=CBMLLoss(), team=Team(), **given)


def grey(folder: Path, count: int) -> ImageSet:
    """Pictures that are all the same to any network."""
    folder.mkdir()
    for number in range(count):
        Image.fromarray(np.full((20, 20, 3), 100, np.uint8)).save(folder / f"{number}.png")
    return ImageSet(tuple(sorted(folder.iterdir())))


def test_labels_come_every_so_many_passes(images: ImageSet) -> None:
    shelf = Shelf.of(images, CROP)
    made, asked = batches(images, shelf, Team()), refresh(shelf)
    assert asked(model(), made) is not None
    made.sampler.epoch = 1
    assert asked(model(), made) is None
    made.sampler.epoch = 2
    assert asked(model(), made) is not None


def test_collapse_warns_stops_or_is_ignored(tmp_path: Path) -> None:
    images = grey(tmp_path / "grey", 24)
    shelf = Shelf.of(images, CROP)
    made = batches(images, shelf, Team())
    found = refresh(shelf)(model(), made)
    assert found is not None
    assert "all alike" in found.facts["collapse"]
    assert "collapse: pictures are all alike" in found.text
    quiet = refresh(shelf, collapse="ignore")(model(), made)
    assert quiet is not None
    assert "collapse" not in quiet.facts
    with pytest.raises(BadNumbers, match="collapse: pictures are all alike"):
        refresh(shelf, collapse="stop")(model(), made)
    made.relabel(found.labels)
    assert len(next(iter(made)).labels) >= 12, "one cluster still fills a batch"


def test_an_unreadable_picture_gets_the_label_of_the_next(images: ImageSet, tmp_path: Path) -> None:
    paths = list(images.paths)
    for place in (0, 17, 44):
        paths.insert(place, tmp_path / f"bad-{place}.png")
        paths[place].write_bytes(b"no picture")
    whole = ImageSet(tuple(paths))
    shelf = Shelf.of(whole, CROP)
    assert len(shelf.numbers) == len(images)
    made = batches(whole, shelf, Team())
    found = refresh(shelf)(model(), made)
    assert found is not None
    assert found.labels[0] == found.labels[1]
    assert found.labels[17] == found.labels[18]
    assert found.labels[44] == found.labels[43], "none behind it: the last readable one"
    made.relabel(found.labels)
    for batch in made:
        assert not {0, 17, 44} & set(batch.indices.tolist())
    assert set(made.bad.reasons) <= {0, 17, 44}


def test_study_is_written_down_and_changes_nothing(images: ImageSet) -> None:
    shelf = Shelf.of(images, CROP)
    made = batches(images, shelf, Team())
    plain = refresh(shelf)(model(), made)
    studied = refresh(shelf, study=lambda _, labels: {"nmi": len(labels) / 84})(model(), made)
    assert plain is not None
    assert studied is not None
    assert studied.facts == {**plain.facts, "study": {"nmi": 0.5}}
    assert studied.text.endswith("; study: nmi 0.5000")
    assert studied.labels.tolist() == plain.labels.tolist()
