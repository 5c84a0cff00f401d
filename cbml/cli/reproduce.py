"""`cbml reproduce`: the tables of the paper with our code."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from cbml.experiments import Plan, Sources, Unit

__all__ = ["verb"]


def verb(
    table: Annotated[
        str | None, typer.Argument(metavar="TABLE", help="A table or figure that --list shows.")
    ] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="Show tables and rows, what they need and cost.")
    ] = False,
    scale: Annotated[
        Literal["laptop", "full"], typer.Option(help="A small network or the paper's settings.")
    ] = "laptop",
    data: Annotated[
        str | None,
        typer.Option(help="emoji, cub, cars, sop, inshop or imagenet.", show_default=False),
    ] = None,
    root: Annotated[
        str | None, typer.Option(help="Folder or archive of the pictures.", show_default=False)
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="File with the backbone's weights.", show_default=False)
    ] = None,
    trials: Annotated[
        bool, typer.Option("--trials", help="Try learning rates on validation classes.")
    ] = False,
    seeds: Annotated[int, typer.Option(help="How many seeds, from 0.", min=1)] = 3,
    protocol: Annotated[
        Literal["honest", "paper"],
        typer.Option(help="paper chooses the model on the test, as the paper does: optimistic."),
    ] = "honest",
    only: Annotated[
        list[str] | None, typer.Option(help="Rows that fit this pattern, such as 'CBML*'.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="key=value, or key=value,value to sweep.")
    ] = None,
    searched: Annotated[
        list[str] | None,
        typer.Option("--search", help="key=low:high: let Optuna look on validation classes."),
    ] = None,
    count: Annotated[int, typer.Option(help="Runs of a search.", min=1)] = 20,
    out: Annotated[Path, typer.Option(help="Folder of runs and records.")] = Path("reproduction"),
    as_json: Annotated[bool, typer.Option("--json", help="Print what was done as JSON.")] = False,
) -> None:
    """Run the rows of a table; what is done already is not repeated, what was cut off goes on.

    Several machines that share the folder given by --out divide the work. --trials comes first: it
    looks for each row's learning rate on held-out training classes, with equally many trials for
    each; the runs after it use the best. Records are lines of JSON in OUT/TABLE-SCALE/.

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
    """
    if listed:
        _list(table, scale, data, tuple(only or ()), as_json)
        return
    if table is None:
        raise typer.BadParameter("name a TABLE, or --list them")
    from cbml.errors import BadData
    from cbml.experiments import Plan, Sources
    from cbml.experiments.figures import FIGURES, check_figure, draw_figure
    from cbml.experiments.tables import find_table

    plan = Plan(
        table=find_table(table),
        scale=scale,
        data=data or ("emoji" if scale == "laptop" else None),
        protocol=protocol,
        only=tuple(only or ()),
        sweeps=tuple(overrides or ()),
    )
    figure = None if trials else FIGURES.get(table)
    if searched:
        _search(plan, searched, count, out, Sources(root, weights), as_json)
        return
    units, sources = _units(plan, out, seeds, trials), Sources(root, weights)
    if figure is not None:
        check_figure(figure, units)
    facts = _run(units, out, sources)
    if figure is not None and not facts["elsewhere"] and not facts["refused"]:
        facts["figure"] = str(draw_figure(figure, units, out, sources))
    if as_json:
        print(json.dumps(facts))
    else:
        _print(facts)
    if facts["refused"]:
        raise BadData(_refusals(facts["refused"]))


def _refusals(refused: dict[str, list[str]]) -> str:
    lines = []
    for reason, units in refused.items():
        more = f" and {len(units) - 1} more" if len(units) > 1 else ""
        lines.append(f"{reason} (for {units[0]}{more})")
    return "\n".join(lines)


def _print(facts: dict[str, Any]) -> None:
    print(", ".join(f"{facts[word]} {word}" for word in ("finished", "done", "failed")))
    if facts["elsewhere"]:
        print(f"{facts['elsewhere']} more are being done by others: ask again when they are ready")
    if "figure" in facts:
        print(facts["figure"])


def _list(
    table: str | None,
    scale: Literal["laptop", "full"],
    data: str | None,
    only: tuple[str, ...],
    as_json: bool,
) -> None:
    from cbml.experiments import Plan
    from cbml.experiments.costs import row_cost
    from cbml.experiments.plans import table_rows
    from cbml.experiments.tables import FIGURE_TABLES, TABLES, find_table

    answer = []
    asked = data or ("emoji" if scale == "laptop" else None)
    known = [*TABLES.values(), *FIGURE_TABLES.values()]
    for entry in known if table is None else (find_table(table),):
        rows = table_rows(Plan(table=entry, scale=scale, data=asked, only=only))
        costs = [(row.label(scale), row_cost(row, scale)) for row in rows]
        facts = [{"row": label, "needs": c.needs, "hours": c.hours} for label, c in costs]
        answer.append({"table": entry.name, "title": entry.title, "scale": scale, "rows": facts})
        if not as_json:
            print(f"{entry.name}: {entry.title} ({scale} scale)")
            for label, cost in costs:
                print(f"  {label:<44} {cost}")
    if as_json:
        print(json.dumps(answer, ensure_ascii=False))


def _search(
    plan: "Plan", ranges: list[str], count: int, out: Path, sources: "Sources", as_json: bool
) -> None:
    from cbml.experiments.search import search_row
    from cbml.training import Interrupted, Shown

    try:
        found = search_row(plan, ranges, count=count, out=out, sources=sources, listener=Shown())
    except Interrupted as stop:
        print(f"{stop}; the same command goes on from there", file=sys.stderr)
        raise typer.Exit(stop.exit_code) from None
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
        print(f"{line['validation']}  {' '.join(line['overrides'])}")


def _units(plan: "Plan", out: Path, seeds: int, trials: bool) -> "list[Unit]":
    from cbml.experiments import plan_trials, plan_units, read_records
    from cbml.experiments.plans import table_rows, trial_tables

    if trials:
        return plan_trials(plan)
    tried = [
        out / f"{name}-{plan.scale}" / f"{data}-trials.jsonl"
        for name in trial_tables(plan)
        for data in dict.fromkeys(row.data for row in table_rows(plan))
    ]
    return plan_units(plan, range(seeds), [r for path in tried for r in read_records(path)])


def _run(units: "list[Unit]", out: Path, sources: "Sources") -> dict[str, Any]:
    import dataclasses

    from cbml.experiments import run_units
    from cbml.training import Interrupted, Shown

    try:
        progress = run_units(units, out, sources=sources, listener=Shown())
    except Interrupted as stop:
        print(f"{stop}; the same command goes on from there", file=sys.stderr)
        raise typer.Exit(stop.exit_code) from None
    return dataclasses.asdict(progress) | {"out": str(out)}
