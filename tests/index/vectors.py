"""Vectors for the tests of indexes and stores."""

import numpy as np

from cbml.index.vectors import Ids, Vectors


def unit(rows: np.ndarray) -> Vectors:
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), dtype=np.float32)


def random_rows(seed: int, number: int, dim: int = 16) -> Vectors:
    return unit(np.random.default_rng(seed).normal(size=(number, dim)))


def clustered_rows(seed: int, number: int, dim: int = 32, clusters: int = 20) -> Vectors:
    """Groups with a spread about as wide as that of images of one class."""
    generator = np.random.default_rng(seed)
    centers = generator.normal(size=(clusters, dim))
    chosen = centers[generator.integers(clusters, size=number)]
    return unit(chosen + 0.7 * generator.normal(size=(number, dim)))


def tied_rows(seed: int, number: int) -> Vectors:
    """Sixteen times plus or minus a quarter: all products are exact, and most of them tie."""
    signs = np.random.default_rng(seed).integers(2, size=(number, 16)) * 2 - 1
    return (signs * 0.25).astype(np.float32)


def random_ids(seed: int, number: int) -> Ids:
    return np.random.default_rng(seed).permutation(10 * number)[:number].astype(np.int64)
