"""From a set with labels to the odds of a match among the results of a search in it."""

from typing import NamedTuple

import numpy as np

from cbml.bayes.fitting import Fit, Results, backgrounds, choose_fit
from cbml.bayes.lists import Lists, crowd_means, nearest_lists, ranks_to_learn_from
from cbml.bayes.pairs import Rows, Whole
from cbml.errors import BadData

__all__ = ["Learned", "learn"]

# The backgrounds of so many results are looked up to learn from: each costs a search.
LOOKED_UP = 8192


class Learned(NamedTuple):
    """What a set tells.

    Args:
        by_query: odds from similarities and the backgrounds of queries.
        by_both: from those and the backgrounds of results; None where that says no more.
        background: the mean over queries.
    """

    by_query: Fit
    by_both: Fit | None
    background: float


def learn(rows: Rows, codes: Whole, crowd: tuple[int, int], *, seed: int) -> Learned:
    """The odds that hold best on classes left out.

    Args:
        rows: unit rows. (N, D)
        codes: their classes. (N,)
        crowd: begin and end of the ranks of the crowd.
        seed: of the choice of queries, and of the halves of classes.
    """
    lists = nearest_lists(rows, crowd[1], seed=seed)
    background = backgrounds(lists.similarities, crowd, 0.0)
    ranks, counts = ranks_to_learn_from(lists.similarities.shape[1])
    lists = lists.at(ranks)
    shape = lists.similarities.shape
    features = np.empty((2, *shape))
    features[0], features[1] = lists.similarities, background
    results = Results(features, lists.matches(codes), np.broadcast_to(counts * 1.0, shape))
    by_query = choose_fit(results, codes[lists.queries], seed=seed)
    by_both = _with_results(rows, codes, crowd, lists, results, by_query, seed)
    return Learned(by_query, by_both, float(background.mean()))


def _with_results(
    rows: Rows,
    codes: Whole,
    crowd: tuple[int, int],
    lists: Lists,
    results: Results,
    rival: Fit,
    seed: int,
) -> Fit | None:
    """The odds that know the backgrounds of results, if they beat those that do not."""
    classes = codes[lists.queries]
    try:
        if len(rows) > LOOKED_UP:  # the results of fewer queries then, for both rivals
            every = -(-lists.neighbours.size // LOOKED_UP)
            some = np.arange(len(classes)) % every == 0
            results, classes = results.of(some), classes[some]
            lists = Lists(*(part[some] for part in lists))
            rival = choose_fit(results, classes, seed=seed)
        around = crowd_means(rows, lists.neighbours, crowd, 0.0)
        wider = results._replace(features=np.concatenate([results.features, around[None]]))
        found = choose_fit(wider, classes, seed=seed)
    except BadData:  # too few queries
        return None
    return found if found.check.log_loss < rival.check.log_loss else None
