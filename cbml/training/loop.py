"""The training loop."""

import contextlib
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from cbml.data import Batch, Batches, ClassBalancedSampler, ImageSet, TrainTransform
from cbml.errors import BadData
from cbml.models import Embedder, Execution
from cbml.training.course import Course, Validate
from cbml.training.gradients import check_chunks
from cbml.training.interrupts import stop_request
from cbml.training.labels import Relabel
from cbml.training.optimisers import apply_rates, build_optimiser
from cbml.training.progress import Listener, Shown
from cbml.training.runs import Records, Run
from cbml.training.settings import Settings, rate_factor
from cbml.training.sizes import fitted_sizes
from cbml.training.state import TrainingState
from cbml.training.team import Team
from cbml.training.updates import Updates

__all__ = ["Fitted", "fit"]


@dataclass(frozen=True)
class Fitted:
    """What became of a training run.

    Args:
        steps: updates done, those of earlier parts of the run included.
        best_step: after which the model was best in validation; None without validation.
        best_score: of that model.
        rates: the learning rate of each group before the schedule.
        stopped_early: whether patience ran out before the last step.
    """

    steps: int
    best_step: int | None
    best_score: float | None
    rates: dict[str, float]
    stopped_early: bool


def fit(
    model: Embedder,
    loss: nn.Module,
    train: Batches | ImageSet,
    *,
    settings: Settings | None = None,
    validate: Validate | None = None,
    relabel: Relabel | None = None,
    run: Run | Path | str | None = None,
    execution: Execution | None = None,
    team: Team | None = None,
    listener: Listener | None = None,
) -> Fitted:
    """Train a model in place; afterwards it holds the weights that were best in validation.

    A step: the batch that the sampler names, its embeddings, the loss and its gradient, a finite
    check, one update. Between steps, when they are due: validation, a checkpoint, an answer to
    Ctrl-C and SIGTERM. A run that is stopped, killed or lost goes on from its newest checkpoint
    and ends with the same weights to the bit, on the same machine with as many threads.

    Args:
        model: what to train, on its device.
        loss: embeddings and labels in, one number out; its own parameters are trained too.
        train: batches of pictures; an ImageSet is drawn as 15 classes times 8 pictures, or all its
            classes where they are fewer.
        settings: every choice of the loop.
        validate: gives the scores of a model; the one named by `choose_by` decides. It must not
            use test pictures.
        relabel: asked before each pass; gives the pictures other labels, or None to keep those
            they have. The labels are part of a checkpoint.
        run: the folder for records and checkpoints; None keeps nothing.
        execution: layout and precision; the default for the device when None.
        team: the processes that train together; this one alone when None.
        listener: hears of every step; None shows how far it is on standard error.
    """
    settings, team = settings or Settings(), team or Team()
    run = Run(Path(run)) if isinstance(run, str | Path) else run
    listener = (listener or Shown()) if team.leads else Listener()
    batches = _as_batches(train, model, team)
    device = next(model.parameters()).device
    execution = _checked(execution or Execution.default(device))
    execution.prepare(model).train()
    loss.to(device).train()
    if settings.chunk_size is not None:
        check_chunks(model)
    state = TrainingState(model, loss, build_optimiser(model, loss, settings), batches, settings)
    records = Records(run, writes=team.leads)
    updates = Updates(state, execution, team, records, listener)
    course = Course(state, _steps(settings, batches), team, records, listener)
    course.start(run, execution, validate)
    with (
        stop_request() as request,
        contextlib.closing(records),
        contextlib.closing(_passes(course, relabel)) as stream,
    ):
        while state.step < course.steps and not course.out_of_patience:
            batch = next(stream)
            factor = rate_factor(settings, state.step, course.steps)
            rates = apply_rates(state.optimiser, course.rates, factor)
            result, norm = updates.gradient(batch)
            if result is not None:
                updates.apply(batch)
            state.optimiser.zero_grad(set_to_none=True)
            state.step += 1
            course.report(result, norm, rates, updates.seen)
            if validate is not None and course.due(settings.validate_every):
                course.validate(validate)
            if course.due(settings.checkpoint_every):
                course.save()
            course.stop_if_asked(request)
    course.finish(validated=validate is not None)
    early = course.out_of_patience
    return Fitted(state.step, state.best_step, state.best_score, course.rates, early)


def _as_batches(train: Batches | ImageSet, model: Embedder, team: Team) -> Batches:
    if isinstance(train, Batches):
        if not isinstance(train.sampler, ClassBalancedSampler):
            raise BadData("training needs batches of a ClassBalancedSampler: others cannot resume")
        if (train.sampler.rank, train.sampler.world_size) != (team.rank, team.size):
            raise BadData(
                f"the sampler is of process {train.sampler.rank} of {train.sampler.world_size}, "
                f"this is process {team.rank} of {team.size}: give it rank and world_size"
            )
        return train
    classes, pictures = fitted_sizes(train.class_sizes(), processes=team.size)
    sampler = ClassBalancedSampler(
        train.known_labels,
        classes_per_batch=classes,
        pictures_per_class=pictures,
        rank=team.rank,
        world_size=team.size,
    )
    transform = TrainTransform(crop=model.preprocessing.crop)
    return Batches(train, sampler, transform=transform, workers=1)


def _checked(execution: Execution) -> Execution:
    if execution.precision == "float16":
        raise BadData("precision 'float16' needs scaled losses to train: use 'bfloat16'")
    return execution


def _steps(settings: Settings, batches: Batches) -> int:
    if settings.steps is not None:
        return settings.steps
    assert settings.epochs is not None
    sampler = batches.sampler
    assert isinstance(sampler, ClassBalancedSampler)
    return sum(len(sampler.plan(epoch)) for epoch in range(settings.epochs))


def _passes(course: Course, relabel: Relabel | None) -> Generator[Batch, None, None]:
    batches = course.state.batches
    while True:
        if relabel is not None and batches.sampler.step == 0:
            course.relabel(relabel)
        yield from batches
