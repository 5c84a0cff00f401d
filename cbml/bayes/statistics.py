"""How similar the pairs of a set are, and what follows from it: likelihoods, posteriors, a loss."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from cbml.bayes.pairs import SMALLEST_STD, pair_moments, pair_up
from cbml.errors import BadData, check_choice
from cbml.losses import (
    SMALLEST_SCALE,
    CBMLLoss,
    LinearRatio,
    QuadraticRatio,
    margin_to_train_with,
    ratio_to_train_with,
)
from cbml.query_gallery import Labels, Matrix, QueryGallery

Exponent = Literal["linear", "quadratic"]


@dataclass(frozen=True, kw_only=True)
class PairStatistics:
    """Mean and spread of the similarities of all positive and of all negative pairs.

    Args:
        positive_mean: Mean similarity of positive pairs, μ_P.
        positive_std: Its standard deviation, σ_P.
        negative_mean: Mean similarity of negative pairs, μ_N.
        negative_std: Its standard deviation, σ_N.
        positive_pairs: |P|; in a set of its own each pair counts once.
        negative_pairs: Number of negative pairs, |N|.
    """

    positive_mean: float
    positive_std: float
    negative_mean: float
    negative_std: float
    positive_pairs: int
    negative_pairs: int

    @classmethod
    def of(
        cls,
        embeddings: Matrix | QueryGallery,
        labels: Labels | None = None,
    ) -> Self:
        """Exact statistics of all pairs, without forming them.

        Every image makes a pair with each other one, itself left out by its index; with a
        gallery, each image with each of the gallery.

        Args:
            embeddings: One row per image, array or tensor, of any length but zero, or queries and
                a gallery as a `QueryGallery`. (N, D)
            labels: Integers or strings, one per row; not beside a `QueryGallery`. (N,)
        """
        positive, negative = pair_moments(pair_up(QueryGallery.of(embeddings, labels)))
        return cls(
            positive_mean=positive.mean,
            positive_std=positive.std,
            negative_mean=negative.mean,
            negative_std=negative.std,
            positive_pairs=positive.pairs,
            negative_pairs=negative.pairs,
        )

    @property
    def prior_odds(self) -> float:
        """Θ = |P| / |N|: the odds of a pair to be positive before its similarity is known."""
        return self.positive_pairs / self.negative_pairs

    @property
    def separation(self) -> float:
        """The distance of the two means in units of their spread."""
        spread = math.hypot(self.positive_std, self.negative_std) / math.sqrt(2.0)
        return (self.positive_mean - self.negative_mean) / max(spread, 1e-12)

    def ratio(self, exponent: Exponent = "quadratic") -> LinearRatio | QuadraticRatio:
        """Φ of the two Gaussians; "linear" takes the variance of each side for both.

            linear      α = (μ_P + μ_N)/2,  β_P = σ_P²/(μ_P - μ_N),  β_N = σ_N²/(μ_P - μ_N)
            quadratic   Φ_N(s) = σ_N/σ_P exp((s - μ_N)²/(2σ_N²) - (s - μ_P)²/(2σ_P²))

        Args:
            exponent: "linear" or "quadratic" in the similarity.
        """
        check_choice(exponent, "exponent", Exponent)
        gap = self.positive_mean - self.negative_mean
        if gap <= 0.0:
            raise BadData(
                f"positive pairs are not more similar than negative ones (mean "
                f"{self.positive_mean:.4f} against {self.negative_mean:.4f}): these embeddings do "
                "not tell the classes apart; check labels and model"
            )
        for name in ("positive", "negative"):
            if getattr(self, f"{name}_std") < SMALLEST_STD:
                raise BadData(f"all {name} pairs are equally similar: no spread to fit a Gaussian")
        if exponent == "quadratic":
            return QuadraticRatio(
                positive_mean=self.positive_mean,
                positive_std=self.positive_std,
                negative_mean=self.negative_mean,
                negative_std=self.negative_std,
            )
        scales = {
            kind: getattr(self, f"{kind}_std") ** 2 / gap for kind in ("positive", "negative")
        }
        for kind, scale in scales.items():
            if scale < SMALLEST_SCALE:
                raise BadData(
                    f"{kind} pairs are nearly equally similar (spread "
                    f"{getattr(self, f'{kind}_std'):.1e}): near-copies of images, or a model "
                    "that sees no difference; no scale of a linear exponent follows from them"
                )
        center = (self.positive_mean + self.negative_mean) / 2.0
        return LinearRatio(
            positive_center=center,
            positive_scale=scales["positive"],
            negative_center=center,
            negative_scale=scales["negative"],
        )

    def posterior(
        self, similarity: ArrayLike, *, prior_odds: float | None = None
    ) -> NDArray[np.float64]:
        """The probability of a pair to be positive, given its similarity.

            p[same | s] = 1 / (1 + Φ_P(s) / Θ)

        The wider of the two Gaussians is above the other in both tails, so that Φ_P turns back at
        one place outside the two means. Beyond it Φ_P stays what it is there: a pair that is more
        similar is never less probable.

        Args:
            similarity: Similarities of any shape.
            prior_odds: Θ; that of the counted pairs when None.
        """
        quadratic, slope, constant = self.ratio("quadratic").positive
        s = np.asarray(similarity, dtype=np.float64)
        odds = self.prior_odds if prior_odds is None else prior_odds
        if not (math.isfinite(odds) and odds > 0.0):
            raise ValueError(f"prior_odds must be a finite number above zero, got {odds}")
        if quadratic:
            hold = np.maximum if quadratic < 0.0 else np.minimum
            s = hold(s, -slope / (2.0 * quadratic))
        exponent = (quadratic * s + slope) * s + constant - np.log(odds)
        posterior: NDArray[np.float64] = expit(-exponent)
        return posterior

    def loss_ratio(self) -> LinearRatio:
        """Φ to train with; the rule is in `cbml.losses.ratio_to_train_with`."""
        self.ratio("linear")  # says what is wrong where nothing follows from these numbers
        return ratio_to_train_with(self.positive_mean, self.negative_mean, self.negative_std)

    def loss_options(
        self, exponent: Exponent = "linear", *, prior_odds: float | None = None
    ) -> dict[str, Any]:
        """The constants of the loss that follow from the data, as options of `build_loss`.

            λ = 1 / (2 σ_N²)

        makes λ L_2 the negative log-likelihood of the negatives under a Gaussian about ξ_i with
        the spread they have now. "linear" takes Φ, δ and ω of `loss_ratio`; "quadratic" the Φ of
        the two Gaussians with the derived δ, right only where the start separates the classes.
        "linear" mines for hard pairs where classes are few, as `margin_to_train_with` says;
        "quadratic" is made for means over all pairs.

        Args:
            exponent: Exponent of Φ, "linear" or "quadratic" in the similarity.
            prior_odds: Θ of all training images; None where these are all.
        """
        ratio = self._ratio_to_train_with(exponent)
        numbers = {f"ratio.{name}": value for name, value in dataclasses.asdict(ratio).items()}
        weights: dict[str, Any] = {
            "ratio": "quadratic",
            "delta": "derived",
            "mining_margin": None,
        }
        if isinstance(ratio, LinearRatio):
            weights = {
                "delta": "mean",
                "positive_weight": ratio.positive_scale / ratio.negative_scale,
                "mining_margin": margin_to_train_with(prior_odds or self.prior_odds),
            }
        return {
            **weights,
            **numbers,
            "variance_weight": 0.5 / self.negative_std**2,
            "target_mix": 0.2,
        }

    def suggest_loss(self, exponent: Exponent = "linear") -> CBMLLoss:
        """The loss whose every constant follows from the data.

        Φ, δ, ω and λ are those of `loss_options`, and the variance constraint is a mean over the
        negatives with the paper's γ = 0.2.

        Args:
            exponent: Exponent of Φ, "linear" or "quadratic" in the similarity.
        """
        options = self.loss_options(exponent)
        return CBMLLoss(
            ratio=self._ratio_to_train_with(exponent),
            **{name: value for name, value in options.items() if not name.startswith("ratio")},
        )

    def _ratio_to_train_with(self, exponent: Exponent) -> LinearRatio | QuadraticRatio:
        check_choice(exponent, "exponent", Exponent)
        return self.loss_ratio() if exponent == "linear" else self.ratio("quadratic")

    def loss_record(
        self, exponent: Exponent = "linear", *, prior_odds: float | None = None
    ) -> dict[str, Any]:
        """The options and the statistics they come from, ready for a run's record.

        Args:
            exponent: Exponent of Φ, "linear" or "quadratic" in the similarity.
            prior_odds: Θ of all training images; None where these are all.
        """
        options = self.loss_options(exponent, prior_odds=prior_odds)
        return {"options": options, "statistics": self.as_dict()}

    def as_dict(self) -> dict[str, Any]:
        """Every field by its name, ready for JSON."""
        return dataclasses.asdict(self)
