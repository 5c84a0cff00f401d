"""Methods through a whole run: the model has the heads that they ask for, and keeps them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cbml.cli import main
from cbml.errors import BadData, DamagedFile
from cbml.evaluation import evaluate
from cbml.methods import METHODS
from cbml.models import Embedder
from cbml.outputs import Outputs
from cbml.runs import RunConfig, build_model, check_options, evaluate_run, run
from cbml.training import Callback, Method, read_record
from tests.training.small import class_folders

#: Of tiny networks, where a method's own are large.
SMALL: dict[str, dict[str, Any]] = {
    "hdc": {"hidden": 16},
    "horde": {"width": 32},
    "mic": {"clusters": 5},
    "hdml": {"hidden": 16},
    "deml": {"hidden": 8, "attentions": 2},
    "fusing_net": {"width": 16},
}
LABELED = [name for name, entry in METHODS.items() if entry.labels == "known"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(class_folders(tmp_path_factory.mktemp("data")))


def config_of(source: str, method: str, **model: Any) -> RunConfig:
    return RunConfig(
        {"source": source, "validation": 0.4},
        model={"backbone": "conv4", "dim": 16, "crop": 16, **model},
        method={"name": method, **SMALL.get(method, {})},
        training={"steps": 2, "checkpoint_every": 1, "validate_every": 1},
    )


@pytest.mark.parametrize("name", LABELED)
def test_a_run_builds_trains_saves_and_scores_it(name: str, source: str, tmp_path: Path) -> None:
    config = config_of(source, name)
    check_options(config)
    result = run(config, tmp_path / "run", test=True, callback=Callback())
    assert result.test is not None
    asked = build_model(config)
    saved = Embedder.load(tmp_path / "run" / "model")
    assert saved.heads == asked.heads == result.model.heads
    assert (saved.dim, saved.reranker) == (16, asked.reranker)
    pixels = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(saved(pixels), result.model(pixels), atol=1e-5, rtol=0)
    scores = evaluate_run(tmp_path / "run", split="test").scores.metrics
    assert scores["recall@1"] == pytest.approx(result.test["recall@1"])
    again = run(config.replace(training={"steps": 3}), tmp_path / "run", resume=True)
    assert again.fitted.steps == 3


def test_the_command_line_trains_by_a_method(source: str, tmp_path: Path) -> None:
    words = ["train", source, "--method", "hdc", "--out", str(tmp_path / "run")]
    words += ["--set", "backbone=conv4", "--set", "crop=16", "--set", "dim=9", "--set", "steps=1"]
    words += ["--set", "method.weights=1,1,2", "--set", "method.hidden=8"]
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 0
    heads = Embedder.load(tmp_path / "run" / "model").heads
    assert [(head.name, head.tap, head.dim, head.weight) for head in heads] == [
        ("low", "7", 3, 1.0),
        ("middle", "11", 3, 1.0),
        ("high", "", 3, 2.0),
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["divide_conquer", "--labels", "none"], "learns with --labels known, not none"),
        (["divide_conquer", "--set", "dim=5"], "cannot be cut into 4 slices"),
        (["d_and_c", "--set", "method.clusters=6"], "clusters must be a power of two"),
        (["mic", "--set", "method.center=median"], "center must be one of"),
        (["pads", "--loss", "triplet_semihard"], "pads has its own loss"),
        (["smart_mining", "--set", "method.windw=0.2"], "window"),
    ],
)
def test_the_command_line_refuses_before_any_work(
    words: list[str], message: str, source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["train", source, "--out", str(tmp_path / "run"), "--method", *words])
    assert stop.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run").exists()


def test_a_loss_of_its_own_needs_no_estimate(source: str, tmp_path: Path) -> None:
    """A pretrained network would let CBML estimate its constants, which nobody uses here."""
    weights = f"path:{tmp_path / 'weights.pt'}"
    torch.save(Embedder("conv4", seed=3).backbone.state_dict(), tmp_path / "weights.pt")
    result = run(config_of(source, "hdc", weights=weights), tmp_path / "run", callback=Callback())
    assert result.config.loss.parameters == "given"
    assert read_record(tmp_path / "run")["parameters"] is None


def test_impossible_combinations_are_refused_before_any_work(source: str) -> None:
    with pytest.raises(BadData, match="dim 2: three levels need"):
        check_options(config_of(source, "hdc", dim=2))
    config = config_of(source, "hdc").replace(loss="triplet_semihard")
    with pytest.raises(BadData, match="hdc has its own loss"):
        check_options(config)
    config = config_of(source, "rll_lmh").replace(loss={"parameters": "from-data"})
    with pytest.raises(BadData, match="rll_lmh has its own loss"):
        check_options(config)
    pytest.importorskip("timm")
    with pytest.raises(BadData, match="levels are not known"):
        check_options(config_of(source, "hdc", backbone="timm:resnet10t"))


class Refined(Method):
    """Forgets what the network says of every image but its place in the set."""

    def refine(self, outputs: Outputs) -> Tensor:
        return on_a_circle(len(outputs))


def on_a_circle(count: int) -> Tensor:
    angle = torch.arange(count) * 0.1
    return torch.stack([angle.cos(), angle.sin()], dim=1)


def test_embeddings_are_refined_where_a_run_evaluates(source: str, tmp_path: Path) -> None:
    config = config_of(source, "hdc")
    own = config.replace(method={"name": f"{__name__}:Refined", "options": {}})
    result = run(own, tmp_path / "run", test=True, callback=Callback())
    for images, found in (
        (result.splits.test, result.test),
        (result.splits.validation, {"map@r": result.fitted.best_score}),
    ):
        assert images is not None
        assert found is not None
        expected = evaluate(on_a_circle(len(images)), images.known_labels).metrics
        assert found["map@r"] == pytest.approx(expected["map@r"])
        assert 0 < expected["map@r"] < 1


def test_refined_scores_are_found_again_and_marked(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_of(source, "lscm_gnn").replace(training={"steps": 3, "validate_every": 1})
    result = run(config, tmp_path / "run", test=True, callback=Callback())
    found = evaluate_run(tmp_path / "run", split="test")
    assert found.plain is not None
    assert found.scores.metrics == pytest.approx(result.test)
    record = read_record(tmp_path / "run")
    assert record["test_plain"] == pytest.approx(found.plain.metrics)
    assert found.as_dict()["conditions"]["transductive"] is True
    validated = evaluate_run(tmp_path / "run", split="validation").scores.metrics
    assert validated["map@r"] == pytest.approx(result.fitted.best_score), "of the best step"
    with pytest.raises(SystemExit):
        main(["evaluate", str(tmp_path / "run")])
    assert "transductive: yes" in capsys.readouterr().out
    file = next(path for path in (tmp_path / "run" / "method").iterdir() if "safe" in path.name)
    file.write_bytes(file.read_bytes()[:-1] + b"\1")
    with pytest.raises(DamagedFile):
        evaluate_run(tmp_path / "run", split="test")


def test_a_refining_method_of_ones_own_must_be_given_again(source: str, tmp_path: Path) -> None:
    name = f"{__name__}:Refined"
    config = config_of(source, "hdc").replace(method={"name": name, "options": {}})
    run(config, tmp_path / "run", callback=Callback())
    with pytest.raises(BadData, match=f"repeat it: --method {name}"):
        evaluate_run(tmp_path / "run", split="test")
    found = evaluate_run(tmp_path / "run", split="test", method=name)
    assert found.plain is not None
