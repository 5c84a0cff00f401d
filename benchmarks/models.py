"""Images per second of one training step, as the default runs it and as plain torch would.

A step is forward, a loss over all pairs, backward and Adam, with the batch norm's statistics
frozen. Plain means float32 with channels first. The ways take turns, so that a busy machine hits
all alike; rates are medians. The promise: the default gives at least 1.3 times the plain rate on a
CPU. `--ways all` adds bfloat16 and torch.compile, which are options and not the default, and Adam
in one kernel. The share of the processor says how much of what two large matrix products reach in
the same run the multiplications of a step reach: the rest is what any lever could still give.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch.utils.flop_counter import FlopCounterMode

from cbml.errors import BadData
from cbml.models import Embedder, Execution

PROMISE = 1.3
FUSED = "default, fused Adam"
# backbone, crop, batch
CASES = (
    ("efficientnet_lite0", 96, 64),
    ("efficientnet_lite0", 227, 24),
    ("resnet50", 227, 16),
)


def ways(every: bool) -> dict[str, Execution]:
    chosen = {"plain": Execution(), "default": Execution.default("cpu")}
    if every:
        chosen["bfloat16"] = Execution(precision="bfloat16")
        chosen["bfloat16, channels last"] = Execution(precision="bfloat16", channels_last=True)
        chosen["default in bfloat16"] = replace(Execution.default("cpu"), precision="bfloat16")
        chosen["compiled, channels last"] = Execution(compile=True, channels_last=True)
        chosen[FUSED] = Execution.default("cpu")
    return chosen


def training_step(
    backbone: str, crop: int, batch: int, execution: Execution, *, fused: bool = False
) -> Callable[[], object]:
    model = Embedder(backbone, dim=512, weights="none", batch_norm="frozen_statistics")
    execution.prepare(model)
    optimizer = torch.optim.Adam(model.parameter_groups(3e-5), fused=fused)
    images = torch.randn(batch, 3, crop, crop, generator=torch.Generator().manual_seed(0))

    def step() -> None:
        vectors = execution.run(model, images)
        loss = (vectors @ vectors.T).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def step_operations(backbone: str, crop: int) -> float:
    """Operations of a step for one image: three times those of the forward pass.

    Counted backward, convolutions with groups would be taken for full ones.
    """
    model = Embedder(backbone, dim=512, weights="none").eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(1, 3, crop, crop))
    return 3.0 * counter.get_total_flops()


def products(dtype: torch.dtype) -> float:
    """Operations per second of large matrix products."""
    left, seconds = torch.ones(3072, 3072, dtype=dtype), []
    for _ in range(5):
        start = time.perf_counter()
        left @ left
        seconds.append(time.perf_counter() - start)
    return 2 * 3072**3 / min(seconds)


def measure(backbone: str, crop: int, batch: int, rounds: int, every: bool) -> float:
    """Print a line for each way and give the default's ratio to the plain one."""
    steps: dict[str, Callable[[], object]] = {}
    for name, execution in ways(every).items():
        try:
            fused = name == FUSED
            steps[name] = training_step(backbone, crop, batch, execution, fused=fused)
        except BadData as error:
            print(f"{backbone} {crop}  {name}: not run ({error})")
            continue
        steps[name]()  # the first step allocates, and compiles where it is asked to
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - start)
    peak = products(torch.float32)
    operations = step_operations(backbone, crop)
    rates = {name: batch / statistics.median(times) for name, times in seconds.items()}
    for name, rate in rates.items():
        ratio = rate / rates["plain"]
        print(
            f"{backbone} {crop}, batch {batch}  {name:24} {rate:6.1f} images/s  {ratio:.2f} ×",
            end="",
        )
        print(f"  {100 * rate * operations / peak:.0f} % of the processor")
    return rates["default"] / rates["plain"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", help="this backbone")
    parser.add_argument("--ways", choices=("default", "all"), default="default")
    arguments = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads", flush=True)
    rates = [products(kind) / 1e9 for kind in (torch.float32, torch.bfloat16)]
    print("large products: {:.0f} GFLOP/s in float32, {:.0f} in bfloat16".format(*rates))
    ratios = [
        measure(*case, arguments.rounds, arguments.ways == "all")
        for case in CASES
        if arguments.only in (None, case[0])
    ]
    worst = min(ratios)
    kept = worst >= PROMISE
    print(f"smallest ratio of the default {worst:.2f} ×  (goal: at least {PROMISE} ×)")
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
