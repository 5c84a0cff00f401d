"""Vectors -> neighbours and groups. Knows nothing of pictures."""

from cbml.index.kmeans import Clusters, kmeans

__all__ = ["Clusters", "kmeans"]
