"""A folder of images without labels: cluster them, learn from the clusters, look what they are.

    python examples/unlabeled_folder.py my-images/ --out runs/mine

The same from the command line: `cbml train my-images/ --labels none --clusters 100`. Without
`--clusters`, a pretrained network learns from larger views instead.
"""

import argparse
import csv
from collections import Counter
from pathlib import Path

import cbml
from cbml.runs import parse_overrides


def main() -> None:
    """Train and print the largest clusters."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/unlabeled"))
    parser.add_argument("--set", action="append", default=[], help="key=value, as cbml train")
    options = parser.parse_args()
    images = {"source": str(options.folder), "labels": "none"}
    config = cbml.RunConfig(images, **parse_overrides(options.set))
    cbml.run(config, options.out, resume=(options.out / "run.json").exists())
    with (options.out / "clusters.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    sizes = Counter(row["cluster"] for row in rows)
    print(f"{len(rows)} images in {len(sizes)} clusters; the largest:")
    for cluster, size in sizes.most_common(5):
        names = [Path(row["path"]).name for row in rows if row["cluster"] == cluster]
        print(f"  {size:4} images: {', '.join(names[:5])}")


if __name__ == "__main__":
    main()
