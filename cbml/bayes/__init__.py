"""Similarities -> probabilities: pair statistics, likelihoods, posteriors, the parameter rule."""

from cbml.bayes.statistics import PairStatistics

__all__ = ["PairStatistics"]
