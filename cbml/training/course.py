"""What happens around the updates of a run: its start, its records, checkpoints and end."""

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cbml.errors import BadData, DamagedFile
from cbml.models import Embedder, Execution
from cbml.training.checkpoints import newest_checkpoint
from cbml.training.environment import differences, environment
from cbml.training.gradients import BatchResult
from cbml.training.guards import BadNumbers, Similarities
from cbml.training.interrupts import Interrupted, StopRequest
from cbml.training.labels import Relabel
from cbml.training.optimisers import base_rates
from cbml.training.progress import Listener, StepReport
from cbml.training.runs import Records, Run
from cbml.training.state import TrainingState
from cbml.training.team import Team

__all__ = ["Course", "Validate"]

Validate = Callable[[Embedder], Mapping[str, float]]


class Course:
    """A run from its first step, or from a checkpoint, to its end.

    Args:
        state: what is trained and where it stands.
        steps: updates in all.
        team: the processes that train together.
        records: the run folder.
        listener: who hears of every step.
    """

    def __init__(
        self, state: TrainingState, steps: int, team: Team, records: Records, listener: Listener
    ) -> None:
        self.state = state
        self.steps = steps
        self.team = team
        self.records = records
        self.listener = listener
        used = {group["name"] for group in state.optimiser.param_groups}
        rates = base_rates(state.loss, state.settings)
        self.rates = {name: rate for name, rate in rates.items() if name in used}
        self.environment = environment(next(state.model.parameters()).device, team.size)
        self.saved_at = -1
        self.started = time.monotonic()
        self._best: dict[str, Any] | None = None

    @property
    def out_of_patience(self) -> bool:
        """Whether too many validations in a row brought nothing better."""
        patience = self.state.settings.patience
        return patience is not None and self.state.validations_without_gain >= patience

    def due(self, interval: int) -> bool:
        """Whether what happens every so many steps, and at the end, happens now.

        Args:
            interval: in steps; 0 for the end alone.
        """
        if self.state.step == self.steps or self.out_of_patience:
            return True
        return interval > 0 and self.state.step % interval == 0

    def start(self, run: Run | None, execution: Execution, validate: Validate | None) -> None:
        """Write down what will be done, or go on where the run's newest checkpoint stands.

        Args:
            run: the folder, and whether to resume.
            execution: for the record.
            validate: gives the scores before the first update.
        """
        for module in (self.state.model, self.state.loss):
            self.team.follow([*module.state_dict().values()])
        resumed = run is not None and run.resume and self._resume(run.folder)
        if not resumed:
            about = {} if run is None else dict(run.about)
            self.records.note(self._facts() | {"execution": execution.as_dict()} | about)
        rates = ", ".join(f"{name} {rate:g}" for name, rate in self.rates.items())
        self.listener.say(f"learning rates: {rates}; schedule: {self.state.settings.schedule}")
        if validate is not None and self.state.step == 0:
            self.validate(validate)
        self.listener.begin(self.state.step, self.steps)

    def _resume(self, folder: Path) -> bool:
        checkpoint = newest_checkpoint(folder / "checkpoints", self.listener.say)
        if checkpoint is None:
            self.listener.say(f"{folder}: no checkpoint yet, starting with the first step")
            self.records.cut_back(-1)
            return False
        try:
            self.state.restore(checkpoint)
        except KeyError as error:
            raise DamagedFile(f"{folder}: the checkpoint has no {error}; start anew") from None
        self.team.wait()  # all have read: the first may now write and delete
        self.saved_at = checkpoint.step
        self.records.cut_back(checkpoint.step)
        changed = differences(checkpoint.state["environment"], self.environment)
        for line in changed:
            self.listener.say(f"resuming under other conditions: {line}; the bits may differ")
        entry = {"step": checkpoint.step, "changed": changed}
        before = self.records.record.get("resumed", [])
        self.records.note({"resumed": [*before, entry], "steps": self.steps})
        self.listener.say(f"resumed after step {checkpoint.step} of {self.steps}")
        return True

    def _facts(self) -> dict[str, Any]:
        batches = self.state.batches
        return {
            "settings": self.state.settings.as_dict(),
            "steps": self.steps,
            "rates": self.rates,
            "model": self.state.model.describe(),
            "loss": " ".join(str(self.state.loss).split()),
            "crop": batches.transform.crop,
            "transform": str(batches.transform),
            "sampler": batches.sampler.state_dict()["conditions"],  # type: ignore[attr-defined]
            "environment": self.environment,
            "test_looks": 0,
        }

    def relabel(self, relabel: Relabel) -> None:
        """Ask for other labels before a pass.

        Args:
            relabel: gives them, or None.
        """
        state = self.state
        new = relabel(state.model, state.batches)
        if new is not None:
            state.batches.relabel(new.labels)
            epoch = state.batches.sampler.epoch
            # Of the step to come: a run resumed before it asks again.
            self.records.add({"step": state.step + 1, "epoch": epoch, "labels": new.facts})
            self.listener.say(f"step {state.step}: {new.text}")

    def report(
        self,
        result: BatchResult | None,
        norm: float,
        rates: Mapping[str, float],
        seen: Similarities | None,
    ) -> None:
        """Tell and write down what a step gave.

        Args:
            result: of the batch; None for a skipped update.
            norm: length of the gradient before it was shortened.
            rates: of the update, by group.
            seen: the batch's similarities, if they were looked at.
        """
        if result is None:
            return
        step, pictures = self.state.step, len(result.labels)
        self.records.add(
            {
                "step": step,
                "epoch": self.state.batches.sampler.epoch,
                "loss": result.loss,
                **result.terms,
                "gradient_norm": norm,
                "rates": rates,
                "positive_similarity": None if seen is None else seen.positive_mean,
                "negative_similarity": None if seen is None else seen.negative_mean,
                "seconds": round(time.monotonic() - self.started, 3),
            }
        )
        self.listener.step(
            StepReport(step=step, loss=result.loss, terms=result.terms, pictures=pictures)
        )

    def validate(self, validate: Validate) -> None:
        """Score the model as it is, and keep it if it is the best so far.

        Args:
            validate: gives the scores by name.
        """
        model, name = self.state.model, self.state.settings.choose_by
        try:
            scores = dict(validate(model))
        except BadData as error:
            # Pictures that were fine before the first update are not to blame after it.
            kind = BadNumbers if self.state.step else BadData
            raise kind(f"validation after step {self.state.step}: {error}") from None
        model.train()
        if name not in scores:
            raise BadData(f"choose_by={name!r}: validation gives {', '.join(sorted(scores))}")
        better = self.state.improves(scores[name])
        if better:
            self._best = {key: value.clone() for key, value in model.state_dict().items()}
            self._keep_model()
        self.records.add({"step": self.state.step, "validation": scores, "best": better})
        mark = ", the best so far" if better else ""
        self.listener.say(f"step {self.state.step}: validation {name} {scores[name]:.4f}{mark}")

    def _keep_model(self) -> None:
        if self.records.writes and self.records.folder is not None:
            self.state.model.save(self.records.folder / "model")

    def save(self) -> None:
        """Write a checkpoint of this step, once."""
        if self.records.folder is None or self.saved_at == self.state.step:
            return
        self.saved_at = self.state.step
        if self.records.writes:
            self.records.flush()
            self.state.save(self.records.folder / "checkpoints", self.environment)
            self._list_bad()

    def _list_bad(self) -> None:
        bad = self.state.batches.bad
        if len(bad) and self.records.folder is not None:
            bad.write(self.records.folder / "bad_images.csv")

    def stop_if_asked(self, request: StopRequest) -> None:
        """Write a checkpoint and raise Interrupted if any process was asked to stop.

        Args:
            request: of this process.
        """
        number = self.team.largest(request.number)
        if number:
            self.save()
            self.team.wait()
            self.listener.end()
            raise Interrupted(number, self.state.step)

    def finish(self, *, validated: bool) -> None:
        """Give the model the weights that were best, and save it.

        Args:
            validated: whether a best one was looked for.
        """
        model, folder = self.state.model, self.records.folder
        self.save()
        chosen = validated and self.state.best_step is not None
        if chosen and self._best is None and folder is not None:
            self._best = Embedder.load(folder / "model").state_dict()
        if self._best is not None:
            model.load_state_dict(self._best)
        else:
            self._keep_model()
        score = self.state.best_score
        done = {
            "finished": True,
            "steps_done": self.state.step,
            "best_step": self.state.best_step,
            "best_score": score if score is not None and math.isfinite(score) else None,
        }
        self.records.note(done)
        self.listener.end()
