"""Images per second of whole training steps: `cbml.fit` against a straightforward loop.

The straightforward loop is what a careful user writes: a torch DataLoader over Pillow files with
torchvision's transforms and a sampler of classes, float32, pytorch-metric-learning's multi-
similarity loss and miner, Adam. Both train the same backbone from the same weights on batches of
the same size and crop. They are timed in turns, and the ratio is that of the medians. `cbml` makes
its process keep freed memory, from which the other loop profits too after the first turn. `cbml`
is timed twice: with the whole batch in one pass, as the other loop has it, and in chunks, as
`cbml train` embeds a batch that needs more memory than it should take.

    python benchmarks/training.py                 emoji
    python benchmarks/training.py CUB_FOLDER      also CUB, given its folder
    python benchmarks/training.py --quick         few small batches, for a look
"""

import argparse
import functools
import statistics
import time
from collections.abc import Callable, Iterator

import torch
from PIL import Image
from pytorch_metric_learning.losses import MultiSimilarityLoss
from pytorch_metric_learning.miners import MultiSimilarityMiner
from pytorch_metric_learning.samplers import MPerClassSampler
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

from cbml.data import ImageDataset
from cbml.losses import PRODUCTS, CBMLLoss
from cbml.runs import RunConfig, build_batches, build_execution, build_model, load_splits
from cbml.training import Callback, Distributed, Settings, StepReport, fit

STEPS, WARM = 6, 2
CHUNK = 20


class Clock(Callback):
    """Remembers when each step was done."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def step(self, report: StepReport) -> None:
        """Note the time."""
        self.times.append(time.perf_counter())


class Files(Dataset[tuple[torch.Tensor, int]]):
    """Images decoded by Pillow and cropped by torchvision, one at a time."""

    def __init__(
        self,
        images: ImageDataset,
        config: RunConfig,
        *,
        min_area: float = 0.16,
        train: bool = True,
    ) -> None:
        preprocessing, crop = build_model(config).preprocessing, config.model.crop
        drawn = [v2.RandomResizedCrop(crop, scale=(min_area, 1.0)), v2.RandomHorizontalFlip()]
        self.images = images
        self.transform = v2.Compose(
            [
                v2.ToImage(),
                v2.Resize(preprocessing.resize),
                *(drawn if train else [v2.CenterCrop(crop)]),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize(preprocessing.mean, preprocessing.std),
            ]
        )

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.images.paths[index]) as image:
            if image.has_transparency_data:  # what lies behind it is white for us, too
                layers = image.convert("RGBA")
                image = Image.new("RGB", layers.size, "white")
                image.paste(layers, mask=layers.getchannel("A"))
            pixels = self.transform(image.convert("RGB"))
        return pixels, int(self.images.known_labels[index])


def plain_loop(images: ImageDataset, config: RunConfig) -> list[float]:
    model = build_model(config).train()
    loss, miner = MultiSimilarityLoss(), MultiSimilarityMiner()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, weight_decay=5e-4)
    size = config.training.classes_per_batch * config.training.samples_per_class
    sampler = MPerClassSampler(
        images.known_labels,
        config.training.samples_per_class,
        size,
        length_before_new_iter=len(images),
    )
    loader = DataLoader(Files(images, config), size, sampler=sampler, num_workers=1, drop_last=True)
    times: list[float] = []
    for pixels, labels in endless(loader):
        rows = model(pixels)
        value = loss(rows, labels, miner(rows, labels))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        times.append(time.perf_counter())
        if len(times) == STEPS:
            return times
    return times


def endless(loader: DataLoader[tuple[torch.Tensor, int]]) -> Iterator[tuple[torch.Tensor, ...]]:
    while True:
        yield from loader


def our_loop(images: ImageDataset, config: RunConfig, chunk_size: int | None) -> list[float]:
    model, clock = build_model(config), Clock()
    fit(
        model,
        CBMLLoss(ratio=PRODUCTS),
        build_batches(config, images, Distributed()),
        settings=Settings(steps=STEPS, chunk_size=chunk_size),
        execution=build_execution(config, model),
        callback=clock,
    )
    return clock.times


def images_per_second(
    loop: Callable[[ImageDataset, RunConfig], list[float]], images: ImageDataset, config: RunConfig
) -> float:
    times = loop(images, config)[WARM:]
    size = config.training.classes_per_batch * config.training.samples_per_class
    return size * (len(times) - 1) / (times[-1] - times[0])


def compare(name: str, config: RunConfig, rounds: int) -> None:
    images = load_splits(config).train
    build_batches(config, images, Distributed())  # packs once; every later run finds it packed
    loops: dict[str, Callable[[ImageDataset, RunConfig], list[float]]] = {
        "plain": plain_loop,
        "cbml": functools.partial(our_loop, chunk_size=None),
        f"cbml in chunks of {CHUNK}": functools.partial(our_loop, chunk_size=CHUNK),
    }
    rates: dict[str, list[float]] = {who: [] for who in loops}
    for _ in range(rounds):
        for who, loop in loops.items():
            rates[who].append(images_per_second(loop, images, config))
    middle = {who: statistics.median(values) for who, values in rates.items()}
    print(
        f"{name}, {config.model.backbone}, crop {config.model.crop}, batch "
        f"{config.training.classes_per_batch} x {config.training.samples_per_class}, "
        f"{torch.get_num_threads()} threads: plain {middle['plain']:.1f} images/s"
    )
    for who in list(loops)[1:]:
        goal = " (goal 1.5)" if who == "cbml" else ""
        ratio = middle[who] / middle["plain"]
        print(f"  {who:<21} {middle[who]:.1f} images/s, {ratio:.2f} times{goal}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("cub", nargs="?", help="the folder of CUB")
    parser.add_argument("--quick", action="store_true", help="few small batches")
    options = parser.parse_args()
    configs = {"emoji": RunConfig("emoji")}
    if options.cub is not None:
        sizes = {"classes_per_batch": 15, "samples_per_class": 8}
        configs["CUB"] = RunConfig(options.cub, model={"crop": 140}, training=sizes)
    for name, config in configs.items():
        if options.quick:
            config = config.replace(model={"crop": 32}, training={"classes_per_batch": 6})
        compare(name, config, rounds=1 if options.quick else 3)


if __name__ == "__main__":
    main()
