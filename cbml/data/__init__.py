"""Pictures on disk -> labelled batches: sets with splits, safe decoding, crops, samplers."""

from cbml.data import datasets
from cbml.data.batches import Batch, Batches
from cbml.data.decode import BadPicture, read_picture
from cbml.data.images import ImageSet, Splits
from cbml.data.packed import PackedImages, pack
from cbml.data.pictures import BadPictures
from cbml.data.sampler import ClassBalancedSampler, InOrder
from cbml.data.splits import Fold
from cbml.data.transforms import (
    NORMALISATIONS,
    Normalisation,
    TestTransform,
    TrainTransform,
    short_side,
)

__all__ = [
    "NORMALISATIONS",
    "BadPicture",
    "BadPictures",
    "Batch",
    "Batches",
    "ClassBalancedSampler",
    "Fold",
    "ImageSet",
    "InOrder",
    "Normalisation",
    "PackedImages",
    "Splits",
    "TestTransform",
    "TrainTransform",
    "datasets",
    "pack",
    "read_picture",
    "short_side",
]
