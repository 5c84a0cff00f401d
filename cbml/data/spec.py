"""What is known of a benchmark: its name, what it must hold, how to recognize it, where to get it.

A new dataset is one file below `catalog` with a `DatasetSpec` and one line in `datasets.py`.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cbml.data.discovery import Found, locate
from cbml.data.downloads import Download, cache_folder
from cbml.data.image_dataset import ROLES, Splits
from cbml.data.splits import count_images, hold_out_classes, pair_roles, split_notes
from cbml.errors import BadData
from cbml.program import command

_LISTED = 10
_SHORT_LISTED = 100


@dataclass(frozen=True, kw_only=True)
class DatasetSpec:
    """A benchmark with a published protocol; called with a folder it gives its splits.

    Args:
        name: The name that users type, such as "cub".
        title: Full name of the dataset.
        printed_name: Its name in the paper's tables.
        summary: One line for `cbml data list`.
        counts: Images and classes of each split, as published.
        find: Reads a folder or an archive, whatever its layout.
        page: Home page, with the terms of use.
        markers: Groups of files of which one group is enough to recognize it.
        confirms: Whether the folder of the marker files names this dataset's classes; None where
            the markers are enough.
        class_of: The official class that a folder's name stands for, None for other names.
        archives: Names of the official archives, and of the folders they unpack to.
        downloads: The files to fetch; none where the owners ask for an agreement first.
        installed: Where a package has put the images, for a dataset that comes with pip.
    """

    name: str
    title: str
    printed_name: str
    summary: str
    counts: Mapping[str, tuple[int, int]]
    find: Callable[[Path | str], Found]
    page: str
    markers: tuple[tuple[str, ...], ...] = ()
    confirms: Callable[[Path], bool] | None = None
    class_of: Callable[[str], str | None] | None = None
    archives: tuple[str, ...] = ()
    downloads: tuple[Download, ...] = ()
    installed: Callable[[], Path] | None = None

    def __call__(
        self,
        root: Path | str | None = None,
        *,
        validation: float = 0.2,
        seed: int = 0,
        allow_partial: bool = False,
    ) -> Splits:
        """The splits of the protocol; raises BadData with all that is missing or extra.

        Args:
            root: The dataset's folder, one above it, or an archive of it; when None it is looked
                for where CBML_DATA says and where `cbml data get` puts it.
            validation: Share of the training classes to hold out; 0 for none.
            seed: Random seed of the choice of held-out classes.
            allow_partial: Accept a dataset that is not whole; recorded.
        """
        found = self.find(self.locate() if root is None else root)
        problems = _problems(found, self.counts)
        if problems and not (allow_partial and found.paths):
            raise BadData(
                f"{self.name}: {found.root} (read as {found.layout}) is not the whole dataset: "
                f"{'; '.join(problems)}. Complete it, or accept what is there with --allow-partial "
                "(allow_partial=True)"
            )
        train, held = hold_out_classes(found.images(("train",)), share=validation, seed=seed)
        test = query = gallery = None
        if "query" in self.counts:
            query, gallery = pair_roles(found.images(ROLES))
        else:
            test = found.images(("test",))
        record = self._record(found, problems)
        record |= {"validation": validation, "seed": seed, "allow_partial": allow_partial}
        splits = Splits(train, held, test, query, gallery, record)
        record["counts"] = count_images(splits)
        record["notes"] = split_notes(splits, test=0, validation=validation)
        return splits

    def locate(self) -> Path:
        """The folder or archive of the dataset on this machine."""
        if self.installed is not None:
            return self.installed()
        own = os.environ.get("CBML_DATA")
        folders = [Path(own).expanduser()] if own else []
        candidates = (self.name, *self.archives)
        for folder in [*folders, cache_folder() / "downloads"]:
            for candidate in candidates:
                if (folder / candidate).exists():
                    return folder / candidate
        searched = f"in CBML_DATA ({own})" if own else "CBML_DATA is not set"
        fetch = f"fetch it with  {command('data', 'get', self.name)}"
        if not self.downloads:
            fetch = f"ask its owners for it, see {self.page}"
        raise BadData(
            f"{self.name}: not found ({searched}, not downloaded); {fetch}, give its folder or "
            "archive instead of the name, or set CBML_DATA to the folder that holds one of: "
            f"{', '.join(candidates)}"
        )

    def is_marked(self, root: Path) -> bool:
        """Whether the marker files of this dataset are there, and are its own.

        Args:
            root: The dataset's folder, or one above it.
        """
        folders = [locate(root, marks) for marks in self.markers]
        return any(
            folder is not None and (self.confirms is None or self.confirms(folder))
            for folder in folders
        )

    def resemblance(self, root: Path) -> str | None:
        """What the marker files of a folder that is not this dataset say; None without any.

        Args:
            root: Folder for which `is_marked` is False.
        """
        for marks in self.markers:
            here = [name for name in marks if locate(root, [name]) is not None]
            if not here:
                continue
            lacking = [name for name in marks if name not in here]
            if lacking:
                but = f"without {' and '.join(lacking)}, which it needs"
            else:
                but = "but for other classes"
            return f"{' and '.join(here)} as in {self.title}, {but}: read as a plain folder"
        return None

    @property
    def num_classes(self) -> int:
        """Classes of all splits together."""
        return self.counts["train"][1] + self.counts.get("test", self.counts.get("query"))[1]  # type: ignore[index]

    def _record(self, found: Found, problems: list[str]) -> dict[str, Any]:
        counts = found.class_counts()
        return {
            "dataset": self.name,
            "root": str(found.root),
            "layout": found.layout,
            "partial": problems,
            "short_classes": {
                "classes": len(counts),
                "examples": dict(list(counts.items())[:_SHORT_LISTED]),
            },
            "shared_classes": 0,
            "scores_for": "unseen classes",
        }


def unrecognized(name: str, root: Path, layouts: Sequence[str]) -> BadData:
    """The error for a folder in which no layout was found."""
    return BadData(f"{name}: nothing recognized in {root}; expected {', or '.join(layouts)}")


def _problems(found: Found, expected: Mapping[str, tuple[int, int]]) -> list[str]:
    problems = []
    splits = np.array(found.splits)
    for split, (images, classes) in expected.items():
        indices = np.flatnonzero(splits == split).tolist()
        here = (len(indices), len({found.classes[index] for index in indices}))
        if here != (images, classes):
            problems.append(
                f"{split} has {here[0]:,} images of {here[1]:,} classes, "
                f"expected {images:,} of {classes:,}"
            )
    if found.missing:
        problems.append(_listed("missing", found.missing))
    if problems and found.extra:
        problems.append(_listed("extra", found.extra))
    return problems


def _listed(what: str, names: list[str]) -> str:
    shown = ", ".join(names[:_LISTED])
    return f"{what}: {shown}" + (f" and {len(names) - _LISTED:,} more" if names[_LISTED:] else "")
