"""The two scales of a recipe: the paper's, and one that a laptop finishes.

Where the paper and the authors' program are silent (the schedules for Cars, SOP, In-Shop, ImageNet
and for small embeddings), the numbers here are our decision.
"""

from cbml.errors import BadData
from cbml.experiments.units import Scale
from cbml.training import Recipe, with_overrides

__all__ = ["LAPTOP_DATA", "SCRATCH", "base_recipe", "loss_changes", "pseudo_changes"]

# The paper's numbers of clusters; for other sets the number of their training classes.
_CLUSTERS = {"cub": 100, "cars": 100, "sop": 10_000, "inshop": 3_997, "emoji": 844}

# classes and pictures of a class in a batch: 120 on CUB in the authors' program; 200 on SOP, 100
# with ResNet-50 in the paper; 100 on ImageNet in the paper.
_SMALL_SETS = ("classes_per_batch=15", "pictures_per_class=8", "steps=5000", "validate_every=200")
_PRODUCTS = ("classes_per_batch=40", "pictures_per_class=5", "steps=20000", "validate_every=1000")
_FULL_DATA = {
    "cub": _SMALL_SETS,
    "cars": _SMALL_SETS,
    "sop": _PRODUCTS,
    "inshop": _PRODUCTS,
    "imagenet": (
        *("classes_per_batch=20", "pictures_per_class=5", "steps=100000", "validate_every=5000"),
    ),
}
_FULL = (
    *("crop=227", "learning_rate=3e-5", "weight_decay=5e-4", "schedule=step", "drop_factor=0.1"),
    *("checkpoint_every=200", "optimiser=adam"),
)
# The authors' program drops the rate after so many of 5,000 steps; elsewhere at the same share.
_DROPS = {"googlenet": 3000}
_DROP, _OF_STEPS = 1200, 5000
_LAPTOP = (
    *("learning_rate=1e-4", "weight_decay=5e-4", "schedule=constant", "optimiser=adam"),
    *("steps=200", "validate_every=100", "checkpoint_every=100", "backbone=efficientnet_lite0"),
)
# From random weights the rate of fine-tuning moves nothing.
SCRATCH = ("weights=none", "learning_rate=1e-3")
# Emoji are 72 pixels wide and a class has five to seven of them.
LAPTOP_DATA = {
    "emoji": ("crop=64", "classes_per_batch=30", "pictures_per_class=4"),
    "cub": ("crop=96", "classes_per_batch=15", "pictures_per_class=8"),
    "cars": ("crop=96", "classes_per_batch=15", "pictures_per_class=8"),
    "sop": ("crop=96", "classes_per_batch=24", "pictures_per_class=5"),
    "inshop": ("crop=96", "classes_per_batch=24", "pictures_per_class=5"),
}


def base_recipe(scale: Scale, data: str, backbone: str) -> Recipe:
    """What all rows of a table have in common.

    Args:
        scale: "full" or "laptop".
        data: name of the picture set.
        backbone: of the paper's row; the laptop scale has its own.
    """
    known = _FULL_DATA if scale == "full" else LAPTOP_DATA
    if data not in known:
        raise BadData(f"{data}: not a set of the {scale} scale; use one of {', '.join(known)}")
    start = Recipe(data=data, backbone=backbone, validation=0.2)
    if scale == "laptop":
        return with_overrides(start, (*_LAPTOP, *LAPTOP_DATA[data]))
    recipe = with_overrides(start, (*_FULL, *_FULL_DATA[data]))
    drop = _DROPS.get(backbone, _DROP) * (recipe.settings.steps or 0) // _OF_STEPS
    recipe = with_overrides(recipe, (f"drop_at={drop}",))
    if backbone == "resnet50" and data in ("sop", "inshop"):
        recipe = with_overrides(recipe, ("classes_per_batch=20",))
    return recipe


def loss_changes(scale: Scale, loss: str) -> tuple[str, ...]:
    """What a loss needs at a scale.

    Args:
        scale: "full" or "laptop".
        loss: its name.
    """
    # Its memory is filled after a fifth of the laptop's steps, as of 5,000 in its paper.
    if scale == "laptop" and loss == "multi_similarity_xbm":
        return ("loss.warmup_steps=40",)
    return ()


def pseudo_changes(data: str) -> tuple[str, ...]:
    """What learning without labels changes in a recipe.

    Args:
        data: name of the picture set.
    """
    if data not in _CLUSTERS:
        raise BadData(f"{data}: no number of clusters is known for it")
    # Nothing is chosen by held-out classes, so none are held out.
    return ("labels=none", f"clusters={_CLUSTERS[data]}", "validate_every=0", "validation=0.0")
