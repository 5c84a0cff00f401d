"""A model trained by any method leaves for other programs as one ONNX file."""

from pathlib import Path

import pytest

from cbml.methods import METHODS
from cbml.models import export_onnx
from tests.methods.test_all import CASES, embedder

# One of each kind of head; the others are exported under `make slow`.
QUICK = ("hdc", "deml", "fusing_net")


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in METHODS],
)
def test_its_model_is_exported(name: str, tmp_path: Path) -> None:
    """The export compares the file with torch, for one image and for several."""
    done = export_onnx(embedder(CASES[name]()).eval(), tmp_path / "model.onnx")
    assert done.largest_difference < 1e-5
