"""Vectors -> neighbours and groups. Knows nothing of pictures."""

from cbml.index.index import KINDS, Index, Matches
from cbml.index.kmeans import Clusters, kmeans
from cbml.index.stores import FolderStore, Store, open_store

__all__ = ["KINDS", "Clusters", "FolderStore", "Index", "Matches", "Store", "kmeans", "open_store"]
