"""The verb `export`: run folders and model folders, exit codes, and examples that run."""

import json
import re
import shlex
from pathlib import Path

import pytest

from cbml.errors import BadData
from cbml.models import Embedder
from cbml.runs import open_model
from tests.program import run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a run in it, as the help's examples suppose."""
    Embedder("conv4", dim=4).save(tmp_path / "runs" / "cub" / "model")
    return tmp_path


def test_the_examples_of_the_help_run(folder: Path) -> None:
    text = run("export", "--help", cwd=folder).stdout
    examples = re.findall(r"^ +cbml (export .*)$", text, re.MULTILINE)
    assert len(examples) == 2
    first, second = (run(*shlex.split(example), cwd=folder) for example in examples)
    assert first.returncode == 0, first.stderr
    assert "differs from torch by at most" in first.stdout
    assert (folder / "runs" / "cub" / "model.onnx").is_file()
    assert second.returncode == 0, second.stderr
    facts = json.loads(second.stdout)
    assert facts["path"] == "birds.onnx"
    assert facts["bytes"] == (folder / "birds.onnx").stat().st_size
    assert facts["preprocessing_inside"] is True
    assert facts["largest_difference"] <= 1e-5
    assert Embedder.load(folder / "runs" / "cub" / "model").dim == 4, "the model is as it was"


@pytest.mark.parametrize(
    ("word", "meant"), [("runs/cup", "runs/cub"), ("resnet51", "resnet50"), ("nowhere", None)]
)
def test_a_misspelled_run_or_backbone_gets_the_nearest(
    folder: Path, monkeypatch: pytest.MonkeyPatch, word: str, meant: str | None
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(BadData) as refused:
        open_model(word)
    hint = f"; did you mean '{meant}'?" if meant else ""
    assert str(refused.value) == f"{word}: no such run or saved model{hint}"


def test_errors_are_one_line_with_their_exit_code(folder: Path) -> None:
    missing = run("export", "nowhere", cwd=folder)
    assert (missing.returncode, missing.stdout) == (3, "")
    assert missing.stderr == "cbml: nowhere: no such run or saved model\n"

    part = next((folder / "runs" / "cub" / "model").glob("*.safetensors"))
    part.write_bytes(part.read_bytes()[:-1])
    damaged = run("export", "runs/cub", cwd=folder)
    assert damaged.returncode == 4
    assert damaged.stderr.count("\n") == 1
    assert part.name in damaged.stderr

    usage = run("export", "runs/cub", "--format", "onyx", cwd=folder)
    assert usage.returncode == 2
