"""A whole run from a config: train, choose by validation, calibrate, report, and test if asked."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cbml.bayes import FEWEST_CLASSES, check_results
from cbml.data import Batches, ImageDataset, Splits
from cbml.errors import BadData
from cbml.files import write_csv
from cbml.methods import chain_count, cluster_labels, spread_labels
from cbml.models import Embedder
from cbml.program import command
from cbml.query_gallery import QueryGallery
from cbml.runs.build import build_execution, build_model, use_backbone
from cbml.runs.compare import FREE, check_same_run
from cbml.runs.config import RunConfig, check_names
from cbml.runs.defaults import more_classes
from cbml.runs.evaluate import (
    embed_for_search,
    embed_split,
    evaluate_by,
    fit_probability,
    note_test_evaluation,
)
from cbml.runs.folder import hold_run, run_calibration
from cbml.runs.parameters import with_chosen_parameters
from cbml.runs.parts import Parts, Start, labeled_parts, unlabeled_parts
from cbml.runs.planning import with_start
from cbml.runs.refinement import refined, save_refinement
from cbml.runs.report import report_run
from cbml.training import (
    Callback,
    Distributed,
    Fitted,
    ProgressCallback,
    Run,
    TrainingView,
    embed_dataset,
    fit,
    read_record,
    update_record,
)

Metrics = Mapping[str, float]

# Probabilities fitted to six classes of birds were off by up to 0.28 on others, to ten by 0.08.
CLASSES_TO_TRUST = 10

# Files, and entries of run.json, that speak of the model and not of the run.
DERIVED = frozenset(
    {
        *("calibration.json", "method/manifest.json", "study"),
        *("test", "test_conditions", "test_plain", "test_reliability"),
    }
)


@dataclass(frozen=True)
class RunResult:
    """The result of `run`.

    Args:
        folder: The run's folder.
        config: The config with all that it left open filled in.
        fitted: Steps, best validation score and learning rates.
        model: The trained model.
        splits: The images.
        test: Scores on the test classes; None if they were not evaluated.
        test_start: Test scores of the model before training.
    """

    folder: Path
    config: RunConfig
    fitted: Fitted
    model: Embedder
    splits: Splits
    test: Mapping[str, float] | None
    test_start: Mapping[str, float] | None

    def as_dict(self) -> dict[str, Any]:
        """The result, ready for JSON."""
        return {
            "run": str(self.folder),
            "steps": self.fitted.steps,
            "best_step": self.fitted.best_step,
            "validation": self.fitted.best_score,
            "validation_start": self.fitted.start_score,
            "validation_last": self.fitted.last_score,
            "stopped_early": self.fitted.stopped_early,
            "learning_rates": self.fitted.learning_rates,
            "test": self.test,
            "test_start": self.test_start,
        }


def run(
    config: RunConfig,
    folder: Path | str,
    *,
    resume: bool = False,
    test: bool = False,
    distributed: Distributed | None = None,
    callback: Callback | None = None,
) -> RunResult:
    """Train a model as a config says, and keep everything in one folder: `cbml train`.

    The folder holds run.json, metrics.jsonl, checkpoints/, model/, calibration.json, report.html
    and, for a run without labels, clusters.csv. Without labels the last model is kept, unless
    the method can judge it.

    Args:
        config: Every choice.
        folder: Where everything goes; a run that is already there is only resumed, and by one
            process at a time.
        resume: Continue from the newest checkpoint. The config must be that of the run, but for
            what does not change it, such as the number of steps.
        test: Evaluate the test classes at the end; the record counts it.
        distributed: The processes that train together; this one alone when None.
        callback: Notified of every step; None shows progress on standard error.
    """
    folder, distributed = Path(folder), distributed or Distributed()
    callback = (callback or ProgressCallback()) if distributed.is_main_process else Callback()
    check_names(config)
    use_backbone(config.model.backbone)
    config = with_chosen_parameters(with_start(config))
    torch.manual_seed(config.training.seed + distributed.rank)  # dropout has no other source
    with contextlib.ExitStack() as stack:
        if resume:
            config = check_same_run(folder, config)
            stack.enter_context(hold_run(folder, distributed))
        start = Start(folder if resume else None, distributed, callback, test)
        labeled = config.data.labels == "known"
        parts = labeled_parts(config, start) if labeled else unlabeled_parts(config, start)
        stack.enter_context(hold_run(folder, distributed))  # only now: it makes a new run's folder
        records = Run(
            folder,
            _metadata(parts),
            resume,
            config.training.tensorboard,
            config=parts.config.as_dict(),
            free=FREE,
            derived=DERIVED,
        )
        fitted = _fit(parts, records, distributed, callback)
        parts.model.eval()
        scores, before = _finish(folder, parts, fitted, test, distributed, callback)
    return RunResult(folder, parts.config, fitted, parts.model, parts.splits, scores, before)


def trained_model(config: RunConfig, folder: Path, callback: Callback) -> Embedder:
    """The model of a run that is trained, resumed, or only read where it is finished.

    Args:
        config: Every choice.
        folder: The run's folder, where it may have begun.
        callback: Notified of every step.
    """
    started = (folder / "run.json").exists()
    if started and read_record(folder).get("finished"):
        return Embedder.load(folder / "model").eval()
    return run(config, folder, resume=started, callback=callback).model


def _metadata(parts: Parts) -> dict[str, Any]:
    return {"config": parts.config.as_dict(), "data": parts.splits.record, **parts.metadata}


def _fit(parts: Parts, run: Run, distributed: Distributed, callback: Callback) -> Fitted:
    held_out = parts.held_out

    def validate(candidate: Embedder) -> Mapping[str, float]:
        assert held_out is not None
        shown = callback.progress("held-out images embedded")
        embeddings = embed_for_search(candidate, held_out, distributed, shown)
        found = QueryGallery.of(embeddings, held_out.images.known_labels)
        return evaluate_by(candidate, refined(parts.method, found), clustering=False).metrics

    return fit(
        parts.model,
        parts.method,
        parts.batches,
        settings=parts.config.settings,
        validate=None if held_out is None else validate,
        run=run,
        execution=build_execution(parts.config, parts.model),
        distributed=distributed,
        callback=callback,
    )


def _finish(
    folder: Path,
    parts: Parts,
    fitted: Fitted,
    test: bool,
    distributed: Distributed,
    callback: Callback,
) -> tuple[Metrics | None, Metrics | None]:
    """What follows the training. The model is safe by now: only the test may fail the run."""
    model, train = parts.model, parts.splits.train
    if distributed.is_main_process and parts.config.data.labels == "known":
        classes, images = len(train.class_names), len(train)
        save_refinement(folder, parts.method, classes=classes, images=images)
    with _optional(callback, "calibration.json", command("analyze", folder)):
        _calibrate(folder, parts, distributed, callback)
    scores = before = None
    if test:
        scores, before = _test(folder, parts, fitted, distributed, callback)
    with _optional(callback, "clusters.csv", command("train", "--resume", folder)):
        _note_clusters(folder, parts, distributed)
    if distributed.is_main_process:
        with _optional(callback, "report.html", command("evaluate", folder)):
            report_run(folder, model, _reported(parts), callback)
    return scores, before


def _test(
    folder: Path, parts: Parts, fitted: Fitted, distributed: Distributed, callback: Callback
) -> tuple[Metrics, Metrics | None]:
    """Scores on the test images, of the model that was kept and of the one it started from."""
    callback.on_message("scoring the test images")
    embedded = embed_split(parts.model, parts.splits, "test", distributed, callback)
    mixed = refined(parts.method, embedded)
    plain = None if mixed is embedded else evaluate_by(parts.model, embedded)
    found, before = evaluate_by(parts.model, mixed), None
    with _optional(callback, "test scores of the start", command("evaluate", folder, "--test")):
        if fitted.best_step == 0:
            before = found
        else:
            callback.on_message("scoring the start on the test images, to compare with")
            start = build_model(parts.config, parts.method).eval()
            embedded_start = embed_split(start, parts.splits, "test", distributed, callback)
            before = evaluate_by(start, embedded_start)
    if distributed.is_main_process:
        reliability = None
        with _optional(
            callback, "check of the probabilities", command("analyze", folder, "--test")
        ):
            reliability = _reliability(folder, mixed)
        note_test_evaluation(folder, found, reliability, start=before, plain=plain)
    return found.metrics, None if before is None else before.metrics


@contextlib.contextmanager
def _optional(callback: Callback, what: str, again: str) -> Iterator[None]:
    """One line instead of an error: nothing that is written after the model may fail a run."""
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        # What the images do not allow is not better the second time.
        hint = "" if isinstance(error, BadData) else f"; to try again:  {again}"
        callback.on_message(f"no {what}: {reason}{hint}")


def _calibrate(folder: Path, parts: Parts, distributed: Distributed, callback: Callback) -> None:
    """Fit match probabilities on the held-out classes."""
    if parts.held_out is None:
        return
    held_out, train = parts.held_out.images, parts.splits.train
    more = more_classes(parts.config.data.validation)
    if (classes := int((held_out.class_sizes() > 1).sum())) < FEWEST_CLASSES:
        callback.on_message(
            f"no match probabilities: they need {FEWEST_CLASSES} held-out classes with two images "
            f"or more, and there are only {classes}; {more}"
        )
        return
    embeddings = embed_dataset(parts.model, parts.held_out, distributed)
    probability = fit_probability(
        parts.model,
        held_out,
        QueryGallery.of(embeddings, held_out.known_labels),
        train,
        seed=parts.config.training.seed,
        distributed=distributed,
        callback=callback,
    )
    if distributed.is_main_process:
        probability.save(folder / "calibration.json")
        if (classes := len(set(held_out.known_labels))) < CLASSES_TO_TRUST:
            callback.on_message(
                f"match probabilities were fitted to only {classes} held-out classes, so they may "
                f"be far off for others; {more}"
            )


def _reliability(folder: Path, embedded: QueryGallery) -> dict[str, Any] | None:
    """How far the probabilities hold among the first ten results of searches."""
    probability = run_calibration(folder)
    return None if probability is None else check_results(probability, embedded)[10].as_dict()


def _reported(parts: Parts) -> Splits:
    """The images that the report shows: without labels, the clusters take their place."""
    if parts.config.data.labels == "known":
        return parts.splits
    study = parts.config.pseudo_labels.study
    held_out = parts.splits.validation if study else ImageDataset(())
    return dataclasses.replace(parts.splits, train=parts.batches.images, validation=held_out)


def _note_clusters(folder: Path, parts: Parts, distributed: Distributed) -> None:
    """What a run without labels has to say of its images."""
    if parts.config.data.labels == "each":
        _cluster(parts, distributed)
    if parts.study is not None:
        found_labels = parts.study(parts.model, parts.batches.images.known_labels)
        if distributed.is_main_process:
            update_record(folder, {"study": dict(found_labels)})
    if distributed.is_main_process and parts.config.data.labels != "known":
        _write_clusters(folder / "clusters.csv", parts.batches)


def _cluster(parts: Parts, distributed: Distributed) -> None:
    """Give the images, each a class of its own until now, the clusters of the trained model."""
    batches, chosen = parts.batches, parts.config
    view = TrainingView(parts.model, batches, distributed, step=0, steps=0)
    vectors = view.embed()
    clusters = chosen.pseudo_labels.clusters or chain_count(vectors)
    labels = cluster_labels(vectors, clusters, seed=chosen.training.seed)
    everyones = spread_labels(labels, view.readable, len(batches.images))
    names = tuple(map(str, range(clusters)))
    batches.images = dataclasses.replace(batches.images, labels=everyones, class_names=names)


def _write_clusters(path: Path, batches: Batches) -> None:
    images = batches.images
    rows = zip(map(str, images.paths), images.known_labels.tolist(), strict=True)
    write_csv(path, ["path", "cluster"], rows)
