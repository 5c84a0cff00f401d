"""Constants of the loss that follow from the data: from similarities before training."""

import math

import torch
from torch import Tensor

from cbml.errors import BadData
from cbml.losses.inputs import as_labels, as_matrix, unit_rows
from cbml.losses.ratios import LinearRatio

# Log odds of a posterior of 0.9, the certainty at which the rule sets its marks.
CERTAIN = math.log(9.0)
# Midway between directions that have nothing in common and equal ones.
HALFWAY = 0.5
# Θ from which on hard pairs alone are trained; about as many classes have it.
FEW_CLASSES = 1.0 / 50.0
# Similarities are float32 numbers: what spreads less than this does not spread at all.
SMALLEST_STD = 1e-6


def ratio_to_train_with(
    positive_mean: float, negative_mean: float, negative_std: float
) -> LinearRatio:
    """The ratio Φ to train with, from the similarities before training.

    The slopes of the Gaussians' own ratio, gap/σ², vanish where the start hardly separates the
    classes. With δ of the paper's derivation, a batch whose pairs are all equally similar then
    rises until pull and push are equal, at s* = α + β log(|N|/|P|). For a gap of less than
    σ² log(|N|/|P|) / (1 - α) that is above 1: nothing holds the embeddings from becoming one
    point. The rule therefore begins with the level, and asks for four things:

        level     s* = max(1/2, (μ_P + μ_N)/2): pull and push are equal there, midway between
                  unrelated and equal, or where the start's pairs are already
        strength  both sides move a pair by at most the same: ω = β_P/β_N
        push      a posterior of 0.9 at s*, of 1/2 one spread σ = σ_N below it
        pull      a posterior of 0.9 at s*, of 1/2 at s = 1: all positives are pulled, nearly
                  evenly, however similar they are

    With logit 0.9 = log 9 and δ = 1/|P|, 1/|N|, so that no set wins by its size:

        α_N = s* - σ,  β_N = σ / log 9,    α_P = 1,  β_P = (1 - s*) / log 9

    σ is at most (1 - s*)/2. The gap is in none of the scales, so that the rule is the same for any
    separation, down to none.

    Args:
        positive_mean: μ_P.
        negative_mean: μ_N.
        negative_std: σ_N.
    """
    level = max(HALFWAY, (positive_mean + negative_mean) / 2.0)
    spread = min(negative_std, (1.0 - level) / 2.0)
    return LinearRatio(
        positive_center=1.0,
        positive_scale=(1.0 - level) / CERTAIN,
        negative_center=level - spread,
        negative_scale=spread / CERTAIN,
    )


def margin_to_train_with(prior_odds: float) -> float | None:
    """ε to train with: 0.1, as in the authors' program, where classes are few; None where many.

    Few classes are soon told apart. Without mining their images are still drawn together, and lose
    the variety by which unseen classes differ; ε ends that. Among hundreds of classes there is more
    to learn from every pair than training has steps. Θ = |P|/|N| is about one for C - 1 classes.

    Args:
        prior_odds: Θ of the training images.
    """
    return 0.1 if prior_odds >= FEW_CLASSES else None


def pair_moments(embeddings: Tensor, labels: Tensor) -> tuple[float, float, float, float]:
    """μ_P, μ_N and σ_N of the similarities of all pairs, and Θ = |P|/|N|, without forming them.

        Σ_ij s_ij = |Σ_i x_i|²,   Σ_ij s_ij² = |XᵀX|²

    and the same within each class; the rest are the negatives.

    Args:
        embeddings: One row per image, of any length but zero. (N, D)
        labels: One integer per row. (N,)
    """
    matrix = as_matrix(embeddings, "embeddings").detach().double()
    codes = as_labels(labels, matrix, "labels")
    rows = unit_rows(matrix, "embeddings")[0]  # (N, D)
    own = rows.square().sum(dim=1)  # (N,), one but for rounding
    pairs, first, second = -float(len(rows)), -float(own.sum()), -float(own.square().sum())
    order = codes.argsort(stable=True)
    sizes: list[int] = torch.unique(codes, return_counts=True)[1].tolist()
    for members in torch.split(rows[order], sizes):
        some, products, squares = _sums(members)
        pairs, first, second = pairs + some, first + products, second + squares
    all_pairs, all_first, all_second = _sums(rows)
    others = all_pairs - len(rows) - pairs
    if not pairs or not others:
        kind = "positive" if not pairs else "negative"
        raise BadData(
            f"no {kind} pairs: {len(sizes)} classes of {len(rows)} embeddings; constants follow "
            "from at least two classes, one of them with two embeddings"
        )
    negative = (all_first - float(own.sum()) - first) / others
    variance = (all_second - float(own.square().sum()) - second) / others - negative**2
    return first / pairs, negative, math.sqrt(max(variance, 0.0)), pairs / others


def _sums(rows: Tensor) -> tuple[float, float, float]:
    """Number, sum and sum of squares of the similarities of all rows, each with itself, too."""
    products = rows.T @ rows if rows.shape[1] < len(rows) else rows @ rows.T
    return (
        float(len(rows) ** 2),
        float(rows.sum(dim=0).square().sum()),
        float(products.square().sum()),
    )
