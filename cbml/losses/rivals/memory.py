"""Multi-similarity loss against a memory of past batches, whose whole state can be saved."""

import torch
from pytorch_metric_learning.losses import MultiSimilarityLoss
from torch import Tensor

from cbml.losses.rivals.mined import masked_pair_value
from cbml.losses.rivals.rival import Batch, Rival, check_width

__all__ = ["MultiSimilarityXBM", "hard_pairs"]


class MultiSimilarityXBM(Rival):
    """`MultiSimilarity` of the batch against a queue of the last embeddings (Wang et al. 2020).

    For the first `warmup_steps` training steps the plain loss; from then on each batch enters the
    queue, the oldest leave, and the loss compares the batch with the whole queue, a picture never
    with itself (Algorithm 1 of the cross-batch memory paper). In evaluation mode the plain loss,
    and the queue stays as it is.

    Queue, labels, number of stored embeddings and of steps are buffers: a saved and loaded loss
    goes on exactly. Written here because pytorch-metric-learning keeps its place in the queue out
    of the state, and takes a batch of one picture for its own positive.

    Args:
        embedding_size: D, width of the embeddings.
        memory_size: length of the queue. 8192, from the authors' program; the paper's best is as
            many as there are training pictures.
        warmup_steps: training steps before the queue is used. 1000, from the authors' recipe.
        positive_scale: α of `MultiSimilarity`.
        negative_scale: β of `MultiSimilarity`.
        base: λ of `MultiSimilarity`.
        mining_margin: ε of `MultiSimilarity`.
    """

    _takes_indices = False
    _takes_references = False

    def __init__(
        self,
        *,
        embedding_size: int,
        memory_size: int = 8192,
        warmup_steps: int = 1000,
        positive_scale: float = 2.0,
        negative_scale: float = 50.0,
        base: float = 0.5,
        mining_margin: float = 0.1,
    ) -> None:
        super().__init__()
        self.embedding_size = embedding_size
        self.memory_size = memory_size
        self.warmup_steps = warmup_steps
        self.positive_scale = positive_scale
        self.negative_scale = negative_scale
        self.base = base
        self.mining_margin = mining_margin
        self._loss = MultiSimilarityLoss(alpha=positive_scale, beta=negative_scale, base=base)
        self.memory: Tensor
        self.memory_labels: Tensor
        self.stored: Tensor
        self.steps: Tensor
        self.register_buffer("memory", torch.zeros(memory_size, embedding_size))
        self.register_buffer("memory_labels", torch.zeros(memory_size, dtype=torch.int64))
        self.register_buffer("stored", torch.zeros((), dtype=torch.int64))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def _value(self, batch: Batch) -> Tensor:
        check_width(batch, self.embedding_size)
        own_slots = torch.arange(len(batch.anchors), device=batch.anchors.device)
        if self.training:
            self.steps += 1
            if int(self.steps) > self.warmup_steps:
                own_slots = self._store(batch)
                batch = self._against_memory(batch)
        pairs = hard_pairs(batch, own_slots, self.mining_margin)
        return masked_pair_value(self._loss, batch, pairs)

    def _store(self, batch: Batch) -> Tensor:
        """Put the batch over the oldest entries; gives its places in the queue."""
        if len(batch.anchors) > self.memory_size:
            raise ValueError(
                f"memory_size is {self.memory_size}, too small for a batch of {len(batch.anchors)}"
            )
        places = torch.arange(len(batch.anchors), device=batch.anchors.device)
        slots = (places + self.stored) % self.memory_size
        self.memory[slots] = batch.anchors.detach().to(self.memory.dtype)
        self.memory_labels[slots] = batch.labels
        self.stored += len(batch.anchors)
        return slots

    def _against_memory(self, batch: Batch) -> Batch:
        filled = min(int(self.stored), self.memory_size)
        # A copy: the next batch overwrites the queue, perhaps before this one's backward pass.
        return Batch(
            anchors=batch.anchors,
            labels=batch.labels,
            columns=self.memory[:filled].to(batch.anchors.dtype, copy=True),
            column_labels=self.memory_labels[:filled].clone(),
            indices=None,
        )


@torch.no_grad()
def hard_pairs(batch: Batch, own_columns: Tensor, margin: float) -> tuple[Tensor, ...]:
    """Positives within the margin of the hardest negative, negatives of the hardest positive.

    Args:
        batch: anchors, columns and labels.
        own_columns: the column in which each anchor finds itself; no pair. (B,)
        margin: ε.
    """
    similarity = batch.similarity()
    same = batch.labels[:, None] == batch.column_labels[None, :]  # (B, R)
    positive = same.scatter(1, own_columns[:, None], False)
    hardest_positive = similarity.masked_fill(~positive, torch.inf).amin(dim=1, keepdim=True)
    hardest_negative = similarity.masked_fill(same, -torch.inf).amax(dim=1, keepdim=True)
    positive &= similarity - margin < hardest_negative
    negative = ~same & (similarity + margin > hardest_positive)
    return (*positive.nonzero(as_tuple=True), *negative.nonzero(as_tuple=True))
