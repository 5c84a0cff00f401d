"""What can be learned from emoji without their labels: larger views, clusters, other systems.

Every method starts from the same weights, sees as many crops, in batches of the same sizes and with
the same optimizer, and is scored on emoji whose classes it never saw. "before" is the network as it
comes, with a random linear layer; "start" the same with a linear layer that whitens,
from which all methods begin. Each run is a unit: a line in the records once it is done, continued
from its checkpoint where it was stopped. `make pseudo-evidence` runs them all. With
`--set study=true` scores are those of held-out training classes, to choose settings by.
"""

import argparse
import functools
import itertools
import json
import statistics
import time
from pathlib import Path
from typing import Any

from scipy.stats import t

from cbml import Embedder, RunConfig, run
from cbml.data import PackedDataset, Splits
from cbml.methods import METHODS, start_head
from cbml.runs import (
    build_model,
    parse_overrides,
    score_split,
    training_splits,
    with_current_names,
)
from cbml.training import Callback, embed_dataset, read_record

# Systems that the paper compares with, all with the optimizer of the others and 128 dimensions.
SYSTEMS = ("exemplar", "nce", "deep_cluster", "mom", "and", "isif", "ssuml", "cbswr", "ortho")
ARMS: dict[str, tuple[str, ...]] = {
    "larger views": ("labels=each", "method=larger_views"),
    "larger views, and pairs": ("labels=each", "method=larger_views", "method.pair_weight=0.3"),
    "cbml": (),
    "cbml, constants from data": ("parameters=from-data",),
    "cbml, no constraint": ("loss.variance_weight=0.0",),
    "cbml, with mining": ("loss.mining_margin=0.1",),
    "nt_xent, each image a class": ("labels=each", "loss=nt_xent"),
    "cross-entropy on clusters": ("loss=normalized_softmax",),
    **{
        name: (f"labels={METHODS[name].labels}", f"method={name}", "optimizer=adam", "dim=128")
        for name in SYSTEMS
    },
    "cbml with labels": ("labels=known", "dim=128", "ema=0", "test_crop=none"),
}
SCORES = ("recall@1", "map@r", "nmi")


def config_of(
    data: str, method: str, seed: int, overrides: list[str], epochs: int = 2
) -> RunConfig:
    """The config of a unit."""
    budget = ["crop=64", f"epochs={epochs}", f"seed={seed}", *overrides]
    changes = parse_overrides([*ARMS[method], *budget])
    images = {"source": data, "labels": "none", **changes.pop("data", {})}
    return RunConfig(images, **changes)


def scores_of(model: Embedder, splits: Splits) -> dict[str, float]:
    """Scores on the test classes."""
    found = score_split(model.eval(), splits, "test").metrics
    return {name: found[name] for name in SCORES if name in found}


def untrained(config: RunConfig) -> dict[str, dict[str, float]]:
    """Scores with a random linear layer, and with the one that all methods begin with."""
    splits = training_splits(config)
    model = build_model(config)
    before = scores_of(model, splits)
    images = PackedDataset.of(splits.train, config.test_crop)
    start_head(model, functools.partial(embed_dataset, dataset=images))
    return {"before": before, "start": scores_of(model, splits)}


def run_unit(config: RunConfig, folder: Path) -> dict[str, Any]:
    """Train, or resume, and score the test classes once."""
    start = time.monotonic()
    study = config.pseudo_labels.study
    resume = (folder / "run.json").exists()
    result = run(config, folder, resume=resume, test=not study, callback=Callback())
    record = read_record(folder)
    found = dict(record["study"] if study else result.test or {})
    scores = {name.removeprefix("held-out "): value for name, value in found.items()}
    named = config.replace(data=Path(config.data.source).name)  # not where it lies
    return {
        "scores": {name: scores[name] for name in SCORES if name in scores},
        "held_out": study,
        "steps": result.fitted.steps,
        "best_step": result.fitted.best_step,
        "clusters": record.get("clusters"),
        "seconds": round(time.monotonic() - start),
        "environment": record["environment"],
        "config": named.as_dict(),
    }


def interval(values: list[float]) -> str:
    """Mean and 95 % interval of the mean by Student's t."""
    mean = statistics.mean(values)
    if len(values) < 2:
        return f"{mean:.1%}"
    error = statistics.stdev(values) / len(values) ** 0.5
    return f"{mean:.1%} ± {100 * float(t.ppf(0.975, len(values) - 1)) * error:.1f}"


def table(lines: list[dict[str, Any]]) -> str:
    """A row for each method and length, over its seeds."""
    rows = ["| method | epochs | seeds | Recall@1 | MAP@R | NMI |", "|---|---|---|---|---|---|"]
    for unit in dict.fromkeys((line["method"], _epochs(line)) for line in lines):
        scores = [one["scores"] for one in lines if (one["method"], _epochs(one)) == unit]
        known = [[one[name] for one in scores if name in one] for name in SCORES]
        cells = [interval(values) if values else "–" for values in known]
        rows.append(f"| {unit[0]} | {unit[1]} | {len(scores)} | {' | '.join(cells)} |")
    return "\n".join(rows)


def main() -> None:
    """Do the units that are not yet done, and print the table of all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="?", default="emoji")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", default=list(ARMS), choices=ARMS)
    parser.add_argument(
        "--epochs", type=int, nargs="+", default=[2], help="a run is resumed from each to the next"
    )
    parser.add_argument("--records", type=Path, default=Path("results/pseudo/emoji.jsonl"))
    parser.add_argument("--runs", type=Path, default=Path("runs/pseudo"))
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    options.records.parent.mkdir(parents=True, exist_ok=True)
    done = options.records.read_text().splitlines() if options.records.exists() else []
    lines: list[dict[str, Any]] = [with_current_names(json.loads(line)) for line in done]

    def note(line: dict[str, Any]) -> None:
        lines.append(line)
        with options.records.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(f"seed {line['seed']} {line['method']:<32}", line["scores"], flush=True)

    for seed in options.seeds:
        units = itertools.product(options.methods, sorted(options.epochs))
        wanted = [unit for unit in units if (*unit, seed) not in _keys(lines)]
        plain = config_of(options.data, "cbml", seed, options.overrides)
        if wanted and not plain.pseudo_labels.study and ("before", 0, seed) not in _keys(lines):
            for name, scores in untrained(plain).items():
                note({"method": name, "seed": seed, "epochs": 0, "scores": scores})
        for method, epochs in wanted:
            config = config_of(options.data, method, seed, options.overrides, epochs)
            folder = options.runs / f"{method.replace(', ', '-').replace(' ', '_')}-{seed}"
            found = run_unit(config, folder)
            note({"method": method, "seed": seed, "epochs": epochs, **found})
    print(table(lines))


def _epochs(line: dict[str, Any]) -> int:
    """The length of a unit; older records, of two epochs or of no training, do not state it."""
    return int(line.get("epochs", 2 if "steps" in line else 0))


def _keys(lines: list[dict[str, Any]]) -> set[tuple[str, int, int]]:
    return {(line["method"], _epochs(line), line["seed"]) for line in lines}


if __name__ == "__main__":
    main()
