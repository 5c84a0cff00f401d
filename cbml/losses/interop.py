"""Our losses inside pytorch-metric-learning's wrappers.

Miners and `MultipleLosses` take any loss as it is. `DistributedLossWrapper` insists on a class of
its own library, and `CrossBatchMemory` on the names of the losses it was tried with; the two
classes here satisfy them.
"""

from typing import Any

from pytorch_metric_learning.losses import BaseMetricLossFunction
from pytorch_metric_learning.losses import CrossBatchMemory as LibraryMemory
from torch import Tensor, nn

__all__ = ["CrossBatchMemory", "LibraryLoss"]


class LibraryLoss(BaseMetricLossFunction):  # type: ignore[misc]
    """A loss of ours as one of pytorch-metric-learning's, for `DistributedLossWrapper`.

    Args:
        loss: takes (embeddings, labels, indices_tuple, ref_emb, ref_labels), gives one number.
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
        """The loss in the form that the library's reducers ask for.

        Args:
            embeddings: one row per picture. (B, D)
            labels: one integer per row. (B,)
            indices_tuple: pairs or triplets of a miner.
            ref_emb: references; the embeddings themselves where there are none. (R, D)
            ref_labels: their labels. (R,)
        """
        value = self.wrapped(embeddings, labels, indices_tuple, ref_emb, ref_labels)
        return {"loss": {"losses": value, "indices": None, "reduction_type": "already_reduced"}}


class CrossBatchMemory(LibraryMemory):  # type: ignore[misc]
    """pytorch-metric-learning's cross-batch memory for any loss that takes references.

    Each batch is compared with the embeddings of the last batches too. A picture is never compared
    with its own copy in the memory.

    Args:
        loss: takes (embeddings, labels, indices_tuple, ref_emb, ref_labels), gives one number.
        embedding_size: D.
        memory_size: how many embeddings are remembered.
        miner: chooses pairs of the batch and the memory; all pairs by default.
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
            loss_name: the loss's class name.
        """
