"""Which model is kept."""

import math
from pathlib import Path

import pytest

from cbml.training import Callback, Run, Settings, fit
from cbml.training.guards import decline_reason
from tests.training.small import batches, bayes_loss, embedder, make_images

Score = tuple[float, float]


@pytest.mark.parametrize(
    ("scores", "kept"),
    [
        ([(0.5, 0.1), (0.6, 0.0), (0.5, 0.9)], 1),  # the chosen score decides
        ([(0.5, 0.1), (0.5, 0.3), (0.5, 0.2)], 1),  # then MAP@R
        ([(0.5, 0.1), (0.5, 0.1), (0.4, 0.9)], 1),  # then the later step
        ([(0.5, 0.1), (0.4, 0.1), (0.4, 0.1)], 0),
        ([(0.5, math.nan), (0.5, 0.1), (math.nan, 0.9)], 1),
        ([(0.4, 0.1), (0.5, math.nan), (0.5, math.inf)], 2),
        ([(0.4, 0.1), (0.5, math.nan), (0.4, 0.1)], 1),
    ],
)
def test_ties_are_broken_by_map_at_r_and_then_by_the_later_step(
    scores: list[Score], kept: int, tmp_path: Path
) -> None:
    given = iter(scores)
    fitted = fit(
        embedder(),
        bayes_loss(),
        batches(make_images(tmp_path / "images")),
        settings=Settings(steps=2, validate_every=1, checkpoint_every=1),
        run=Run(tmp_path / "run"),
        validate=lambda model: dict(zip(("recall@1", "map@r"), next(given), strict=True)),
        callback=Callback(),
    )
    assert fitted.best_step == kept
    assert fitted.best_score == scores[kept][0]
    assert fitted.start_score == scores[0][0]
    assert fitted.last_score == pytest.approx(scores[-1][0], nan_ok=True)


def test_a_fall_is_still_noticed_without_a_run_folder() -> None:
    assert decline_reason([0.5, 0.4, 0.3, 0.2]) is not None
