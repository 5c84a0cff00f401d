"""Clusters of the training images whose batches take turns: which images, and in which order."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from cbml.data import ClassBalancedSampler, EpochBatches
from cbml.methods.unlabeled import image_features
from cbml.training import TrainingView

Labels = NDArray[np.int64]
Indices = NDArray[np.int64]


def unit_features(view: TrainingView) -> NDArray[np.float32]:
    """Features of the readable training images before the last layer, of length one. (N, C)"""
    features = image_features(view.model, view.embed)
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    unit: NDArray[np.float32] = features / np.maximum(lengths, 1e-12)
    return unit


def renumbered(previous: Labels, current: Labels, clusters: int) -> Labels:
    """The current clusters under the numbers with which most images keep theirs. (N,)

    Of all assignments the best: the sum of |indicator(i) - indicator(j)|_1 over pairs of a current
    cluster i and the previous one j whose number it gets is least where they share most images.

    Args:
        previous: Clusters before. (N,)
        current: Clusters now. (N,)
    """
    shared = np.zeros((clusters, clusters), dtype=np.int64)
    np.add.at(shared, (current, previous), 1)
    number: Labels = linear_sum_assignment(shared, maximize=True)[1]
    return number[current]


def without_lone_images(clusters: Labels, labels: Labels) -> Labels:
    """The clusters, -1 for images that are the only one of their class within theirs. (N,)

    Args:
        clusters: Of each image, -1 for none. (N,)
        labels: Class of each image. (N,)
    """
    pairs = np.stack([clusters, labels], axis=1)
    _, inverse, count = np.unique(pairs, axis=0, return_inverse=True, return_counts=True)
    return np.where(count[inverse.reshape(-1)] > 1, clusters, -1)


def can_be_learned_from(labels: Labels) -> bool:
    """Whether two classes have two images each."""
    return int((np.bincount(labels) > 1).sum()) > 1 if len(labels) else False


def batches_of(
    members: Indices,
    labels: Labels,
    sampler: ClassBalancedSampler,
    *,
    size: int,
    seed: Sequence[int],
) -> Indices:
    """Class-balanced batches of some images, in which each comes up once. (S, size)

    They have as many images of a class as the run's sampler takes; more where there are too few
    classes for a batch of that size.
    """
    samples = sampler.samples_per_class
    classes = min(-(-size // samples), len(np.unique(labels)))
    own = ClassBalancedSampler(
        labels,
        classes_per_batch=classes,
        samples_per_class=max(samples, -(-size // classes)),
        seed=int(np.random.SeedSequence(seed).generate_state(1)[0]),
    )
    plan: Indices = members[own.plan(0)[:, :size]]
    return plan


def round_robin(plans: Mapping[int, Indices]) -> EpochBatches:
    """A batch of each stream in turn, until the longest has given all; the others start again.

    Args:
        plans: Batches by stream. (S, B) each
    """
    rounds = max(len(plan) for plan in plans.values())
    turns = [
        (stream, plan[turn % len(plan)]) for turn in range(rounds) for stream, plan in plans.items()
    ]
    return EpochBatches(
        np.stack([batch for _, batch in turns]), streams=np.array([stream for stream, _ in turns])
    )


def cluster_plans(
    view: TrainingView, clusters: Labels, count: int, *, seed: int
) -> dict[int, Indices]:
    """Batches of each cluster that can be learned from, by its number. (S, B) each

    Args:
        clusters: Of each image, -1 for none. (N,)
    """
    labels, sampler = view.batches.images.known_labels, view.batches.sampler
    assert isinstance(sampler, ClassBalancedSampler)
    size = sampler.classes_per_batch * sampler.samples_per_class
    kept, plans = without_lone_images(clusters, labels), {}
    for k in range(count):
        members = np.flatnonzero(kept == k)
        if can_be_learned_from(labels[members]):
            plans[k] = batches_of(
                members, labels[members], sampler, size=size, seed=(seed, view.epoch, k)
            )
    return plans


def first_batches(batches: EpochBatches, count: int, *, whole: bool) -> EpochBatches:
    """At most so many batches of an epoch, for slices or for the whole embedding."""
    streams = None if whole or batches.streams is None else batches.streams[:count]
    return EpochBatches(batches.indices[:count], streams=streams)
