"""`cbml data`: look at picture sets before learning from them."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["verb"]

verb = typer.Typer(
    help="Check, list and fetch sets of pictures.", no_args_is_help=True, rich_markup_mode=None
)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@verb.command(name="check")
def _check(
    path: Annotated[
        str,
        typer.Argument(
            help="A folder, an archive, a table, or a set: emoji, cub …", show_default=False
        ),
    ],
    known_as: Annotated[
        str | None,
        typer.Option("--as", help="The set it is, when it is not recognised.", show_default=False),
    ] = None,
    allow_partial: Annotated[
        bool, typer.Option("--allow-partial", help="Accept a set that is not whole.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of the choice of held-out classes.")] = 0,
    sheet: Annotated[
        Path | None, typer.Option(help="Write a contact sheet (PNG) to this file.")
    ] = None,
    bad: Annotated[
        Path | None, typer.Option(help="Write bad_images.csv, path and reason, to this file.")
    ] = None,
    workers: Annotated[int, typer.Option(help="Pictures decoded at once.")] = 2,
    as_json: AsJson = False,
) -> None:
    """Tell what a folder, archive or table holds: splits, class sizes, bad pictures, duplicates.

    Files of a folder that are no pictures by their suffix, such as .heic, are counted and named.

    \b
    Examples:
      cbml data check emoji --sheet emoji.png
      cbml data check my-pictures/ --json
    """
    from cbml.data.checks import check, load

    splits = load(path, known_as, seed=seed, allow_partial=allow_partial)
    report = check(splits, workers=workers, progress=_progress("reading", "pictures"))
    answer = report.as_dict()
    if sheet is not None:
        from cbml.data.sheet import contact_sheet

        contact_sheet(splits, sheet)
        answer["sheet"] = str(sheet)
    if bad is not None:
        _write_bad(bad, report.bad)
    if as_json:
        print(json.dumps(answer, ensure_ascii=False))
    else:
        _print_report(answer)


@verb.command(name="list")
def _list(as_json: AsJson = False) -> None:
    """List the sets known by name, what they must hold, and where they come from.

    \b
    Examples:
      cbml data list
      cbml data list --json
    """
    from cbml.data.catalogue.protocol import COUNTS
    from cbml.data.datasets import DATASETS
    from cbml.data.download import SOURCES

    rows = []
    for name, function in DATASETS.items():
        source = SOURCES.get(name)
        about = (function.__doc__ or "").splitlines()[0]
        rows.append(
            {
                "name": name,
                "about": about,
                "page": source.page if source else None,
                "fetched_by": f"cbml data get {name}" if source and source.files else None,
                "counts": {
                    split: {"pictures": pictures, "classes": classes}
                    for split, (pictures, classes) in COUNTS.get(name, {}).items()
                },
            }
        )
    if as_json:
        print(json.dumps(rows))
        return
    for row in rows:
        _print_set(row)


@verb.command(name="get")
def _get(
    name: Annotated[str, typer.Argument(help="cub, cars or sop.", show_default=False)],
    folder: Annotated[
        Path | None,
        typer.Option(help="Where the files go; the cache folder by default.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fetch a set from its official address; an interrupted transfer goes on where it stopped.

    \b
    Examples:
      cbml data get cub
      cbml data get sop --folder ~/archives
    """
    from cbml.data.cache import cache_folder
    from cbml.data.download import get

    target = cache_folder() / "downloads" if folder is None else folder.expanduser()
    try:
        files = get(name, target, progress=_progress("fetching", "bytes"))
    except KeyboardInterrupt:
        print("\ncbml: interrupted; the same command goes on where it stopped", file=sys.stderr)
        raise SystemExit(130) from None
    if as_json:
        print(json.dumps({"name": name, "files": [str(file) for file in files]}))
    else:
        for file in files:
            print(file)


def _progress(action: str, unit: str) -> Callable[[int, int], None]:
    """A line on standard error with rate and time left: rewritten on a terminal, else sparse."""
    start = last = time.monotonic()
    terminal = sys.stderr.isatty()
    first: int | None = None

    def show(done: int, total: int) -> None:
        nonlocal last, first
        now = time.monotonic()
        first = done if first is None else first
        if done != total and now - last < (0.2 if terminal else 10):
            return
        last = now
        rate = (done - first) / (now - start) if now > start else 0.0
        left = f", {(total - done) / rate:,.0f} s left" if rate and total else ""
        share = f" of {total:,}" if total else ""
        text = f"{action} {done:,}{share} {unit}, {rate:,.0f}/s{left}"
        end = "\n" if not terminal or done == total else ""
        print(f"\r\x1b[K{text}" if terminal else text, end=end, file=sys.stderr, flush=True)

    return show


def _write_bad(path: Path, bad: list[tuple[str, str]]) -> None:
    from cbml.data.pictures import BadPictures

    listed = BadPictures([Path(name) for name, _ in bad], limit=1.0)
    for index, (_, reason) in enumerate(bad):
        listed.add(index, reason)
    listed.write(path)


def _print_report(answer: dict[str, Any]) -> None:
    record = answer["record"]
    print(f"{record['root']}: {answer['recognised']}, read as {record['layout']}")
    for problem in record.get("partial", []):
        print(f"  partial: {problem}")
    for name, count in record["counts"].items():
        line = f"  {name:<11}{count['pictures']:>9,} pictures"
        if name in answer["class_sizes"]:
            sizes = answer["class_sizes"][name]
            line += (
                f" {count['classes']:>7,} classes of {sizes['smallest']} to {sizes['largest']}, "
                f"median {sizes['median']:g}"
            )
        print(line)
    for note in record.get("notes", []):
        print(f"  {note}")
    if answer["ignored"]:
        _print_some("ignored, of no picture format that is read here", answer["ignored"])
    _print_some("cannot be read", [f"{path}: {reason}" for path, reason in answer["bad"]])
    _print_some("groups of equal files", [" = ".join(group) for group in answer["duplicates"]])
    _print_some("of them in train and test", [" = ".join(group) for group in answer["across"]])
    if "sheet" in answer:
        print(f"  contact sheet: {answer['sheet']}")


def _print_some(what: str, lines: list[str]) -> None:
    print(f"  {len(lines):,} {what}")
    for line in lines[:5]:
        print(f"    {line}")
    if len(lines) > 5:
        print(f"    and {len(lines) - 5:,} more (--json lists all)")


def _print_set(row: dict[str, Any]) -> None:
    print(f"{row['name']:<9} {row['about']}")
    if row["counts"]:
        counts = "; ".join(
            f"{split} {count['pictures']:,} pictures of {count['classes']:,} classes"
            for split, count in row["counts"].items()
        )
        print(f"{'':<9} {counts}")
    if row["page"]:
        print(f"{'':<9} {row['fetched_by'] or 'by agreement'}: {row['page']}")
