"""Labels from clusters: what is said of them, whom they stop, and how the loss follows."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image
from torch import Tensor, nn

from cbml.data import Batches, ImageDataset, PackedDataset, TrainTransform
from cbml.losses import LOSSES, CBMLLoss
from cbml.methods import PseudoLabels
from cbml.methods.pseudo_labels import move_class_vectors
from cbml.models import Embedder
from cbml.outputs import Outputs
from cbml.training import BatchInfo, Distributed, EpochPlan, NonFiniteError, TrainingView
from tests.methods.unlabeled import batches, make_loss, mean_similarity
from tests.training.small import CROP, embedder


def model() -> Embedder:
    made = embedder("frozen_statistics")
    made.preprocessing = made.preprocessing.with_crop(CROP)
    return made


def plan(batches: Batches, **options: Any) -> EpochPlan | None:
    """What a method without anything to train plans for the epoch at hand."""
    method = PseudoLabels(CBMLLoss(), **{"clusters": 6, "every": 2, **options})
    return method.before_epoch(TrainingView(model(), batches, Distributed(), 0, 9))


def gray(folder: Path, count: int) -> ImageDataset:
    """Images that are all the same to any network."""
    folder.mkdir()
    for number in range(count):
        Image.fromarray(np.full((20, 20, 3), 100, np.uint8)).save(folder / f"{number}.png")
    return ImageDataset(tuple(sorted(folder.iterdir())))


def test_labels_come_every_so_many_epochs(images: ImageDataset) -> None:
    dataset = PackedDataset.of(images, CROP)
    made = batches(images, dataset, Distributed())
    assert plan(made) is not None
    made.sampler.epoch = 1
    assert plan(made) is None
    made.sampler.epoch = 2
    assert plan(made) is not None
    assert plan(made, clusters=None) is None, "every image stays a class of its own"


def test_collapse_warns_stops_or_is_ignored(tmp_path: Path) -> None:
    images = gray(tmp_path / "gray", 24)
    dataset = PackedDataset.of(images, CROP)
    made = batches(images, dataset, Distributed())
    found = plan(made)
    assert found is not None
    assert "all alike" in found.metadata["collapse"]
    assert "collapse: images are all alike" in found.text
    quiet = plan(made, collapse="ignore")
    assert quiet is not None
    assert "collapse" not in quiet.metadata
    with pytest.raises(NonFiniteError, match="collapse: images are all alike"):
        plan(made, collapse="stop")
    made.relabel(found.labels)
    assert len(next(iter(made)).labels) >= 12, "one cluster still fills a batch"


def literal_view_agreement(model: Embedder, images: ImageDataset, *, mirror: bool) -> float:
    """Image by image: how many of its five nearest its middle, mirrored, has too."""
    read = [torch.from_numpy(np.array(Image.open(path))).permute(2, 0, 1) for path in images.paths]
    frames = torch.stack([model.preprocessing.frame(image) for image in read])
    pixels = model.preprocessing.normalize(frames)
    edge = round(CROP * (1 - 0.7**0.5) / 2)
    middle = pixels[..., edge : CROP - edge, edge : CROP - edge]
    seen = torch.nn.functional.interpolate(middle, size=(CROP, CROP), mode="bilinear")
    model.eval()
    with torch.no_grad():
        plain, other = model(pixels), model(seen.flip(-1) if mirror else seen)
    shares = []
    for place, row in enumerate(other):
        nearest = []
        for rows in (plain @ plain[place], plain @ row):
            order = [j for j in rows.argsort(descending=True).tolist() if j != place]
            nearest.append(set(order[:5]))
        shares.append(len(nearest[0] & nearest[1]) / 5)
    return sum(shares) / len(shares)


@pytest.mark.parametrize("flip", [0.5, 0.0])
def test_view_agreement_is_what_it_says(images: ImageDataset, flip: float) -> None:
    made, network = batches(images, PackedDataset.of(images, CROP), Distributed()), model()
    made.transform = TrainTransform(crop=CROP, flip=flip)
    method = PseudoLabels(CBMLLoss(), clusters=6)
    found = method.judge(TrainingView(network.eval(), made, Distributed(), 0, 9))
    expected = literal_view_agreement(network, images, mirror=flip > 0)
    assert found == {"view_agreement": pytest.approx(expected, abs=0.01)}
    assert 0.05 < expected < 1.0


def test_an_unreadable_image_gets_the_label_of_the_next(
    images: ImageDataset, tmp_path: Path
) -> None:
    paths = list(images.paths)
    for place in (0, 17, 44):
        paths.insert(place, tmp_path / f"bad-{place}.png")
        paths[place].write_bytes(b"no image")
    whole = ImageDataset(tuple(paths))
    dataset = PackedDataset.of(whole, CROP)
    assert len(dataset.indices) == len(images)
    made = batches(whole, dataset, Distributed())
    found = plan(made)
    assert found is not None
    assert found.labels[0] == found.labels[1]
    assert found.labels[17] == found.labels[18]
    assert found.labels[44] == found.labels[43], "none behind it: the last readable one"
    made.relabel(found.labels)
    for batch in made:
        assert not {0, 17, 44} & set(batch.indices.tolist())
    assert set(made.bad.reasons) <= {0, 17, 44}


def test_study_is_written_down_and_changes_nothing(images: ImageDataset) -> None:
    dataset = PackedDataset.of(images, CROP)
    made = batches(images, dataset, Distributed())
    plain = plan(made)
    studied = plan(made, study=lambda _, labels: {"nmi": len(labels) / 84})
    assert plain is not None
    assert studied is not None
    assert studied.metadata == {**plain.metadata, "study": {"nmi": 0.5}}
    assert studied.text.endswith("; study: nmi 0.5000")
    assert studied.labels.tolist() == plain.labels.tolist()


def rows() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(12, 5, generator=generator)
    return nn.functional.normalize(vectors, dim=1), torch.arange(12) // 3


def value(method: PseudoLabels) -> float:
    vectors, labels = rows()
    return float(method(Outputs(vectors), BatchInfo(labels, labels)).total)


def test_estimated_options_change_the_loss_and_are_part_of_its_state(
    images: ImageDataset,
) -> None:
    made = batches(images, PackedDataset.of(images, CROP), Distributed())
    method, other = (
        PseudoLabels(make_loss, clusters=6, estimate=mean_similarity) for _ in range(2)
    )
    before = value(method)
    found = method.before_epoch(TrainingView(model(), made, Distributed(), 0, 9))
    assert found is not None
    assert found.metadata["options"] == method.options
    assert value(method) != before == value(other)
    other.load_state_dict(safetensors.torch.load(safetensors.torch.save(method.state_dict())))
    assert other.options == method.options
    assert value(other) == value(method)


def test_a_loss_that_is_made_again_goes_with_an_estimate() -> None:
    with pytest.raises(ValueError, match="with parameters cannot be made again"):
        PseudoLabels(
            lambda _: LOSSES["proxy_nca"](num_classes=3, embedding_size=5),
            clusters=3,
            estimate=mean_similarity,
        )
    for loss, estimate in ((make_loss, None), (CBMLLoss(), mean_similarity)):
        with pytest.raises(ValueError, match="goes with estimate"):
            PseudoLabels(loss, clusters=3, estimate=estimate)


@pytest.mark.parametrize("name", ["normalized_softmax", "proxy_anchor", "proxy_nca"])
def test_class_vectors_move_to_the_clusters(name: str) -> None:
    vectors, labels = rows()
    labels = labels.clone()
    labels[labels == 2] = 3  # cluster 2 is empty
    loss = LOSSES[name](num_classes=4, embedding_size=5)
    before = next(loss.parameters()).detach().clone()
    worth = loss(vectors, labels)
    move_class_vectors(loss, vectors.numpy(), labels.numpy(), 4)
    moved = next(loss.parameters()).detach()
    if moved.shape == (5, 4):
        moved, before = moved.T, before.T
    for label in (0, 1, 3):
        center = vectors[labels == label].mean(dim=0)
        torch.testing.assert_close(moved[label], center / center.norm())
    assert torch.equal(moved[2], before[2])
    assert loss(vectors, labels) < worth


def test_losses_without_vectors_stay_as_they_are() -> None:
    vectors, labels = rows()
    move_class_vectors(CBMLLoss(), vectors.numpy(), labels.numpy(), 4)
    square = LOSSES["proxy_nca"](num_classes=5, embedding_size=5)
    before = next(square.parameters()).detach().clone()
    move_class_vectors(square, vectors.numpy(), labels.numpy(), 5)
    assert torch.equal(next(square.parameters()), before)
