"""Pictures without labels -> labels -> training."""

from cbml.pseudo.labels import Labelling, cluster_count, label_rows
from cbml.pseudo.recipe import unlabelled_recipe
from cbml.pseudo.refresh import Refresh
from cbml.pseudo.session import load_pictures, train_unlabelled
from cbml.pseudo.staged import StagedLoss

__all__ = [
    "Labelling",
    "Refresh",
    "StagedLoss",
    "cluster_count",
    "label_rows",
    "load_pictures",
    "train_unlabelled",
    "unlabelled_recipe",
]
