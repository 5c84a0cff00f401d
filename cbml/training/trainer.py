"""The training loop."""

import contextlib
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from cbml.data import Batch, Batches, ImageDataset, TrainTransform
from cbml.errors import BadData, DamagedFile
from cbml.models import Embedder, Execution
from cbml.training.batches import (
    build_batches,
    check_batches,
    check_training_set,
    steps_of_epochs,
)
from cbml.training.callbacks import Callback, ProgressCallback, StepReport
from cbml.training.checkpoints import newest_checkpoint
from cbml.training.distributed import Distributed
from cbml.training.gradients import check_chunks
from cbml.training.guards import NonFiniteError, decline_reason
from cbml.training.machine import differences, environment
from cbml.training.method import Method, TrainingView, as_method
from cbml.training.optimizers import (
    apply_learning_rates,
    base_learning_rates,
    build_optimizer,
    rate_factor,
)
from cbml.training.records import Fitted, Records, Run
from cbml.training.settings import Settings
from cbml.training.signals import Interrupted, StopRequest, stop_request
from cbml.training.state import TrainingState
from cbml.training.step import StepResult, TrainingStep

Validate = Callable[[Embedder], Mapping[str, float]]

# Among models of one score the one is kept that ranks all relevant images best.
TIE_BREAK = "map@r"


def fit(
    model: Embedder,
    method: nn.Module,
    train: Batches | ImageDataset,
    *,
    settings: Settings | None = None,
    validate: Validate | None = None,
    run: Run | Path | str | None = None,
    execution: Execution | None = None,
    distributed: Distributed | None = None,
    callback: Callback | None = None,
) -> Fitted:
    """Train a model in place; afterwards it holds the weights that were best in validation.

    A step: the batch that the sampler names, its outputs, the loss and its gradient, a finite
    check, one update. Between steps, when they are due: validation, a checkpoint, an answer to
    Ctrl-C and SIGTERM. A run that is stopped, killed or lost resumes from its newest checkpoint
    and ends with the same weights to the bit, on the same machine with as many threads.

    Args:
        model: What to train, on its device.
        method: A `Method`, or a plain loss: embeddings and labels in, one number out. Its own
            parameters are trained too.
        train: Batches of images; an ImageDataset is drawn as 15 classes times 8 images, or all its
            classes where they are fewer.
        settings: Every choice of the loop.
        validate: Gives the scores of a model; the one named by `choose_by` decides. It must not use
            test images.
        run: The folder for records and checkpoints; None keeps nothing.
        execution: Layout and precision; the default for the device when None.
        distributed: The processes that train together; this one alone when None.
        callback: Told of every step; None shows the progress on standard error.
    """
    distributed = distributed or Distributed()
    device = next(model.parameters()).device
    trainer = Trainer(
        model,
        as_method(method).to(device),
        train,
        settings=settings or Settings(),
        validate=validate,
        run=Run(Path(run)) if isinstance(run, str | Path) else run,
        execution=execution or Execution.default(device),
        distributed=distributed,
        callback=(callback or ProgressCallback()) if distributed.is_main_process else Callback(),
    )
    return trainer.train()


class Trainer:
    """A run from its first step, or from a checkpoint, to its end; read `train` first."""

    def __init__(
        self,
        model: Embedder,
        method: Method,
        train: Batches | ImageDataset,
        *,
        settings: Settings,
        validate: Validate | None,
        run: Run | None,
        execution: Execution,
        distributed: Distributed,
        callback: Callback,
    ) -> None:
        if execution.precision == "float16":
            raise BadData("precision 'float16' needs scaled losses to train: use 'bfloat16'")
        if not isinstance(train, Batches):
            transform = TrainTransform(crop=model.preprocessing.crop)
            train = build_batches(train, transform=transform, distributed=distributed)
        check_batches(train, distributed)
        check_training_set(method, train)
        if validate is None and settings.choose_by in method.judged_by:
            validate = self._judge

        self.model, self.method, self.batches = model, method, train
        self.settings, self.validate, self.execution = settings, validate, execution
        self.distributed, self.callback = distributed, callback
        self.resume = run is not None and run.resume
        self.environment = environment(next(model.parameters()).device, distributed.size)
        self.steps = settings.steps or steps_of_epochs(train, settings.epochs or 0)

        execution.prepare(model).train()
        method.attach(model)
        method.to(next(model.parameters()).device).train()
        if settings.chunk_size is not None:
            check_chunks(model)

        optimizer = build_optimizer(model, method, settings)
        config, free = ({}, ()) if run is None else (run.config, run.free)
        self.state = TrainingState(
            model, method, optimizer, train, settings, config=config, free=free
        )
        used = {group["name"] for group in optimizer.param_groups}
        rates = base_learning_rates(method, settings)
        self.learning_rates = {name: rate for name, rate in rates.items() if name in used}

        self.saved_at = -1
        self.scores: list[float] = []  # of all validations, the start's first
        self.started = time.monotonic()
        self.metadata = {} if run is None else dict(run.metadata)
        self.records = Records(run, writes=distributed.is_main_process)
        self.step = TrainingStep(self.state, execution, distributed, self.records, callback)

    def train(self) -> Fitted:
        """All updates that are left, and what happens between them."""
        state, settings = self.state, self.settings
        self._start()
        with (
            stop_request(answers=self.distributed.is_main_process) as request,
            contextlib.closing(self.records),
            contextlib.closing(self._stream()) as stream,
        ):
            while state.step < self.steps and not self._out_of_patience:
                self._update(next(stream))
                if self.validate is not None and self._due(settings.validate_every):
                    self._validate(self.validate)
                if self._due(settings.checkpoint_every):
                    self._save()
                self._stop_if_asked(request)
        self._finish()

        return Fitted(
            steps=state.step,
            best_step=state.best_step,
            best_score=state.best_score,
            start_score=self.scores[0] if self.scores else None,
            last_score=self.scores[-1] if self.scores else None,
            learning_rates=self.learning_rates,
            stopped_early=self._out_of_patience,
        )

    @property
    def _out_of_patience(self) -> bool:
        """Whether too many validations in a row brought nothing better."""
        patience = self.settings.patience
        return patience is not None and self.state.validations_without_gain >= patience

    def _due(self, interval: int) -> bool:
        """Whether what happens every so many steps, and at the end, happens now."""
        if self.state.step == self.steps or self._out_of_patience:
            return True
        return interval > 0 and self.state.step % interval == 0

    def _view(self) -> TrainingView:
        return TrainingView(self.model, self.batches, self.distributed, self.state.step, self.steps)

    # The start: from scratch, or from the newest checkpoint.

    def _start(self) -> None:
        self._agree()
        if not (self.resume and self._resume()):
            self.method.start(self._view())
            self._agree()
            self.state.begin_average()
            self.records.note(self._record() | self.metadata)
        rates = ", ".join(f"{name} {rate:g}" for name, rate in self.learning_rates.items())
        self.callback.on_message(f"learning rates: {rates}; schedule: {self.settings.schedule}")
        if self.validate is not None and self.state.step == 0:
            self._validate(self.validate)
        self.callback.begin(self.state.step, self.steps)

    def _agree(self) -> None:
        """All processes begin with the weights of the main one."""
        for module in (self.model, self.method):
            self.distributed.broadcast([*module.state_dict().values()])

    def _resume(self) -> bool:
        folder = self.records.folder
        assert folder is not None
        checkpoint = newest_checkpoint(folder / "checkpoints", self.callback.on_message)
        if checkpoint is None:
            if (folder / "model" / "manifest.json").exists():
                raise BadData(
                    f"{folder}: its checkpoints are gone, so its training cannot continue; "
                    f"start another run from it:  --start {folder}"
                )
            self.callback.on_message(f"{folder}: no checkpoint yet, starting with the first step")
            self.records.cut_back(-1)
            return False
        try:
            self.state.restore(checkpoint)
        except KeyError as error:
            raise DamagedFile(
                f"{folder}: the checkpoint has no {error}; start from scratch in another folder"
            ) from None
        if self.steps < checkpoint.step:
            raise BadData(
                f"steps={self.steps}: the run has done {checkpoint.step} already; give at least "
                "as many"
            )

        self.distributed.barrier()  # all have read: the main process may now write and delete
        self.saved_at = checkpoint.step
        self.records.cut_back(checkpoint.step)
        self.scores = self.records.validations(self.settings.choose_by)
        self._note_resumption(checkpoint.step, checkpoint.state["environment"])
        return True

    def _note_resumption(self, step: int, before: dict[str, Any]) -> None:
        changed = differences(before, self.environment)
        for line in changed:
            self.callback.on_message(
                f"resuming under other conditions: {line}; the bits may differ"
            )
        resumed = [*self.records.record.get("resumed", []), {"step": step, "changed": changed}]
        self.records.note({"resumed": resumed, "steps": self.steps, "finished": False})
        self.callback.on_message(f"resumed after step {step} of {self.steps}")

    def _record(self) -> dict[str, Any]:
        """What run.json says of a new run."""
        return self.state.describe() | {
            "steps": self.steps,
            "learning_rates": self.learning_rates,
            "environment": self.environment,
            "execution": self.execution.as_dict(),
            "test_evaluations": 0,
        }

    # A step.

    def _stream(self) -> Generator[Batch, None, None]:
        """The batches of all epochs to come, each epoch as the method plans it."""
        while True:
            if self.batches.sampler.step == 0:
                self._plan_epoch()
            yield from self.batches

    def _plan_epoch(self) -> None:
        plan = self.method.before_epoch(self._view())
        self.state.begin_epoch(plan)
        if plan is not None and (plan.metadata or plan.text):
            step, epoch = self.state.step, self.batches.sampler.epoch
            # Of the step to come: a run resumed before it plans again.
            self.records.add({"step": step + 1, "epoch": epoch, "plan": dict(plan.metadata)})
            self.callback.on_message(f"step {step}: {plan.text}")

    def _update(self, batch: Batch) -> None:
        """One update of the weights, or a skipped one."""
        state = self.state
        factor = rate_factor(self.settings, state.step, self.steps)
        rates = apply_learning_rates(
            state.optimizer, self.learning_rates, factor, step=state.step, rest=state.rest
        )
        result = self.step.update(batch)
        state.step += 1
        if result is not None:
            state.update_average(self.steps)
            self.method.after_step(self._view(), result.outputs, result.batch)
            self._report(result, rates)

    def _report(self, result: StepResult, rates: Mapping[str, float]) -> None:
        step, images = self.state.step, len(result.outputs)
        self.records.add(
            {
                "step": step,
                "epoch": self.batches.sampler.epoch,
                **result.metrics(),
                "learning_rates": rates,
                "seconds": round(time.monotonic() - self.started, 3),
            }
        )
        self.callback.step(
            StepReport(step=step, loss=result.loss, terms=result.terms, images=images)
        )

    # Between steps: validation, checkpoints, an answer to signals, the end.

    def _judge(self, model: Embedder) -> Mapping[str, float]:
        """What the method says of the model where there are no labels to validate with."""
        model.eval()
        return self.method.judge(self._view())

    def _validate(self, validate: Validate) -> None:
        """Score the model as it is, and remember it if it is the best so far."""
        state, name = self.state, self.settings.choose_by
        with state.averaged():
            try:
                scores = dict(validate(self.model))
            except BadData as error:
                # Images that were fine before the first update are not to blame after it.
                kind = NonFiniteError if state.step else BadData
                raise kind(f"validation after step {state.step}: {error}") from None
            if name not in scores:
                raise BadData(f"choose_by={name!r}: validation gives {', '.join(sorted(scores))}")
            better = state.improves(scores[name], scores.get(TIE_BREAK))
        self.model.train()

        self.scores.append(scores[name])
        self.method.after_validation(self._view(), scores)
        self.records.add({"step": state.step, "validation": scores, "best": better})
        mark = ", the best so far" if better else ""
        self.callback.on_message(f"step {state.step}: validation {name} {scores[name]:.4f}{mark}")

        decline = decline_reason(self.scores)
        if decline is not None:
            self.callback.on_message(f"step {state.step}: {decline}")
            self.records.add({"step": state.step, "decline": decline})

    def _save(self) -> None:
        """Write a checkpoint of this step, once, and then the model that it calls the best."""
        folder = self.records.folder
        if folder is None or self.saved_at == self.state.step:
            return
        self.saved_at = self.state.step
        if self.records.writes:
            self.records.flush()
            self.state.save(folder / "checkpoints", self.environment)
            # Behind the checkpoint, which holds the same weights: after a kill in between, the
            # model is written again when the run is resumed.
            self._save_best(folder)
            if len(self.batches.bad):
                self.batches.bad.write(folder / "bad_images.csv")

    def _save_best(self, folder: Path) -> None:
        """Write the best model; what the record says of the one before it goes first."""
        if self.state.best_step is not None:
            self.records.withdraw(self.state.best_step)
            self.state.save_best(folder / "model")

    def _stop_if_asked(self, request: StopRequest) -> None:
        """Write a checkpoint and raise Interrupted if any process was asked to stop."""
        number = self.distributed.all_reduce_max(request.number)
        if number:
            self._save()
            self.distributed.barrier()
            self.callback.end()
            raise Interrupted(number, self.state.step)

    def _finish(self) -> None:
        """Give the model the weights that were best, and save it."""
        state, folder = self.state, self.records.folder
        self._save()
        state.restore_best()
        if state.step and state.best_step != 0 and self.method.finish(self._view()):
            self._agree()
            state.keep_finished()

        if self.records.writes and folder is not None:
            if state.best_step is None:
                self.records.withdraw(state.step)
                self.model.save(folder / "model")
            self._save_best(folder)
        if state.best_step == 0 and state.step:
            self.callback.on_message(
                f"the start model is kept: no later one had a better {self.settings.choose_by}"
            )
        self.records.note(
            {
                "finished": True,
                "steps_done": state.step,
                "best_step": state.best_step,
                "best_score": state.best_score,
            }
        )
        self.callback.end()
