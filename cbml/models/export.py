"""A model for use elsewhere: one ONNX file, checked against torch."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cbml import __version__
from cbml.errors import BadData, MissingExtra
from cbml.files import replaced_file
from cbml.models.embedder import Embedder
from cbml.models.preprocessing import Preprocessing, as_image

LARGEST_DIFFERENCE = 1e-5


@dataclass(frozen=True)
class Exported:
    """An exported file, and how closely it follows torch.

    Args:
        path: Path of the file.
        size: Size of the file in bytes.
        preprocessing_inside: Whether it takes uint8 images rather than normalized floats.
        images: Number of real images that were compared.
        largest_difference: Largest difference of any number of their vectors from torch's.
    """

    path: Path
    size: int
    preprocessing_inside: bool
    images: int
    largest_difference: float


def export_onnx(
    model: Embedder,
    path: str | Path,
    *,
    preprocessing_inside: bool = False,
    images: Iterable[Any] | None = None,
) -> Exported:
    """Write a model as ONNX with a free batch size; the file appears whole and checked, or not.

    The input "images" is (batch, 3, crop, crop): float32 as the model's preprocessing describes,
    or, with the preprocessing inside, uint8 RGB. The output "embeddings" is (batch, D), unit rows.
    The file's metadata tells all that is needed to use it without this package.

    Args:
        model: The model; it is set to evaluation.
        path: The file to create or replace.
        preprocessing_inside: Normalize within the graph, so that it takes uint8 images.
        images: uint8 images to compare the two on; two photographs of scikit-learn by default.
    """
    path, model = Path(path), model.eval()
    onnx, runtime = _import_onnx()
    frames = torch.stack([model.preprocessing.frame(as_image(each)) for each in _real(images)])
    network = _FromPixels(model).eval() if preprocessing_inside else model
    inputs = frames if preprocessing_inside else model.preprocessing.normalize(frames)
    with replaced_file(path) as temporary:
        _write(network, inputs[:2], temporary)
        _describe(onnx, temporary, model, preprocessing_inside)
        difference = _difference(runtime, temporary, network, inputs)
        if not difference <= LARGEST_DIFFERENCE:  # also refuses NaN
            raise ValueError(
                f"{path}: not written, its vectors differ from torch's by {difference:.1e} "
                f"(allowed {LARGEST_DIFFERENCE:.0e})"
            )
        size = temporary.stat().st_size
    return Exported(path, size, preprocessing_inside, len(frames), difference)


class _FromPixels(nn.Module):
    """A model with its normalization in front, on uint8 RGB images."""

    def __init__(self, model: Embedder) -> None:
        super().__init__()
        self.model = model
        self.preprocessing: Preprocessing = model.preprocessing

    def forward(self, images: Tensor) -> Tensor:
        vectors: Tensor = self.model(self.preprocessing.normalize(images))
        return vectors


def _import_onnx() -> tuple[Any, Any]:
    for package in ("onnx", "onnxruntime", "onnxscript"):
        try:
            __import__(package)
        except ImportError:
            raise MissingExtra(package, "export") from None
    import onnx
    import onnxruntime

    return onnx, onnxruntime


def _real(images: Iterable[Any] | None) -> list[Any]:
    """The given images, or two photographs and their quarters."""
    if images is not None:
        given = list(images)
        if not given:
            raise BadData("no images to compare on: give at least one, or none at all")
        return given
    from sklearn.datasets import load_sample_images

    photographs = load_sample_images().images
    halves = (slice(None, 220), slice(220, None)), (slice(None, 320), slice(320, None))
    return [
        *photographs,
        *(
            whole[rows, columns]
            for whole in photographs
            for rows in halves[0]
            for columns in halves[1]
        ),
    ]


def _write(network: nn.Module, inputs: Tensor, path: Path) -> None:
    batch = torch.export.Dim("batch")
    torch.onnx.export(
        network,
        (inputs,),
        str(path),
        dynamo=True,
        input_names=["images"],
        output_names=["embeddings"],
        dynamic_shapes=({0: batch},),
        external_data=False,
        verbose=False,
    )


def _describe(onnx: Any, path: Path, model: Embedder, preprocessing_inside: bool) -> None:
    """Say in the file's metadata what it is; leave out traces of the machine it was made on."""
    graph = onnx.load(path)
    kind = "uint8 RGB" if preprocessing_inside else "float32, see preprocessing"
    properties = {
        "cbml.version": __version__,
        "cbml.model": json.dumps(model.describe(), sort_keys=True),
        "cbml.preprocessing": json.dumps(model.preprocessing.as_dict(), sort_keys=True),
        "cbml.preprocessing_inside": json.dumps(preprocessing_inside),
        "cbml.input": f"images: {kind}, batch × 3 × height × width",
        "cbml.output": f"embeddings: float32 unit rows, batch × {model.dim}",
    }
    onnx.helper.set_model_props(graph, properties)
    for node in graph.graph.node:
        del node.metadata_props[:]  # stack traces with the paths of this machine
    onnx.checker.check_model(graph, full_check=True)
    onnx.save(graph, path)


def _difference(runtime: Any, path: Path, network: nn.Module, inputs: Tensor) -> float:
    """Largest difference between the two engines, for one image alone and for all together."""
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    differences = []
    for batch in (inputs[:1], inputs):
        with torch.inference_mode():
            ours = network(batch).cpu().numpy()
        theirs = session.run(["embeddings"], {"images": batch.cpu().numpy()})[0]
        differences.append(float(np.abs(ours - theirs).max()))
    return float(np.max(differences))
