"""Units that take a second: tiny pictures in a folder, a tiny network, a few steps."""

import os
from pathlib import Path

from cbml.experiments import Unit
from cbml.training import Recipe, Settings
from tests.training.small import pictures

STEPS = 6


def folder_of_pictures(place: Path) -> Path:
    """Twelve classes in folders: three train, three are held out or test."""
    root = place / "pictures"
    for path in pictures(place / "flat").paths:
        label, _, name = path.name.partition("-")
        for copy, target in enumerate((root / label, root / f"{label}b")):
            target.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes(path.read_bytes() + b"\0" * copy)
        os.unlink(path)
    return root


def unit(
    *,
    seed: int = 0,
    scored: tuple[str, ...] = ("test",),
    row: str = "CBML",
    steps: int = STEPS,
    rate: float = 1e-3,
) -> Unit:
    recipe = Recipe(
        data="tiny",
        backbone="conv4",
        dim=8,
        crop=16,
        classes_per_batch=3,
        pictures_per_class=3,
        loss="cbml",
        loss_options={"ratio.negative_scale": 0.2},
        seed=seed,
        workers=0,
        settings=Settings(steps=steps, validate_every=3, checkpoint_every=1, learning_rate=rate),
    )
    return Unit(table="loss-ablation", row=row, recipe=recipe, scale="laptop", scored=scored)
