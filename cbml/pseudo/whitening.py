"""Directions that all pictures share, or in which they differ most, made to count no more."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["whitened"]

Rows = NDArray[np.float32]

# Directions with less of the variance than this are rounding.
_NOISE = 1e-7


def whitened(rows: Rows, dim: int) -> Rows:
    """Rows along their principal directions, each divided by its deviation, to unit length.

    With μ the mean row and (λ_k, v_k) the largest eigenvalues and vectors of the covariance:

        z_k = v_k·(x - μ) / √λ_k,   z / |z|

    Args:
        rows: (N, C).
        dim: how many directions to keep; fewer where there are fewer.
    """
    centred = rows.astype(np.float64) - rows.mean(axis=0, dtype=np.float64)
    values, vectors = np.linalg.eigh(centred.T @ centred / len(rows))  # ascending
    kept = np.flatnonzero(values > _NOISE * max(values[-1], 1e-12))[-dim:]
    if not len(kept):
        return rows  # all alike: nothing to take apart
    turned = centred @ (vectors[:, kept] / np.sqrt(values[kept]))
    lengths = np.linalg.norm(turned, axis=1, keepdims=True)
    unit: Rows = (turned / np.maximum(lengths, 1e-12)).astype(np.float32)
    # A picture exactly at the mean has no direction; any will do.
    unit[lengths[:, 0] <= 1e-12, 0] = 1.0
    return unit
