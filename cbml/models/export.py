"""A model for use elsewhere: one ONNX file, checked against torch, or a folder on the hub."""

import json
import tempfile
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
    """What was written.

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


# Models on the Hugging Face hub: the saved folder, unchanged, beside a short card.

_CARD = """---
library_name: cbml
pipeline_tag: image-feature-extraction
tags: [metric-learning, image-retrieval]
---
# {title}
Turns images into unit vectors of {dim} numbers; images that belong together lie close.

    import cbml
    model = cbml.from_hub("{repository}")
    vectors = cbml.embed(model, ["a.jpg", "b.jpg"], load=cbml.data.read_image)
    similarity = vectors[0] @ vectors[1]

| setting | value |
|---|---|
{rows}
"""


def push_to_hub(model: Embedder, repository: str, *, private: bool = False) -> str:
    """Publish a model and give its address. Log in first with `hf auth login`.

    Args:
        model: The model to publish.
        repository: Name as "owner/name"; made if missing.
        private: Whether a new repository is private.
    """
    hub = _import_hub()
    with tempfile.TemporaryDirectory() as scratch:
        model.save(scratch)
        Path(scratch, "README.md").write_text(_card(model, repository), encoding="utf-8")
        try:
            hub.create_repo(repository, private=private, exist_ok=True)
            done = hub.upload_folder(
                repo_id=repository,
                folder_path=scratch,
                commit_message="Model saved by cbml",
                ignore_patterns=[".lock"],
                delete_patterns=["model-*.safetensors", "model-*.json"],
            )
        except _failures(hub) as error:
            raise _one_line(repository, "cannot be written", error) from None
    return str(done.commit_url or done)


def from_hub(repository: str, *, revision: str | None = None) -> Embedder:
    """The model published under a name; it is checked like any saved folder before it is used.

    Args:
        repository: Name as "owner/name".
        revision: A branch, tag or commit; name a commit to get the same model for ever.
    """
    hub = _import_hub()
    try:
        folder = hub.snapshot_download(
            repository,
            revision=revision,
            allow_patterns=["manifest.json", "model-*.safetensors", "model-*.json"],
        )
    except _failures(hub) as error:
        raise _one_line(repository, "cannot be fetched", error) from None
    return Embedder.load(folder)


def _card(model: Embedder, repository: str) -> str:
    properties = {**model.describe(), **model.preprocessing.as_dict()}
    del properties["preprocessing"]
    rows = [f"| {key} | {value} |" for key, value in properties.items() if value not in (None, [])]
    return _CARD.format(
        title=repository.rpartition("/")[2],
        dim=model.dim,
        repository=repository,
        rows="\n".join(rows),
    )


def _import_hub() -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise MissingExtra("huggingface_hub", "hub") from None
    return huggingface_hub


def _failures(hub: Any) -> tuple[type[Exception], ...]:
    # ValueError is the hub's word for a malformed repository name. Without a network its client
    # lets errors of its HTTP library pass, whose base is one of its own error's.
    http = hub.errors.HfHubHTTPError
    return (OSError, ValueError, http, *http.__bases__, hub.errors.LocalTokenNotFoundError)


def _one_line(repository: str, what: str, error: Exception) -> Exception:
    reason = " ".join(str(error).split())[:160]
    message = f"{repository}: {what} on the hub ({reason}); check name, network and `hf auth login`"
    return BadData(message) if isinstance(error, ValueError) else ConnectionError(message)
