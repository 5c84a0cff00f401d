"""Scores of a model on the splits of a dataset, and the record of every test evaluation."""

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cbml.bayes import ExpectedPositives, MatchProbability
from cbml.data import ImageDataset, PackedDataset, Splits
from cbml.errors import BadData, MissingExtra
from cbml.evaluation import Scores, evaluate
from cbml.files import locked
from cbml.index import find_reranker
from cbml.models import Embedder
from cbml.outputs import Outputs
from cbml.program import command
from cbml.query_gallery import QueryGallery
from cbml.runs.build import build_model, load_splits
from cbml.runs.config import RunConfig
from cbml.runs.folder import model_folder, recorded_config, run_reading
from cbml.runs.refinement import load_refinement, refined
from cbml.runs.report import class_scores, report_run
from cbml.training import (
    Callback,
    Distributed,
    Method,
    embed_dataset,
    embed_dataset_outputs,
    read_record,
    update_record,
)

# Seconds: another evaluation counts itself in a moment, while a training holds its folder for long.
_TURN = 10.0
# Training images among which held-out ones are searched for, to fit probabilities: as many as are
# embedded in seconds.
OTHERS = 2048
_CONDITIONS = ("queries", "lone_queries", "gallery", "classes")
_KMEANS = ("kmeans_seed", "kmeans_iterations", "kmeans_attempts")


@dataclass(frozen=True)
class Evaluation:
    """The scores of a model.

    Args:
        run: The run or model that was evaluated.
        data: The images.
        split: Which of them.
        scores: What `cbml.evaluate` gave.
        start: Scores of the model before the training; None but for the test of a run.
        classes: Recall@1 and MAP@R of each class, by name; empty without labels.
        plain: The same of the model's own embeddings, where `scores` are those of embeddings that
            the method of the run refined, which is transductive; else None.
    """

    run: Path
    data: str
    split: str
    scores: Scores
    start: Mapping[str, float] | None = None
    classes: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    plain: Scores | None = None

    def as_dict(self) -> dict[str, Any]:
        """The scores by names such as "recall@1", and their conditions, ready for JSON."""
        named = {"run": str(self.run), "data": self.data, "split": self.split}
        scores, conditions = self.scores.metrics, score_conditions(self.scores)
        found: dict[str, Any] = {
            **named,
            "scores": scores,
            "start": self.start,
            "conditions": conditions,
            "classes": self.classes,
        }
        if self.plain is not None:
            found["plain"] = self.plain.metrics
            conditions["transductive"] = True
        return found


def evaluate_run(
    run: Path | str,
    data: str | None = None,
    *,
    split: str | None = None,
    reading: Mapping[str, str | None] | None = None,
    allow_partial: bool = False,
    method: str | None = None,
    callback: Callback | None = None,
) -> Evaluation:
    """Score the model of a run: `cbml evaluate`.

    Every evaluation of test images is counted in the run's record, and shown in its report.

    Args:
        run: A run folder, or a saved model's.
        data: Other images than those of the run, as for `RunConfig.data`.
        split: "train", "validation", "test", or "all" for every image; None for validation, train
            where nothing was held out, or all of `data`.
        reading: `label_from`, `path_column` and `label_column` of `data`, as for `RunConfig.data`.
            The run's own images are read as in training.
        allow_partial: Accept an incomplete dataset.
        method: "package.module:Class", where the run was trained by a method of your own that
            refines embeddings.
        callback: Hears what is scored.
    """
    run = Path(run)
    model = Embedder.load(model_folder(run))
    config = _evaluated_config(run, data, {**(reading or {}), "allow_partial": allow_partial})
    splits = load_splits(config)
    usual = "validation" if len(splits.validation) else "train"
    chosen = split or (usual if data is None else "all")
    callback = callback or Callback()
    callback.on_message(f"scoring {chosen} images of {config.data.source}")
    refiner = load_refinement(run, method)
    embedded = embed_split(model, splits, chosen, callback=callback)
    plain = None if refiner is None else evaluate_by(model, embedded)
    found = evaluate_by(model, refined(refiner, embedded))
    own = data is None and (run / "run.json").exists()
    start = _start_scores(run, config, splits, callback) if own and chosen == "test" else None
    if own and chosen in ("test", "all"):
        tested = chosen == "test"
        shown = (found, plain) if tested else (None, None)
        note_test_evaluation(run, shown[0], start=start, plain=shown[1])
    elif data is not None and shows_test_images(run, _paths(splits, chosen)):
        note_test_evaluation(run)
    if own and (chosen in ("test", "all") or not (run / "report.html").exists()):
        report_run(run, model, splits, callback)
    known = read_record(run).get("test_start") if own and chosen == "test" else None
    classes = class_scores(found, _names(splits, chosen))
    return Evaluation(run, config.data.source, chosen, found, known, classes, plain)


def _names(splits: Splits, split: str) -> Sequence[str]:
    """The classes that the labels of a split's scores count."""
    parts = {name: images for name, images in splits.parts().items() if len(images)}
    if split == "all":
        return functools.reduce(ImageDataset.joined, parts.values()).class_names
    return parts[split].class_names if split in parts else ()


def _start_scores(
    run: Path, config: RunConfig, splits: Splits, callback: Callback
) -> Scores | None:
    """Test scores of the model before the training; None where they are known, or out of reach."""
    if "test_start" in read_record(run) or ":" in (config.method.name or ""):
        return None
    callback.on_message("scoring the model before the training, to compare with")
    try:
        return score_split(build_model(config).eval(), splits, "test", callback=callback)
    except (BadData, MissingExtra, OSError) as error:
        callback.on_message(f"no scores of the start: {error}")
        return None


def _evaluated_config(run: Path, data: str | None, given: Mapping[str, Any]) -> RunConfig:
    if data is not None:
        # Validation and test classes are cut as a run over these images would cut them.
        read = run_reading(run, data, given)
        return RunConfig({"source": data, **{name: read[name] for name in given if name in read}})
    if not (run / "run.json").exists():
        again = command("evaluate", run, "DATA")
        raise BadData(f"{run}: a model without a run; name the images:  {again}")
    config = recorded_config(run)
    partial = given["allow_partial"] or config.data.allow_partial
    return config.replace(data={"allow_partial": partial})


def _paths(splits: Splits, chosen: str) -> Iterator[Path]:
    wanted = ("test", "query", "gallery") if chosen == "test" else (chosen,)
    for name, images in splits.parts().items():
        if chosen == "all" or name in wanted:
            yield from images.paths


def embed_split(
    model: Embedder,
    splits: Splits,
    split: str,
    distributed: Distributed | None = None,
    callback: Callback | None = None,
) -> QueryGallery:
    """Embeddings and labels of one split.

    "test" has queries and a gallery where the dataset has them.

    Args:
        split: "train", "validation", "test", or "all" for every image.
    """
    if split == "test" and splits.query is not None and splits.gallery is not None:
        return embed_images(model, splits.query, splits.gallery, distributed, callback)
    parts = {name: images for name, images in splits.parts().items() if len(images)}
    if split == "all":
        whole = functools.reduce(ImageDataset.joined, parts.values())
        return embed_images(model, whole, None, distributed, callback)
    if split not in parts:
        raise BadData(
            f"{splits.record.get('root')}: has no {split} images, only {', '.join(parts)}"
        )
    return embed_images(model, parts[split], None, distributed, callback)


def embed_images(
    model: Embedder,
    images: ImageDataset,
    gallery: ImageDataset | None = None,
    distributed: Distributed | None = None,
    callback: Callback | None = None,
) -> QueryGallery:
    """Embeddings and labels of images, and of the gallery they search where there is one.

    Args:
        gallery: What they search; None where they search each other.
    """
    crop, progress = model.preprocessing.crop, (callback or Callback()).progress
    query = PackedDataset.of(images, crop, progress("images read"))
    embeddings = embed_for_search(model, query, distributed, progress("images embedded"))
    if gallery is None:
        return QueryGallery.of(embeddings, query.images.known_labels)
    searched = PackedDataset.of(gallery, crop, progress("gallery images read"))
    shown = progress("gallery images embedded")
    return QueryGallery.of(
        embeddings,
        _class_names(query.images),
        gallery_embeddings=embed_for_search(model, searched, distributed, shown),
        gallery_labels=_class_names(searched.images),
    )


def embed_for_search(
    model: Embedder,
    dataset: PackedDataset,
    distributed: Distributed | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> NDArray[np.float32] | Outputs:
    """Embeddings of images, with the parts that the model's reranker reads, where it names one."""
    if model.reranker is None:
        return embed_dataset(model, dataset, distributed, progress)
    parts = find_reranker(model.reranker).parts
    return embed_dataset_outputs(model, dataset, parts, distributed, progress)


def evaluate_by(
    model: Embedder,
    embedded: QueryGallery,
    *,
    recall_at: Sequence[int] | None = None,
    clustering: bool = True,
) -> Scores:
    """The scores of embeddings, reranked where the model names a reranker.

    Args:
        recall_at: As for `cbml.evaluate`; None for its default.
    """
    options: dict[str, Any] = {} if recall_at is None else {"recall_at": recall_at}
    if model.reranker is not None:
        entry = find_reranker(model.reranker)
        options |= {"reranker": entry.load(), "candidates": entry.candidates}
    return evaluate(embedded, clustering=clustering, **options)


def _class_names(images: ImageDataset) -> Any:
    """The class of each image: two datasets name one class by one name, not by one number."""
    return np.array(images.class_names)[images.known_labels]


def fit_probability(
    model: Embedder,
    held_out: ImageDataset,
    embedded: QueryGallery,
    train: ImageDataset,
    *,
    seed: int,
    distributed: Distributed | None = None,
    callback: Callback | None = None,
) -> MatchProbability:
    """Match probabilities of held-out images, fitted among training images of other classes too.

    Where most of them are of classes that were trained on, what little a split holds out of a class
    says nothing of galleries: as many of a class are expected there as in training.

    Args:
        held_out: The held-out images.
        embedded: What the model makes of them.
        train: The training images; 2,048 of them, drawn by the seed, are embedded.
    """
    drawn = np.sort(np.random.default_rng(seed).permutation(len(train))[:OTHERS])
    known = np.isin(_class_names(train)[drawn], held_out.class_names)

    def embed_drawn(chosen: NDArray[np.bool_]) -> NDArray[np.float32]:
        images = train.subset(drawn[chosen])
        return embed_images(model, images, None, distributed, callback).embeddings

    others = embed_drawn(~known) if not known.all() else None
    probability = MatchProbability.fit(embedded, others=others)
    if np.isin(_class_names(held_out), train.class_names).mean() <= 0.5:
        return probability
    expected = ExpectedPositives.of_classes(train.class_sizes())
    return probability.for_gallery(embed_drawn(known), positives=expected.positives)


def score_split(
    model: Embedder,
    splits: Splits,
    split: str,
    *,
    recall_at: Sequence[int] | None = None,
    refiner: Method | None = None,
    distributed: Distributed | None = None,
    callback: Callback | None = None,
) -> Scores:
    """The scores of a model on one split; "test" searches the gallery where there is one.

    Args:
        model: In evaluation mode.
        splits: The images.
        split: "train", "validation", "test", or "all" for every image.
        recall_at: As for `cbml.evaluate`; None for its default.
        refiner: Refines the embeddings first, as `load_refinement` gives it.
        distributed: The processes that share the work.
        callback: Hears how far it has come.
    """
    embedded = refined(refiner, embed_split(model, splits, split, distributed, callback))
    return evaluate_by(model, embedded, recall_at=recall_at)


def score_conditions(scores: Scores) -> dict[str, Any]:
    """How many images were scored, and how they were clustered."""
    plain = scores.as_dict()
    return {name: plain[name] for name in (*_CONDITIONS, *_KMEANS) if plain.get(name) is not None}


def note_test_evaluation(
    folder: Path,
    scores: Scores | None = None,
    reliability: Mapping[str, Any] | None = None,
    *,
    start: Scores | None = None,
    plain: Scores | None = None,
) -> None:
    """Count an evaluation of the test classes in run.json, with its scores.

    Args:
        folder: The run's folder.
        scores: Scores of the test classes; None where they were mixed with others.
        reliability: How far match probabilities held there; None where it was not asked.
        start: Scores of the model before the training; None leaves those that are known.
        plain: Scores of the model's own embeddings, where those above are transductive.
    """
    record: dict[str, Any] = {}
    if scores is not None:
        record |= {"test": scores.metrics, "test_conditions": score_conditions(scores)}
    if start is not None:
        record["test_start"] = start.metrics
    if plain is not None:
        record["test_plain"] = plain.metrics
    if reliability is not None:
        record["test_reliability"] = dict(reliability)
    with locked(folder, wait=_TURN):
        count = int(read_record(folder).get("test_evaluations", 0)) + 1
        update_record(folder, {"test_evaluations": count, **record})


def shows_test_images(folder: Path, paths: Iterable[Path]) -> bool:
    """Whether any of these files is a test image of a run, under whatever name.

    A run whose own images are not there any more, or a model without a run, has none to show.
    """
    if not (folder / "run.json").exists():
        return False
    try:
        splits = load_splits(recorded_config(folder))
    except (BadData, MissingExtra, OSError):
        return False
    parts = splits.parts()
    tested = [parts[name].paths for name in ("test", "query", "gallery") if name in parts]
    # Few folders hold many files, and each folder is looked up once.
    real = functools.cache(os.path.realpath)
    known = {(real(path.parent), path.name) for part in tested for path in part}
    return any((real(path.parent), path.name) in known for path in paths)
