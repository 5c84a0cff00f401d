"""One batch to one checked gradient: finite, shortened if asked, and not of a collapsed model."""

import math
from collections import deque

import torch
from torch import Tensor

from cbml.data import Batch
from cbml.models import Execution
from cbml.training.gradients import BatchResult, accumulate_gradients
from cbml.training.guards import (
    BadNumbers,
    Similarities,
    broken_tensor,
    check_embeddings,
    collapse_reason,
    similarities,
)
from cbml.training.progress import Listener
from cbml.training.runs import Records
from cbml.training.state import TrainingState
from cbml.training.team import Team

__all__ = ["Updates"]

_SILENT_STEPS = 50
_REMEMBERED_BATCHES = 10
_SHOWN = 5


class Updates:
    """Fills the gradients of a model and of its loss, batch by batch.

    Args:
        state: model, loss, optimiser and settings.
        execution: how the model is run.
        team: the processes that train together.
        records: where alarms are written to.
        listener: who is told of them.
    """

    def __init__(
        self,
        state: TrainingState,
        execution: Execution,
        team: Team,
        records: Records,
        listener: Listener,
    ) -> None:
        self.state = state
        self.execution = execution
        self.team = team
        self.records = records
        self.listener = listener
        self.parameters = [p for p in state.model.parameters() if p.requires_grad]
        self.recent: deque[Similarities] = deque(maxlen=_REMEMBERED_BATCHES)
        self.silent_until = 0

    @property
    def seen(self) -> Similarities | None:
        """Similarities of the last batch."""
        return self.recent[-1] if self.recent else None

    def gradient(self, batch: Batch) -> tuple[BatchResult | None, float]:
        """Gradients of a batch and their norm; None where the update is to be skipped.

        Args:
            batch: this process's share.
        """
        state, step = self.state, self.state.step + 1
        pictures = batch.pixels.to(next(state.model.parameters()).device, non_blocking=True)
        if pictures.dtype == torch.uint8:
            pictures = state.model.preprocessing.normalise(pictures)
        numbers = self.team.gathered(batch.indices)
        buffers = [buffer.clone() for buffer in state.model.buffers()]
        try:
            result = accumulate_gradients(
                lambda chunk: self.execution.run(state.model, chunk),
                state.loss,
                pictures,
                batch.labels,
                parameters=self.parameters,
                team=self.team,
                chunk_size=state.settings.chunk_size,
                check=lambda rows: check_embeddings(rows, self._names(numbers), step),
            )
            norm = self._checked_norm(result, numbers)
        except BadNumbers as error:
            # The batch has gone through the running statistics of batch norms already.
            for buffer, before in zip(state.model.buffers(), buffers, strict=True):
                buffer.copy_(before)
            self._skip_or_stop(error)
            return None, math.nan
        state.skipped_in_a_row = 0
        self._watch_for_collapse(result, numbers)
        if self.team.size > 1 and state.model.batch_norm == "trained":
            self.team.follow([*state.model.buffers()])  # as DDP does: those of the first process
        return result, norm

    def apply(self, batch: Batch) -> None:
        """Update the weights; whatever became NaN or infinite by it ends the run.

        Args:
            batch: whose gradient it is, for the message.
        """
        state, step = self.state, self.state.step + 1
        state.optimiser.step()
        broken = broken_tensor(state.tensors())
        if not self.team.largest(int(broken is not None)):
            return
        numbers = self.team.gathered(batch.indices)
        raise BadNumbers(
            f"step {step}: NaN or infinity in {broken or 'the weights of another process'} after "
            f"the update; the batch: {self._some(numbers)}; resume from the checkpoint before it"
        )

    def _checked_norm(self, result: BatchResult, numbers: Tensor) -> float:
        gradients = [
            parameter.grad
            for group in self.state.optimiser.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        norm = float(torch.nn.utils.get_total_norm(gradients))
        for name, value in (("loss", result.loss), ("length of the gradient", norm)):
            if not math.isfinite(value):
                raise BadNumbers(
                    f"step {self.state.step + 1}: the {name} is {value}; the weights were not "
                    f"changed; the batch: {self._some(numbers)}"
                )
        limit = self.state.settings.clip_norm
        if limit is not None and norm > limit:
            for gradient in gradients:
                gradient.mul_(limit / norm)
        return norm

    def _skip_or_stop(self, error: BadNumbers) -> None:
        settings = self.state.settings
        self.state.skipped_in_a_row += 1
        often = self.state.skipped_in_a_row > settings.skips_allowed
        # Another batch does not mend weights that are broken.
        if settings.bad_numbers == "stop" or often or broken_tensor(self.state.tensors()):
            raise error
        self.listener.say(f"update skipped: {error}")
        self.records.add({"step": self.state.step + 1, "skipped": str(error)})

    def _watch_for_collapse(self, result: BatchResult, numbers: Tensor) -> None:
        how = self.state.settings.collapse
        self.recent.append(similarities(result.embeddings, result.labels))
        reason = None if how == "ignore" else collapse_reason(self.recent)
        step = self.state.step + 1
        if reason is None or step < self.silent_until:
            return
        text = f"collapse at step {step}: {reason}; the batch: {self._some(numbers)}"
        self.records.add({"step": step, "collapse": text})
        if how == "stop":
            raise BadNumbers(text)
        self.listener.say(text)
        self.silent_until = step + _SILENT_STEPS  # a model that stays so is no news

    def _names(self, numbers: Tensor) -> list[str]:
        paths = self.state.batches.images.paths
        return [str(paths[number]) for number in numbers.tolist()]

    def _some(self, numbers: Tensor) -> str:
        names = self._names(numbers[:_SHOWN])
        more = f" and {len(numbers) - _SHOWN} more" if len(numbers) > _SHOWN else ""
        return ", ".join(names) + more
