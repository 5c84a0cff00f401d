"""What can be added to any loss: the metric variance constraint, and proxies."""

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from cbml.errors import BadData, check_choice
from cbml.losses.inputs import MetricLoss
from cbml.losses.kernel import Formula
from cbml.losses.options import Reduction, check_count, check_number
from cbml.losses.terms import LossTerms, PairLoss

# Unit vectors whose mean is shorter than this cancel each other out.
_NO_DIRECTION = 1e-6


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


class WithVariance(MetricLoss):
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
        self.smallest_batch = getattr(loss, "smallest_batch", (1, 1))

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
        """The choice of the wrapped loss."""
        choose = getattr(self.loss, "mine", None)
        if choose is None:
            return None
        chosen: tuple[Tensor, ...] | None = choose(
            embeddings, labels, indices_tuple, ref_emb, ref_labels
        )
        return chosen


class WithProxies(MetricLoss):
    """Any loss of pairs, of a batch and of the batch against one learned proxy for each class.

        L = loss(batch) + weight · loss(batch, proxies)

    A batch shows each image a few dozen classes; the proxies show it all classes that were met so
    far, under the same posterior and with the same constants. A proxy starts at the mean embedding
    of its class in the first batch that has it: one drawn at random would be a false negative
    of everything until it has found its class.

    Args:
        loss: Takes (embeddings, labels, indices_tuple, ref_emb, ref_labels), and references.
        num_classes: C, number of training classes; labels are 0 ... C - 1.
        embedding_size: D, width of the embeddings.
        proxy_weight: Weight of the part with proxies.
        learning_rate_factor: Learning rate of the proxies, relative to that of the model.
    """

    met: Tensor

    def __init__(
        self,
        loss: nn.Module,
        *,
        num_classes: int,
        embedding_size: int,
        proxy_weight: float = 0.5,
        learning_rate_factor: float = 10.0,
    ) -> None:
        super().__init__()
        learns = next(loss.parameters(), None) is not None
        if learns or not getattr(loss, "_takes_references", True):
            raise ValueError(f"proxy_weight: {type(loss).__name__} is not a loss of pairs alone")
        self.loss = loss
        self.smallest_batch = getattr(loss, "smallest_batch", (1, 1))
        self.proxy_weight = check_number(proxy_weight, "proxy_weight", at_least=0.0)
        self.learning_rate_factor = check_number(
            learning_rate_factor, "learning_rate_factor", above=0.0
        )
        shape = (check_count(num_classes, "num_classes"), embedding_size)
        self.proxies = nn.Parameter(torch.zeros(shape))
        self.register_buffer("met", torch.zeros(num_classes, dtype=torch.bool))

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
        """The loss of one batch.

        A miner's pairs and references go to the part without proxies.
        """
        loss: Tensor = self.loss(embeddings, labels, indices_tuple, ref_emb, ref_labels)
        return loss + self._beside(embeddings, labels)

    @property
    def terms(self) -> Callable[[Tensor, Tensor], LossTerms]:
        """The terms of the part without proxies, with the total of both parts.

        Missing where the wrapped loss has no terms: callers ask by `hasattr`.
        """
        tell: Callable[[Tensor, Tensor], LossTerms] = self.loss.terms  # type: ignore[assignment]

        def of_both(embeddings: Tensor, labels: Tensor) -> LossTerms:
            terms = tell(embeddings, labels)
            return dataclasses.replace(terms, total=terms.total + self._beside(embeddings, labels))

        return of_both

    def _beside(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The weighted loss of a batch against the proxies; 0 while there are none."""
        nothing = embeddings.new_zeros(())
        if not self.proxy_weight or not len(embeddings):
            return nothing
        if self.training:
            self._meet(embeddings, labels)
        classes = self.met.nonzero()[:, 0]
        if not len(classes):
            return nothing
        columns = functional.normalize(self.proxies[classes], dim=1)
        loss: Tensor = self.loss(embeddings, labels, None, columns, classes)
        return self.proxy_weight * loss

    @torch.no_grad()
    def _meet(self, embeddings: Tensor, labels: Tensor) -> None:
        """Start the proxies of classes that are here for the first time."""
        largest = int(labels.max())
        if largest >= len(self.met) or int(labels.min()) < 0:
            raise BadData(
                f"labels reach from {int(labels.min())} to {largest}; num_classes={len(self.met)} "
                "takes 0 to one less"
            )
        units = functional.normalize(embeddings.detach().to(self.proxies.dtype), dim=1)
        for label in torch.unique(labels[~self.met[labels]]).tolist():
            mean = units[labels == label].mean(dim=0)
            if float(torch.linalg.vector_norm(mean)) < _NO_DIRECTION:
                continue  # opposite embeddings; the next batch may have others
            self.proxies[label] = functional.normalize(mean, dim=0)
            self.met[label] = True

    def extra_repr(self) -> str:
        """The settings, for print."""
        return f"num_classes={len(self.met)}, proxy_weight={self.proxy_weight}"
