"""Batches are the same for any number of workers and ranks, resumed or not."""

import csv
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from cbml.data import (
    Batch,
    Batches,
    ClassBalancedSampler,
    ImageDataset,
    Normalization,
    TrainTransform,
    UnreadableImages,
    pack,
    prefetch,
)
from cbml.errors import BadData
from tests.data.image_files import image_dataset

TRANSFORM = TrainTransform(crop=24)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> ImageDataset:
    return image_dataset(tmp_path_factory.mktemp("set"))


def sampler(images: ImageDataset, **options: int) -> ClassBalancedSampler:
    return ClassBalancedSampler(
        images.known_labels, classes_per_batch=4, samples_per_class=3, seed=7, **options
    )


def same(first: list[Batch], second: list[Batch]) -> bool:
    return len(first) == len(second) and all(
        torch.equal(a, b)
        for one, other in zip(first, second, strict=True)
        for a, b in zip(one, other, strict=True)
    )


def test_a_batch_holds_what_the_sampler_names(images: ImageDataset) -> None:
    order = sampler(images)
    plan = order.plan(0)
    found = list(Batches(images, order, transform=TRANSFORM))
    assert [batch.indices.tolist() for batch in found] == plan.tolist()
    for batch in found:
        assert batch.pixels.shape == (12, 3, 24, 24)
        assert batch.pixels.dtype == torch.uint8
        assert torch.equal(batch.labels, torch.from_numpy(images.known_labels[batch.indices]))
    assert (order.epoch, order.step) == (1, 0)


def test_repeats_of_one_image_are_cropped_differently(tmp_path: Path) -> None:
    images = image_dataset(tmp_path, classes=4, each=1)
    batch = next(iter(Batches(images, sampler(images), transform=TRANSFORM)))
    assert batch.indices[0] == batch.indices[1]
    assert not torch.equal(batch.pixels[0], batch.pixels[1])


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_workers_change_nothing(images: ImageDataset, workers: int) -> None:
    alone = Batches(images, sampler(images), transform=TRANSFORM)
    helped = Batches(images, sampler(images), transform=TRANSFORM, workers=workers)
    for _ in range(2):
        assert same(list(alone), list(helped))


@pytest.mark.parametrize("workers", [0, 2])
def test_resume_at_every_step_is_exact(images: ImageDataset, workers: int) -> None:
    expected = [
        batch
        for batches in [Batches(images, sampler(images), transform=TRANSFORM)]
        for _ in range(2)
        for batch in batches
    ]
    for stop in range(len(expected)):
        first = Batches(images, sampler(images), transform=TRANSFORM, workers=workers)
        seen = list(itertools.islice((batch for _ in range(2) for batch in first), stop))
        second = Batches(images, sampler(images), transform=TRANSFORM, workers=workers)
        second.sampler.load_state_dict(first.sampler.state_dict())  # type: ignore[attr-defined]
        while second.sampler.epoch < 2:
            seen += list(second)
        assert same(seen, expected)


def test_ranks_together_see_the_batch_of_one(images: ImageDataset) -> None:
    whole = list(Batches(images, sampler(images), transform=TRANSFORM))
    parts = [
        list(Batches(images, sampler(images, rank=rank, world_size=3), transform=TRANSFORM))
        for rank in range(3)
    ]
    joined = [
        Batch(*(torch.cat(tensors) for tensors in zip(*shares, strict=True)))
        for shares in zip(*parts, strict=True)
    ]
    assert same(joined, whole)


def test_packed_images_give_the_same_batches_as_files(images: ImageDataset, tmp_path: Path) -> None:
    """Not only the distribution: every crop is the same, to the bit."""
    for crop in (24, 20, 40):  # as packed; smaller; larger than the images themselves
        packed = pack(images.paths, tmp_path, short_side=max(27, round(crop * 256 / 227)))
        transform = TrainTransform(crop=crop)
        from_files = list(Batches(images, sampler(images), transform=transform))
        from_pack = list(Batches(images, sampler(images), transform=transform, source=packed))
        if crop != 20:  # there the packed image is resized a second time
            assert same(from_files, from_pack)
        for one, other in zip(from_files, from_pack, strict=True):
            assert (one.pixels.float() - other.pixels.float()).abs().mean() < 6


def test_a_larger_crop_than_packed_is_refused(images: ImageDataset, tmp_path: Path) -> None:
    packed = pack(images.paths, tmp_path, short_side=20)
    batches = Batches(images, sampler(images), transform=TRANSFORM, source=packed)
    with pytest.raises(BadData, match="packed with a short side of 20, 27 is needed"):
        next(iter(batches))


def test_unlabeled_and_normalized(images: ImageDataset) -> None:
    scaled = Normalization((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    plain = next(iter(Batches(images, sampler(images), transform=TRANSFORM)))
    batches = Batches(
        ImageDataset(images.paths), sampler(images), transform=TRANSFORM, normalization=scaled
    )
    batch = next(iter(batches))
    assert (batch.labels == -1).all()
    assert batch.pixels.dtype == torch.float32
    assert torch.allclose(batch.pixels, (plain.pixels / 255 - 0.5) / 0.25, atol=1e-5)


def damaged(tmp_path: Path, victims: list[int]) -> ImageDataset:
    images = image_dataset(tmp_path / "set")
    for victim in victims:
        images.paths[victim].write_bytes(b"<html>not found</html>")
    return images


@pytest.mark.parametrize("from_pack", [False, True])
def test_bad_images_are_replaced_counted_and_listed(tmp_path: Path, from_pack: bool) -> None:
    images = damaged(tmp_path, [6, 7, 25])
    source = pack(images.paths, tmp_path / "pack", short_side=27) if from_pack else None

    def batches(**options: int) -> Batches:
        return Batches(
            images, sampler(images, **options), transform=TRANSFORM, source=source, bad_limit=0.2
        )

    whole = batches()
    passes = list(whole)
    for asked, batch in zip(sampler(images).plan(0), passes, strict=True):
        for wanted, got in zip(asked.tolist(), batch.indices.tolist(), strict=True):
            expected = {6: 8, 7: 8, 25: 26}.get(wanted, wanted)  # the next of the class
            assert got == expected
    assert sorted(whole.bad.reasons) == [6, 7, 25]
    whole.bad.write(tmp_path / "bad_images.csv")
    with (tmp_path / "bad_images.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["path"] for row in rows] == [str(images.paths[place]) for place in (6, 7, 25)]
    assert "not an image" in rows[0]["reason"]
    shares = [list(batches(rank=rank, world_size=2)) for rank in range(2)]
    joined = [
        Batch(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))
        for parts in zip(*shares, strict=True)
    ]
    assert same(joined, passes), "every rank sees the same batches"


def test_a_class_without_a_readable_image_borrows(tmp_path: Path) -> None:
    images = damaged(tmp_path, list(range(5, 10)))
    batches = Batches(images, sampler(images), transform=TRANSFORM, bad_limit=0.5)
    for batch in batches:
        assert not set(batch.indices.tolist()) & set(range(5, 10))
        assert torch.equal(batch.labels, torch.from_numpy(images.known_labels[batch.indices]))


def test_too_many_bad_images_stop_the_run(tmp_path: Path) -> None:
    images = damaged(tmp_path, [1, 2, 3, 4, 11])
    with pytest.raises(BadData, match=r"3 of 30 images cannot be read.*share 0.07"):
        list(Batches(images, sampler(images), transform=TRANSFORM, bad_limit=0.07))
    with pytest.raises(BadData, match="1 of 30"):
        list(Batches(images, sampler(images), transform=TRANSFORM, bad_limit=0))
    everything = damaged(tmp_path / "all", list(range(30)))
    with pytest.raises(BadData, match="no image of the dataset can be read"):
        list(Batches(everything, sampler(everything), transform=TRANSFORM, bad_limit=1))


def test_one_bad_image_never_stops_a_small_set() -> None:
    bad = UnreadableImages([Path("a"), Path("b")])
    bad.add(0, "damaged")
    with pytest.raises(BadData, match="2 of 2"):
        bad.add(1, "damaged")


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_work_ahead_is_in_order_bounded_and_left_at_once(workers: int) -> None:
    begun: list[int] = []

    def work(item: int) -> int:
        begun.append(item)
        if item == 20:
            raise ValueError("twenty")
        return item * item

    results = prefetch(work, range(10**9), workers=workers, ahead=4)
    assert [next(results) for _ in range(5)] == [0, 1, 4, 9, 16]
    assert len(begun) <= 5 + 5
    with pytest.raises(ValueError, match="twenty"):
        list(results)
    assert len(begun) <= 21 + 5


def test_leaving_a_pass_early_leaves_no_threads(images: ImageDataset) -> None:
    import threading

    batches = Batches(images, sampler(images), transform=TRANSFORM, workers=3)
    iterator = iter(batches)
    next(iterator)
    iterator.close()  # type: ignore[attr-defined]
    names = [thread.name for thread in threading.enumerate()]
    assert not any(name.startswith("cbml-prefetch") for name in names)
    assert batches.sampler.step == 1
    assert np.array_equal(next(iter(batches)).indices, sampler(images).plan(0)[1])
