"""What a stranger needs to install and run: pinned versions, make targets, the two commands."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import cbml

WATCHED = """
import sys
FORBIDDEN = ("subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn", "socket.connect")
def watch(event, arguments):
    if event.startswith(FORBIDDEN):
        print(event, *arguments[:1], flush=True)
sys.addaudithook(watch)
import cbml
print("imported", flush=True)
for name in cbml.__all__:
    getattr(cbml, name)
print("loaded")
"""

ROOT = Path(cbml.__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def names(group: list[str]) -> set[str]:
    found = {re.match(r"[\w.-]+", line).group() for line in group}  # type: ignore[union-attr]
    return {canonical(name) for name in found} - {"cbml"}


def required() -> set[str]:
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    return set().union(*map(names, groups))


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonical(name): version for name, version in pairs}


def test_every_dependency_has_one_exact_version() -> None:
    assert required() <= set(pinned()), "pin what pyproject.toml asks for in constraints.txt"


def entries(lock: str) -> dict[str, tuple[str, str]]:
    """Name -> version and hashes of what a lock file installs."""
    text = (ROOT / lock).read_text()
    found = re.findall(r"^([\w.-]+)==(\S+)[^\n]*\\\n((?:    --hash=.*\n?)+)", text, re.MULTILINE)
    assert len(found) == len(re.findall("^[a-z]", text, re.MULTILINE)), "one without a hash"
    return {canonical(name): (version, hashes) for name, version, hashes in found}


def test_the_lock_holds_these_versions_and_the_hash_of_every_file() -> None:
    locked = entries("requirements.lock")
    versions = {name: version for name, (version, _) in locked.items()}
    assert pinned().items() <= versions.items(), "run `make lock`"
    for name, (_, hashes) in locked.items():
        lines = hashes.replace("\\", "").split()
        assert all(re.fullmatch("--hash=sha256:[0-9a-f]{64}", line) for line in lines), name


def test_the_lock_of_the_demo_is_a_part_of_the_whole() -> None:
    part, extras = entries("requirements-demo.lock"), PROJECT["optional-dependencies"]
    assert part.items() <= entries("requirements.lock").items(), "run `make lock`"
    asked = [*PROJECT["dependencies"], *extras["demo"], *extras["serve"], "setuptools"]  # to build
    assert names(asked) <= set(part)


def test_what_installs_checks_hashes_and_names_no_registry() -> None:
    locks = ("requirements.lock", "requirements-demo.lock")
    for name in ("Makefile", ".ci/run", "constraints.txt", "Containerfile", *locks):
        text = (ROOT / name).read_text()
        assert not re.search(r"https?://|--(extra-)?index|--find-links|--trusted", text), name
    installs = {"Makefile": r"\t.*(?:pip install|\$\(INSTALL\))", "Containerfile": "pip install"}
    for name, words in installs.items():
        found = re.findall(words + r" [^&\n]*", (ROOT / name).read_text())
        assert len(found) >= 2
        for command in found:  # by its hash, or the project itself, which brings nothing along
            assert "--require-hashes -r" in command or "--no-deps" in command, (name, command)


def test_the_page_of_dependencies_is_that_of_the_lock() -> None:
    lock = re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    page = (ROOT / "docs" / "dependencies.md").read_text()
    listed = re.findall(r"^\| ([\w.-]+) \| (\d\S*) \| ", page, re.MULTILINE)
    assert listed == sorted((canonical(name), version) for name, version in lock)


def test_importing_starts_no_process_and_opens_no_connection() -> None:
    child = [sys.executable, "-c", WATCHED]
    said = subprocess.run(child, check=True, capture_output=True, text=True).stdout.splitlines()
    # Loading all names loads torch, which asks ldconfig where the CUDA libraries are.
    rest = [line for line in said if line != "subprocess.Popen /sbin/ldconfig"]
    assert said[0] == "imported"
    assert rest == ["imported", "loaded"]


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
    assert len(readme.splitlines()) <= 160
