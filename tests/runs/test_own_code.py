"""Methods, losses and networks of one's own: docs/your-method.md as a reader would follow it."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch import nn

import cbml
from cbml.cli import main
from cbml.errors import BadData
from cbml.models import BACKBONES, Embedder, add_backbone
from cbml.runs import RunConfig, resumed_config, use_backbone
from cbml.training import read_record
from tests.training.small import class_folders

DOCUMENT = Path(cbml.__file__).parent.parent / "docs" / "your-method.md"
METHOD, NETWORK = "compact_classes:CompactClasses", "networks:two_layers"
SMALL = ["--crop", "16", "--steps", "1", "--set", "dim=8", "--set", "validation=0.4"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(class_folders(tmp_path_factory.mktemp("data")))


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The two files of the document, where Python finds them, and none of them imported yet."""
    blocks = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    for name, block in zip(("compact_classes", "networks"), blocks, strict=True):
        (tmp_path / f"{name}.py").write_text(block)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    known = dict(BACKBONES)
    yield
    BACKBONES.clear()
    BACKBONES.update(known)


def call(*words: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main([*words])
    return int(stop.value.code or 0)


def test_the_method_of_the_document_has_at_most_twenty_lines() -> None:
    block = DOCUMENT.read_text().split("```python\n")[1].split("```")[0]
    assert len(block.splitlines()) <= 20


def test_its_row_stands_beside_the_others(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    words = ["reproduce", "loss-ablation", "--data", "emoji", "--root", source, "--out", out]
    words += ["--method", METHOD, "--only", "MS", "--backbone", NETWORK, "--seeds", "1"]
    for change in ("crop=16", "steps=1", "dim=8", "validation=0.4", "classes_per_batch=2"):
        words += ["--set", change]
    assert call(*words) == 0, capsys.readouterr().err
    assert "2 done" in capsys.readouterr().out
    assert call(*words) == 0
    assert "2 finished" in capsys.readouterr().out
    assert call("table", "loss-ablation", "--records", out) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if NETWORK in line]
    assert [row.split()[1] for row in rows if row.startswith("|")] == ["MS", METHOD]


def test_a_run_asks_for_its_code_again(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(tmp_path / "run")
    own = ["--method", METHOD, "--backbone", NETWORK]
    assert call("train", source, *own, *SMALL, "--set", "method.pull=0.2", "--out", run) == 0
    record = read_record(Path(run))
    assert record["config"]["method"] == {"name": METHOD, "options": {"pull": 0.2}}
    assert record["model"]["provenance"] == f"own: as {NETWORK} builds it"
    del BACKBONES[NETWORK]  # a new process has not heard of it
    capsys.readouterr()
    for words, code in (
        (["train", "--resume", run, "--steps", "2"], 2),
        (["train", "--resume", run, "--steps", "2", *own[:2]], 2),
        (["evaluate", run], 3),
        (["export", run], 3),
        (["embed", run, source, "--out", f"{run}.npz"], 3),
        (["analyze", run], 3),
    ):
        assert call(*words) == code
        error = " ".join(capsys.readouterr().err.replace("│", " ").split())
        assert f"--backbone {NETWORK}" in error, words
    assert call("evaluate", run, "--backbone", NETWORK, "--json") == 0
    assert call("train", "--resume", run, "--steps", "2", *own) == 0
    assert read_record(Path(run))["steps_done"] == 2


def test_a_file_never_chooses_code(tmp_path: Path) -> None:
    """Not even where the modules could be imported."""
    config = RunConfig("emoji", model={"backbone": NETWORK})
    with pytest.raises(BadData, match=f"repeat it: --backbone {NETWORK}"):
        RunConfig.from_dict(config.as_dict())
    with pytest.raises(BadData, match="which a file never chooses"):
        Embedder(NETWORK)
    assert "networks" not in sys.modules
    timm = RunConfig("emoji", model={"backbone": "timm:resnet10t"})
    assert RunConfig.from_dict(timm.as_dict()) == timm
    with pytest.raises(BadData, match=r"run\.json"):
        resumed_config(tmp_path, [])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no.such:network", "write package.module:function"),
        ("networks:three_layers", "write package.module:function"),
        ("networks:__name__", "not a function that builds a network"),
        ("collections:OrderedDict", "gave OrderedDict, not a torch.nn.Module"),
        ("torch.nn:Conv2d", "missing 3 required"),
    ],
)
def test_what_is_no_network_is_refused_in_one_line(name: str, message: str) -> None:
    with pytest.raises(BadData, match=message) as error:
        use_backbone(name)
    assert "\n" not in str(error.value)


def test_features_of_another_shape_are_refused() -> None:
    with pytest.raises(BadData, match=r"a map \(B, C, H, W\) or vectors \(B, C\)"):
        add_backbone("mine", lambda: nn.Flatten(2))
