"""Anybody's table of pictures: CSV or Parquet with path, label, split and role."""

import csv
import os
from pathlib import Path

from cbml.data.catalogue.own import SPLIT_NAMES, made_splits, stated_splits, unlabelled
from cbml.data.catalogue.protocol import Found
from cbml.data.images import ROLES, Splits
from cbml.data.splits import Fold
from cbml.errors import BadData, MissingExtra

__all__ = ["table"]

_COLUMNS = ("path", "label", "split", "role")
_LISTED = 5

Columns = dict[str, list[str]]


def table(
    path: Path | str,
    *,
    root: Path | str | None = None,
    test: float = 0.5,
    validation: float | Fold = 0.2,
    seed: int = 0,
    allow_partial: bool = False,
) -> Splits:
    """Pictures named by a table with the columns path and, where known, label, split, role.

    Without `label` all pictures are unlabelled. `split` is train, validation, test, query or
    gallery; without it half of the classes, chosen with the seed, are kept for the test. `role` is
    query or gallery, and empty for pictures to train on; it refines the split test. Files with the
    same bytes on both sides of the split are warned of and recorded.

    Args:
        path: a .csv (comma-separated, UTF-8, with a header) or a .parquet file.
        root: what relative paths start from; the folder of the table when None.
        test: share of the classes to test on where no split is stated; 0 for none.
        validation: share of the training classes to hold out, 0 for none; or a Fold.
        seed: of the choice of classes.
        allow_partial: leave out rows whose file is missing; recorded.
    """
    source = Path(path)
    columns = _read(source)
    start = source.parent if root is None else Path(root)
    files = [start / name for name in columns["path"]]
    missing = [row for row, file in enumerate(files) if not os.path.isfile(file)]
    if missing and not allow_partial:
        raise BadData(
            f"{source}: {len(missing):,} of {len(files):,} files are missing: "
            + ", ".join(f"row {row + 1} {files[row]}" for row in missing[:_LISTED])
            + "; complete them, or leave them out with --allow-partial (allow_partial=True)"
        )
    absent = set(missing)
    rows = [row for row in range(len(files)) if row not in absent]
    if "label" not in columns:
        splits = unlabelled("table", source, "a table", tuple(files[row] for row in rows))
    else:
        found = Found("a table", source)
        for row in rows:
            label = columns["label"][row]
            if not label:
                raise BadData(f"{source}: row {row + 1} has no label; fill it, or drop the column")
            found.add_all([files[row]], label, _split(source, columns, row))
        if "split" in columns or "role" in columns:
            splits = stated_splits("table", found, validation=validation, seed=seed)
        else:
            splits = made_splits("table", found, test=test, validation=validation, seed=seed)
    splits.record.update(allow_partial=allow_partial, missing=len(missing))
    return splits


def _split(source: Path, columns: Columns, row: int) -> str:
    role = columns["role"][row].casefold() if "role" in columns else ""
    if role and role not in ROLES:
        raise BadData(f"{source}: row {row + 1} has the role {role!r}, not query or gallery")
    if "split" not in columns:
        return role or "train"
    stated = columns["split"][row].casefold()
    if stated not in SPLIT_NAMES:
        known = ", ".join(dict.fromkeys(SPLIT_NAMES.values()))
        raise BadData(f"{source}: row {row + 1} has the split {stated!r}, not one of {known}")
    split = SPLIT_NAMES[stated]
    return role if role and split == "test" else split


def _read(source: Path) -> Columns:
    if not source.is_file():
        raise BadData(f"{source}: no such table")
    read = _read_parquet if source.suffix.lower() in {".parquet", ".pq"} else _read_csv
    columns = read(source)
    if "path" not in columns:
        raise BadData(
            f"{source}: no column 'path' but {', '.join(columns) or 'nothing'}; name the column "
            "of the files 'path', that of the classes 'label'"
        )
    known = {name: values for name, values in columns.items() if name in _COLUMNS}
    for row, name in enumerate(known["path"], start=1):
        if not name:
            raise BadData(f"{source}: row {row} has no path")
    if not known["path"]:
        raise BadData(f"{source}: has no rows")
    return known


def _read_csv(source: Path) -> Columns:
    columns: Columns = {}
    try:
        with source.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file, strict=True)
            names = [name.strip().casefold() for name in next(rows, [])]
            columns = {name: [] for name in names}
            for number, row in enumerate(rows, start=1):
                if row and len(row) != len(names):
                    raise BadData(
                        f"{source}: row {number} has {len(row)} values for {len(names)} columns"
                    )
                for name, value in zip(names, row, strict=False):
                    columns[name].append(value.strip())
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadData(f"{source}: not a UTF-8 CSV table ({error})") from None
    return columns


def _read_parquet(source: Path) -> Columns:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise MissingExtra("pyarrow", "table") from None
    try:
        content = parquet.read_table(source)
    except (ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:100]
        raise BadData(f"{source}: not a Parquet table ({reason})") from None
    return {
        name.casefold(): ["" if value is None else str(value) for value in column.to_pylist()]
        for name, column in zip(content.column_names, content.columns, strict=True)
    }
