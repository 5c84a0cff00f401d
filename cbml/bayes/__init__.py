"""Similarities -> probabilities: pair statistics, likelihoods, posteriors, the parameter rule."""

from cbml.bayes.analysis import SetAnalysis, analyze_set
from cbml.bayes.histograms import PairHistogram
from cbml.bayes.matching import MatchProbability
from cbml.bayes.reliability import Reliability
from cbml.bayes.statistics import PairStatistics

__all__ = [
    "MatchProbability",
    "PairHistogram",
    "PairStatistics",
    "Reliability",
    "SetAnalysis",
    "analyze_set",
]
