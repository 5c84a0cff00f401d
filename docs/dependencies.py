"""The page of dependencies: what requirements.lock pins, under which license, and who asks for it.

    python docs/dependencies.py > docs/dependencies.md    (make licenses)

Licenses are what the installed packages say of themselves.
"""

import re
import tomllib
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parent.parent

HEAD = """# Dependencies

Made by `make licenses` from what the installed packages say of themselves. `requirements.lock`
holds the hash of every file of every version below, and `make` installs nothing else. After a
change of `pyproject.toml` or `constraints.txt`: `make lock`, then `make licenses`.

`make audit` compares the versions with the known advisories (pip-audit, which asks the package
index for them). It fails where the index offers none, as many mirrors do: no answer is not a good
answer.

Nothing of this is copied into the wheel of `cbml`, which is MIT.

| package | version | license | needed for |
|---|---|---|---|"""


def canonical(name: str) -> str:
    """The one spelling of a package's name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def locked_versions() -> dict[str, str]:
    """Package -> version of requirements.lock."""
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pins = (re.match(r"([\w.-]+)==([\w.+!]+)", line) for line in lines)
    return {canonical(pin[1]): pin[2] for pin in pins if pin}


def askers() -> dict[str, str]:
    """Package -> the part of `cbml` that asks for it, the plain installation before extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = {"cbml": project["dependencies"], **project["optional-dependencies"]}
    found: dict[str, str] = {}
    for group, lines in groups.items():
        for line in lines:
            found.setdefault(canonical(re.split(r"[^\w.-]", line)[0]), group)
    return found


def license_of(name: str) -> str:
    """What a package says: its SPDX expression, its classifiers, or the line it calls License."""
    try:
        told = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return "not installed on this system"
    if told.get("License-Expression"):
        return str(told["License-Expression"])
    classes = [line.split(" :: ") for line in told.get_all("Classifier", [])]
    named = [parts[-1] for parts in classes if parts[0] == "License" and len(parts) > 2]
    text = " / ".join(named) or str(told.get("License") or "").strip().partition("\n")[0]
    return "not stated" if text in ("", "UNKNOWN") else text[:80]


def main() -> None:
    """Print the page."""
    asked = askers()
    print(HEAD)
    for name, version in sorted(locked_versions().items()):
        group = asked.get(name, "")
        why = {"": "indirectly", "cbml": "`cbml`"}.get(group, f"`cbml[{group}]`")
        print(f"| {name} | {version} | {license_of(name)} | {why} |")


if __name__ == "__main__":
    main()
