"""A folder of pictures without labels: cluster them, learn from the clusters, look what they are.

    python examples/unlabelled_folder.py my-pictures/ --out runs/mine

The same from the command line: `cbml train my-pictures/ --labels none --out runs/mine`.
"""

import argparse
import csv
from collections import Counter
from pathlib import Path

from torch import nn

from cbml import evaluate
from cbml.losses import build_loss
from cbml.pseudo import train_unlabelled, unlabelled_recipe
from cbml.training import Recipe, Shown, Tools


def make_loss(recipe: Recipe, classes: int) -> nn.Module:
    """The loss that the recipe names."""
    return build_loss(
        recipe.loss, recipe.loss_options, classes=classes, dim=recipe.dim, seed=recipe.seed
    )


def main() -> None:
    """Train and print the largest clusters."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/unlabelled"))
    parser.add_argument("--set", action="append", default=[], help="key=value, as cbml train")
    options = parser.parse_args()
    train_unlabelled(
        unlabelled_recipe(str(options.folder), options.set),
        options.out,
        Tools(make_loss=make_loss, evaluate=evaluate),
        resume=(options.out / "run.json").exists(),  # a second call goes on
        listener=Shown(),
    )
    with (options.out / "clusters.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    sizes = Counter(row["cluster"] for row in rows)
    print(f"{len(rows)} pictures in {len(sizes)} clusters; the largest:")
    for cluster, size in sizes.most_common(5):
        names = [Path(row["path"]).name for row in rows if row["cluster"] == cluster]
        print(f"  {size:4} pictures: {', '.join(names[:5])}")


if __name__ == "__main__":
    main()
