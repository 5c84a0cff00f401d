"""The exported file gives torch's answers without torch, or it does not appear."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray

from cbml.errors import BadData
from cbml.models import Embedder, Preprocessing, embed, export, export_onnx, find_backbone

WITHOUT_TORCH = """
import json, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "torchvision", "timm", "cbml"}:
            raise ImportError(name)

sys.meta_path.insert(0, Absent())
import numpy as np, onnxruntime

session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
facts = session.get_modelmeta().custom_metadata_map
how = json.loads(facts["cbml.preprocessing"])
images = np.load(sys.argv[2])  # (N, 3, crop, crop) uint8, framed
if not json.loads(facts["cbml.preprocessing_inside"]):
    values = images[:, ::-1] if how["order"] == "BGR" else images
    column = lambda numbers: np.array(numbers, np.float32)[:, None, None]
    images = (values.astype(np.float32) * how["scale"] - column(how["mean"])) / column(how["std"])
    images = images.astype(np.float32)
rows = session.run(None, {session.get_inputs()[0].name: images})[0]
one = session.run(None, {session.get_inputs()[0].name: images[:1]})[0]
assert "torch" not in sys.modules
np.save(sys.argv[3], np.concatenate([rows, one]))
"""


CAFFE = find_backbone("bn_inception").preprocessing.with_crop(40)


@pytest.mark.parametrize(
    ("backbone", "preprocessing", "inside"),
    [
        ("conv4", None, False),
        ("conv4", None, True),
        ("conv4", CAFFE, False),
        ("conv4", CAFFE, True),
        pytest.param("efficientnet_lite0", None, False, marks=pytest.mark.slow),
        pytest.param("bn_inception", None, True, marks=pytest.mark.slow),
        pytest.param("resnet50", None, True, marks=pytest.mark.slow),
        pytest.param("googlenet", None, False, marks=pytest.mark.slow),
    ],
)
def test_the_file_works_in_a_process_without_torch(
    photographs: dict[str, NDArray[np.uint8]],
    tmp_path: Path,
    backbone: str,
    preprocessing: Preprocessing | None,
    inside: bool,
) -> None:
    weights = "package" if backbone == "efficientnet_lite0" else "none"
    model = Embedder(backbone, dim=16, weights=weights, preprocessing=preprocessing)
    images = list(photographs.values())
    done = export_onnx(model, tmp_path / "m.onnx", preprocessing_inside=inside, images=images[:2])
    assert done.largest_difference <= 1e-5
    assert (done.images, done.preprocessing_inside) == (2, inside)
    assert done.size == (tmp_path / "m.onnx").stat().st_size

    frames = [model.preprocessing.frame(torch.tensor(p).permute(2, 0, 1)) for p in images]
    np.save(tmp_path / "images.npy", torch.stack(frames).numpy())
    files = [str(tmp_path / name) for name in ("m.onnx", "images.npy", "rows.npy")]
    subprocess.run([sys.executable, "-c", WITHOUT_TORCH, *files], check=True)
    rows = np.load(tmp_path / "rows.npy")
    expected = embed(model, images, progress=False)
    np.testing.assert_allclose(rows[: len(images)], expected, atol=1e-5)
    np.testing.assert_allclose(rows[-1], expected[0], atol=1e-5)


@pytest.fixture
def model() -> Embedder:
    return Embedder("conv4", dim=4)


def test_metadata_describe_the_model_and_nothing_of_the_machine(
    model: Embedder, tmp_path: Path
) -> None:
    done = export_onnx(model, tmp_path / "m.onnx")
    assert done.images == 10, "two photographs and their quarters"
    graph = onnx.load(done.path)
    facts = {entry.key: entry.value for entry in graph.metadata_props}
    assert json.loads(facts["cbml.model"]) == model.describe()
    assert json.loads(facts["cbml.preprocessing"]) == model.preprocessing.as_dict()
    shape = graph.graph.input[0].type.tensor_type.shape.dim
    assert shape[0].dim_param == "batch"
    assert [side.dim_value for side in shape[1:]] == [3, 32, 32]
    content = done.path.read_bytes()
    for trace in (os.getcwd(), sys.prefix, str(tmp_path)):
        assert trace.encode() not in content


def test_a_file_that_disagrees_is_not_published(
    model: Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.onnx"
    path.write_text("the old file")
    real = export._describe

    def spoil(package: Any, file: Path, *others: Any) -> None:
        real(package, file, *others)
        graph = package.load(file)
        for tensor in graph.graph.initializer:
            if tensor.name.endswith("head.weight"):
                values = package.numpy_helper.to_array(tensor).copy()
                values[0] *= 1.01
                tensor.CopyFrom(package.numpy_helper.from_array(values, tensor.name))
        package.save(graph, file)

    monkeypatch.setattr(export, "_describe", spoil)
    with pytest.raises(ValueError, match=r"m\.onnx: not written, its vectors differ"):
        export_onnx(model, path)
    assert path.read_text() == "the old file"
    assert list(tmp_path.iterdir()) == [path]


def test_no_images_cannot_be_compared(model: Embedder, tmp_path: Path) -> None:
    with pytest.raises(BadData, match="no images to compare on"):
        export_onnx(model, tmp_path / "m.onnx", images=[])
    assert not list(tmp_path.iterdir())
