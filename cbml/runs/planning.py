"""The plan of a run, made before its first step: pixels, steps, chunks, minutes, memory.

What a config leaves open comes from `FIRST_RUNS`, by the kind of device, and from the memory that
is free; `minutes` measures instead. Either way the choice is fixed in the config and recorded, and
a run that is resumed neither measures nor chooses again.
"""

import copy
import dataclasses
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cbml.data import Splits
from cbml.methods import LARGEST_VIEW
from cbml.models import Embedder, Execution, find_backbone
from cbml.progress import counted, duration
from cbml.runs.config import RunConfig
from cbml.runs.defaults import FIRST_RUNS, FirstRun, larger_crop, larger_views_rate
from cbml.runs.evaluate import OTHERS
from cbml.runs.folder import model_folder, recorded_config
from cbml.runs.sections import OF_CLUSTERS
from cbml.training import (
    Callback,
    Distributed,
    Method,
    memory_budget,
    step_memory,
)

# Sides among which `minutes` chooses, up to the paper's, and the steps that a side must leave time
# for: below about a hundred a pretrained network has hardly moved.
CROPS = (96, 128, 160, 192, 227)
_FEWEST_STEPS = 100
_TRIED = 8
# Passes whose median counts: on a busy machine a single one may take a hundred times as long.
_TIMED = 5
# A view that is larger by less than this shows a network hardly more.
_LARGER = 1.25
# The report embeds at most so many images of each of two splits, and those of one by the start.
_REPORTED = 1500


@dataclass(frozen=True)
class ImageTime:
    """Seconds for an image.

    Args:
        training: Forward and backward pass.
        forward: Forward pass alone.
        embedding: Forward pass at the size at which trained networks embed.
    """

    training: float
    forward: float
    embedding: float


@dataclass(frozen=True)
class Workload:
    """What a run embeds besides the images of its steps.

    Args:
        images: Number of training images.
        batch: Images of a step, in all processes.
        held_out: Images of a validation.
        once: Images embedded once in the run: statistics, probabilities, report, test.
        validate_every: Steps between validations.
    """

    images: int
    batch: int
    held_out: int
    once: int
    validate_every: int

    def seconds(self, cost: ImageTime, steps: int, *, chunked: bool) -> float:
        """How long a run takes.

        Args:
            chunked: Whether each image is embedded once more, for the loss.
        """
        validations = 1 + (steps // self.validate_every if self.validate_every else 0)
        validations += not self.validate_every or steps % self.validate_every > 0
        embedded = self.once + validations * self.held_out
        return embedded * cost.embedding + steps * self._step(cost, chunked)

    def steps(self, cost: ImageTime, seconds: float, *, chunked: bool) -> int:
        """The most steps that fit into a time, one at the least."""
        low, high = 1, 1 + max(0, int(seconds / self._step(cost, chunked)))
        while low < high:  # the time grows with the steps
            middle = (low + high + 1) // 2
            fits = self.seconds(cost, middle, chunked=chunked) <= seconds
            low, high = (middle, high) if fits else (low, middle - 1)
        return low

    def _step(self, cost: ImageTime, chunked: bool) -> float:
        return self.batch * (cost.training + cost.forward * chunked)


def workload(config: RunConfig, splits: Splits, batch: int, *, test: bool) -> Workload:
    """What a run of a config has to embed.

    Args:
        config: Says how often it validates, and whether it estimates the loss's constants.
        test: Whether the test images are scored, by the trained model and by its start.
    """
    tested = sum(len(part) for part in (splits.test, splits.query, splits.gallery) if part)
    estimated = len(splits.train) if config.loss.parameters == "from-data" else 0
    train, held_out = (min(len(part), _REPORTED) for part in (splits.train, splits.validation))
    reported = train + 2 * held_out
    calibrated = len(splits.validation) and len(splits.validation) + min(len(splits.train), OTHERS)
    once = min(estimated, 4096) + calibrated + reported + 2 * tested * test
    return Workload(
        len(splits.train), batch, len(splits.validation), once, config.training.validate_every
    )


@dataclass(frozen=True)
class Plan:
    """The size, length, time and memory of a run.

    Args:
        crop: Side of the images.
        steps: Updates; about so many where the config counts epochs.
        chunk_size: Images of a forward pass; 0 for the whole batch.
        seconds: How long it will take, measured on this machine.
        peak_bytes: The most memory that it will need.
    """

    crop: int
    steps: int
    chunk_size: int
    seconds: float
    peak_bytes: float


class Planner:
    """Tries a model at several crops, on a copy that leaves no trace in it.

    Args:
        config: What it leaves open is chosen.
        model: Untrained, on its device.
        work: What the run embeds.
    """

    def __init__(
        self,
        config: RunConfig,
        model: Embedder,
        method: nn.Module,
        execution: Execution,
        work: Workload,
        processes: int = 1,
    ) -> None:
        self.config, self.work, self.processes = config, work, processes
        # Compiling takes minutes, a trial seconds.
        self.execution = dataclasses.replace(execution, compile=False)
        self.trial = copy.deepcopy(model)
        self.execution.prepare(self.trial).train()
        self.parts = method.parts if isinstance(method, Method) else ()
        self.device = next(model.parameters()).device
        self.budget = memory_budget(self.device)

    def choose(self) -> Plan:
        """The plan at the largest crop that leaves time for enough steps."""
        crops: tuple[int, ...] = CROPS
        if self.config.model.crop:
            crops = (self.config.model.crop,)
        elif self.config.training.minutes is None:
            crops = (_first_run(self.config).crop,)
        plan = self.at(crops[0])
        # From small to large: large crops take longest to try, and trying leaves memory behind.
        for crop in crops[1:]:
            larger = self.at(crop)
            if larger.steps < _FEWEST_STEPS:
                break
            plan = larger
        return plan

    def at(self, crop: int) -> Plan:
        """The plan at one crop."""
        local = -(-self.work.batch // self.processes)
        memory = step_memory(self.trial, self.execution, crop=crop, batch=local, parts=self.parts)
        chunk = self.config.training.chunk_size
        if chunk is None:
            chunk = memory.fitting_chunk(self.budget) or 0
        cost = self._image_time(crop, min(_TRIED, local))
        chunked = 0 < chunk < local
        steps = self._steps(cost, chunked)
        seconds = self.work.seconds(cost, steps, chunked=chunked)
        return Plan(crop, steps, chunk, seconds, memory.peak(chunk or None))

    def _steps(self, cost: ImageTime, chunked: bool) -> int:
        training = self.config.training
        if training.steps is not None:
            return training.steps
        if training.epochs is not None:
            return training.epochs * -(-self.work.images // self.work.batch)
        if training.minutes is not None:
            return self.work.steps(cost, 60 * training.minutes, chunked=chunked)
        return _first_run(self.config).steps

    def _image_time(self, crop: int, count: int) -> ImageTime:
        images = torch.zeros(count, 3, crop, crop, device=self.device)
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            self._passes(images)  # the first is slower
            passes = [self._passes(images) for _ in range(_TIMED)]
        training, forward = map(statistics.median, zip(*passes, strict=True))
        share = count * self.processes  # processes work side by side
        test_crop = with_crop(self.config.replace(model={"crop": crop})).test_crop
        larger = (test_crop / crop) ** 2
        return ImageTime(training / share, forward / share, forward * larger / share)

    def _passes(self, images: torch.Tensor) -> tuple[float, float]:
        """Seconds of a forward and backward pass, and of a forward pass alone."""
        started = self._now()
        outputs = self.execution.run_outputs(self.trial, images, self.parts)
        torch.autograd.backward([outputs.embeddings.sum()])
        middle = self._now()
        with torch.no_grad():
            self.execution.run_outputs(self.trial, images, self.parts)
        return middle - started, self._now() - middle

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def plan_run(
    planner: Planner, distributed: Distributed, callback: Callback
) -> tuple[RunConfig, dict[str, Any]]:
    """The config with crop, steps and chunks filled in, and the plan for the record.

    Args:
        distributed: The processes; the plan of the main one holds.
    """
    plan, config = planner.choose(), planner.config
    chosen = torch.tensor([plan.crop, plan.steps, plan.chunk_size])
    distributed.broadcast([chosen])
    crop, steps, chunk = (int(value) for value in chosen)
    training: dict[str, Any] = {"chunk_size": chunk, "minutes": None}
    if config.training.epochs is None:
        training["steps"] = steps
    callback.on_message(_sentence(config, planner.work, plan))
    if config.training.minutes is not None and steps < _FEWEST_STEPS:
        callback.on_message(
            f"--minutes {config.training.minutes:g} leaves time for only "
            f"{counted(steps, 'step')}; with fewer than about {_FEWEST_STEPS} a "
            "network hardly changes: allow more minutes"
        )
    if plan.peak_bytes > planner.budget:
        callback.on_message(_too_large(planner, plan))
    record = dataclasses.asdict(plan) | {"minutes_asked": config.training.minutes}
    return with_crop(config.replace(model={"crop": crop}, training=training)), record


def with_crop(config: RunConfig) -> RunConfig:
    """The config with crops: its own, or those of a first run on this device."""
    crop, test_crop = config.model.crop or _first_run(config).crop, config.model.test_crop
    if test_crop == 0:
        test_crop = larger_crop(crop) if has_pretrained_weights(config) else crop
    return config.replace(model={"crop": crop, "test_crop": test_crop})


def with_start(config: RunConfig) -> RunConfig:
    """The config with the network of the model that it starts from."""
    if config.model.start is None:
        return config
    folder = Path(config.model.start)
    start = Embedder.load(model_folder(folder))
    crop, test_crop = start.preprocessing.crop, config.model.test_crop
    if (folder / "run.json").is_file():  # it may have learned from smaller images
        crop = recorded_config(folder).model.crop
    if test_crop == 0 and config.model.crop in (0, crop):
        test_crop = start.preprocessing.crop
    return config.replace(
        model={
            "backbone": start.backbone_name,
            "dim": start.dim,
            "pooling": start.pooling,
            "batch_norm": start.batch_norm,
            "crop": config.model.crop or crop,
            "test_crop": test_crop,
        }
    )


def has_pretrained_weights(config: RunConfig) -> bool:
    """Whether the backbone starts from the weights of another training."""
    weights = config.model.weights
    if weights == "default":
        weights = find_backbone(config.model.backbone).weights
    return weights not in ("none", "own")


def with_larger_views(config: RunConfig, changes: Mapping[str, Mapping[str, Any]]) -> RunConfig:
    """The config of a run without labels as `cbml train` means it: larger views, or clusters.

    A pretrained network that trains on small crops has more to learn from larger views of the
    images than from clusters. Clusters remain where anything about them, a loss or a method is
    named, and where a larger view shows the network nothing: with random weights, from the model
    of an earlier run, and with crops of nearly the size at which pretrained networks were trained.
    Options of a method that is not named are those of larger views.

    Args:
        config: Made from the changes.
        changes: What was chosen in the other sections than `data`, by section and field.
    """
    method = changes.get("method", {})
    if config.data.labels != "none" or "loss" in changes or "name" in method:
        return config
    if OF_CLUSTERS & changes.get("pseudo_labels", {}).keys() or "backbone" in config.own_code:
        return config
    blind = not has_pretrained_weights(config) or config.model.start is not None
    crop = with_crop(config).model.crop
    if blind or crop > LARGEST_VIEW / _LARGER:
        return config
    images = dataclasses.replace(config.data, labels="each")
    rest = {name: change for name, change in changes.items() if name != "data"}
    rate = {"learning_rate": larger_views_rate(crop)}
    rest["optimizer"] = rate | {**rest.get("optimizer", {})}
    rest["method"] = {"name": "larger_views", **method}
    return RunConfig(images, **rest)


def _first_run(config: RunConfig) -> FirstRun:
    table = FIRST_RUNS["cuda" if torch.cuda.is_available() else "cpu"]
    return table.get(config.data.source, table["folder"])


def _sentence(config: RunConfig, work: Workload, plan: Plan) -> str:
    chunks = f" in chunks of {plan.chunk_size}" if plan.chunk_size else ""
    epochs = config.training.epochs
    steps = counted(plan.steps, "step") if epochs is None else counted(epochs, "epoch")
    test_crop = with_crop(config.replace(model={"crop": plan.crop})).test_crop
    tested = "" if test_crop == plan.crop else f", {test_crop} in searches"
    return (
        f"plan: {config.model.backbone} at {plan.crop} pixels{tested}, batches of "
        f"{work.batch}{chunks}, "
        f"{steps}, about {duration(plan.seconds)}, up to {plan.peak_bytes / 1e9:.1f} GB of memory"
    )


def _too_large(planner: Planner, plan: Plan) -> str:
    why = "a smaller --crop needs less"
    if planner.config.training.chunk_size is None and not plan.chunk_size:
        why = (
            "batch norm is trained, so a batch cannot be embedded in chunks; "
            "--set batch_norm=frozen_statistics allows them, and a smaller --crop needs less"
        )
    return f"memory: more than the {planner.budget / 1e9:.1f} GB that this run should take; {why}"
