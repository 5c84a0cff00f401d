"""Pictures and a model -> a gallery, or an older gallery brought up to date."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cbml.gallery.changes import changes_since
from cbml.gallery.pictures import Listed
from cbml.gallery.scoring import Evaluate
from cbml.gallery.site import Settings, Site
from cbml.models import Embedder

if TYPE_CHECKING:
    from cbml.bayes import MatchProbability

__all__ = ["Built", "build"]


@dataclass(frozen=True, kw_only=True)
class Built:
    """What was done.

    Args:
        pictures: in the gallery now.
        embedded: how many went through the model.
        kept: how many did not have to.
        renamed: of the kept, how many have another path than before.
        removed: how many left.
        labels: different ones.
        duplicates: pictures whose content is that of another one in the gallery.
        bad: path and reason of every file that could not be read.
    """

    pictures: int
    embedded: int
    kept: int
    renamed: int
    removed: int
    labels: int
    duplicates: int
    bad: tuple[tuple[str, str], ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return dataclasses.asdict(self)


def build(
    model: Embedder,
    listed: Sequence[Listed],
    folder: Path | str,
    *,
    evaluate: Evaluate | None = None,
    calibration: "MatchProbability | None" = None,
    settings: Settings | None = None,
) -> Built:
    """Make a gallery of pictures, or bring one up to date: only new or changed files are embedded.

    Whatever ends it, also a kill, the folder holds a sound gallery, or none yet; the same call goes
    on where it stopped.

    Args:
        model: gives the vectors; a copy of it becomes part of the gallery.
        listed: the pictures that should be in it, as `list_pictures` gives them.
        folder: of the gallery; made if missing.
        evaluate: `cbml.evaluate`, to score every labelled picture as a query; None scores nothing.
        calibration: of the model, for match probabilities; fitted to these pictures here.
        settings: where the vectors live and the like.
    """
    site = Site(model, Path(folder), settings or Settings())
    changes = changes_since(site.known(), listed)
    site.drop(changes)
    embedded = site.embed(changes.new)
    site.finish(evaluate, calibration)
    pictures = site.state.pictures
    contents = Counter(picture.sha256 for picture in pictures)
    return Built(
        pictures=len(pictures),
        embedded=embedded,
        kept=len(changes.kept),
        renamed=changes.renamed,
        removed=site.removed,
        labels=len({picture.label for picture in pictures} - {None}),
        duplicates=len(pictures) - len(contents),
        bad=site.state.bad,
    )
