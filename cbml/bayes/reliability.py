"""How far probabilities can be trusted: confidence against accuracy."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True, kw_only=True)
class Reliability:
    """Confidence and accuracy in bins of equal width, and what they sum up to.

        ECE    = Σ_bins  count/total · |confidence - accuracy|
        Brier  = mean (p - match)²
        loss   = mean -log p(what was the case)

    Args:
        confidence: mean probability in each bin that is not empty.
        accuracy: share of positives in it.
        counts: how many pairs it holds.
        ece: expected calibration error.
        brier: mean squared error of the probabilities.
        log_loss: per pair, in nats.
    """

    confidence: tuple[float, ...]
    accuracy: tuple[float, ...]
    counts: tuple[int, ...]
    ece: float
    brier: float
    log_loss: float

    @classmethod
    def of(
        cls, probabilities: ArrayLike, positives: ArrayLike, negatives: ArrayLike, *, bins: int = 10
    ) -> "Reliability":
        """Compare probabilities with counts of what they are about.

        Args:
            probabilities: one for each place. (S,)
            positives: how many positives there are at each place; ones and zeros for single
                results. (S,)
            negatives: how many negatives there are. (S,)
            bins: of equal width between 0 and 1.
        """
        p, positive, negative = (
            np.asarray(part, dtype=np.float64).ravel()
            for part in (probabilities, positives, negatives)
        )
        weight = positive + negative
        total = float(weight.sum())
        if not total > 0.0:
            raise ValueError("positives and negatives are all zero: nothing to compare with")
        place = np.clip((p * bins).astype(np.int64), 0, bins - 1)
        count, relevant, confidence = (
            np.bincount(place, weights=part, minlength=bins)
            for part in (weight, positive, weight * p)
        )
        used = count > 0
        count, relevant, confidence = count[used], relevant[used], confidence[used]
        sure = np.clip(p, 1e-12, 1.0 - 1e-12)
        return cls(
            confidence=tuple((confidence / count).tolist()),
            accuracy=tuple((relevant / count).tolist()),
            counts=tuple(int(number) for number in count),
            ece=float(np.abs(confidence - relevant).sum() / total),
            brier=float((positive * (1.0 - p) ** 2 + negative * p**2).sum() / total),
            log_loss=-float((positive * np.log(sure) + negative * np.log1p(-sure)).sum() / total),
        )

    def as_dict(self) -> dict[str, Any]:
        """Every field by its name, ready for JSON."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in dataclasses.asdict(self).items()
        }

    @classmethod
    def of_dict(cls, fields: Mapping[str, Any]) -> "Reliability":
        """What `as_dict` described.

        Args:
            fields: as read back from JSON.
        """
        plain: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in fields.items()
        }
        return cls(**plain)
