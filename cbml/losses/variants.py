"""CBML under the names of its variants, each made from a preset of the paper."""

from torch import Tensor, nn

from cbml.losses.contrastive_bayesian import CBMLLoss
from cbml.losses.options import Averaging, Dataset
from cbml.losses.terms import LossTerms

__all__ = ["VARIANTS", "CBMLAuthors", "CBMLConst", "CBMLSqrt"]


class _Preset(nn.Module):
    """A CBMLLoss whose options are settled; called as it is."""

    def __init__(self, loss: CBMLLoss) -> None:
        super().__init__()
        self.loss = loss

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
        return self.loss.terms(embeddings, labels, indices_tuple, ref_emb, ref_labels).total

    def terms(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> LossTerms:
        """As `CBMLLoss.terms`."""
        return self.loss.terms(embeddings, labels, indices_tuple, ref_emb, ref_labels)


class CBMLSqrt(_Preset):
    """The paper's CBML-sqrt: f(x) = √x instead of log x.

    Args:
        dataset: whose parameters, "cub", "cars", "sop" or "inshop".
        mining_margin: ε; None for all pairs.
        variance_weight: λ; None for the paper's value for this set.
        target_mix: γ.
    """

    def __init__(
        self,
        *,
        dataset: Dataset = "cub",
        mining_margin: float | None = 0.1,
        variance_weight: float | None = None,
        target_mix: float = 0.2,
    ) -> None:
        super().__init__(
            CBMLLoss.paper(
                dataset,
                averaging="sqrt",
                mining_margin=mining_margin,
                variance_weight=variance_weight,
                target_mix=target_mix,
            )
        )


class CBMLConst(_Preset):
    """The paper's CBML-const: f(x) = x instead of log x.

    Args:
        dataset: whose parameters, "cub", "cars", "sop" or "inshop".
        mining_margin: ε; None for all pairs.
        variance_weight: λ; None for the paper's value for this set.
        target_mix: γ.
    """

    def __init__(
        self,
        *,
        dataset: Dataset = "cub",
        mining_margin: float | None = 0.1,
        variance_weight: float | None = None,
        target_mix: float = 0.2,
    ) -> None:
        super().__init__(
            CBMLLoss.paper(
                dataset,
                averaging="const",
                mining_margin=mining_margin,
                variance_weight=variance_weight,
                target_mix=target_mix,
            )
        )


class CBMLAuthors(_Preset):
    """What the authors' program computes, as `CBMLLoss.authors`.

    Args:
        dataset: whose parameters, "cub", "cars", "sop" or "inshop".
        averaging: f.
        mining_margin: ε; None for all pairs.
        variance_weight: λ; None for the paper's value for this set.
        target_mix: γ.
    """

    def __init__(
        self,
        *,
        dataset: Dataset = "cub",
        averaging: Averaging = "log",
        mining_margin: float | None = 0.1,
        variance_weight: float | None = None,
        target_mix: float = 0.2,
    ) -> None:
        super().__init__(
            CBMLLoss.authors(
                dataset,
                averaging=averaging,
                mining_margin=mining_margin,
                variance_weight=variance_weight,
                target_mix=target_mix,
            )
        )


VARIANTS: dict[str, type[nn.Module]] = {
    "cbml_authors": CBMLAuthors,
    "cbml_const": CBMLConst,
    "cbml_sqrt": CBMLSqrt,
}
