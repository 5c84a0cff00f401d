"""The embedder: unit vectors, its head, its pooling, and batch norm that stays as it was asked."""

import math

import pytest
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from cbml.errors import BadData
from cbml.models import BATCH_NORMS, POOLINGS, Embedder, Preprocessing, find_backbone
from tests.oracles.pooling import pooled


def some_images(count: int = 4, side: int = 32, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(seed))


def test_vectors_have_length_one_and_the_right_size() -> None:
    vectors = Embedder("conv4", dim=7)(some_images())
    assert vectors.shape == (4, 7)
    assert vectors.dtype == torch.float32
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(4))


def test_the_head_starts_kaiming_fan_out_with_zero_bias() -> None:
    head = Embedder("resnet18", dim=512, weights="none").head
    assert head.bias.abs().max() == 0
    assert float(head.weight.detach().std()) == pytest.approx(math.sqrt(2 / 512), rel=0.01)
    wide = Embedder("conv4", dim=4096).head  # fan-in would give sqrt(2 / 64) here
    assert float(wide.weight.detach().std()) == pytest.approx(math.sqrt(2 / 4096), rel=0.02)


def test_the_seed_decides_and_nobody_elses_numbers_move() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first, again, other = (Embedder("conv4", seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(first.head.weight, again.head.weight)
    assert torch.equal(first.backbone[0].weight, again.backbone[0].weight)  # type: ignore[index]
    assert not torch.equal(first.head.weight, other.head.weight)


@pytest.mark.parametrize("kind", [kind for kind in POOLINGS if kind != "backbone"])
def test_pooling_equals_its_oracle(kind: str) -> None:
    model = Embedder("conv4", dim=5, pooling=kind).eval()
    images = some_images(2, side=48)
    with torch.no_grad():
        maps = model.backbone(images)
        features = torch.tensor(
            [[pooled(place.flatten().tolist(), kind) for place in one] for one in maps]
        )
        expected = nn.functional.normalize(features @ model.head.weight.T)
        torch.testing.assert_close(model(images), expected, rtol=1e-5, atol=1e-6)


def test_the_power_of_the_generalized_mean_is_learned_with_the_head() -> None:
    model = Embedder("conv4", dim=5, pooling="generalized_mean")
    model(some_images())[:, 0].sum().backward()
    assert model.gem is not None
    assert model.gem.power.grad is not None
    assert float(model.gem.power.grad.abs()) > 0
    head = model.parameter_groups(1.0)[1]["params"]
    assert any(parameter is model.gem.power for parameter in head)


@pytest.mark.parametrize("mode", BATCH_NORMS)
def test_batch_norm_stays_as_asked(mode: str) -> None:
    model = Embedder("resnet18", dim=4, weights="none", batch_norm=mode)
    norms = [child for child in model.modules() if isinstance(child, _BatchNorm)]
    assert len(norms) == 20
    for _ in range(2):  # whoever calls train() again must not thaw it
        model.eval()
        model.train()
        assert model.head.training
        assert all(norm.training == (mode == "trained") for norm in norms)
    statistics = [torch.as_tensor(norm.running_mean).clone() for norm in norms]
    weights = [norm.weight.clone() for norm in norms]
    optimizer = torch.optim.SGD(model.parameter_groups(0.1), weight_decay=0.1)
    model(some_images(side=64))[:, 0].sum().backward()
    optimizer.step()
    statistics_moved = [
        not torch.equal(torch.as_tensor(norm.running_mean), old)
        for norm, old in zip(norms, statistics, strict=True)
    ]
    weights_moved = [
        not torch.equal(norm.weight, old) for norm, old in zip(norms, weights, strict=True)
    ]
    assert set(statistics_moved) == {mode == "trained"}
    assert set(weights_moved) == {mode != "frozen"}


def test_batch_norm_by_default_is_frozen_only_for_pretrained_weights() -> None:
    assert Embedder("conv4").batch_norm == "trained"
    assert Embedder("efficientnet_lite0", dim=4).batch_norm == "frozen_statistics"


def test_parameter_groups_hold_every_trained_parameter_once() -> None:
    model = Embedder("conv4", dim=5, batch_norm="frozen")
    groups = model.parameter_groups(1e-3, backbone_factor=0.1)
    assert [(group["name"], group["lr"]) for group in groups] == [
        ("backbone", pytest.approx(1e-4)),
        ("head", pytest.approx(1e-3)),
    ]
    held = [id(parameter) for group in groups for parameter in group["params"]]
    trained = [id(parameter) for parameter in model.parameters() if parameter.requires_grad]
    assert sorted(held) == sorted(trained)
    assert len(held) == 4 + 2, "four convolutions, and weight and bias of the head"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_head_and_the_length_are_float32_under_autocast(dtype: torch.dtype) -> None:
    model = Embedder("conv4", dim=6).eval()
    images = some_images()
    with torch.no_grad(), torch.autocast("cpu", dtype=dtype):
        vectors = model(images)
    assert vectors.dtype == torch.float32
    assert float((vectors.norm(dim=1) - 1).abs().max()) < 1e-6
    with torch.no_grad():
        torch.testing.assert_close(vectors, model(images), atol=0.05, rtol=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": 0}, "dim 0"),
        ({"dim": 2.5}, r"dim 2\.5"),
        ({"dim": 10**9}, "dim"),
        ({"pooling": "median"}, "pooling must be one of 'average'"),
        ({"pooling": "backbone"}, "pooling must be one of .* got 'backbone'"),
        ({"batch_norm": "none"}, "batch_norm must be one of 'trained'"),
        ({"weights": "imagnet"}, "weights 'imagnet'"),
        ({"weights": "path:/no/such/file.pt"}, "/no/such/file.pt: no such file"),
        ({"weights": "package"}, "no package provides its weights"),
        ({"weights": "imagenet"}, "no ImageNet weights to download"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(BadData, match=message):
        Embedder("conv4", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"std": (1.0, 0.0, 1.0)},
        {"std": (1.0, 1.0)},
        {"mean": (0.0, math.nan, 0.0)},
        {"order": "GBR"},
        {"scale": 0.0},
        {"scale": math.nan},
        {"crop": 300},
        {"crop": 0},
        {"resize": 20_000},
        {"crop": 10.5},
    ],
)
def test_senseless_preprocessing_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(BadData, match="preprocessing"):
        Preprocessing(**{"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0), **options})  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(300, 200), (200, 300), (40, 41), (1, 5000), (5000, 1), (1, 1)])
@pytest.mark.parametrize("crop", [227, 96, 32])
def test_images_are_framed_as_the_data_room_frames_them(shape: tuple[int, int], crop: int) -> None:
    from torchvision.transforms import v2

    from cbml.data.transforms import resized_short_side, short_side

    generator = torch.Generator().manual_seed(0)
    image = torch.randint(256, (3, *shape), dtype=torch.uint8, generator=generator)
    ours = Embedder("conv4").preprocessing.with_crop(crop).frame(image)
    resized = resized_short_side(image, short_side(crop))
    assert torch.equal(ours, v2.CenterCrop(crop)(resized))


def test_preprocessing_maps_one_to_one_to_the_data_rooms_normalization() -> None:
    from cbml.data import Normalization

    pixels = torch.arange(192, dtype=torch.uint8).view(1, 3, 8, 8)
    for name in ("resnet50", "bn_inception", "efficientnet_lite0"):
        p = find_backbone(name).preprocessing
        theirs = Normalization(p.mean, p.std, scale=p.scale, order=p.order)(pixels)
        torch.testing.assert_close(p.normalize(pixels), theirs, rtol=0, atol=1e-5)
