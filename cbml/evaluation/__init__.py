"""Embeddings and labels -> scores: Recall@K, MAP@R, R-precision, NMI, AMI."""

from cbml.evaluation.evaluate import evaluate
from cbml.evaluation.scores import Scores

__all__ = ["Scores", "evaluate"]
