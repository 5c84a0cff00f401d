"""Methods that refine the embeddings of a whole set: kept beside the model, and applied to scores.

The scores of refined embeddings are transductive: what is found for an image depends on the other
images that are evaluated with it.
"""

import dataclasses
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from torch import nn

from cbml.errors import BadData, DamagedFile
from cbml.files import load_folder, save_folder
from cbml.outputs import Outputs
from cbml.query_gallery import QueryGallery
from cbml.runs.build import build_method
from cbml.runs.folder import recorded_config
from cbml.runs.sections import LossConfig
from cbml.training import Method

KIND = "cbml method 1"
_TENSORS = "method.safetensors"


def refined(method: nn.Module | None, embedded: QueryGallery) -> QueryGallery:
    """Embeddings as a method refines those of a whole set, queries and gallery together.

    Args:
        method: Most methods, and None, leave them as they are.
    """
    if not isinstance(method, Method) or not method.refines:
        return embedded
    queries, gallery = embedded.embeddings, embedded.gallery_embeddings
    whole = queries if gallery is None else np.concatenate([queries, gallery])
    with torch.no_grad():
        found = method.refine(Outputs(torch.from_numpy(whole))).float().cpu().numpy()
    searched = None if gallery is None else found[len(queries) :]
    return dataclasses.replace(
        embedded, embeddings=found[: len(queries)], gallery_embeddings=searched
    )


def save_refinement(folder: Path, method: nn.Module, *, classes: int, images: int) -> None:
    """Keep what a method refines with in the folder of its run; nothing for other methods.

    Args:
        method: Trained; of its loss nothing is kept.
    """
    if not isinstance(method, Method) or not method.refines:
        return
    kept = {
        name: value.detach().cpu().contiguous()
        for name, value in method.state_dict().items()
        if not name.startswith("loss.")
    }
    parts = {_TENSORS: lambda path: safetensors.torch.save_file(kept, path)}
    save_folder(folder / "method", KIND, parts, {"classes": classes, "images": images})


def load_refinement(folder: Path, given: str | None = None) -> Method | None:
    """The method of a run that refines embeddings; None where it does not.

    Args:
        folder: The run's folder.
        given: Name of the method as the user gave it; a method of the user's own is code, which
            the record of a run never chooses.
    """
    if not (folder / "method" / "manifest.json").exists():
        return None
    config = recorded_config(folder)
    name = config.method.name or ""
    if ":" in name and given != name:
        raise BadData(
            f"the run was trained by --method {name}, which refines embeddings: code is never "
            f"chosen by a file; repeat it: --method {name}"
        )
    parts, metadata = load_folder(folder / "method", KIND)
    try:
        tensors = safetensors.torch.load_file(parts[_TENSORS])
        sizes = int(metadata["classes"]), int(metadata["images"])
        plain = config.replace(loss=LossConfig(parameters="given"))  # its loss is not asked
        method = build_method(plain, sizes[0], images=sizes[1])
        missing, unknown = method.load_state_dict(tensors, strict=False)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:160]
        raise DamagedFile(f"{folder / 'method'}: does not fit the run ({reason})") from None
    if unknown or any(not key.startswith("loss.") for key in missing):
        raise DamagedFile(f"{folder / 'method'}: not the tensors of {name}")
    assert isinstance(method, Method)
    return method.eval()
