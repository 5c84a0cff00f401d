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
    "cbml with labels": ("labels=known", "dim=128", "ema=0"),
}
SCORES = ("recall@1", "map@r", "nmi")


def config_of(data: str, method: str, seed: int, overrides: list[str]) -> RunConfig:
    """The config of a unit."""
    budget = ["crop=64", "epochs=2", f"seed={seed}", *overrides]
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
    images = PackedDataset.of(splits.train, config.model.crop)
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
    """A row for each method, over its seeds."""
    rows = ["| method | seeds | Recall@1 | MAP@R | NMI |", "|---|---|---|---|---|"]
    for method in dict.fromkeys(line["method"] for line in lines):
        scores = [line["scores"] for line in lines if line["method"] == method]
        known = [[one[name] for one in scores if name in one] for name in SCORES]
        cells = [interval(values) if values else "–" for values in known]
        rows.append(f"| {method} | {len(scores)} | {' | '.join(cells)} |")
    return "\n".join(rows)


def main() -> None:
    """Do the units that are not yet done, and print the table of all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="?", default="emoji")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", default=list(ARMS), choices=ARMS)
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
        wanted = [m for m in options.methods if (m, seed) not in _keys(lines)]
        plain = config_of(options.data, "cbml", seed, options.overrides)
        if wanted and not plain.pseudo_labels.study and ("before", seed) not in _keys(lines):
            for name, scores in untrained(plain).items():
                note({"method": name, "seed": seed, "scores": scores})
        for method in wanted:
            config = config_of(options.data, method, seed, options.overrides)
            folder = options.runs / f"{method.replace(', ', '-').replace(' ', '_')}-{seed}"
            note({"method": method, "seed": seed, **run_unit(config, folder)})
    print(table(lines))


def _keys(lines: list[dict[str, Any]]) -> set[tuple[str, int]]:
    return {(line["method"], line["seed"]) for line in lines}


if __name__ == "__main__":
    main()
