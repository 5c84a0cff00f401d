"""Similarities -> probabilities: pair statistics, likelihoods, posteriors, the parameter rule."""

from cbml.bayes.matching import MatchProbability
from cbml.bayes.reliability import Reliability
from cbml.bayes.statistics import PairStatistics

__all__ = ["MatchProbability", "PairStatistics", "Reliability"]
