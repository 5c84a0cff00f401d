"""Your own table of images: CSV, JSON lines or Parquet with paths and, where known, labels."""

import contextlib
import csv
import io
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from cbml.data.discovery import Found
from cbml.data.image_dataset import ROLES, Splits
from cbml.data.splits import SPLIT_NAMES, class_splits, stated_splits, unlabeled_splits
from cbml.errors import BadData, MissingExtra
from cbml.regular import open_regular

_JSON_SUFFIXES = {".jsonl", ".ndjson"}
_PARQUET_SUFFIXES = {".parquet", ".pq"}
TABLE_SUFFIXES = frozenset({".csv", ".tsv"} | _JSON_SUFFIXES | _PARQUET_SUFFIXES)
# Other names for our columns, the likeliest first; compared without case, spaces and dashes.
_SYNONYMS = {
    "path": (
        "path", "image", "file", "filename", "file_name", "filepath", "file_path", "image_path",
        "image_file", "image_name", "img", "img_path",
    ),
    "label": (
        "label", "class", "category", "target", "label_name", "class_name", "category_name",
        "label_id", "class_id", "category_id",
    ),
    "split": ("split", "subset", "partition"),
    "role": ("role",),
}  # fmt: skip
_LISTED = 5
_SHOWN = 100

Columns = dict[str, list[str]]


def table(
    path: Path | str,
    *,
    root: Path | str | None = None,
    test: float = 0.5,
    validation: float = 0.2,
    seed: int = 0,
    allow_partial: bool = False,
    split: Literal["stated", "classes"] = "stated",
    path_column: str | None = None,
    label_column: str | None = None,
) -> Splits:
    """Images named by a table with columns for the path and, where known, label, split, role.

    Columns are found by their usual names (path, image, file, filename ...; label, class, category,
    target ...). Without a label all images are unlabeled. `split` is train, validation, test, query
    or gallery; without it half of the classes, chosen with the seed, are kept for the test. `role`
    is query or gallery, and empty for images to train on; it refines the split test. Files with the
    same bytes on both sides of the split are warned of and recorded.

    Args:
        path: A .csv (commas, semicolons or tabs, with a header), .jsonl or .parquet file.
        root: What relative paths start from; the folder of the table when None.
        test: Share of the classes to test on where no split is stated; 0 for none.
        validation: Share of the training classes to hold out; 0 for none.
        seed: Random seed of the choice of classes.
        allow_partial: Leave out rows whose file is missing; recorded.
        split: "stated" takes the splits that are there; "classes" keeps the classes apart instead.
        path_column: Name of the column of the files.
        label_column: Name of the column of the classes.
    """
    source = Path(path).expanduser()
    columns = _known(source, _read(source), path_column, label_column)
    start = source.parent if root is None else Path(root)
    files = [start / name for name in columns["path"]]
    missing = {row for row, file in enumerate(files) if not os.path.lexists(file)}
    if missing and not allow_partial:
        raise BadData(
            f"{source}: {len(missing):,} of {len(files):,} files are missing: "
            + ", ".join(f"row {row + 1} {_short(files[row])}" for row in sorted(missing)[:_LISTED])
            + "; add them, or leave these rows out with --allow-partial (allow_partial=True)"
        )
    rows = [row for row in range(len(files)) if row not in missing]
    if "label" not in columns:
        splits = unlabeled_splits("table", source, "a table", [files[row] for row in rows])
    else:
        found = Found("a table", source)
        _add_rows(found, columns, rows, files)
        stated = split == "stated" and ("split" in columns or "role" in columns)
        splits = (
            stated_splits("table", found, validation=validation, seed=seed)
            if stated
            else class_splits("table", found, test=test, validation=validation, seed=seed)
        )
    splits.record.update(allow_partial=allow_partial, missing=len(missing))
    return splits


def find_metadata(root: Path) -> dict[str, Path]:
    """Split -> metadata file, as Hugging Face's image folders have it: at the top or in splits."""
    found: dict[str, Path] = {}
    splits = [entry for entry in sorted(root.iterdir()) if entry.name.casefold() in SPLIT_NAMES]
    for folder, split in [
        (root, ""),
        *((entry, SPLIT_NAMES[entry.name.casefold()]) for entry in splits),
    ]:
        for suffix in (".csv", ".jsonl", ".parquet"):
            if split not in found and os.path.isfile(folder / f"metadata{suffix}"):
                found[split] = folder / f"metadata{suffix}"
    return found


def find_table(root: Path) -> tuple[Path, int] | None:
    """A table at the top of a folder that labels images of it, and how many; None without one."""
    for source in sorted(root.iterdir()):
        if source.suffix.lower() not in TABLE_SUFFIXES or source.stem == "metadata":
            continue
        with contextlib.suppress(BadData, MissingExtra):
            columns = _known(source, _read(source), None, None)
            here = sum(os.path.lexists(root / name) for name in columns["path"])
            if "label" in columns and 2 * here > len(columns["path"]):
                return source, here
    return None


def metadata_splits(root: Path) -> Found | None:
    """The images that metadata files label; None where they have no labels."""
    found = Found("metadata with labels", root)
    for split, source in find_metadata(root).items():
        columns = _known(source, _read(source), None, None)
        if "label" not in columns:
            return None
        files = [source.parent / name for name in columns["path"]]
        rows = [row for row, file in enumerate(files) if os.path.lexists(file)]
        if split:
            columns["split"] = [split] * len(files)
        _add_rows(found, columns, rows, files)
    return found if found.paths else None


def _add_rows(found: Found, columns: Columns, rows: Iterable[int], files: list[Path]) -> None:
    for row in rows:
        label = columns["label"][row]
        if not label:
            raise BadData(f"{found.root}: row {row + 1} has no label; fill it, or drop the column")
        found.add_all([files[row]], label, _split(found.root, columns, row))


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


def _known(
    source: Path,
    columns: Mapping[str, list[str]],
    path_column: str | None,
    label_column: str | None,
) -> Columns:
    """The columns that mean something here, under our names."""
    wanted = {"path": path_column, "label": label_column}
    by_name = {_plain(name): values for name, values in columns.items()}
    known: Columns = {}
    for ours, synonyms in _SYNONYMS.items():
        named = wanted.get(ours)
        if named is not None and _plain(named) not in by_name:
            raise BadData(f"{source}: no column {named!r}, only {', '.join(columns) or 'nothing'}")
        for name in [named] if named is not None else synonyms:
            if _plain(name) in by_name:
                known[ours] = by_name[_plain(name)]
                break
    if "path" not in known:
        raise BadData(
            f"{source}: no column 'path', only {', '.join(columns) or 'nothing'}; name the "
            "column of the files with --path-column, and that of the labels with --label-column"
        )
    for row, name in enumerate(known["path"], start=1):
        if not name:
            raise BadData(f"{source}: row {row} has no path")
    if not known["path"]:
        raise BadData(f"{source}: has no rows")
    return known


def _plain(name: str) -> str:
    return name.strip().casefold().replace(" ", "_").replace("-", "_")


def _short(path: Path) -> str:
    text = str(path)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _read(source: Path) -> Columns:
    if not os.path.isfile(source):
        raise BadData(f"{_short(source)}: no such table")
    suffix = source.suffix.lower()
    if suffix in _PARQUET_SUFFIXES:
        return _read_parquet(source)
    try:
        with open_regular(source) as file:
            content = file.read()
        # Spreadsheets write "Unicode text" as UTF-16; both its orders begin with a mark.
        wide = content[:2] in (b"\xff\xfe", b"\xfe\xff")
        text = content.decode("utf-16" if wide else "utf-8-sig")
        return _read_json(source, text) if suffix in _JSON_SUFFIXES else _read_csv(source, text)
    except OSError as error:
        raise BadData(f"{source}: cannot be read ({error.strerror})") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadData(f"{source}: not a UTF-8 CSV table ({error})") from None


def _read_csv(source: Path, text: str) -> Columns:
    header = text.partition("\n")[0]
    delimiter = max(",;\t", key=header.count)  # a comma where there is one column
    rows = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=delimiter)
    names = [name.strip() for name in next(rows, [])]
    columns: Columns = {name: [] for name in names}
    for number, row in enumerate(rows, start=1):
        if row and len(row) != len(names):
            raise BadData(f"{source}: row {number} has {len(row)} values for {len(names)} columns")
        for name, value in zip(names, row, strict=False):
            columns[name].append(value.strip())
    return columns


def _read_json(source: Path, text: str) -> Columns:
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            if not isinstance(row, dict):
                raise BadData(f"{source}: line {number} is not a JSON object")
            rows.append(row)
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [_text(row.get(name)) for row in rows] for name in names}


def _read_parquet(source: Path) -> Columns:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise MissingExtra("pyarrow", "table") from None
    try:
        with open_regular(source) as file:
            # Without threads: theirs may still run as Python ends, which aborts the program.
            table = parquet.ParquetFile(file, pre_buffer=False)
            content = table.read(use_threads=False)
    except (ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:100]
        raise BadData(f"{source}: not a Parquet table ({reason})") from None
    columns = zip(content.column_names, content.columns, strict=True)
    return {name: [_text(value) for value in column.to_pylist()] for name, column in columns}


def _text(value: object) -> str:
    if isinstance(value, dict):
        raise BadData("tables that contain images are not read; save the images as files first")
    return "" if value is None else str(value)
