"""Vectors to labels: numbers that stay, shares that moved, alarms."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from cbml.errors import BadData
from cbml.methods import Labeling, chain_count, check_clusters, cluster_labels
from cbml.methods.clusters import match_labels
from tests.oracles import matching as oracle

CLUSTERS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=60)


@given(CLUSTERS)
def test_clusters_are_matched_as_by_hand(pairs: list[tuple[int, int]]) -> None:
    previous, current = (np.array(side) for side in zip(*pairs, strict=True))
    found = match_labels(previous, current, 7)
    assert found.tolist() == oracle.matched(previous.tolist(), current.tolist(), 7)
    same = (found[:, None] == found[None, :]) == (current[:, None] == current[None, :])
    assert same.all(), "the grouping itself must not change"
    table = np.zeros((7, 7))
    np.add.at(table, (previous, current), 1)
    best = table[linear_sum_assignment(-table)].sum()
    assert (found == previous).sum() >= best / 2


@given(st.permutations(range(9)), st.integers(0, 99))
def test_a_permutation_of_numbers_moves_nobody(order: list[int], seed: int) -> None:
    labels = np.random.default_rng(seed).integers(0, 9, 50)
    assert match_labels(labels, np.array(order)[labels], 9).tolist() == labels.tolist()


def rows_around(centers: int, each: int, noise: float = 0.05) -> tuple[np.ndarray, np.ndarray]:
    chance = np.random.default_rng(0)
    truth = np.repeat(np.arange(centers), each)
    rows = np.eye(centers + 2)[truth] + noise * chance.standard_normal((len(truth), centers + 2))
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit.astype(np.float32), truth


def test_labels_follow_the_images_and_keep_their_numbers() -> None:
    rows, truth = rows_around(5, 12)
    first = cluster_labels(rows, 5, seed=0)
    assert len(set(zip(truth.tolist(), first.tolist(), strict=True))) == 5
    rows[0] = rows[-1]
    second = cluster_labels(rows, 5, previous=first, seed=9)  # other first centers, other numbers
    found = Labeling.of(second, 5, rows, first)
    assert found.moved == pytest.approx(1 / 60)
    assert (found.alive, found.singletons, found.alarm()) == (5, 0, None)


def test_identical_images_leave_clusters_empty_and_it_is_said() -> None:
    rows, _ = rows_around(2, 10, noise=0.0)
    labels = cluster_labels(rows, 8, seed=0)
    found = Labeling.of(labels, 8, rows, None)
    assert (found.alive, found.clusters) == (2, 8)
    assert found.alarm() == "only 2 of 8 clusters are alive"
    assert "2 clusters alive of 8" in found.text()


def test_an_outlier_is_a_cluster_of_its_own() -> None:
    rows, _ = rows_around(3, 10)
    rows = np.concatenate([rows, -rows[:1]])
    found = Labeling.of(cluster_labels(rows, 4, seed=1), 4, rows, None)
    assert found.singletons == 1
    assert found.metadata()["largest"] == pytest.approx(10 / 31)


def test_collapses_are_noticed() -> None:
    rows, truth = rows_around(4, 10)
    giant = np.where(np.arange(40) < 25, 0, truth)
    assert "one cluster holds" in str(Labeling.of(giant, 4, rows, None).alarm())
    alike = rows[:1] + 0.01 * rows
    alike = (alike / np.linalg.norm(alike, axis=1, keepdims=True)).astype(np.float32)
    found = Labeling.of(truth, 4, alike, None)
    pairs = (alike @ alike.T)[~np.eye(40, dtype=bool)]
    assert found.similarity == pytest.approx(pairs.mean(), abs=1e-5)
    assert "all alike" in str(found.alarm())


def test_no_more_clusters_than_images() -> None:
    assert check_clusters(7, 1000) == 7
    for wrong in (1, 1001):
        with pytest.raises(BadData, match=f"clusters={wrong}: give between 2 and the 1000"):
            check_clusters(wrong, 1000)


@given(st.integers(2, 60), st.integers(2, 5), st.integers(0, 99))
def test_chains_of_nearest_neighbors_are_counted_as_by_hand(
    images: int, dim: int, seed: int
) -> None:
    rows = np.random.default_rng(seed).standard_normal((images, dim)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    nearest = [
        max((float(row @ other), -place) for place, other in enumerate(rows) if place != own)
        for own, row in enumerate(rows)
    ]
    chains = [{own, -place} for own, (_, place) in enumerate(nearest)]
    for own in range(images):
        through = [chain for chain in chains if own in chain]
        chains = [chain for chain in chains if own not in chain] + [set().union(*through)]
    expected = max(2, len(chains))
    assert chain_count(rows) == expected
    mutual = [own for own, (_, place) in enumerate(nearest) if -nearest[-place][1] == own]
    assert len(mutual) == 2 * len(chains), "each chain ends in one pair"


def test_chains_find_pairs_and_near_copies() -> None:
    rows, _ = rows_around(20, 2, noise=0.01)
    assert chain_count(rows) == 20
    alike, _ = rows_around(4, 10, noise=0.0)
    assert chain_count(alike) == 4, "copies are one chain, whichever is found first"
    assert chain_count(alike[:5]) == 2, "never fewer than two"
    lonely = np.concatenate([rows, rows[:1] + rows[2:3] + rows[4:5]])
    lonely /= np.linalg.norm(lonely, axis=1, keepdims=True)
    assert chain_count(lonely.astype(np.float32)) == 20, "it joins another"
