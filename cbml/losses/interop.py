"""Our losses inside pytorch-metric-learning's wrappers.

Miners and `MultipleLosses` take any loss as it is. Three wrappers ask for classes of their own
library, or for the names of the losses they were tried with: here is an adapter for each, which
their refusals name (`adapters.py`).
"""

from typing import Any

import torch
from pytorch_metric_learning.losses import BaseMetricLossFunction
from pytorch_metric_learning.losses import CrossBatchMemory as LibraryMemory
from pytorch_metric_learning.losses import SelfSupervisedLoss as LibrarySelfSupervised
from torch import Tensor, nn


class LibraryLoss(BaseMetricLossFunction):  # type: ignore[misc]
    """A loss of ours as one of pytorch-metric-learning's, for `DistributedLossWrapper`.

    With `efficient=True` that wrapper lists all pairs of each process itself, and a list takes the
    place of a loss's own mining. `CBMLLoss` mines among the listed pairs; for a baseline that mines
    use `efficient=False`.

    Args:
        loss: Takes (embeddings, labels, indices_tuple, ref_emb, ref_labels), gives one number.
    """

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.wrapped = loss

    def compute_loss(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> dict[str, dict[str, Any]]:
        """The loss in the form that the library's reducers ask for."""
        value = self.wrapped(embeddings, labels, indices_tuple, ref_emb, ref_labels)
        return {"loss": {"losses": value, "indices": None, "reduction_type": "already_reduced"}}


class CrossBatchMemory(LibraryMemory):  # type: ignore[misc]
    """pytorch-metric-learning's cross-batch memory for any loss that takes references.

    Each batch is compared with the embeddings of the last batches too. An image is never compared
    with its own copy in the memory. A loss that mines for itself still does so, among the pairs
    that are left. Unlike the library's, the place in the queue is part of the state, so that a
    saved and loaded memory resumes exactly.

    Args:
        loss: Takes (embeddings, labels, indices_tuple, ref_emb, ref_labels), gives one number.
        embedding_size: Width of the embeddings, D.
        memory_size: Number of embeddings that are remembered.
        miner: Chooses pairs of the batch and the memory; by default the loss's own miner, or all
            pairs where it has none.
    """

    def __init__(
        self,
        loss: nn.Module,
        embedding_size: int,
        memory_size: int = 1024,
        miner: nn.Module | None = None,
    ) -> None:
        super().__init__(loss, embedding_size, memory_size, miner)

    @classmethod
    def check_loss_support(cls, loss_name: str) -> None:
        """Take every loss: the library's list names those it was tried with.

        Args:
            loss_name: Name of the loss's class.
        """

    def reset_queue(self) -> None:
        """Forget everything."""
        self.register_buffer("place", torch.zeros((), dtype=torch.int64))
        self.register_buffer("filled", torch.zeros((), dtype=torch.bool))
        super().reset_queue()

    # The library keeps these two as plain numbers; here they live in buffers and are saved.
    @property
    def queue_idx(self) -> int:
        """Where the next embedding goes."""
        return int(self.place)

    @queue_idx.setter
    def queue_idx(self, value: int) -> None:
        self.place.fill_(value)

    @property
    def has_been_filled(self) -> bool:
        """Whether the queue has wrapped around."""
        return bool(self.filled)

    @has_been_filled.setter
    def has_been_filled(self, value: bool) -> None:
        self.filled.fill_(value)

    def create_indices_tuple(
        self,
        embeddings: Tensor,
        labels: Tensor,
        E_mem: Tensor,  # noqa: N803  # the library's names
        L_mem: Tensor,  # noqa: N803
        input_indices_tuple: tuple[Tensor, ...] | None,
        do_remove_self_comparisons: bool,
    ) -> tuple[Tensor, ...]:
        """The pairs to compute the loss of.

        Args:
            embeddings: Embeddings of the batch. (B, D)
            labels: Labels of the batch. (B,)
            E_mem: The remembered embeddings. (R, D)
            L_mem: Labels of the remembered embeddings. (R,)
            input_indices_tuple: Pairs or triplets that the caller adds.
            do_remove_self_comparisons: Whether the batch is in the memory already.
        """
        indices: tuple[Tensor, ...] = super().create_indices_tuple(
            embeddings, labels, E_mem, L_mem, input_indices_tuple, do_remove_self_comparisons
        )
        mine = getattr(self.loss, "mine", None)
        if self.miner is not None or input_indices_tuple is not None or mine is None:
            return indices
        chosen: tuple[Tensor, ...] | None = mine(embeddings, labels, indices, E_mem, L_mem)
        return indices if chosen is None else chosen


class SelfSupervisedLoss(LibrarySelfSupervised):  # type: ignore[misc]
    """pytorch-metric-learning's loss of two views of each image, for any loss of ours.

    Args:
        loss: Takes (embeddings, labels, indices_tuple, ref_emb, ref_labels), gives one number.
        symmetric: Compare all views with each other; otherwise the first views with the second.
    """

    def __init__(self, loss: nn.Module, symmetric: bool = True) -> None:
        super().__init__(loss, symmetric)

    @classmethod
    def check_loss_support(cls, loss_name: str) -> None:
        """Take every loss: the library's list names those it was tried with."""
