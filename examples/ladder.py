"""CBML and multi-similarity from easy sets to hopeless ones: does training ever do harm?

Each rung is a set and a network: birds at four sizes, emoji in color, gray and blurred, grocery
photos, letters of the fonts of this computer, a network of four of its seven stages, and random
weights. Both losses have the recipe of `cbml train`, the same seeds and one learning rate, and are
scored on held-out classes: the start, and the model that is kept after 60 steps. Each run is a line
in the records once it is done.

    python examples/ladder.py --cub ~/CUB_200_2011 --grocery ~/GroceryStoreDataset
"""

import argparse
import csv
import json
import shutil
import statistics
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFilter, ImageFont
from torch import nn

from cbml import Embedder, RunConfig, run
from cbml.data import Splits
from cbml.runs import load_splits, parse_overrides
from cbml.training import Callback, read_metrics, read_record

LOSSES = {
    "cbml": (),
    "multi_similarity": ("loss=multi_similarity", "proxy_weight=0.5"),
}
BUDGET = ("steps=60", "validate_every=20", "learning_rate=2e-4")
SHALLOW = "examples.ladder:four_stages"
SCORES = ("recall@1", "map@r")
FONTS, SIDE = 60, 48
CHARACTERS = string.ascii_letters + string.digits


def four_stages() -> nn.Module:
    """EfficientNet-Lite0 up to its fourth stage of seven, with its pretrained weights."""
    network: Any = Embedder("efficientnet_lite0").backbone.network
    return nn.Sequential(network.conv_stem, network.bn1, *network.blocks[:4])


def changed(splits: Splits, folder: Path, kind: str) -> Path:
    """The images of a set in gray, or blurred, as a table."""
    rows = []
    for part, images in (("train", splits.train), ("test", splits.test)):
        assert images is not None
        for number, (path, label) in enumerate(
            zip(images.paths, images.known_labels.tolist(), strict=True)
        ):
            target = folder / kind / f"{part}-{number}.png"
            rows.append([target.resolve(), images.class_names[label], part])
            if target.exists():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            with Image.open(path) as opened:
                image = Image.new("RGB", opened.size, "white")
                image.paste(opened, mask=opened.convert("RGBA").getchannel("A"))
            if kind == "gray":
                image = image.convert("L")
            else:
                image = image.filter(ImageFilter.GaussianBlur(image.width / 24))
            image.save(target)
    return table(folder / f"{kind}.csv", rows)


def glyphs(folder: Path) -> Path:
    """Letters and digits of the fonts of this computer, a class each, as a table."""
    rows = []
    for number, font in enumerate(usable_fonts()):
        for character in CHARACTERS:
            target = folder / "glyphs" / f"{ord(character)}-{number}.png"
            rows.append([target.resolve(), f"character {ord(character)}", "train"])
            target.parent.mkdir(parents=True, exist_ok=True)
            image = Image.new("L", (SIDE, SIDE), 255)
            center = (SIDE / 2, SIDE / 2)
            ImageDraw.Draw(image).text(center, character, fill=0, font=font, anchor="mm")
            image.save(target)
    return table(folder / "glyphs.csv", rows)


def usable_fonts() -> Iterator[ImageFont.FreeTypeFont]:
    """Fonts of different families that draw all the characters."""
    families: set[str] = set()
    for path in sorted(Path("/usr/share/fonts").rglob("*.[ot]tf")):
        try:
            font = ImageFont.truetype(str(path), int(SIDE * 0.7))
            shapes = {bytes(font.getmask(character)) for character in CHARACTERS}
        except OSError:
            continue
        family = str(font.getname()[0]).split()[0]
        # Where characters are missing, many are drawn as the same box.
        if family in families or len(shapes) < len(CHARACTERS) * 0.8 or len(families) == FONTS:
            continue
        families.add(family)
        yield font


def table(path: Path, rows: list[list[Any]]) -> Path:
    """Write a table of images."""
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["path", "label", "split"], *rows])
    return path


def rungs(cub: str | None, grocery: str | None, folder: Path) -> dict[str, list[str]]:
    """The overrides of every rung, its set first."""
    folder.mkdir(parents=True, exist_ok=True)
    emoji = load_splits(RunConfig({"source": "emoji", "validation": 0.0}))
    gray, blurred = (changed(emoji, folder, kind) for kind in ("gray", "blurred"))
    letters = glyphs(folder)
    found = {
        "emoji, 64 pixels": ["emoji", "crop=64"],
        "emoji, gray": [str(gray), "crop=64"],
        "emoji, blurred": [str(blurred), "crop=64"],
        "emoji, four of seven stages": ["emoji", "crop=64", f"backbone={SHALLOW}"],
        "emoji, random weights": ["emoji", "crop=64", "weights=none"],
        "glyphs, 48 pixels": [str(letters), "crop=48"],
        "glyphs, random weights": [str(letters), "crop=48", "weights=none"],
    }
    if cub is not None:
        for crop in (32, 64, 96, 128):
            rate = ["learning_rate=1e-4"] if crop > 64 else []
            found[f"birds, {crop} pixels"] = [cub, f"crop={crop}", *rate]
    if grocery is not None:
        found["grocery photos, 64 pixels"] = [grocery, "crop=64", "split=classes"]
    return found


def run_once(words: list[str], loss: str, seed: int, folder: Path) -> dict[str, Any]:
    """Train and give the scores on held-out classes, of the start and of what is kept."""
    source, *overrides = words
    if loss == "cbml" and f"backbone={SHALLOW}" in overrides:  # nobody knows that it is pretrained
        overrides.append("parameters=from-data")
    changes = parse_overrides([*BUDGET, *LOSSES[loss], *overrides, f"seed={seed}"])
    config = RunConfig({"source": source, **changes.pop("data", {})}, **changes)
    result = run(config, folder, resume=(folder / "run.json").exists(), callback=Callback())
    lines = {
        line["step"]: line["validation"] for line in read_metrics(folder) if "validation" in line
    }
    record = read_record(folder)
    found = {
        "start": lines[0],
        "kept": lines[result.fitted.best_step or 0],
        "last": lines[max(lines)],
    }
    named = result.config.replace(data=Path(source).name)
    return {
        "scores": {when: {name: scores[name] for name in SCORES} for when, scores in found.items()},
        "best_step": result.fitted.best_step,
        "statistics": (record.get("parameters") or {}).get("statistics"),
        "environment": record["environment"],
        "config": named.as_dict(),
    }


def printed(lines: list[dict[str, Any]]) -> str:
    """A row for each rung: means over seeds, and how far ours is ahead, seed by seed."""
    rows = ["| rung | start | cbml | multi-similarity | ahead by |", "|---|---|---|---|---|"]
    for rung in dict.fromkeys(line["rung"] for line in lines):
        runs = {
            (line["loss"], line["seed"]): line["scores"] for line in lines if line["rung"] == rung
        }
        seeds = sorted(
            {seed for loss, seed in runs if all((each, seed) in runs for each in LOSSES)}
        )
        if not seeds:
            continue

        def cell(loss: str, when: str, runs: Any = runs, seeds: Any = seeds) -> str:
            means = [statistics.mean(100 * runs[loss, s][when][n] for s in seeds) for n in SCORES]
            return "/".join(f"{mean:.1f}" for mean in means)

        ahead = [
            "/".join(
                f"{100 * (runs['cbml', s]['kept'][n] - runs['multi_similarity', s]['kept'][n]):.1f}"
                for n in SCORES
            )
            for s in seeds
        ]
        cells = [cell("cbml", "start"), *(cell(loss, "kept") for loss in LOSSES), ", ".join(ahead)]
        rows.append(f"| {rung} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def main() -> None:
    """Do what is not yet done, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cub", help="folder of CUB-200-2011")
    parser.add_argument("--grocery", help="folder of the grocery store dataset")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--only", nargs="+", help="rungs; all by default")
    parser.add_argument("--records", type=Path, default=Path("results/recipe/ladder.jsonl"))
    parser.add_argument("--runs", type=Path, default=Path("runs/ladder"))
    options = parser.parse_args()
    file: Path = options.records
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    for rung, words in rungs(options.cub, options.grocery, options.runs / "images").items():
        if options.only and rung not in options.only:
            continue
        for seed in options.seeds:
            for loss in LOSSES:
                key = {"rung": rung, "loss": loss, "seed": seed}
                if any(key.items() <= line.items() for line in lines):
                    continue
                folder = options.runs / f"{rung}-{loss}-{seed}".replace(" ", "-").replace(",", "")
                lines.append(key | run_once(words, loss, seed, folder))
                with file.open("a") as records:
                    records.write(json.dumps(lines[-1]) + "\n")
                shutil.rmtree(folder)
                print(key, lines[-1]["scores"], flush=True)
    print(printed(lines))


if __name__ == "__main__":
    main()
