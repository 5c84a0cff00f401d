"""k-means: right, repeatable, silent, and sound in every corner."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from cbml.index import Clusters, kmeans


def blobs(number: int, size: int, dim: int = 8) -> tuple[NDArray[Any], NDArray[np.int64]]:
    generator = np.random.default_rng(number)
    labels = np.arange(size) % number
    rows = 10.0 * generator.normal(size=(number, dim))[labels] + generator.normal(size=(size, dim))
    return rows.astype(np.float32), labels


def check_sound(found: Clusters, rows: NDArray[Any]) -> None:
    """Each vector is with its nearest center, and the sizes and the objective say so."""
    distances = ((rows[:, None] - found.centers[None]) ** 2).sum(axis=2)  # (N, K)
    own = distances[np.arange(len(rows)), found.assignments]
    np.testing.assert_allclose(own, distances.min(axis=1), rtol=1e-3, atol=1e-3)
    assert found.objective == pytest.approx(own.mean(), rel=1e-3, abs=1e-3)
    assert found.sizes.sum() == len(rows)
    assert (
        found.sizes.tolist()
        == np.bincount(found.assignments, minlength=len(found.centers)).tolist()
    )


@pytest.mark.parametrize(("number", "size"), [(1, 5), (3, 30), (40, 60), (7, 500), (2, 2000)])
def test_centers_are_means_and_vectors_are_with_the_nearest(number: int, size: int) -> None:
    """Means of all their vectors: faiss would take a sample of 256 for each center."""
    rows, _ = blobs(number, size)
    found = kmeans(rows, number, iterations=60)
    check_sound(found, rows)
    for cluster in np.flatnonzero(found.sizes):
        mean = rows[found.assignments == cluster].mean(axis=0)
        np.testing.assert_allclose(found.centers[cluster], mean, atol=1e-3)


def test_blobs_are_found_with_several_attempts() -> None:
    rows, labels = blobs(4, 200)
    found = kmeans(rows, 4, attempts=20)
    pairs = set(zip(labels.tolist(), found.assignments.tolist(), strict=True))
    assert len(pairs) == 4
    assert found.objective <= kmeans(rows, 4, attempts=1).objective * (1 + 1e-6)


def test_the_same_seed_gives_the_same_clusters_and_another_may_not() -> None:
    rows = np.random.default_rng(0).normal(size=(900, 16)).astype(np.float32)
    first, again, other = kmeans(rows, 30), kmeans(rows, 30), kmeans(rows, 30, seed=1)
    assert np.array_equal(first.centers, again.centers)
    assert np.array_equal(first.assignments, again.assignments)
    assert not np.array_equal(first.centers, other.centers)
    torch.manual_seed(3)
    assert np.array_equal(first.centers, kmeans(torch.from_numpy(rows), 30).centers)


@pytest.mark.parametrize("clusters", [3, 4, 50])
def test_no_more_centers_than_distinct_vectors(clusters: int) -> None:
    distinct = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    rows = distinct[[0, 1, 0, 2, 2, 2, 1]]
    found = kmeans(rows, clusters)
    assert np.array_equal(found.centers, distinct)
    assert found.assignments.tolist() == [0, 1, 0, 2, 2, 2, 1]
    assert found.objective == pytest.approx(0.0, abs=1e-6)


def test_zero_and_minus_zero_are_the_same_vector() -> None:
    rows = np.array([[0.0, 1.0], [-0.0, 1.0]], dtype=np.float32)
    assert len(kmeans(rows, 2).centers) == 1


def test_duplicates_may_leave_clusters_empty_but_nothing_breaks() -> None:
    generator = np.random.default_rng(0)
    rows = np.repeat(generator.normal(size=(10, 4)), 30, axis=0).astype(np.float32)
    found = kmeans(rows, 9)
    check_sound(found, rows)
    assert np.isfinite(found.centers).all()


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    """faiss would warn below 39 vectors per center."""
    rows, _ = blobs(4, 50)
    kmeans(rows, 20)
    kmeans(rows, 100)
    printed = capfd.readouterr()
    assert printed.out == printed.err == ""


def test_spherical_centers_are_unit_vectors_and_length_does_not_matter() -> None:
    rows, _ = blobs(5, 300)
    scale = np.random.default_rng(1).uniform(0.001, 1000.0, size=(300, 1)).astype(np.float32)
    found, scaled = (kmeans(part, 5, spherical=True) for part in (rows, rows * scale))
    np.testing.assert_allclose(np.linalg.norm(found.centers, axis=1), 1.0, atol=1e-5)
    assert (found.assignments == scaled.assignments).mean() > 0.99
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = unit @ found.centers.T
    assert np.array_equal(cosines.argmax(axis=1), found.assignments)
    assert found.objective == pytest.approx(cosines.max(axis=1).mean(), rel=1e-4)


def with_row(value: float) -> NDArray[Any]:
    rows, _ = blobs(2, 20)
    rows[13] = value
    return rows


def test_bad_input_is_refused_by_name() -> None:
    rows, _ = blobs(2, 20)
    with pytest.raises(ValueError, match=r"NaN, infinity .* in 1 of 20 rows: 13$"):
        kmeans(with_row(np.nan), 2)
    with pytest.raises(ValueError, match=r"beyond float32 in 1 of 20 rows: 13$"):
        kmeans(np.where(np.arange(20)[:, None] == 13, 1e300, rows.astype(np.float64)), 2)
    with pytest.raises(ValueError, match=r"only zeros, .* in 1 of 20 rows: 13$"):
        kmeans(with_row(0.0), 2, spherical=True)
    with pytest.raises(ValueError, match="vectors must have shape"):
        kmeans(rows[0], 2)
    with pytest.raises(ValueError, match="vectors must have shape"):
        kmeans(rows[:0], 2)
    with pytest.raises(TypeError, match="vectors must hold floating point numbers"):
        kmeans(rows.astype(np.int64), 2)
    with pytest.raises(TypeError, match="vectors must be an array or a tensor, got list"):
        kmeans([[1.0]], 2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="clusters must be at least 1, got 0"):
        kmeans(rows, 0)
    with pytest.raises(ValueError, match="attempts must be at least 1, got -1"):
        kmeans(rows, 2, attempts=-1)
