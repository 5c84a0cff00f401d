"""Search a folder of images from Python: build a gallery once, then ask it.

    python examples/search.py my-images/ query.jpg

A second call only embeds what is new. `--model` takes the folder of a trained model, such as
`runs/mine/model`; without it the network is the one that its ImageNet weights give.
"""

import argparse
from pathlib import Path

from cbml import Embedder
from cbml.gallery import Gallery, SearchOptions, build, list_images


def main() -> None:
    """Build or bring up to date, then search."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("query", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--gallery", type=Path, default=Path("gallery"))
    options = parser.parse_args()
    if options.model is None:
        model = Embedder("efficientnet_lite0", dim=128)
    else:
        model = Embedder.load(options.model)
    built = build(model, list_images(options.folder), options.gallery)
    print(f"{built.images} images, {built.embedded} of them new")
    with Gallery(options.gallery) as gallery:
        answer = gallery.search(gallery.query(options.query), SearchOptions(k=5))
    for result in answer.results:
        print(f"{result.rank:3}  {result.similarity:6.3f}  {result.name}  {result.label or ''}")


if __name__ == "__main__":
    main()
