"""`cbml data`: look at datasets before learning from them."""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from cbml.cli.options import KnownAs, LabelColumn, LabelFrom, PathColumn
from cbml.program import command

verb = typer.Typer(
    help="Check, list and download datasets.", no_args_is_help=True, rich_markup_mode=None
)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@verb.command(name="check")
def _check(
    path: Annotated[
        str,
        typer.Argument(
            help="A folder, an archive, a table, or a dataset: emoji, cub …",
            metavar="DATA",
            show_default=False,
        ),
    ],
    known_as: KnownAs = None,
    labels: Annotated[
        Literal["folders", "names"], typer.Option(help="Where the labels are.")
    ] = "folders",
    label_from: LabelFrom = None,
    split: Annotated[
        Literal["stated", "classes"],
        typer.Option(help="Use the splits in the data, or make new ones by class."),
    ] = "stated",
    path_column: PathColumn = None,
    label_column: LabelColumn = None,
    seed: Annotated[int, typer.Option(help="Random seed for the held-out classes.")] = 0,
    sheet: Annotated[
        Path | None, typer.Option(help="Write a contact sheet (PNG) to this file.")
    ] = None,
    bad: Annotated[
        Path | None, typer.Option(help="Write unreadable images and reasons to this CSV file.")
    ] = None,
    workers: Annotated[int, typer.Option(help="Images decoded at once.")] = 2,
    as_json: AsJson = False,
) -> None:
    """Report what a folder, archive or table holds.

    The report says how the images are read and split, what is missing or left out, which files are
    unreadable or duplicates, and how to train. Nothing is refused: what `cbml train` would refuse
    is listed as a problem.

    \b
    Examples:
      cbml data check emoji --sheet emoji.png
      cbml data check my-images/ --json
      cbml data check photos/ --label-from '{label}_{n}'
    """
    from cbml.data import check, load_anyway
    from cbml.progress import reporter
    from cbml.runs import FIRST_RUNS

    options = {
        "seed": seed,
        "labels": labels,
        "label_from": label_from,
        "split": split,
        "path_column": path_column,
        "label_column": label_column,
    }
    splits = load_anyway(path, known_as, options)
    report = check(splits, workers=workers, progress=reporter("images read"))
    first = FIRST_RUNS["cpu"]
    answer = report.as_dict() | {
        "next": _next_command(path, known_as, report.as_dict(), options),
        "minutes": first.get(path, first["folder"]).minutes,
    }
    if sheet is not None:
        from cbml.data import contact_sheet

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
    """List the datasets known by name.

    \b
    Examples:
      cbml data list
      cbml data list --json
    """
    from cbml.data import DATASETS

    rows = [
        {
            "name": name,
            "title": spec.title,
            "summary": spec.summary,
            "page": spec.page,
            "fetched_by": command("data", "get", name) if spec.downloads else None,
            "installed": spec.installed is not None,
            "counts": {
                split: {"images": images, "classes": classes}
                for split, (images, classes) in spec.counts.items()
            },
        }
        for name, spec in DATASETS.items()
    ]
    if as_json:
        print(json.dumps(rows))
        return
    for row in rows:
        _print_set(row)


@verb.command(name="get")
def _get(
    name: Annotated[
        str, typer.Argument(help="Name of a dataset, such as cub.", show_default=False)
    ],
    folder: Annotated[
        Path | None,
        typer.Option(help="Where the files go; the cache folder by default.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Download a dataset; an interrupted download is resumed.

    \b
    Examples:
      cbml data get cub
      cbml data get sop --folder ~/archives
    """
    from cbml.data import cache_folder, find_dataset, get
    from cbml.progress import reporter

    target = cache_folder() / "downloads" if folder is None else folder.expanduser()
    spec = find_dataset(name)
    try:
        files = get(
            name, spec.downloads, target, page=spec.page, progress=reporter("bytes downloaded")
        )
    except KeyboardInterrupt:
        print("\ncbml: interrupted; the same command resumes", file=sys.stderr)
        raise SystemExit(130) from None
    if as_json:
        print(json.dumps({"name": name, "files": [str(file) for file in files]}))
    else:
        for file in files:
            print(file)


def _write_bad(path: Path, bad: list[tuple[str, str]]) -> None:
    from cbml.data import UnreadableImages

    listed = UnreadableImages([Path(name) for name, _ in bad], limit=1.0)
    for index, (_, reason) in enumerate(bad):
        listed.add(index, reason)
    listed.write(path)


def _next_command(
    path: str, known_as: str | None, answer: dict[str, Any], options: dict[str, Any]
) -> str:
    """The command line to try next; "" if there is nothing to train on, or not yet.

    Without labels it is that of a table that has them, or the one that needs none.
    """
    found = any(count["images"] for count in answer["record"]["counts"].values())
    unreadable = len(answer["problems"]) > len(answer["record"].get("problems", []))
    if not found or unreadable or "missing_extra" in answer["record"]:
        return ""
    table = None if answer["class_sizes"] else answer["record"].get("table")
    if table is not None:  # it labels what the folders do not
        return command("train", table)
    words = ["train", path]
    known_as = answer["record"].get("known_as", known_as)
    if known_as is not None:
        words += ["--as", known_as]
    if answer["record"].get("partial") or answer["record"].get("missing"):
        words.append("--allow-partial")
    if not answer["class_sizes"]:
        words += ["--labels", "names" if "name_pattern" in answer["record"] else "none"]
        options = options | {"labels": None, "label_from": None}  # they gave none
    given = {name: value for name, value in options.items() if name != "seed" and value is not None}
    defaults = {"labels": "folders", "split": "stated"}
    for name, value in given.items():
        if value != defaults.get(name):
            words += [f"--{name.replace('_', '-')}", str(value)]
    return command(*words)


def _print_report(answer: dict[str, Any]) -> None:
    record = answer["record"]
    own = answer["recognized"] in ("folder", "table", "unreadable")
    what = "" if own else f"{answer['recognized']}, "
    print(f"{record['root']}: {what}read as {record['layout']}")
    _print_some("group{s} of copies with different labels", _joined(answer["conflicts"]))
    short = record.get("short_classes", {"classes": 0, "examples": {}})
    loaded = record.get("problems", [])  # in one sentence what `partial` lists
    others = [problem for problem in answer["problems"] if problem not in loaded]
    for problem in [*(record.get("partial") or loaded), *others]:
        if not (short["classes"] and problem.startswith("missing: ")):  # told by class below
            print(f"  problem: {problem}")
    lacking = [f"{name}: {a:,} of {b:,} images" for name, (a, b) in short["examples"].items()]
    _print_some("class{es} with missing images", lacking, count=short["classes"])
    for name, count in record["counts"].items():
        line = f"  {name:<11}{count['images']:>9,} images"
        if name in answer["class_sizes"]:
            sizes = answer["class_sizes"][name]
            line += f" {count['classes']:>7,} classes of {sizes['smallest']:,}"
            if sizes["smallest"] < sizes["largest"]:
                line += f" to {sizes['largest']:,}, median {sizes['median']:g}"
        print(line)
    for note in record.get("notes", []):
        print(f"  {note}")
    uneven = len({*answer["largest"].values(), *answer["smallest"].values()}) > 1
    for which in ("largest", "smallest"):
        if uneven:
            named = ", ".join(f"{name} ({count:,})" for name, count in answer[which].items())
            print(f"  {which} classes: {named}")
    if answer["image_sizes"]:
        print(
            "  {median_width:.0f} x {median_height:.0f} pixels (median); {landscape:,} landscape, "
            "{portrait:,} portrait, {square:,} square".format(**answer["image_sizes"])
        )
    kinds = Counter(Path(name).suffix.lower() or "no suffix" for name in answer["ignored"])
    _print_some(
        "file{s} ignored, by suffix not an image",
        [f"{n:,} {k}" for k, n in kinds.most_common()],
        count=len(answer["ignored"]),
        rest=len(kinds),
    )
    _print_some("image{s} cannot be read", [f"{path}: {reason}" for path, reason in answer["bad"]])
    listed = answer["conflicts"]  # no group twice
    copies = [group for group in answer["duplicates"] if group not in listed]
    _print_some("group{s} of copies with the same label", _joined(copies))
    if answer["across"]:
        print(f"  copies in both train and test: {len(answer['across']):,}")
    if "sheet" in answer:
        print(f"  contact sheet: {answer['sheet']}")
    if not answer["next"]:
        print("  next:  solve the problem above, then check again")
        return
    print(
        f"  next:  {answer['next']}    # about {answer['minutes']} minutes on two CPU cores; "
        "--minutes chooses another time"
    )


def _joined(groups: list[list[str]]) -> list[str]:
    return [" = ".join(group) for group in groups]


def _print_some(
    what: str, lines: list[str], *, count: int | None = None, rest: int | None = None
) -> None:
    """A count and five lines; `count` where not every one has a line, `rest` where many share."""
    if not lines:
        return
    number = len(lines) if count is None else count
    more = (number if rest is None else rest) - 5
    plural = {"s": "", "es": ""} if number == 1 else {"s": "s", "es": "es"}
    print(f"  {number:,} {what.format_map(plural)}")
    for line in lines[:5]:
        print(f"    {line}")
    if more > 0:
        print(
            f"    and {more:,} more (--json lists {'them' if len(lines) == more + 5 else 'some'})"
        )


def _print_set(row: dict[str, Any]) -> None:
    print(f"{row['name']:<9} {row['summary']}")
    if row["counts"]:
        counts = "; ".join(
            f"{split} {count['images']:,} images of {count['classes']:,} classes"
            for split, count in row["counts"].items()
        )
        print(f"{'':<9} {counts}")
    how = row["fetched_by"] or ("pip" if row["installed"] else "by agreement")
    print(f"{'':<9} {how}: {row['page']}")
