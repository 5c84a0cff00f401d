"""The default recipe with other losses in it: the same choices, rates and seeds for each.

Every loss gets the recipe of `cbml train` (crops, averaged weights, batches, steps, and proxies
where they are not its own) and the same learning rates to choose from, for 60 steps, or for as many
as the full runs, on held-out training classes with seed 0. Full runs at the best of them are scored
on the test classes, seed by seed, so that losses can be compared in pairs: one seed means the same
held-out classes and the same batches. Each run is a line in the records once it is done, and is
resumed from its checkpoint where it was stopped.

    python examples/recipe.py emoji
    python examples/recipe.py ~/CUB_200_2011 --name cub-full --set crop=96 --full-trials \
        --rates 5e-5 1e-4 2e-4 4e-4
"""

import argparse
import json
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

from scipy.stats import t

from cbml import RunConfig, run
from cbml.runs import parse_overrides
from cbml.training import Callback, read_record

OURS = "cbml"
LOSSES: dict[str, tuple[str, ...]] = {
    OURS: ("parameters=from-data",),
    "multi_similarity": ("loss=multi_similarity", "proxy_weight=0.5"),
    "multi_similarity_xbm": ("loss=multi_similarity_xbm", "loss.warmup_steps=40"),
    "proxy_anchor": ("loss=proxy_anchor",),
    "margin": ("loss=margin",),
}
RATES = (1e-4, 2e-4, 4e-4)
TRIAL_STEPS = 60
BUDGET = ("crop=64", "steps=200", "validate_every=100")
SCORES = ("recall@1", "map@r")

Line = dict[str, Any]


def config_of(data: str, loss: str, rate: float, seed: int, overrides: list[str]) -> RunConfig:
    """The config of a run: the recipe, a budget, and the loss."""
    words = [*BUDGET, *LOSSES[loss], f"learning_rate={rate}", f"seed={seed}", *overrides]
    changes = parse_overrides(words)
    return RunConfig({"source": data, **changes.pop("data", {})}, **changes)


def run_once(config: RunConfig, folder: Path, *, test: bool, keep: bool) -> Line:
    """Train, or resume, and score the held-out classes, and the test classes if asked."""
    start = time.monotonic()
    resume = (folder / "run.json").exists()
    result = run(config, folder, resume=resume, test=test, callback=Callback())
    found = {"validation": {result.config.training.choose_by: result.fitted.best_score}}
    found |= {"test": result.test, "start": result.test_start} if test else {}
    record = read_record(folder)
    if not keep:
        shutil.rmtree(folder)
    return {
        "scores": {
            split: {name: scores[name] for name in SCORES if name in scores}
            for split, scores in found.items()
            if scores
        },
        "best_step": result.fitted.best_step,
        "seconds": round(time.monotonic() - start),
        "environment": record["environment"],
        "config": config.replace(data=Path(config.data.source).name).as_dict(),
    }


def estimate(values: list[float]) -> str:
    """Mean and 95 % interval of the mean by Student's t, in percent."""
    mean = 100 * statistics.mean(values)
    if len(values) < 2:
        return f"{mean:.1f}"
    error = 100 * statistics.stdev(values) / len(values) ** 0.5
    return f"{mean:.1f} ± {float(t.ppf(0.975, len(values) - 1)) * error:.1f}"


def table(lines: list[Line]) -> str:
    """A row for each loss: its scores on the test classes, and how far ours is ahead in pairs."""
    finals = {(one["loss"], one["seed"]): one for one in lines if "test" in one["scores"]}
    heads = [f"{name}{what}" for name in SCORES for what in ("", ", cbml - it")]
    head = ["loss", "rate", "seeds", *heads]
    rows = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for loss in LOSSES:
        seeds = [seed for name, seed in finals if name == loss]
        if not seeds:
            continue
        rate = finals[loss, seeds[0]]["config"]["optimizer"]["learning_rate"]
        cells = [loss, f"{rate:g}", str(len(seeds))]
        paired = [] if loss == OURS else [seed for seed in seeds if (OURS, seed) in finals]
        for name in SCORES:
            own = {seed: finals[loss, seed]["scores"]["test"][name] for seed in seeds}
            ahead = [finals[OURS, seed]["scores"]["test"][name] - own[seed] for seed in paired]
            cells += [estimate(list(own.values())), estimate(ahead) if ahead else ""]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def main() -> None:
    """Do what is not yet done, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="?", default="emoji")
    parser.add_argument("--name", help="of the records; by default that of the data")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    parser.add_argument("--losses", nargs="+", default=list(LOSSES), choices=LOSSES)
    parser.add_argument("--records", type=Path, default=Path("results/recipe"))
    parser.add_argument("--runs", type=Path, default=Path("runs/recipe"))
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--rates", type=float, nargs="+", default=RATES)
    parser.add_argument("--full-trials", action="store_true", help="trials as long as the runs")
    parser.add_argument("--keep", action="store_true", help="keep the folders of full runs")
    options = parser.parse_args()
    name = options.name or Path(options.data).name
    file = options.records / f"{name}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def once(loss: str, rate: float, seed: int, extra: list[str], *, trial: bool) -> Line:
        key = {"loss": loss, "rate": rate, "seed": seed, "trial": trial}
        for line in lines:
            if key.items() <= line.items():
                return line
        config = config_of(options.data, loss, rate, seed, [*options.overrides, *extra])
        kind = "trial" if trial else "run"
        folder = options.runs / f"{name}-{loss}-{rate:g}-{seed}-{kind}"
        keep = options.keep and not trial
        line = key | run_once(config, folder, test=not trial, keep=keep)
        lines.append(line)
        with file.open("a") as records:
            records.write(json.dumps(line) + "\n")
        print(kind, loss, rate, seed, line["scores"], flush=True)
        return line

    best = {}
    for loss in options.losses:
        short = [f"steps={TRIAL_STEPS}", f"validate_every={TRIAL_STEPS}"]
        length = [] if options.full_trials else short
        tried = {rate: once(loss, rate, 0, length, trial=True) for rate in options.rates}
        best[loss] = max(tried, key=lambda rate: max(tried[rate]["scores"]["validation"].values()))
    for seed in options.seeds:
        for loss in options.losses:
            once(loss, best[loss], seed, [], trial=False)
    print(table(lines))


if __name__ == "__main__":
    main()
