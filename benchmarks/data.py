"""How fast images become batches: every ratio from one run, on one thread unless it says more.

Prints the images per second of Pillow and torchvision on 500-pixel JPEGs, with the paper's train
transform at 227, against our batches from files and from the packed cache; and the sampler over a
million images in 100,000 classes.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torchvision.transforms import v2

from cbml.data import Batches, ClassBalancedSampler, ImageDataset, TrainTransform, pack

CLASSES, EACH = 24, 16
PROMISED_RATIO = 8
PROMISED_FIRST_BATCH = 1.0
PROMISED_PER_IMAGE = 10e-6


def photograph(seed: int) -> Image.Image:
    """500 x 375 pixels with the detail of a photograph: about 60 kB as a JPEG."""
    generator = np.random.default_rng(seed)
    small = Image.fromarray(generator.integers(0, 256, (24, 32, 3), dtype=np.uint8))
    smooth = np.asarray(small.resize((500, 375), Image.Resampling.BICUBIC)).astype(np.int64)
    noisy = smooth + generator.integers(-12, 12, smooth.shape)
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def image_dataset(folder: Path) -> ImageDataset:
    paths = []
    for number in range(CLASSES * EACH):
        paths.append(folder / f"{number}.jpg")
        photograph(number).save(paths[-1], quality=90)
    labels = np.repeat(np.arange(CLASSES), EACH)
    return ImageDataset(tuple(paths), labels, tuple(str(label) for label in range(CLASSES)))


def best(contestants: dict[str, Callable[[], int]], rounds: int = 5) -> dict[str, float]:
    """Images per second of each, the best of some rounds taken in turns."""
    rates = dict.fromkeys(contestants, 0.0)
    for _ in range(rounds):
        for name, work in contestants.items():
            start = time.perf_counter()
            count = work()
            rates[name] = max(rates[name], count / (time.perf_counter() - start))
    return rates


def pillow(images: ImageDataset) -> int:
    transform = v2.Compose(
        [
            v2.Resize(256),
            v2.RandomResizedCrop(227, scale=(0.16, 1.0)),
            v2.RandomHorizontalFlip(0.5),
            v2.PILToTensor(),
        ]
    )
    for path in images.paths:
        with Image.open(path) as image:
            transform(image.convert("RGB"))
    return len(images)


def batches(images: ImageDataset, **options: object) -> Callable[[], int]:
    sampler = ClassBalancedSampler(images.known_labels, classes_per_batch=8, samples_per_class=8)
    source = Batches(images, sampler, transform=TrainTransform(), **options)  # type: ignore[arg-type]
    return lambda: sum(len(batch.labels) for batch in source)


def measure_images() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        images = image_dataset(Path(folder))
        start = time.perf_counter()
        packed = pack(images.paths, Path(folder) / "packed", workers=1)
        packing = len(images) / (time.perf_counter() - start)
        rates = best(
            {
                "Pillow decode + torchvision crop": lambda: pillow(images),
                "our batches from files": batches(images),
                "our batches from the packed cache": batches(images, source=packed),
                "the same, prepared by two threads": batches(images, source=packed, workers=2),
            }
        )
    print("500-pixel JPEGs, train transform at 227, images per second")
    slow, _, fast, _ = rates.values()
    for name, rate in {**rates, "packing, once": packing}.items():
        print(f"  {name:<36}{rate:8.0f} {rate / slow:6.1f} times")
    return verdict(
        f"packed cache at least {PROMISED_RATIO} times Pillow", fast >= PROMISED_RATIO * slow
    )


def measure_sampler() -> bool:
    labels = np.random.default_rng(0).integers(0, 100_000, 1_000_000)
    start = time.perf_counter()
    sampler = ClassBalancedSampler(labels, classes_per_batch=32, samples_per_class=4)
    iterator = iter(sampler)
    next(iterator)
    first = time.perf_counter() - start
    start = time.perf_counter()
    count = sum(len(batch) for batch in iterator)
    each = (time.perf_counter() - start) / count
    print("sampler, 1,000,000 images in 100,000 classes, 32 classes of 4")
    print(f"  first batch {first:.2f} s, then {each * 1e6:.3f} µs for each image of {count:,}")
    return verdict(
        "first batch under 1 s, then at most 10 µs for each image",
        first < PROMISED_FIRST_BATCH and each <= PROMISED_PER_IMAGE,
    )


def verdict(promise: str, kept: bool) -> bool:
    print(f"  {'kept' if kept else 'NOT KEPT'}: {promise}")
    return kept


def main() -> None:
    torch.set_num_threads(1)
    kept = [measure_images(), measure_sampler()]
    raise SystemExit(0 if all(kept) else 1)


if __name__ == "__main__":
    main()
