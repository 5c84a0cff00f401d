"""Where the time of a training step goes: the share of each part of `cbml.fit`, by a profiler.

Data are waiting for the next batch, which threads prepare meanwhile; bookkeeping is all that is no
other part: checks for NaN, the watch for collapse, norms, records.

    python benchmarks/step.py                 emoji as `cbml train` runs it, and ResNet-50 at 227
"""

import cProfile
import pstats

import torch

from cbml.losses import PRODUCTS, CBMLLoss
from cbml.runs import RunConfig, build_batches, build_execution, build_model, load_splits
from cbml.training import Distributed, Settings, fit

STEPS = 8
# Part -> the function whose calls it is made of: file and name.
PARTS = {
    "data": ("trainer.py", "_stream"),
    "forward": ("execution.py", "run_outputs"),
    "loss": ("terms.py", "compute_terms"),
    "backward": ("graph.py", "_engine_run_backward"),
    "optimizer": ("adam.py", "step"),
}
WHOLE = {("trainer.py", "_update"), PARTS["data"]}


def shares(name: str, config: RunConfig) -> None:
    images = load_splits(config).train
    batches = build_batches(config, images, Distributed())
    model = build_model(config)
    execution = build_execution(config, model)
    settings = Settings(steps=STEPS)
    profile = cProfile.Profile()
    profile.runcall(
        fit, model, CBMLLoss(ratio=PRODUCTS), batches, settings=settings, execution=execution
    )
    found: dict[tuple[str, str], float] = {}
    for (file, _, function), (_, _, _, total, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        found[file.rpartition("/")[2], function] = total
    whole = sum(found[part] for part in WHOLE)
    seconds = {part: found[where] for part, where in PARTS.items()}
    seconds["bookkeeping"] = whole - sum(seconds.values())
    print(f"{name}: {whole / STEPS:.2f} s a step, {torch.get_num_threads()} threads")
    for part, total in seconds.items():
        print(f"  {part:<12} {100 * total / whole:5.1f} %")


def main() -> None:
    torch.set_num_threads(2)
    shares("emoji, efficientnet_lite0, crop 96, batch 120", RunConfig("emoji"))
    large = RunConfig(
        "emoji",
        model={"backbone": "resnet50", "crop": 227, "weights": "none"},
        training={"classes_per_batch": 8, "samples_per_class": 4},
    )
    shares("emoji, resnet50, crop 227, batch 32", large)


if __name__ == "__main__":
    main()
