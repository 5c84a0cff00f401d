"""Multi-similarity loss against a memory of past batches, whose whole state can be saved."""

import torch
from pytorch_metric_learning.losses import MultiSimilarityLoss
from torch import Tensor

from cbml.losses.baselines.baseline import BaselineLoss, Batch, check_width
from cbml.losses.baselines.mined import hard_pairs, masked_pair_value
from cbml.losses.options import check_count, check_number

__all__ = ["MultiSimilarityXBM"]


class MultiSimilarityXBM(BaselineLoss):
    """`MultiSimilarity` of the batch against a queue of the last embeddings (Wang et al. 2020).

    For the first `warmup_steps` training steps the plain loss; from then on each batch enters the
    queue, the oldest leave, and the batch is compared with the whole queue too, an image never
    with itself:

        loss = ω loss(batch, batch) + loss(batch, queue)

    The authors' program adds the batch's own loss, Algorithm 1 of the paper does not. The queue is
    detached, so that without ω most of the gradient is missing. In evaluation mode the plain loss,
    and the queue stays as it is.

    Queue, labels, number of stored embeddings and of steps are buffers: a saved and loaded loss
    resumes exactly. Written here because pytorch-metric-learning keeps its place in the queue out
    of the state, and takes a batch of one image for its own positive.

    Args:
        embedding_size: D, width of the embeddings.
        memory_size: length of the queue. 8192, from the authors' program; the paper's best is as
            many as there are training images.
        warmup_steps: training steps before the queue is used. 2000, which the authors' program has
            beside 8192; their sample recipe has 1000 beside a queue of 55,000.
        batch_weight: ω. 1, from the authors' program; 0 is the paper's Algorithm 1.
        positive_scale: α of `MultiSimilarity`.
        negative_scale: β of `MultiSimilarity`. 50, as there; the authors' program has 40.
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
        warmup_steps: int = 2000,
        batch_weight: float = 1.0,
        positive_scale: float = 2.0,
        negative_scale: float = 50.0,
        base: float = 0.5,
        mining_margin: float = 0.1,
    ) -> None:
        super().__init__()
        self.embedding_size = check_count(embedding_size, "embedding_size")
        self.memory_size = check_count(memory_size, "memory_size")
        self.warmup_steps = check_count(warmup_steps, "warmup_steps", at_least=0)
        self.batch_weight = check_number(batch_weight, "batch_weight", at_least=0.0)
        self.positive_scale = check_number(positive_scale, "positive_scale", above=0.0)
        self.negative_scale = check_number(negative_scale, "negative_scale", above=0.0)
        self.base = check_number(base, "base")
        self.mining_margin = check_number(mining_margin, "mining_margin")
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
        if self.training:
            self.steps += 1
            if int(self.steps) > self.warmup_steps:
                value = self._hard_value(self._against_memory(batch, self._store(batch)))
                if self.batch_weight == 0.0:
                    return value
                return value + self.batch_weight * self._hard_value(batch)
        return self._hard_value(batch)

    def _hard_value(self, batch: Batch) -> Tensor:
        return masked_pair_value(self._loss, batch, hard_pairs(batch, self.mining_margin))

    def _store(self, batch: Batch) -> Tensor:
        """Put the batch over the oldest entries; gives its indices in the queue."""
        if len(batch.anchors) > self.memory_size:
            raise ValueError(
                f"memory_size is {self.memory_size}, too small for a batch of {len(batch.anchors)}"
            )
        indices = torch.arange(len(batch.anchors), device=batch.anchors.device)
        slots = (indices + self.stored) % self.memory_size
        self.memory[slots] = batch.anchors.detach().to(self.memory.dtype)
        self.memory_labels[slots] = batch.labels
        self.stored += len(batch.anchors)
        return slots

    def _against_memory(self, batch: Batch, own_slots: Tensor) -> Batch:
        filled = min(int(self.stored), self.memory_size)
        # A copy: the next batch overwrites the queue, perhaps before this one's backward pass.
        return Batch(
            anchors=batch.anchors,
            labels=batch.labels,
            columns=self.memory[:filled].to(batch.anchors.dtype, copy=True),
            column_labels=self.memory_labels[:filled].clone(),
            own_columns=own_slots,
        )
