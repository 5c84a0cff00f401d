"""Unit vectors -> a map: similar images near each other on a plane, in seconds, always the same.

Up to LANDMARKS images are laid out by t-SNE in its plain form: with p the similarities of the
images as probabilities, q those of their places,

    p_j|i ∝ exp(-|v_i - v_j|² b_i)     b_i such that 2^H(p_i) = PERPLEXITY
    q_ij  ∝ 1 / (1 + |y_i - y_j|²)
    y     descends Σ p_ij log(p_ij / q_ij),   p_ij = (p_j|i + p_i|j) / 2N

from the two main axes of the vectors. Every other image is placed among its nearest landmarks.
"""

import numpy as np
from numpy.typing import NDArray

LANDMARKS = 1200
PERPLEXITY = 20.0
STEPS, EARLY, EXAGGERATION = 300, 100, 12.0
NEIGHBORS, SHARPNESS = 3, 40
BLOCK = 8192

Rows = NDArray[np.float32]


def layout(vectors: Rows, *, seed: int = 0) -> NDArray[np.uint16]:
    """Places on a square map, (N, 2), from 0 to 65535."""
    count = len(vectors)
    if count < 3:
        return np.full((count, 2), 32768, dtype=np.uint16)
    generator = np.random.default_rng(seed)
    chosen = np.sort(generator.permutation(count)[:LANDMARKS])
    marks = vectors[chosen]
    positions = _descend(_joint(marks), _main_axes(marks))
    spread = np.empty((count, 2), dtype=np.float32)
    for start in range(0, count, BLOCK):
        spread[start : start + BLOCK] = _among(vectors[start : start + BLOCK], marks, positions)
    spread[chosen] = positions
    if count > len(chosen):  # images of the same landmarks would hide each other
        width = np.ptp(positions, axis=0).max() / np.sqrt(count)
        nudges = generator.normal(0, 0.5 * width, (count, 2)).astype(np.float32)
        nudges[chosen] = 0
        spread += nudges
    return _squared(spread)


def _main_axes(vectors: Rows) -> Rows:
    """The vectors along their two main axes, small, signs fixed, (N, 2)."""
    centered = vectors - vectors.mean(axis=0)
    _, axes = np.linalg.eigh(centered.T.astype(np.float64) @ centered)
    main = axes[:, -2:][:, ::-1] if axes.shape[1] > 1 else np.hstack([axes, 0 * axes])
    largest = np.abs(main).argmax(axis=0)
    main = main * np.where(main[largest, [0, 1]] < 0, -1, 1)
    flat = centered @ main.astype(np.float32)
    result: Rows = flat / max(float(flat[:, 0].std()), 1e-12) * np.float32(1e-4)
    return result


def _joint(vectors: Rows) -> Rows:
    """p_ij, symmetric with sum 1, (N, N)."""
    distances = np.maximum(2 - 2 * (vectors @ vectors.T), 0).astype(np.float32)
    np.fill_diagonal(distances, np.inf)
    distances -= distances.min(axis=1, keepdims=True)
    target = np.log(min(PERPLEXITY, (len(vectors) - 1) / 2))
    low = np.zeros((len(vectors), 1), dtype=np.float32)
    high = np.full_like(low, np.inf)
    width = np.ones_like(low)
    for _ in range(40):  # halving finds b_i to more digits than float32 has
        weights = np.exp(-distances * width)
        total = weights.sum(axis=1, keepdims=True)
        finite = np.where(np.isinf(distances), 0, distances)
        entropy = np.log(total) + width * (finite * weights).sum(axis=1, keepdims=True) / total
        too_wide = entropy > target
        low, high = np.where(too_wide, width, low), np.where(too_wide, high, width)
        with np.errstate(invalid="ignore"):
            width = np.where(np.isinf(high), np.minimum(2 * width, 1e12), (low + high) / 2)
    conditional = np.exp(-distances * width)
    conditional /= conditional.sum(axis=1, keepdims=True)
    joint = conditional + conditional.T
    result: Rows = np.maximum(joint / joint.sum(), 1e-12).astype(np.float32)
    return result


def _descend(joint: Rows, positions: Rows) -> Rows:
    """Gradient descent with momentum and a gain for each number, (N, 2)."""
    speed, gains = np.zeros_like(positions), np.ones_like(positions)
    rate = np.float32(max(len(positions) / EXAGGERATION / 4, 20.0))
    # Two arrays for the whole descent: fresh ones at each step would cost more than the sums.
    nearness, pull = np.empty_like(joint), np.empty_like(joint)
    for step in range(STEPS):
        early = step < EARLY
        gradient = _gradient(joint, positions, EXAGGERATION if early else 1.0, nearness, pull)
        agree = (gradient > 0) == (speed > 0)
        gains = np.maximum(np.where(agree, gains * 0.8, gains + 0.2), 0.01).astype(np.float32)
        speed = (0.5 if early else 0.8) * speed - rate * gains * gradient
        positions = positions + speed
        positions -= positions.mean(axis=0)
    return positions


def _gradient(
    joint: Rows, positions: Rows, exaggeration: float, nearness: Rows, pull: Rows
) -> Rows:
    """4 Σ_j (p_ij - q_ij) (y_i - y_j) / (1 + |y_i - y_j|²), (N, 2)."""
    squares = np.square(positions).sum(axis=1, keepdims=True)
    ones = np.ones_like(squares)
    # 1 + |y_i|² + |y_j|² - 2 y_i·y_j as one product.
    left = np.hstack([-2 * positions, squares + 1, ones])
    np.matmul(left, np.hstack([positions, ones, squares]).T, out=nearness)
    np.maximum(nearness, 1, out=nearness)
    np.reciprocal(nearness, out=nearness)
    np.fill_diagonal(nearness, 0)
    np.multiply(joint, np.float32(exaggeration * float(nearness.sum(dtype=np.float32))), out=pull)
    pull -= nearness
    pull *= nearness
    sums = pull @ np.hstack([positions, ones])  # Σ_j pull_ij y_j, and Σ_j pull_ij
    scale = np.float32(4 / float(nearness.sum(dtype=np.float32)))
    result: Rows = scale * (sums[:, 2:] * positions - sums[:, :2])
    return result


def _among(vectors: Rows, marks: Rows, positions: Rows) -> Rows:
    """Each vector at the mean place of its nearest landmarks, nearer ones counting more, (N, 2)."""
    similarities = vectors @ marks.T
    count = min(NEIGHBORS, len(marks))
    nearest = np.argpartition(-similarities, count - 1, axis=1)[:, :count]
    near = np.take_along_axis(similarities, nearest, 1)
    weights = np.exp((near - near.max(axis=1, keepdims=True)) * SHARPNESS)
    weights /= weights.sum(axis=1, keepdims=True)
    result: Rows = np.einsum("nk,nkc->nc", weights, positions[nearest]).astype(np.float32)
    return result


def _squared(positions: Rows) -> NDArray[np.uint16]:
    low, high = positions.min(axis=0), positions.max(axis=0)
    side = max(float((high - low).max()), 1e-12)
    middle = (low + high) / 2
    scaled = (positions - middle) / side + 0.5
    squared: NDArray[np.uint16] = np.round(scaled * 65535).clip(0, 65535).astype(np.uint16)
    return squared
