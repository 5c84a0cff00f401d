"""Many images -> one array of unit vectors, in their order, in bounded memory."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed, nn
from torch.nn import functional

from cbml.errors import BadData
from cbml.models.execution import Execution, device_of
from cbml.models.preprocessing import Batch, ImageReader, Preprocessing
from cbml.outputs import Outputs
from cbml.progress import Progress

Rows = NDArray[np.float32]
Report = Callable[[int], object]


def embed(
    model: nn.Module,
    images: Iterable[Any],
    *,
    load: Callable[[Any], Any] | None = None,
    batch_size: int = 64,
    processes: int = 0,
    execution: Execution | None = None,
    group: distributed.ProcessGroup | None = None,
    progress: bool | Report = True,
) -> Rows:
    """Unit vectors of all images in their order, (N, D) float32.

    Images are framed and normalized as `model.preprocessing` says. At most a few batches are in
    memory at a time. An image that cannot be read, or whose vector is not finite, ends the work
    with its name.

    Args:
        model: An Embedder, or any module with a `preprocessing` that gives one row per image.
        images: uint8 RGB images (arrays H × W × 3 or tensors 3 × H × W), or whatever `load`
            takes, such as paths; a dataset with `.paths` will do.
        load: Turns one item of `images` into a uint8 image; needed for paths.
        batch_size: Images in one forward pass.
        processes: Processes that load and frame images beside this one; `images` must then be a
            sequence.
        execution: How the model is run; by default channels-last in float32.
        group: Group of torch.distributed whose processes share the work, each called with the same
            sequence: process r embeds the r-th of nearly equal slices, and gets the whole array.
        progress: True shows it on standard error, in the first process; a function is called with
            the number done.
    """
    items: Any = getattr(images, "paths", images)
    known = isinstance(items, Sequence | np.ndarray | Tensor)
    if (processes or group is not None) and not known:
        raise BadData("processes need a sequence of images: put them into a list, or use 0")
    if group is not None:
        return _across(
            model, items, group, load, batch_size, processes, execution=execution, progress=progress
        )
    if known:
        reader = ImageReader(items, load, _preprocessing(model), stop=len(items))
        batches, total = reader.batches(batch_size, processes), len(items)
    else:
        reader = ImageReader((), load, _preprocessing(model))
        batches, total = reader.stream(items, batch_size), None
    return _run(model, batches, total, execution, progress)


def _across(
    model: nn.Module,
    items: Sequence[Any],
    group: distributed.ProcessGroup,
    load: Callable[[Any], Any] | None,
    batch_size: int,
    processes: int = 0,
    *,
    execution: Execution | None = None,
    progress: bool | Report = False,
    parts: Sequence[str] = (),
) -> Rows:
    rank, world = distributed.get_rank(group), distributed.get_world_size(group)
    edges = [len(items) * part // world for part in range(world + 1)]
    reader = ImageReader(items, load, _preprocessing(model), edges[rank], edges[rank + 1])
    failure: Exception | None = None
    rows = np.empty((0, 0), np.float32)
    try:
        batches = reader.batches(batch_size, processes)
        shown = progress if rank == 0 else False
        rows = _run(model, batches, len(reader), execution, shown, parts)
    except Exception as error:  # the others must be told, or they would wait forever
        failure = error
    return _gathered(rows, failure, np.diff(edges), group, device_of(model))


def embed_outputs(
    model: nn.Module,
    images: Sequence[Any],
    parts: Sequence[str],
    *,
    group: distributed.ProcessGroup | None = None,
    load: Callable[[Any], Any] | None = None,
    batch_size: int = 64,
    progress: bool | Report = False,
) -> Outputs:
    """As `embed`, with further parts of the outputs; N rows each, on the CPU.

    Args:
        model: An Embedder, or another network with `forward_outputs`.
        images: As in `embed`, a sequence.
        parts: As for `Embedder.forward_outputs`.
        group: Processes that share the work; each gets all rows.
        load: As in `embed`.
        batch_size: As in `embed`.
        progress: As in `embed`.
    """
    if group is None:
        reader = ImageReader(images, load, _preprocessing(model), stop=len(images))
        rows = _run(model, reader.batches(batch_size, 0), len(images), None, progress, parts)
    else:
        rows = _across(model, images, group, load, batch_size, progress=progress, parts=parts)
    shapes = _shapes(model, parts)
    widths = [shape.numel() for shape in shapes]
    pieces = torch.split(torch.from_numpy(rows), [rows.shape[1] - sum(widths), *widths], dim=1)
    named = zip(parts, pieces[1:], shapes, strict=True)
    found = {name: piece.reshape(len(rows), *shape) for name, piece, shape in named}
    return Outputs(pieces[0].contiguous(), found)


@torch.inference_mode()
def _shapes(model: nn.Module, parts: Sequence[str]) -> list[torch.Size]:
    """What the parts of one image look like."""
    if not parts:
        return []
    side, was_training = _preprocessing(model).crop, model.training
    model.eval()
    image = torch.zeros(1, 3, side, side, device=device_of(model))
    outputs: Outputs = model.forward_outputs(image, parts)  # type: ignore[operator]
    model.train(was_training)
    return [outputs.parts[name].shape[1:] for name in parts]


def _run(
    model: nn.Module,
    batches: Iterator[Batch],
    total: int | None,
    execution: Execution | None,
    progress: bool | Report,
    parts: Sequence[str] = (),
) -> Rows:
    """Unit vectors, each with the numbers of its parts behind it."""
    # Float32 unless asked: an index that mixes precisions is a riddle nobody wants to solve.
    execution = execution or Execution(
        channels_last=Execution.default(device_of(model)).channels_last
    )
    preprocessing, was_training = _preprocessing(model), model.training
    rows: list[Rows] = []
    execution.prepare(model)
    # Walking through a network to switch it takes longer than to see that nothing is to be done.
    switched = any(module.training for module in model.modules())
    if switched:
        model.eval()
    try:
        with _reporting(progress, total) as report, torch.inference_mode():
            for batch in batches:
                images = preprocessing.normalize(batch.images.to(device_of(model)))
                if parts:
                    outputs = execution.run_outputs(model, images, parts)
                    further = [outputs.parts[name].flatten(1).cpu().numpy() for name in parts]
                    units = _unit_rows(outputs.embeddings, batch.names)
                    rows.append(np.hstack([units, *further]))
                else:
                    rows.append(_unit_rows(execution.run(model, images), batch.names))
                report(sum(map(len, rows)))
    finally:
        if switched:
            model.train(was_training)
    if rows:
        return np.concatenate(rows)
    width = getattr(model, "dim", 0) + sum(shape.numel() for shape in _shapes(model, parts))
    return np.empty((0, width), np.float32)


def _unit_rows(vectors: Tensor, names: list[str]) -> Rows:
    vectors = vectors.float()
    good = torch.isfinite(vectors).all(1) & (vectors.abs().amax(1) > 0)
    for position in torch.nonzero(~good).flatten().tolist():
        raise BadData(
            f"{names[position]}: the model gives no direction for it (NaN, infinity or all zeros); "
            "look at the image, or at the model's weights"
        )
    return functional.normalize(vectors, dim=1).cpu().numpy()


def _gathered(
    rows: Rows,
    failure: Exception | None,
    counts: NDArray[np.int64],
    group: distributed.ProcessGroup,
    device: torch.device,
) -> Rows:
    state = torch.tensor([failure is not None, rows.shape[1]], device=device)
    states = [torch.empty_like(state) for _ in counts]
    distributed.all_gather(states, state, group=group)
    if failure is not None:
        raise failure
    failed = [rank for rank, (broken, _) in enumerate(states) if broken]
    if failed:
        raise BadData(f"process {failed[0]} of the group stopped; its message names the image")
    width = int(max(width for _, width in states))
    padded = torch.zeros((int(counts.max(initial=0)), width), device=device)
    padded[: len(rows)] = torch.from_numpy(rows).to(device) if len(rows) else 0
    parts = [torch.empty_like(padded) for _ in counts]
    distributed.all_gather(parts, padded, group=group)
    return np.concatenate(
        [part[:count].cpu().numpy() for part, count in zip(parts, counts, strict=True)]
    )


def _preprocessing(model: nn.Module) -> Preprocessing:
    preprocessing = getattr(model, "preprocessing", None)
    if not isinstance(preprocessing, Preprocessing):
        raise BadData(f"{type(model).__name__} has no `preprocessing`: set one, or use an Embedder")
    return preprocessing


@contextlib.contextmanager
def _reporting(progress: bool | Report, total: int | None) -> Iterator[Report]:
    if callable(progress):
        yield progress
    elif progress:
        with Progress("images embedded", total) as shown:
            yield shown.show
    else:
        yield lambda done: None
