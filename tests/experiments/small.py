"""Jobs that take a second: tiny images in a folder, a tiny network, a few steps."""

import os
from pathlib import Path

from cbml.experiments import Job
from cbml.runs import RunConfig
from tests.training.small import make_images

STEPS = 6


def folder_of_images(place: Path) -> Path:
    """Twelve classes in folders: three train, three are held out or test."""
    root = place / "images"
    for path in make_images(place / "flat").paths:
        label, _, name = path.name.partition("-")
        for copy, target in enumerate((root / label, root / f"{label}b")):
            target.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes(path.read_bytes() + b"\0" * copy)
        os.unlink(path)
    return root


def job(
    *,
    seed: int = 0,
    scored: tuple[str, ...] = ("test",),
    row: str = "CBML",
    steps: int = STEPS,
    rate: float = 1e-3,
) -> Job:
    config = RunConfig(
        {"source": "tiny", "workers": 0},
        model={"backbone": "conv4", "dim": 8, "crop": 16},
        loss={"ratio.negative_scale": 0.2, "parameters": "given"},
        optimizer={"learning_rate": rate},
        training={
            "classes_per_batch": 3,
            "samples_per_class": 3,
            "seed": seed,
            "steps": steps,
            "validate_every": 3,
            "checkpoint_every": 1,
        },
    )
    return Job(table="loss-ablation", row=row, config=config, scale="laptop", scored=scored)
