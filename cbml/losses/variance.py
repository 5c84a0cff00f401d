"""The metric variance constraint alone, to add to any loss."""

from torch import Tensor, nn

from cbml.errors import check_choice
from cbml.losses.kernel import Formula
from cbml.losses.options import Reduction, check_number
from cbml.losses.terms import PairLoss


class MetricVariance(PairLoss):
    """Keep the similarities of each anchor to its negatives close to one value.

    With s_ij the similarity of embeddings i and j, P_i and N_i the positives and negatives of
    anchor i:

        target_i = γ mean_{p∈P_i} s_ip + (1 - γ) mean_{n∈N_i} s_in
        loss     = mean_i mean_{n∈N_i} (s_in - target_i)²

    An anchor without positives or without negatives has no target and costs nothing; it still
    counts in the mean over anchors.

    Args:
        target_mix: γ. Share of the positives in the target; 0 makes the loss the plain variance.
            The paper's 0.2 by default.
        reduction: Over the negatives of an anchor: "mean" as in the paper, "sum" as in the authors'
            program.
    """

    def __init__(self, *, target_mix: float = 0.2, reduction: Reduction = "mean") -> None:
        super().__init__()
        self.target_mix = check_number(target_mix, "target_mix")
        self.reduction = check_choice(reduction, "reduction", Reduction)

    def formula(self) -> Formula:
        """The constraint alone."""
        return Formula(
            target_mix=self.target_mix, variance_sum=self.reduction == "sum", variance_weight=1.0
        )

    def extra_repr(self) -> str:
        """The settings, for print."""
        return f"target_mix={self.target_mix}, reduction={self.reduction!r}"


class WithVariance(nn.Module):
    """Any loss with the constraint added: the paper's MS + MVC and ProxyNCA + MVC.

        L = loss + λ L_2

    Args:
        loss: Takes (embeddings, labels, indices_tuple, ref_emb, ref_labels); its parameters, such
            as proxies, are this module's parameters too.
        variance_weight: Weight of the constraint, λ.
        target_mix: Mix of the variance target, γ.
        variance_reduction: Over the negatives of an anchor, "mean" or "sum".
    """

    def __init__(
        self,
        loss: nn.Module,
        *,
        variance_weight: float = 1.0,
        target_mix: float = 0.2,
        variance_reduction: Reduction = "mean",
    ) -> None:
        super().__init__()
        self.loss = loss
        self.variance_weight = check_number(variance_weight, "variance_weight", at_least=0.0)
        self.variance = MetricVariance(target_mix=target_mix, reduction=variance_reduction)
        # For training loops: proxies learn as fast with the constraint as without it.
        self.learning_rate_factor = float(getattr(loss, "learning_rate_factor", 1.0))
        self.smallest_batch: tuple[int, int] = getattr(loss, "smallest_batch", (1, 1))

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
        """The loss and the weighted constraint of one batch.

        A miner's pairs go to the loss; the constraint always sees all pairs.

        Args:
            embeddings: One row per image. (B, D)
            labels: One integer per row. (B,)
            indices_tuple: Pairs or triplets for the loss.
            ref_emb: Embeddings to compare with instead of the batch itself. (R, D)
            ref_labels: Labels of `ref_emb`. (R,)
        """
        loss: Tensor = self.loss(embeddings, labels, indices_tuple, ref_emb, ref_labels)
        constraint: Tensor = self.variance(embeddings, labels, None, ref_emb, ref_labels)
        return loss + self.variance_weight * constraint

    def mine(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> tuple[Tensor, ...] | None:
        """The pairs that the wrapped loss itself chooses; None where it takes all.

        Args:
            embeddings: One row per image. (B, D)
            labels: One integer per row. (B,)
            indices_tuple: The pairs among which to choose, instead of all.
            ref_emb: Embeddings to compare with instead of the batch itself. (R, D)
            ref_labels: Labels of `ref_emb`. (R,)
        """
        choose = getattr(self.loss, "mine", None)
        if choose is None:
            return None
        chosen: tuple[Tensor, ...] | None = choose(
            embeddings, labels, indices_tuple, ref_emb, ref_labels
        )
        return chosen
