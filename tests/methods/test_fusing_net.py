"""Fusing-Net, the reconstruction: its histogram, its head, and its losses."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from cbml.errors import BadData
from cbml.losses import LOSSES
from cbml.methods import FusingNet
from cbml.models import ColorFusion, Embedder, Preprocessing
from cbml.models.head_kinds import bin_of, color_histogram
from cbml.outputs import Outputs
from cbml.training import BatchInfo, StepLoss
from tests.oracles import methods

BINS = (16, 4, 4)
PLAIN = Preprocessing(mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.25))
CAFFE = Preprocessing(mean=(104.0, 117.0, 128.0), std=(1.0, 1.0, 1.0), scale=1.0, order="BGR")


def random_images(count: int = 3, side: int = 6) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (count, 3, side, side), generator=generator, dtype=torch.uint8)


def test_worked_example_of_the_roots() -> None:
    """Nine pixels of four values: counts 4, 1, 0, 4."""
    value = torch.tensor([10] * 4 + [100] + [250] * 4, dtype=torch.uint8).view(1, 1, 3, 3)
    found = color_histogram(PLAIN.normalize(value.expand(1, 3, 3, 3)), PLAIN, (1, 1, 4))
    expected = [0.632456, 0.447214, 0.0, 0.632456]
    assert found[0].tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("preprocessing", [PLAIN, CAFFE])
def test_plain_loops_give_the_same(preprocessing: Preprocessing) -> None:
    images = random_images()
    found = color_histogram(preprocessing.normalize(images), preprocessing, BINS)
    for image, row in zip(images, found, strict=True):
        counts = torch.zeros(256)
        for red, green, blue in image.flatten(1).T.tolist():
            counts[methods.hsv_bin(red, green, blue, BINS)] += 1
        assert int(counts.sum()) == 36
        expected = (counts / 36) ** 0.25
        torch.testing.assert_close(row, expected / expected.norm())


def test_every_color_of_a_coarse_cube_has_the_right_bin() -> None:
    levels = torch.tensor([0, 1, 63, 64, 127, 128, 200, 254, 255])
    colors = torch.cartesian_prod(levels, levels, levels)
    found = bin_of(colors.T[None].float(), BINS)[0].tolist()
    assert found == [methods.hsv_bin(*color, BINS) for color in colors.tolist()]


def test_mirrors_and_the_order_of_pixels_do_not_matter_and_gray_has_no_hue() -> None:
    images = PLAIN.normalize(random_images())
    found = color_histogram(images, PLAIN)
    torch.testing.assert_close(color_histogram(images.flip(3), PLAIN), found)
    order = torch.randperm(36, generator=torch.Generator().manual_seed(0))
    mixed = images.flatten(2)[:, :, order].view_as(images)
    torch.testing.assert_close(color_histogram(mixed, PLAIN), found)
    gray = PLAIN.normalize(random_images(side=6)[:, :1].expand(3, 3, 6, 6))
    assert color_histogram(gray, PLAIN).nonzero()[:, 1].max() < 4, "hue 0, saturation 0"


def test_brighter_moves_along_value_alone() -> None:
    red = torch.zeros(1, 3, 2, 2, dtype=torch.uint8)
    places = []
    for brightness in (40, 100, 160, 255):
        red[:, 0] = brightness
        places.append(int(color_histogram(PLAIN.normalize(red), PLAIN).argmax()))
    assert places == [12, 13, 14, 15], "hue 0, full saturation"


def model_of(method: FusingNet) -> Embedder:
    model = Embedder("conv4", dim=8, head=method.head, seed=1).eval()
    method.attach(model)
    return model


def test_without_a_color_layer_it_is_the_plain_network() -> None:
    model = model_of(FusingNet(width=16))
    images = model.preprocessing.normalize(random_images(side=32))
    with torch.no_grad():
        parts = model.forward_outputs(images).parts
        assert float((parts["fused"] - parts["network"]).abs().max()) > 1e-3
        torch.testing.assert_close(model(images), parts["fused"])
        model.head.color.weight.zero_()
        parts = model.forward_outputs(images).parts
        torch.testing.assert_close(parts["fused"], parts["network"])


def test_the_loss_is_the_sum_of_its_three() -> None:
    method = FusingNet(class_weight=0.5, network_weight=2.0, num_classes=3, embedding_size=4)
    generator = torch.Generator().manual_seed(2)
    fused, alone = functional.normalize(torch.randn(2, 6, 4, generator=generator), dim=2)
    method.classifier.data = torch.randn(3, 4, generator=generator)
    labels = torch.arange(6) // 2
    outputs = Outputs(fused, {"fused": fused, "network": alone})
    found: StepLoss = method(outputs, BatchInfo(labels, torch.arange(6)))
    lifted = LOSSES["lifted_structure"]()
    logits = fused @ method.classifier.T
    classes = -torch.stack([logits[i].log_softmax(0)[labels[i]] for i in range(6)]).mean()
    expected = lifted(fused, labels) + 0.5 * classes + 2.0 * lifted(alone, labels)
    torch.testing.assert_close(found.total, expected)


def test_a_saved_model_embeds_the_same(tmp_path: Path) -> None:
    model = model_of(FusingNet(width=16))
    model.save(tmp_path)
    loaded = Embedder.load(tmp_path)
    assert loaded.head_kind == ColorFusion(width=16)
    images = model.preprocessing.normalize(random_images(side=32))
    torch.testing.assert_close(loaded(images), model(images))


def test_what_cannot_be_meant_is_refused() -> None:
    with pytest.raises(BadData, match="width is 0"):
        FusingNet(width=0)
    with pytest.raises(BadData, match="hue, saturation and value"):
        ColorFusion(bins=(1, 2))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="class_weight"):
        FusingNet(class_weight=-1.0)
