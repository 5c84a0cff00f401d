"""One batch to one update: a gradient that is checked, shortened if asked, and applied."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from cbml.data import Batch
from cbml.models import Execution
from cbml.outputs import Outputs
from cbml.training.callbacks import Callback
from cbml.training.distributed import Distributed
from cbml.training.gradients import BatchResult, accumulate_gradients
from cbml.training.guards import (
    NonFiniteError,
    Similarities,
    broken_tensor,
    check_embeddings,
)
from cbml.training.method import BatchInfo
from cbml.training.records import Records
from cbml.training.state import TrainingState

_SHOWN = 5


@dataclass(frozen=True)
class StepResult:
    """The result of an update: loss and terms, the norm of the gradient before it was shortened."""

    loss: float
    terms: dict[str, float]
    outputs: Outputs
    batch: BatchInfo
    gradient_norm: float
    similarities: Similarities

    def metrics(self) -> dict[str, float | None]:
        """What metrics.jsonl says of the update."""
        return {
            "loss": self.loss,
            **self.terms,
            "gradient_norm": self.gradient_norm,
            "positive_similarity": self.similarities.positive_mean,
            "negative_similarity": self.similarities.negative_mean,
        }


class TrainingStep:
    """The step of a `Trainer`: one batch, one update of the model and of its method."""

    def __init__(
        self,
        state: TrainingState,
        execution: Execution,
        distributed: Distributed,
        records: Records,
        callback: Callback,
    ) -> None:
        self.state, self.execution, self.distributed = state, execution, distributed
        self.records, self.callback = records, callback
        self.parameters = [p for p in state.model.parameters() if p.requires_grad]
        self.method_parameters = [p for p in state.method.parameters() if p.requires_grad]

    def update(self, batch: Batch) -> StepResult | None:
        """Apply the gradient of this process's share of a batch; None where it was skipped."""
        info = self._info(batch)
        found = self._gradient(batch, info)
        if found is not None:
            self._apply(info)
        self.state.optimizer.zero_grad(set_to_none=True)
        if found is None:
            return None
        result, norm = found
        similarities = self.state.watch.last
        assert similarities is not None
        return StepResult(result.loss, result.terms, result.outputs, info, norm, similarities)

    def _info(self, batch: Batch) -> BatchInfo:
        """Labels and indices of the global batch."""
        device = next(self.state.model.parameters()).device
        labels = self.distributed.all_gather(batch.labels.to(device))
        indices = self.distributed.all_gather(batch.indices)
        return BatchInfo(labels, indices, self.state.batches.stream, self.state.step)

    def _gradient(self, batch: Batch, info: BatchInfo) -> tuple[BatchResult, float] | None:
        """Gradients of a batch and their norm; None where the update is to be skipped."""
        model, method = self.state.model, self.state.method
        images = batch.pixels.to(info.labels.device, non_blocking=True)
        if images.dtype == torch.uint8:
            images = model.preprocessing.normalize(images)
        buffers = [*model.buffers(), *method.buffers()]
        before = [buffer.clone() for buffer in buffers]
        try:
            result = accumulate_gradients(
                lambda chunk: self.execution.run_outputs(model, chunk, method.parts),
                lambda outputs: method(outputs, info),
                images,
                parameters=self.parameters,
                loss_parameters=self.method_parameters,
                distributed=self.distributed,
                chunk_size=self.state.settings.chunk_size,
                teacher=method.teach,
                check=lambda outputs: self._check(outputs, info),
            )
            norm = self._checked_norm(result, info)
        except NonFiniteError as error:
            # The batch has gone through running statistics and memories already.
            for buffer, value in zip(buffers, before, strict=True):
                buffer.copy_(value)
            self._skip_or_stop(error)
            return None
        self.state.skipped_in_a_row = 0
        self._watch_for_collapse(result, info)
        if self.distributed.size > 1 and model.batch_norm == "trained":
            # As DistributedDataParallel does: those of the main process.
            self.distributed.broadcast([*model.buffers()])
        return result, norm

    def _check(self, outputs: Outputs, info: BatchInfo) -> None:
        names = self._names(info.indices)
        for tensor in outputs.tensors:
            if tensor.is_floating_point():
                check_embeddings(tensor.flatten(1), names, info.step + 1)

    def _checked_norm(self, result: BatchResult, info: BatchInfo) -> float:
        """The norm of the gradient, which is then shortened if asked."""
        gradients = [
            parameter.grad
            for group in self.state.optimizer.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        norm = float(torch.nn.utils.get_total_norm(gradients))
        for name, value in (("loss", result.loss), ("length of the gradient", norm)):
            if not math.isfinite(value):
                raise NonFiniteError(
                    f"step {info.step + 1}: the {name} is {value}; the weights were not "
                    f"changed; the batch: {self._some_names(info.indices)}"
                )
        limit = self.state.settings.clip_norm
        if limit is not None and norm > limit:
            for gradient in gradients:
                gradient.mul_(limit / norm)
        return norm

    def _skip_or_stop(self, error: NonFiniteError) -> None:
        self.state.skipped_in_a_row += 1
        often = self.state.skipped_in_a_row > self.state.settings.skips_allowed
        # Another batch does not mend weights that are broken.
        if self.state.settings.non_finite == "stop" or often or broken_tensor(self.state.tensors()):
            raise error
        self.callback.on_message(f"update skipped: {error}")
        self.records.add({"step": self.state.step + 1, "skipped": str(error)})

    def _watch_for_collapse(self, result: BatchResult, info: BatchInfo) -> None:
        step = info.step + 1
        reason = self.state.watch.look(result.outputs.embeddings, info.labels, step)
        if reason is None or self.state.settings.collapse == "ignore":
            return
        text = f"collapse at step {step}: {reason}; the batch: {self._some_names(info.indices)}"
        self.records.add({"step": step, "collapse": text})
        if self.state.settings.collapse == "stop":
            raise NonFiniteError(text)
        self.callback.on_message(text)

    def _apply(self, info: BatchInfo) -> None:
        """Update the weights; whatever became NaN or infinite by it ends the run."""
        self.state.optimizer.step()
        broken = broken_tensor(self.state.tensors())
        if not self.distributed.all_reduce_max(int(broken is not None)):
            return
        raise NonFiniteError(
            f"step {info.step + 1}: NaN or infinity in "
            f"{broken or 'the weights of another process'} after the update; the batch: "
            f"{self._some_names(info.indices)}; resume from the checkpoint before it"
        )

    def _names(self, indices: Tensor) -> list[str]:
        return [str(self.state.batches.images.paths[index]) for index in indices.tolist()]

    def _some_names(self, indices: Tensor) -> str:
        names = self._names(indices[:_SHOWN])
        more = f" and {len(indices) - _SHOWN} more" if len(indices) > _SHOWN else ""
        return ", ".join(names) + more
