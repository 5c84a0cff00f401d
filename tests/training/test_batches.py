"""Sizes of batches that nobody gave."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbml.errors import BadData
from cbml.training.batches import fitted_sizes


@pytest.mark.parametrize(
    ("classes", "each", "wanted"),
    [
        (100, 60, (15, 8)),  # as in the authors' program
        (15, 60, (15, 8)),
        (10, 60, (10, 12)),  # 120 images still
        (2, 60, (2, 60)),
        (2, 20, (2, 20)),  # no more than there are
        (2, 3, (2, 8)),
        (800, 7, (60, 2)),  # emoji
        (800, 12, (30, 4)),
        (20, 7, (20, 6)),
        (1000, 2, (60, 2)),
    ],
)
def test_a_small_set_gives_all_its_classes(
    classes: int, each: int, wanted: tuple[int, int]
) -> None:
    assert fitted_sizes(np.full(classes, each)) == wanted


def test_what_is_given_stays_whether_it_can_be_had_or_not() -> None:
    sizes = np.full(2, 60)
    assert fitted_sizes(sizes, classes=15) == (15, 8)
    assert fitted_sizes(sizes, images=5) == (2, 5)
    assert fitted_sizes(sizes, classes=15, images=3, processes=2) == (15, 3)


def test_a_set_without_classes_is_refused() -> None:
    with pytest.raises(BadData, match="no labeled images to make batches of"):
        fitted_sizes(np.array([], dtype=np.int64))


@given(st.lists(st.integers(1, 300), min_size=2, max_size=40), st.integers(1, 16))
def test_processes_can_share_a_fitted_batch(sizes: list[int], processes: int) -> None:
    classes, images = fitted_sizes(np.array(sizes), processes=processes)
    assert 2 <= classes <= min(60, len(sizes))
    assert classes >= min(15, len(sizes))
    assert images >= 1
    assert classes * images % processes == 0
