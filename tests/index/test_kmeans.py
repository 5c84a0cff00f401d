"""k-means: right, repeatable, silent, and sound in every corner."""

from typing import Any

import faiss
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from cbml.index import Clusters, kmeans
from cbml.index.clustering import Lloyd
from tests.oracles.lloyd import lloyd


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


def test_duplicates_leave_no_cluster_empty() -> None:
    generator = np.random.default_rng(0)
    rows = np.repeat(generator.normal(size=(10, 4)), 30, axis=0).astype(np.float32)
    found = kmeans(rows, 9)
    check_sound(found, rows)
    assert np.isfinite(found.centers).all()
    assert (found.sizes > 0).all()


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


CASES = ("noise", "grid", "duplicates", "blobs", "offset", "line", "sphere", "sphere grid")


def case(name: str, seed: int) -> NDArray[Any]:
    """Vectors of a kind: ties and empty clusters abound in grids, lines and duplicates."""
    chance = np.random.default_rng(seed)
    number, dim = int(chance.integers(20, 60)), int(chance.integers(1, 6))
    rows = {
        "noise": chance.normal(size=(number, dim)),
        "grid": chance.integers(0, 3, size=(number, dim)),
        "duplicates": np.repeat(chance.normal(size=(number // 3, dim)), 3, axis=0),
        "blobs": blobs(5, number, dim)[0],
        "offset": 1000.0 + chance.normal(size=(number, dim)),
        "line": np.arange(number)[:, None].repeat(dim, axis=1),
        "sphere": chance.normal(size=(number, dim)),
        "sphere grid": chance.integers(0, 3, size=(number, dim)) - 0.5,
    }[name].astype(np.float32)
    if name.startswith("sphere"):
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows


@pytest.mark.parametrize("tile", [60, 2**22])
@pytest.mark.parametrize("name", CASES)
def test_every_round_is_that_of_plain_lloyd(
    name: str, tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every bit of the centers, with ties, duplicates and empty clusters, in tiles or whole."""
    monkeypatch.setattr("cbml.index.clustering.TILE", tile)
    empty = 0
    for seed in range(12):
        rows, spherical = case(name, seed), name.startswith("sphere")
        clusters = 2 + seed
        first = rows[np.random.default_rng(seed).permutation(len(rows))[:clusters]]
        rounds = list(lloyd(rows, first, 8, spherical))
        for iterations, (nearest, centers) in enumerate(rounds):
            found = Lloyd(torch.from_numpy(rows), torch.from_numpy(first), spherical)
            found.run(iterations)
            assert found.nearest.tolist() == nearest.tolist(), (seed, iterations)
            np.testing.assert_array_equal(found.centers.numpy(), centers)
            empty += clusters - len(set(nearest.tolist()))
    assert empty > 0 or name not in ("grid", "duplicates")


@pytest.mark.parametrize("spherical", [False, True])
def test_products_as_wrong_as_the_bound_allows_change_nothing(
    spherical: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = torch.Generator().manual_seed(0)
    exact = torch.mm

    def noisy(rows: torch.Tensor, centers: torch.Tensor) -> torch.Tensor:
        products = exact(rows, centers)
        worst = (rows.shape[1] + 6) * 2.0**-24 * 1.5  # of unit vectors
        return products + worst * (2.0 * torch.rand(products.shape, generator=chance) - 1.0)

    monkeypatch.setattr(torch, "mm", noisy)
    for seed in range(30):
        places = np.random.default_rng(seed).integers(0, 4, size=(60, 3)) - 1.5
        rows = (places / np.linalg.norm(places, axis=1, keepdims=True)).astype(np.float32)
        first = rows[np.random.default_rng(seed).permutation(60)[:12]]
        for iterations, (nearest, _) in enumerate(lloyd(rows, first, 6, spherical)):
            found = Lloyd(torch.from_numpy(rows), torch.from_numpy(first), spherical)
            found.run(iterations)
            assert found.nearest.tolist() == nearest.tolist(), (seed, iterations)


def test_known_outcomes_are_not_computed_again() -> None:
    """Twenty rounds cost a few: most centers stop moving early. Nothing is compared at the end."""
    rows = np.random.default_rng(0).normal(size=(3000, 16)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    found = Lloyd(torch.from_numpy(rows), torch.from_numpy(rows[:300]), False)
    once = found.compared
    assert once == 3000 * 300
    found.run(20)
    assert found.compared < 10 * once
    found.run(200)
    settled = found.compared
    found.run(20)
    assert found.compared == settled


def test_the_number_of_threads_does_not_matter() -> None:
    rows = np.random.default_rng(0).normal(size=(2000, 32)).astype(np.float32)
    usual = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(kmeans(rows, 100))
    finally:
        torch.set_num_threads(usual)
    for other in found[1:]:
        np.testing.assert_array_equal(found[0].centers, other.centers)
        np.testing.assert_array_equal(found[0].assignments, other.assignments)


@pytest.mark.parametrize("power", [-100, 60, 126])
def test_lengths_near_the_ends_of_float32_change_nothing(power: int) -> None:
    rows = np.random.default_rng(0).uniform(0.5, 1.0, size=(200, 4)).astype(np.float32)
    plain, scaled = kmeans(rows, 9), kmeans(np.ldexp(rows, power), 9)
    assert np.array_equal(plain.assignments, scaled.assignments)
    assert np.array_equal(np.ldexp(plain.centers, power), scaled.centers)
    assert scaled.objective == pytest.approx(plain.objective * 4.0**power)


def test_the_first_centers_are_those_of_faiss() -> None:
    """Clusters that were found before are found again, but for rounding."""
    rows = np.random.default_rng(0).normal(size=(600, 8)).astype(np.float32)
    peer = faiss.Kmeans(8, 30, niter=5, seed=3, min_points_per_centroid=1)
    peer.train(rows)
    found = kmeans(rows, 30, iterations=5, seed=3)
    np.testing.assert_allclose(found.centers, peer.centroids, atol=1e-5)


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
