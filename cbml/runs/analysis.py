"""What the similarities of a model's images tell: `cbml analyze`."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from cbml.bayes import SetAnalysis, analyze_set, check_results
from cbml.data import ImageDataset
from cbml.errors import BadData, MissingExtra
from cbml.files import write_json
from cbml.models import Embedder
from cbml.query_gallery import QueryGallery
from cbml.report import draw_ratios, draw_reliability, draw_similarities, save_figure
from cbml.runs.build import build_model, load_splits, training_splits
from cbml.runs.config import RunConfig
from cbml.runs.evaluate import (
    embed_images,
    fit_probability,
    note_test_evaluation,
    shows_test_images,
)
from cbml.runs.folder import model_folder, recorded_config
from cbml.runs.parameters import sample_indices
from cbml.runs.report import write_analysis_page
from cbml.training import Callback

Grid = dict[str, dict[str, SetAnalysis]]  # by images, then by model


@dataclass(frozen=True)
class RunAnalysis:
    """The result of `analyze_run`.

    Args:
        run: The run's folder.
        data: The images.
        grid: The analysis of each set of images by each model.
        reliability: How far match probabilities hold, by where they were checked.
        files: The page first, then the figures.
    """

    run: Path
    data: str
    grid: Grid
    reliability: Mapping[str, Any]
    files: tuple[Path, ...]

    def as_dict(self) -> dict[str, Any]:
        """All numbers, ready for JSON."""
        return {
            "run": str(self.run),
            "data": self.data,
            "sets": {
                name: {model: one.as_dict() for model, one in row.items()}
                for name, row in self.grid.items()
            },
            "reliability": {name: check.as_dict() for name, check in self.reliability.items()},
            "files": [str(path) for path in self.files],
        }


def analyze_run(
    run: Path | str,
    data: str | None = None,
    *,
    compare: Path | str | None = None,
    test: bool = False,
    out: Path | str | None = None,
    callback: Callback | None = None,
) -> RunAnalysis:
    """Analyze similarities before and after training, and fit match probabilities.

    Writes analysis.html, its figures and analysis.json, and the run's calibration.json.

    Args:
        run: The run's folder.
        data: Other images than those of the run.
        compare: Another run, drawn beside it.
        test: The test images too; the run's record counts it.
        out: Folder of the page; analysis/ in the run's folder when None.
        callback: Notified of every stage.
    """
    run, callback = Path(run), callback or Callback()
    other = None if compare is None else Path(compare)
    config = recorded_config(run)
    if data is not None:
        config = config.replace(data=data)
    models = _models(run, other, config)
    samples = _samples(config, whole=data is not None, test=test)
    for shown in [run] if other is None or other.samefile(run) else [run, other]:
        if shows_test_images(shown, (path for one in samples.values() for path in one.paths)):
            note_test_evaluation(shown)
    grid, embedded = _analyzed(models, samples, callback)
    reliability: Mapping[str, Any] = {}
    if data is None:
        calibration = run / "calibration.json"
        seed = config.training.seed
        reliability = _calibrated(models["after"], samples, embedded, calibration, seed, callback)
    folder = run / "analysis" if out is None else Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    files = _write(folder, run.resolve().name, grid, reliability, callback)
    found = RunAnalysis(run, config.data.source, grid, reliability, tuple(files))
    write_json(folder / "analysis.json", found.as_dict())
    return found


@dataclass(frozen=True, eq=False)
class _Sample:
    """Images to analyze: queries and a gallery, or a set that searches itself.

    `whole` is what `images` are a sample of; None where they are all there are.
    """

    images: ImageDataset
    gallery: ImageDataset | None = None
    whole: ImageDataset | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        return self.images.paths + (() if self.gallery is None else self.gallery.paths)

    @classmethod
    def of(cls, images: ImageDataset, seed: int) -> "_Sample":
        indices = sample_indices(images.known_labels, seed)
        if len(indices) == len(images):
            return cls(images)
        return cls(images.subset(indices), whole=images)

    @classmethod
    def across(cls, query: ImageDataset, gallery: ImageDataset, seed: int) -> "_Sample":
        """Queries and a gallery of the same classes, or a sample of both."""
        indices = sample_indices(query.joined(gallery).known_labels, seed)
        from_query = indices < len(query)
        rest = indices[~from_query] - len(query)
        return cls(query.subset(indices[from_query]), gallery.subset(rest))


def _samples(config: RunConfig, *, whole: bool, test: bool) -> dict[str, _Sample]:
    """The images to analyze: classes that were trained on, and classes that were not."""
    seed = config.training.seed
    parts = {name: images for name, images in load_splits(config).parts().items() if len(images)}
    if whole:
        return {"given": _Sample.of(reduce(ImageDataset.joined, parts.values()), seed)}
    if config.data.labels != "known" and not config.pseudo_labels.study:
        parts = _as_trained(config, parts)
    names = ("train", "validation", "test") if test else ("train", "validation")
    chosen = {name: _Sample.of(parts[name], seed) for name in names if name in parts}
    if test and "query" in parts and "gallery" in parts:
        chosen["query × gallery"] = _Sample.across(parts["query"], parts["gallery"], seed)
    return chosen


def _as_trained(config: RunConfig, parts: Mapping[str, ImageDataset]) -> dict[str, ImageDataset]:
    """The parts for a run without labels: nothing was held out but what is only for testing."""
    known = [parts[name] for name in ("train", "validation") if name in parts]
    learned = reduce(ImageDataset.joined, known)
    # Of a plain folder all images are trained on; then none of them can test anything.
    seen = set(training_splits(config).train.paths)
    rest = {name: images for name, images in parts.items() if name not in ("train", "validation")}
    unseen = {name: images for name, images in rest.items() if seen.isdisjoint(images.paths)}
    return {"train": learned, **unseen}


def _models(run: Path, compare: Path | None, config: RunConfig) -> dict[str, Embedder]:
    models = {"before": build_model(config), "after": Embedder.load(model_folder(run))}
    if compare is not None:
        name = compare.resolve().name
        if name == run.resolve().name:  # runs/a/emoji beside runs/b/emoji
            name = str(compare)
        models[f"after, {name}"] = Embedder.load(model_folder(compare))
    return models


def _analyzed(
    models: Mapping[str, Embedder], samples: Mapping[str, _Sample], callback: Callback
) -> tuple[Grid, dict[str, QueryGallery]]:
    """The analyses, and the embeddings of each sample by the trained model.

    A sample without pairs of both kinds is left out, with a word about it.
    """
    grid: Grid = {}
    trained: dict[str, QueryGallery] = {}
    problem = "no images to analyze"
    for name, sample in samples.items():
        for model_name, model in models.items():
            callback.on_message(f"embedding {len(sample.paths)} {name} images, {model_name}")
            embedded = embed_images(model, sample.images, sample.gallery)
            if model_name == "after":
                trained[name] = embedded
            try:
                one = analyze_set(embedded)
            except BadData as error:
                problem = f"{name} images: {error}"
                callback.on_message(f"left out, {problem}")
                break  # it is the same for every model
            grid.setdefault(name, {})[model_name] = one
    if not grid:
        raise BadData(problem)
    return grid, trained


def _calibrated(
    model: Embedder,
    samples: Mapping[str, _Sample],
    embedded: Mapping[str, QueryGallery],
    path: Path,
    seed: int,
    callback: Callback,
) -> dict[str, Any]:
    """Fit match probabilities on all validation images, write them, and check them."""
    if "validation" not in embedded:
        callback.on_message("no probabilities: no classes were held out to fit them on")
        return {}
    held_out = embedded["validation"]
    # `cbml train` fitted on all of them: a sample would replace it by something worse.
    train, whole = (samples[name].whole or samples[name].images for name in ("train", "validation"))
    if samples["validation"].whole is not None:
        callback.on_message(f"embedding all {len(whole)} validation images")
        held_out = embed_images(model, whole)
    callback.on_message("embedding training images to search among")
    try:
        probability = fit_probability(model, whole, held_out, train, seed=seed)
    except BadData as error:
        callback.on_message(f"no probabilities: {error}")
        return {}
    probability.save(path)
    reliability: dict[str, Any] = {"validation, halves of classes": probability.check}
    for name, one in embedded.items():
        if name not in ("train", "validation"):
            checks = check_results(probability, one)
            reliability |= {f"{name}, first {k}": check for k, check in checks.items()}
    return reliability


def _write(
    folder: Path, title: str, grid: Grid, reliability: Mapping[str, Any], callback: Callback
) -> list[Path]:
    """The page, and the figures as files where matplotlib is installed."""
    page = folder / "analysis.html"
    write_analysis_page(page, title, grid, reliability)
    paths = [page]
    try:
        figures = {"similarities": draw_similarities(grid), "ratios": draw_ratios(grid)}
        if reliability:
            figures["reliability"] = draw_reliability(reliability)
    except MissingExtra as missing:
        callback.on_message(f"no figure files: {missing}")
        return paths
    for name, figure in figures.items():
        paths += save_figure(figure, folder, name)
    return paths
