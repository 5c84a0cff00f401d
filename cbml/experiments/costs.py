"""What a row needs and what it costs, before anything is run."""

from dataclasses import dataclass

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
_TRAINING = 6.0  # two operations each; the way back costs twice the way there
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
        time = f"{self.hours:.1f} h" if self.hours >= 1 else f"{60 * self.hours:.0f} min"
        return f"{self.needs}; about {time} a seed on {self.device}"


def row_cost(row: Row, scale: Scale) -> Cost:
    """What a row needs and costs.

    Args:
        row: of a table.
        scale: "full" or "laptop".
    """
    recipe = row_recipe(row, scale)
    pictures = (recipe.settings.steps or 0) * recipe.batch_size
    forward = _FORWARD[recipe.backbone] * (recipe.crop / 224) ** 2
    hours = pictures * forward * _TRAINING / _RATES[scale] / 3600
    return Cost(f"{_pictures(row.data)}, {_weights(recipe)}", hours, _DEVICES[scale])


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
