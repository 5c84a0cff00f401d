"""Every backbone has its published size, gives the map it promises, and is found by its name."""

import pytest
import torch

from cbml.errors import BadData
from cbml.models import BACKBONES, Embedder, find_backbone

# Published parameter counts of the whole classifiers, minus their last layers of 1000 classes:
# torchvision's weight pages for ResNet and GoogLeNet, timm's for EfficientNet-Lite0.
CASES = {
    "resnet18": (11_689_512 - 513_000, 512),
    "resnet34": (21_797_672 - 513_000, 512),
    "resnet50": (25_557_032 - 2_049_000, 2048),
    "resnet101": (44_549_160 - 2_049_000, 2048),
    "resnet152": (60_192_808 - 2_049_000, 2048),
    "resnet50_v1": (25_557_032 - 2_049_000, 2048),
    "googlenet": (6_624_904 - 1_025_000, 1024),
    "bn_inception": (11_295_240 - 1_025_000, 1024),
    "efficientnet_lite0": (4_652_008 - 1_281_000, 1280),
    "conv4": (3 * 64 * 9 + 3 * 64 * 64 * 9 + 4 * 128, 64),
}


def test_every_backbone_has_a_case() -> None:
    assert set(CASES) == set(BACKBONES)


@pytest.mark.parametrize("name", CASES)
def test_parameters_and_features(name: str) -> None:
    parameters, features = CASES[name]
    backbone = find_backbone(name)
    with torch.device("meta"):
        network = backbone.build(backbone.pooling)
        shape = network(torch.empty(2, 3, backbone.preprocessing.crop, 224)).shape
    assert sum(parameter.numel() for parameter in network.parameters()) == parameters
    assert backbone.features == features
    assert shape[:2] == (2, features)
    assert backbone.pooling == ("max" if name == "bn_inception" else "average")


@pytest.mark.parametrize(("name", "side"), [("resnet50", 8), ("googlenet", 7), ("bn_inception", 7)])
def test_the_papers_crop_gives_the_known_map(name: str, side: int) -> None:
    with torch.device("meta"):
        assert find_backbone(name).build("").forward(torch.empty(1, 3, 227, 227)).shape[2:] == (
            side,
            side,
        )


def test_the_first_resnet_strides_in_the_first_convolution() -> None:
    strides = {
        name: [
            (block.conv1.stride[0], block.conv2.stride[0])  # type: ignore[union-attr]
            for block in [
                find_backbone(name).build("").get_submodule(f"layer{k}.0") for k in (2, 3)
            ]
        ]
        for name in ("resnet50", "resnet50_v1")
    }
    assert strides == {"resnet50": [(1, 2), (1, 2)], "resnet50_v1": [(2, 1), (2, 1)]}


# One of each kind of feature: maps, tokens with and without a class token, a fixed pooling.
TIMM = {
    "timm:resnet10t": ("backbone", "generalized_mean"),
    "timm:mobilenetv3_small_050": ("backbone", "max"),
    "timm:vit_tiny_patch16_224": ("backbone", "average"),
    "timm:convnext_atto": ("backbone", "average"),
    "timm:levit_128s": ("backbone", "max"),
    "timm:efficientvit_b0": ("backbone",),
}


@pytest.mark.parametrize(("name", "pooling"), [(n, p) for n, kinds in TIMM.items() for p in kinds])
def test_any_timm_architecture_gives_unit_vectors(name: str, pooling: str) -> None:
    model = Embedder(name, dim=8, weights="none", pooling=pooling).eval()
    crop = model.preprocessing.crop
    with torch.no_grad():
        vectors = model(torch.rand(2, 3, crop, crop, generator=torch.Generator().manual_seed(0)))
    assert vectors.shape == (2, 8)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(2))
    assert not torch.equal(vectors[0], vectors[1])


def test_maps_with_channels_last_are_turned() -> None:
    with torch.device("meta"):
        network = find_backbone("timm:swin_tiny_patch4_window7_224").build("average")
        assert network(torch.zeros(1, 3, 224, 224)).shape == (1, 768, 7, 7)


def test_tokens_are_pooled_without_the_class_token() -> None:
    with torch.device("meta"):
        network = find_backbone("timm:vit_tiny_patch16_224").build("average")
        assert network(torch.zeros(1, 3, 224, 224)).shape == (1, 192, 14 * 14, 1)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet5", "did you mean 'resnet50'"),
        ("BN_Inception", "did you mean 'bn_inception'"),
        ("nothing like it", "use one of resnet18"),
        ("timm:resnt50", "did you mean 'timm:resnet50'"),
        ("timm:resnet50.no_such_tag", "tag"),
        ("timm:hf-hub:somebody/something", "unknown backbone"),
        ("timm:local-dir:/tmp", "unknown backbone"),
        ("timm:", "unknown backbone"),
    ],
)
def test_an_unknown_name_gets_the_nearest_known_one(name: str, message: str) -> None:
    with pytest.raises(BadData, match=message):
        find_backbone(name)


def test_pooling_that_cannot_be_undone_is_named() -> None:
    with pytest.raises(BadData, match="use pooling='backbone'"):
        Embedder("timm:efficientvit_b0", weights="none", pooling="average")


def test_what_each_network_expects() -> None:
    rows = BACKBONES
    caffe = rows["bn_inception"].preprocessing
    assert (caffe.order, caffe.scale, caffe.mean) == ("BGR", 1.0, (104.0, 117.0, 128.0))
    assert (caffe.resize, caffe.crop) == (256, 227)
    orange = torch.tensor([255, 130, 10], dtype=torch.uint8).view(3, 1, 1)
    assert caffe.normalize(orange).flatten().tolist() == [10 - 104, 130 - 117, 255 - 128]
    lite = rows["efficientnet_lite0"].preprocessing
    assert lite.crop == 224
    white = torch.full((3, 1, 1), 255, dtype=torch.uint8)
    assert lite.normalize(white).flatten().tolist() == [1.0, 1.0, 1.0]
    assert lite.normalize(torch.zeros_like(white)).flatten().tolist() == [-1.0, -1.0, -1.0]
