"""What a stranger needs to install and run: pinned versions, make targets, the two commands."""

import re
import subprocess
import tomllib
from pathlib import Path

import cbml

ROOT = Path(cbml.__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def required() -> set[str]:
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    names = {re.match(r"[\w.-]+", line).group() for group in groups for line in group}  # type: ignore[union-attr]
    return {canonical(name) for name in names} - {"cbml"}


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonical(name): version for name, version in pairs}


def test_every_dependency_has_one_exact_version() -> None:
    assert required() <= set(pinned()), "pin what pyproject.toml asks for in constraints.txt"


def test_torch_and_torchvision_match() -> None:
    """torchvision 0.N goes with torch 2.(N-15) or, for a later bug fix, the release after it."""
    torch_minor = int(pinned()["torch"].split(".")[1])
    vision_minor = int(pinned()["torchvision"].split(".")[1])
    assert vision_minor - 15 in {torch_minor, torch_minor - 1}
    import torchvision

    assert torchvision.ops.nms is not None


def test_the_version_is_written_once_and_again_the_same() -> None:
    assert PROJECT["version"] == cbml.__version__


def test_plain_make_lists_the_targets() -> None:
    listed = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for target in ["demo", "test", "check", "bench", "slow"]:
        assert re.search(rf"^{target}\s+\w", listed, re.MULTILINE), f"{target} is not listed"


def test_the_readme_shows_the_two_commands() -> None:
    readme = (ROOT / "README.md").read_text()
    assert "make demo" in readme
    assert "make test" in readme
    assert len(readme.splitlines()) <= 200
