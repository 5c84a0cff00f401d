"""The contrastive Bayesian metric learning loss and the variants of the paper's tables."""

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, Self

from torch import Tensor

from cbml.errors import BadData, check_choice
from cbml.losses.constants import (
    SMALLEST_STD,
    margin_to_train_with,
    pair_moments,
    ratio_to_train_with,
)
from cbml.losses.kernel import Formula
from cbml.losses.options import (
    Averaging,
    Dataset,
    Reduction,
    check_flag,
    check_number,
)
from cbml.losses.ratios import LinearRatio, QuadraticRatio
from cbml.losses.terms import PairLoss

FINE_GRAINED = LinearRatio(
    positive_center=0.5, positive_scale=0.5, negative_center=1.0, negative_scale=0.01
)
PRODUCTS = LinearRatio(
    positive_center=0.5, positive_scale=0.25, negative_center=0.5, negative_scale=0.05
)
# The paper's ratio and λ for each of its datasets.
SETTINGS: dict[Dataset, tuple[LinearRatio, float]] = {
    "cub": (FINE_GRAINED, 1.0),
    "cars": (FINE_GRAINED, 1.0),
    "sop": (PRODUCTS, 0.001),
    "inshop": (PRODUCTS, 0.001),
}
# What the authors' program does otherwise than the paper.
AUTHORS: dict[str, Any] = {"variance_reduction": "sum", "skip_easy_anchors": True}
# exp(70) times a hundred million pairs is still a float32 number.
LARGEST_EXPONENT = 70.0


class CBMLLoss(PairLoss):
    """Make the posterior probability of every pair's kind large, given its similarity.

    With s_ij the cosine similarity of embeddings i and j, P_i and N_i the positives and negatives
    of anchor i (by index: an anchor is no pair with itself, a true duplicate is), B anchors, and Φ
    the likelihood ratio of `ratio`:

        P*_i  = {j ∈ P_i : s_ij < max_{n∈N_i} s_in + ε}
        N*_i  = {j ∈ N_i : s_ij > min_{p∈P_i} s_ip - ε}
        L_P   = mean_i f(1 + δ_P Σ_{j∈P*_i} Φ_P(s_ij))
        L_N   = mean_i f(1 + δ_N Σ_{j∈N*_i} Φ_N(s_ij))
        ξ_i   = γ mean_{p∈P_i} s_ip + (1 - γ) mean_{n∈N_i} s_in
        L_2   = mean_i mean_{n∈N_i} (s_in - ξ_i)²
        L     = ω L_P + L_N + λ L_2

    A sum over an empty set is zero, the minimum over one infinite: an anchor without positives has
    no hard negatives. An anchor without positives or without negatives has no ξ_i and no share in
    L_2. Every anchor counts in the mean. The defaults are the paper's for CUB and Cars.

    Args:
        ratio: Φ, linear or quadratic in the exponent.
        averaging: f. "log" as in the paper, or its alternatives "sqrt" and "const" (f(x) = x).
        delta: δ_P = δ_N, 1 in the paper's experiments; "derived" for the ratios that its
            derivation gives, |N_i|/|P_i|² and |P_i|/|N_i|²; "mean" for 1/|P_i| and 1/|N_i|, which
            makes the sums means: neither set outweighs the other by its size.
        mining_margin: ε, 0.1 in the authors' program; None takes all pairs.
        positive_weight: ω, 1 in the paper. β_P/β_N lets both sides pull and push alike at most.
        variance_weight: Weight of the variance constraint, λ.
        target_mix: Mix of the variance target, γ.
        variance_reduction: Over the negatives of an anchor in L_2; "sum" in the authors' program.
        skip_easy_anchors: Leave out an anchor, with its share in L_2, when either of its hard sets
            is empty, as the authors' program does. It still counts in the mean.
    """

    def __init__(
        self,
        *,
        ratio: LinearRatio | QuadraticRatio = FINE_GRAINED,
        averaging: Averaging = "log",
        delta: float | Literal["derived", "mean"] = 1.0,
        mining_margin: float | None = 0.1,
        positive_weight: float = 1.0,
        variance_weight: float = 1.0,
        target_mix: float = 0.2,
        variance_reduction: Reduction = "mean",
        skip_easy_anchors: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(ratio, LinearRatio | QuadraticRatio):
            raise TypeError(f"ratio must be a LinearRatio or QuadraticRatio, got {ratio!r}")
        self.ratio = ratio
        self.averaging = check_choice(averaging, "averaging", Averaging)
        self.delta = _check_delta(delta)
        self.mining_margin = (
            None if mining_margin is None else check_number(mining_margin, "mining_margin")
        )
        self.positive_weight = check_number(positive_weight, "positive_weight", at_least=0.0)
        self.variance_weight = check_number(variance_weight, "variance_weight", at_least=0.0)
        self.target_mix = check_number(target_mix, "target_mix")
        self.variance_reduction = check_choice(variance_reduction, "variance_reduction", Reduction)
        self.skip_easy_anchors = check_flag(skip_easy_anchors, "skip_easy_anchors")
        self._check_overflow()

    @classmethod
    def from_embeddings(cls, embeddings: Tensor, labels: Tensor) -> Self:
        """The loss whose every constant follows from embeddings of the model to be trained.

            λ = 1 / (2 σ_N²)

        makes λ L_2 the negative log-likelihood of the negatives under a Gaussian about their target
        with the spread they have now; Φ and ω are those of `ratio_to_train_with`, δ makes means of
        the sums, and up to about 50 classes are trained by their hard pairs alone, ε = 0.1. A few
        thousand training images will do, of as many classes as there are.

        Args:
            embeddings: One row per image, tensor, array or lists. (N, D)
            labels: One integer per row. (N,)
        """
        positive, negative, spread, odds = pair_moments(embeddings, labels)
        if positive <= negative or spread < SMALLEST_STD:
            raise BadData(
                f"no constants follow from these embeddings: positive pairs have a mean "
                f"similarity of {positive:.4f}, negative ones of {negative:.4f} with a spread of "
                f"{spread:.1e}; check labels and model"
            )
        ratio = ratio_to_train_with(positive, negative, spread)
        return cls(
            ratio=ratio,
            delta="mean",
            mining_margin=margin_to_train_with(odds),
            positive_weight=ratio.positive_scale / ratio.negative_scale,
            variance_weight=0.5 / spread**2,
        )

    @classmethod
    def paper(
        cls,
        dataset: Dataset,
        *,
        averaging: Averaging = "log",
        mining_margin: float | None = 0.1,
        variance_weight: float | None = None,
        target_mix: float = 0.2,
    ) -> Self:
        """The paper's equations with its parameters for one of its datasets.

        Args:
            dataset: "cub", "cars", "sop" or "inshop".
            averaging: f, for the paper's study of averaging operations.
            mining_margin: ε; None for the rows without mining.
            variance_weight: λ; None for the paper's value for this set.
            target_mix: Mix of the variance target, γ.
        """
        options = _dataset_options(dataset, averaging, mining_margin, variance_weight, target_mix)
        return cls(**options)

    @classmethod
    def authors(
        cls,
        dataset: Dataset,
        *,
        averaging: Averaging = "log",
        mining_margin: float | None = 0.1,
        variance_weight: float | None = None,
        target_mix: float = 0.2,
    ) -> Self:
        """What the authors' program computes, with the paper's parameters for a dataset.

        It sums the variance over the negatives, leaves out anchors with an empty hard set, and
        weighs the exponentials by 1/4 in its "const" averaging. Unlike the program, self pairs are
        masked by index, so that true duplicates count.

        Args:
            dataset: "cub", "cars", "sop" or "inshop".
            averaging: f, for the paper's study of averaging operations.
            mining_margin: ε; None for all pairs.
            variance_weight: λ; None for the paper's value for this set.
            target_mix: Mix of the variance target, γ.
        """
        options = _dataset_options(dataset, averaging, mining_margin, variance_weight, target_mix)
        return cls(**options, **AUTHORS, delta=0.25 if averaging == "const" else 1.0)

    def formula(self) -> Formula:
        """The equations above with these options."""
        return Formula(
            ratio=(self.ratio.positive, self.ratio.negative),
            averaging=self.averaging,
            delta=self.delta,
            mining_margin=self.mining_margin,
            skip_easy_anchors=self.skip_easy_anchors,
            positive_weight=self.positive_weight,
            variance_weight=self.variance_weight,
            target_mix=self.target_mix,
            variance_sum=self.variance_reduction == "sum",
        )

    def extra_repr(self) -> str:
        """The settings, for print."""
        return (
            f"ratio={self.ratio}, averaging={self.averaging!r}, delta={self.delta!r}, "
            f"mining_margin={self.mining_margin}, positive_weight={self.positive_weight}, "
            f"variance_weight={self.variance_weight}, target_mix={self.target_mix}, "
            f"variance_reduction={self.variance_reduction!r}, "
            f"skip_easy_anchors={self.skip_easy_anchors}"
        )

    def _check_overflow(self) -> None:
        """Without the logarithm the exponentials themselves are summed: they must be numbers."""
        if self.averaging == "log":
            return
        largest = max(self.ratio.positive.largest(), self.ratio.negative.largest())
        largest += 0.0 if isinstance(self.delta, str) else math.log(self.delta)
        if largest > LARGEST_EXPONENT:
            raise ValueError(
                f"averaging={self.averaging!r} sums exponentials up to exp({largest:.0f}), too "
                f"large for float32: widen the scales of ratio or use averaging='log'"
            )


def _check_delta(
    delta: float | Literal["derived", "mean"],
) -> float | Literal["derived", "mean"]:
    if isinstance(delta, str):
        return check_choice(delta, "delta", Literal["derived", "mean"])
    if check_number(delta, "delta") <= 0.0:
        raise ValueError(f"delta must be above zero, 'derived' or 'mean', got {delta}")
    return float(delta)


def _dataset_options(
    dataset: Dataset,
    averaging: Averaging,
    mining_margin: float | None,
    variance_weight: float | None,
    target_mix: float,
) -> dict[str, Any]:
    ratio, weight = SETTINGS[check_choice(dataset, "dataset", Dataset)]
    return {
        "ratio": ratio,
        "averaging": averaging,
        "mining_margin": mining_margin,
        "variance_weight": weight if variance_weight is None else variance_weight,
        "target_mix": target_mix,
    }


class _Variant(PairLoss):
    """A variant of the paper's tables, with its parameters for a dataset.

    Args:
        dataset: The dataset whose parameters are taken, "cub", "cars", "sop" or "inshop".
        averaging: f; None for that of the variant.
        mining_margin: ε; None for all pairs.
        variance_weight: λ; None for the paper's value for this dataset.
        target_mix: γ.
    """

    _preset: ClassVar[Callable[..., CBMLLoss]]
    _options: ClassVar[Mapping[str, Any]] = {}

    def __init__(
        self,
        *,
        dataset: Dataset = "cub",
        averaging: Averaging | None = None,
        mining_margin: float | None = 0.1,
        variance_weight: float | None = None,
        target_mix: float = 0.2,
    ) -> None:
        super().__init__()
        options = {**self._options, **({} if averaging is None else {"averaging": averaging})}
        self.loss = type(self)._preset(
            dataset,
            mining_margin=mining_margin,
            variance_weight=variance_weight,
            target_mix=target_mix,
            **options,
        )

    def formula(self) -> Formula:
        """That of the loss inside."""
        return self.loss.formula()


class CBMLSqrt(_Variant):
    """The paper's CBML-sqrt: f(x) = √x instead of log x."""

    _preset, _options = CBMLLoss.paper, {"averaging": "sqrt"}


class CBMLConst(_Variant):
    """The paper's CBML-const: f(x) = x instead of log x."""

    _preset, _options = CBMLLoss.paper, {"averaging": "const"}


class CBMLAuthors(_Variant):
    """What the authors' program computes, as `CBMLLoss.authors`."""

    _preset = CBMLLoss.authors
