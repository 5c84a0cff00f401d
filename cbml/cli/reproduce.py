"""`cbml reproduce`: the tables of the paper with our code."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from cbml.cli import resumable
from cbml.cli.options import AsJson
from cbml.progress import duration, say

if TYPE_CHECKING:
    from cbml.experiments import Cost, Entry, JobCounts, Plan, Sources

_AGAIN = "the same command resumes there"


def verb(
    table: Annotated[
        str | None, typer.Argument(metavar="TABLE", help="A table or figure that --list shows.")
    ] = None,
    listed: Annotated[
        bool,
        typer.Option(
            "--list", help="List the tables, or the rows of TABLE with what they need and cost."
        ),
    ] = False,
    scale: Annotated[
        Literal["laptop", "full"], typer.Option(help="A small network or the paper's settings.")
    ] = "laptop",
    data: Annotated[
        str | None,
        typer.Option(help="Name of a dataset, such as emoji or cub.", show_default=False),
    ] = None,
    root: Annotated[
        str | None, typer.Option(help="Folder or archive of the images.", show_default=False)
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="File with the backbone's weights.", show_default=False)
    ] = None,
    trials: Annotated[
        bool, typer.Option("--trials", help="Try learning rates on validation classes.")
    ] = False,
    seeds: Annotated[
        int | None,
        typer.Option(help="Number of seeds, from 0; 3 by default, 1 for the leaderboard.", min=1),
    ] = None,
    model_selection: Annotated[
        Literal["validation", "test"],
        typer.Option(
            help="test selects models on the test classes, as the paper does; optimistic."
        ),
    ] = "validation",
    only: Annotated[
        list[str] | None, typer.Option(help="Only rows that match this pattern, such as 'CBML*'.")
    ] = None,
    loss: Annotated[
        list[str] | None,
        typer.Option(help="package.module:Class; adds a row for your own loss."),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="package.module:Class; adds a row for your own method."),
    ] = None,
    labels: Annotated[
        Literal["known", "none"],
        typer.Option(help="Leaderboard of the methods that learn with or without labels."),
    ] = "known",
    backbone: Annotated[
        str | None,
        typer.Option(help="Another network for all rows, by name or package.module:function."),
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="key=value, or key=value,value to sweep.")
    ] = None,
    searched: Annotated[
        list[str] | None,
        typer.Option(
            "--search", help="key=low:high; Optuna searches, scored on validation classes."
        ),
    ] = None,
    count: Annotated[int, typer.Option(help="Number of runs in a search.", min=1)] = 20,
    out: Annotated[Path, typer.Option(help="Folder for runs and records.")] = Path("reproduction"),
    as_json: AsJson = False,
) -> None:
    """Run the rows of one of the paper's tables.

    Finished runs are not repeated, and interrupted ones resume. Machines that share the folder
    given by --out divide the work. Run --trials first: it tries the same number of learning rates
    for each row on held-out training classes, and later runs use the best. Records are lines of
    JSON in OUT/TABLE-SCALE/.

    \b
    Examples:
      cbml reproduce --list
      cbml reproduce loss-ablation --data emoji --trials
      cbml reproduce loss-ablation --data emoji --trials --only MS --set learning_rate=5e-5
      cbml reproduce loss-ablation --data emoji --seeds 3
      cbml reproduce loss-ablation --data cub --root ~/CUB_200_2011 --only 'CBML*' --seeds 1
      cbml reproduce loss-ablation --only 'CBML +MVC' --set variance_weight=0.0,0.1,1,2
      cbml reproduce loss-ablation --only MS --search learning_rate=1e-5:1e-3 --count 20
      cbml reproduce figure-gap --seeds 1
      cbml reproduce leaderboard --data emoji
      cbml reproduce leaderboard --data emoji --labels none
      cbml reproduce leaderboard --data emoji --loss mypackage.module:MyLoss
      cbml reproduce loss-ablation --method mypackage.module:MyMethod --only MS
    """
    own = {"losses": loss or (), "methods": method or ()}
    if labels != "known" and not (table == "leaderboard" or (listed and table is None)):
        raise typer.BadParameter("--labels none is for the leaderboard; tables say it themselves")
    if listed:
        _list(table, scale, data, {"only": tuple(only or ()), **own, "labels": labels}, as_json)
        return
    if table is None:
        raise typer.BadParameter("name a TABLE, or --list them")
    from cbml.experiments import Sources

    sources = Sources(root, weights)
    if table == "leaderboard":
        changed = scale == "full" or trials or overrides or searched or backbone
        if changed or model_selection == "test":
            raise typer.BadParameter(
                "the leaderboard's protocol is frozen; only --data, --root, --weights, --only, "
                "--loss, --method, --labels, --seeds and --out apply"
            )
        from cbml.experiments import find_entries

        entries = find_entries(only or (), **own, labels=labels)
        _leaderboard(entries, data or "emoji", seeds or 1, out, sources, as_json)
        return
    from cbml.experiments import Plan, find_table, parse_sweeps, with_own_rows

    plan = Plan(
        table=with_own_rows(find_table(table), **own),
        scale=scale,
        data=data or ("emoji" if scale == "laptop" else None),
        model_selection=model_selection,
        only=(*(only or ()), *(loss or ()), *(method or ())),
        sweeps=parse_sweeps([*(overrides or ()), *([f"backbone={backbone}"] if backbone else [])]),
    )
    if searched:
        _search(plan, searched, count, out, sources, as_json)
    else:
        _table(plan, out, seeds or 3, trials, sources, as_json)


def _table(
    plan: "Plan", out: Path, seeds: int, trials: bool, sources: "Sources", as_json: bool
) -> None:
    """Run the rows, and draw the figure that they are for."""
    from cbml.experiments import FIGURES, check_figure, draw_figure, planned_jobs, run_jobs
    from cbml.training import ProgressCallback

    figure = None if trials else FIGURES.get(plan.table.name)
    jobs = planned_jobs(plan, out, seeds=range(seeds), trials=trials)
    if figure is not None:
        check_figure(figure, jobs)
    with resumable(_AGAIN):
        counts = run_jobs(jobs, out, sources=sources, callback=ProgressCallback())
    drawn = None
    if figure is not None and not counts.elsewhere and not counts.refused:
        drawn = draw_figure(figure, jobs, out, sources)
    _print(counts, out, as_json, drawn)


def _leaderboard(
    entries: "list[Entry]", data: str, seeds: int, out: Path, sources: "Sources", as_json: bool
) -> None:
    from cbml.experiments import run_leaderboard
    from cbml.training import ProgressCallback

    shown, chosen = ProgressCallback(), range(seeds)
    with resumable(_AGAIN):
        counts = run_leaderboard(entries, data, out, seeds=chosen, sources=sources, callback=shown)
    _print(counts, out, as_json)


def _print(counts: "JobCounts", out: Path, as_json: bool, figure: Path | None = None) -> None:
    if as_json:
        drawn = {} if figure is None else {"figure": str(figure)}
        print(json.dumps({**vars(counts), "out": str(out), **drawn}))
    else:
        if counts.finished + counts.done + counts.failed or not counts.refused:
            print(f"{counts.finished} finished, {counts.done} done, {counts.failed} failed")
        if counts.elsewhere:
            print(f"{counts.elsewhere} more run in other processes: repeat the command later")
        if figure is not None:
            print(figure)
    for reason, jobs in counts.refused.items():  # a line for each, as for a single error
        more = f" and {len(jobs) - 1} more" if len(jobs) > 1 else ""
        say(f"cbml: {' '.join(reason.split())} (for {jobs[0]}{more})")
    if counts.refused:
        raise typer.Exit(3)


def _list(
    table: str | None,
    scale: Literal["laptop", "full"],
    data: str | None,
    chosen: dict[str, Any],
    as_json: bool,
) -> None:
    """One line for each table, or for each row of one table."""
    from cbml.errors import BadData
    from cbml.experiments import FIGURE_TABLES, LEADERBOARD, TABLES

    entries: list[dict[str, Any]] = []
    refused: BadData | None = None
    for name in [*TABLES, *FIGURE_TABLES, LEADERBOARD] if table is None else [table]:
        try:
            title, costs = _listed(name, scale, data, chosen)
        except BadData as error:
            refused = error
            continue  # a table without such rows
        needs = [{"row": label, "needs": c.needs, "hours": c.hours} for label, c in costs]
        size = "laptop" if name == LEADERBOARD else scale
        entries.append({"table": name, "title": title, "scale": size, "rows": needs})
        if as_json:
            continue
        hours = sum(cost.hours for _, cost in costs)
        rows = f"{len(costs):>3} {'row, ' if len(costs) == 1 else 'rows,'}"
        print(f"{name:<18} {rows} {duration(3600 * hours):>10} a seed  {title}")
        if table is not None:
            for label, cost in costs:
                print(f"  {label:<44} {cost}")
    if refused is not None and not entries:
        raise refused
    if as_json:
        print(json.dumps(entries, ensure_ascii=False))


def _listed(
    table: str, scale: Literal["laptop", "full"], data: str | None, chosen: dict[str, Any]
) -> "tuple[str, list[tuple[str, Cost]]]":
    """The title of a table, its rows and what each needs; `chosen` as `find_entries` takes it."""
    from cbml.experiments import (
        LEADERBOARD,
        LEADERBOARD_TITLE,
        Plan,
        entry_cost,
        find_entries,
        find_table,
        row_cost,
        table_rows,
    )

    if table == LEADERBOARD:
        title = LEADERBOARD_TITLE + (", without labels" if chosen["labels"] == "none" else "")
        return title, [(e.name, entry_cost(e, data or "emoji")) for e in find_entries(**chosen)]
    found = find_table(table)
    asked = data or ("emoji" if scale == "laptop" else None)
    rows = table_rows(Plan(table=found, scale=scale, data=asked, only=chosen["only"]))
    return found.title, [(row.label(scale), row_cost(row, scale)) for row in rows]


def _search(
    plan: "Plan", ranges: list[str], count: int, out: Path, sources: "Sources", as_json: bool
) -> None:
    from cbml.experiments import parse_ranges, search_row
    from cbml.training import ProgressCallback

    wanted, callback = parse_ranges(ranges), ProgressCallback()
    with resumable(_AGAIN):
        found = search_row(plan, wanted, count=count, out=out, sources=sources, callback=callback)
    lines = [
        {
            "overrides": record["overrides"],
            "validation": (record["scores"].get("validation") or {}).get("recall@1"),
        }
        for record in found
    ]
    if as_json:
        print(json.dumps(lines))
        return
    for line in lines[:10]:
        changed = " ".join(f"{key}={value}" for key, value in line["overrides"].items())
        print(f"{line['validation']}  {changed}")
