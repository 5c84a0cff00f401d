"""The names of all backbones, to check spelling before torch is imported."""

BACKBONE_NAMES: tuple[str, ...] = (
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "resnet152",
    "resnet50_v1",
    "googlenet",
    "bn_inception",
    "efficientnet_lite0",
    "conv4",
)
