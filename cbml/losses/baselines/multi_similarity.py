"""The multi-similarity loss with other negatives: by direction, synthetic points or a memory."""

import torch
from pytorch_metric_learning.losses import MultiSimilarityLoss
from torch import Tensor
from torch.nn import functional

from cbml.losses.baselines.baseline import BaselineLoss, Batch, check_width, masked_logsumexp
from cbml.losses.baselines.mined import hard_masks, hard_pairs, masked_pair_value
from cbml.losses.options import check_count, check_number


class MatrixMultiSimilarity(BaselineLoss):
    """The two terms of `MultiSimilarity` from any matrices of similarities."""

    _takes_indices = False
    _takes_references = False

    def __init__(
        self, positive_scale: float, negative_scale: float, base: float, mining_margin: float
    ) -> None:
        super().__init__()
        self.positive_scale = check_number(positive_scale, "positive_scale", above=0.0)
        self.negative_scale = check_number(negative_scale, "negative_scale", above=0.0)
        self.base = check_number(base, "base")
        self.mining_margin = check_number(mining_margin, "mining_margin")

    def _pull(self, similarity: Tensor, positive: Tensor) -> Tensor:
        """1/α log(1 + Σ_p exp(-α (s_p - λ))) of each row."""
        exponents = -self.positive_scale * (similarity - self.base)
        return functional.softplus(masked_logsumexp(exponents, positive, 1)) / self.positive_scale

    def _push(self, similarity: Tensor, negative: Tensor) -> Tensor:
        """1/β log(1 + Σ_n exp(β (s_n - λ))) of each row."""
        exponents = self.negative_scale * (similarity - self.base)
        return functional.softplus(masked_logsumexp(exponents, negative, 1)) / self.negative_scale


class MultiSimilarityDR(MatrixMultiSimilarity):
    """`MultiSimilarity` with direction regularization, DR (Mohan et al. 2020).

    A negative should leave at a right angle to the segment from the anchor to its positive. With
    p* the hardest of the anchor's mined positives and

        κ(i, p, n) = cos(x_n - x_i, x_p - x_i)

    over the pairs that `MultiSimilarity` mines:

        loss = mean_i 1/α log(1 + Σ_p exp(-α (s_ip - λ)))
             + 1/β log(1 + Σ_n exp(β (s_in - λ - γ κ(i, p*, n))))

    κ sends gradient to all three images, and is zero where two of them coincide, where it has no
    value. The authors published no program and no γ per loss: the formula is that of a
    reproduction, whose authors asked them about it.

    Args:
        direction_weight: γ. 0.3, from that reproduction; 0 is `MultiSimilarity`.
        positive_scale: α. 2, from Wang et al. 2019, as in the reproduction.
        negative_scale: β. 50, from the same.
        base: λ. 0.5, as `MultiSimilarity` here; the reproduction has 0.7.
        mining_margin: ε. 0.1, from Wang et al. 2019.
    """

    def __init__(
        self,
        *,
        direction_weight: float = 0.3,
        positive_scale: float = 2.0,
        negative_scale: float = 50.0,
        base: float = 0.5,
        mining_margin: float = 0.1,
    ) -> None:
        super().__init__(positive_scale, negative_scale, base, mining_margin)
        self.direction_weight = check_number(direction_weight, "direction_weight", at_least=0.0)

    def _value(self, batch: Batch) -> Tensor:
        similarity = batch.similarity()
        positive, negative = hard_masks(similarity, similarity, batch.masks(), self.mining_margin)
        # Whoever has a hard negative has a hard positive; the index of the others is not used.
        hardest = similarity.masked_fill(~positive, torch.inf).argmin(dim=1)
        shift = self.direction_weight * directions(similarity, hardest)
        return (self._pull(similarity, positive) + self._push(similarity - shift, negative)).mean()


class MultiSimilarityEE(MatrixMultiSimilarity):
    """`MultiSimilarity` with embedding expansion, EE (Ko and Gu 2020).

    Images of a class are paired in the order of the batch, an odd one stays alone. On the segment
    from x_i to its partner x_π(i) lie n synthetic points, g = 1 ... n, which carry gradient:

        x_i^(0) = x_i,   x_i^(g) = unit(g x_π(i) + (n + 1 - g) x_i)
        S_ij    = max_{g,h = 0...n} x_i^(g) · x_j^(h)

    Positives keep their similarity s, negatives take S, in the mining as well:

        loss = mean_i 1/α log(1 + Σ_p exp(-α (s_ip - λ))) + 1/β log(1 + Σ_n exp(β (S_in - λ)))

    The points are those of the authors' program, which has the triplet loss alone; the form with
    multi-similarity is from the paper.

    Args:
        points: n. 2, from the paper and the authors' program; 0 is `MultiSimilarity`.
        positive_scale: α. 2, from Wang et al. 2019.
        negative_scale: β. 50, from Wang et al. 2019.
        base: λ. 0.5, as `MultiSimilarity` here.
        mining_margin: ε. 0.1, from Wang et al. 2019.
    """

    def __init__(
        self,
        *,
        points: int = 2,
        positive_scale: float = 2.0,
        negative_scale: float = 50.0,
        base: float = 0.5,
        mining_margin: float = 0.1,
    ) -> None:
        super().__init__(positive_scale, negative_scale, base, mining_margin)
        self.points = check_count(points, "points", at_least=0)

    def _value(self, batch: Batch) -> Tensor:
        similarity = batch.similarity()
        expanded = expanded_similarity(batch.anchors, partners(batch.labels), self.points)
        positive, negative = hard_masks(similarity, expanded, batch.masks(), self.mining_margin)
        return (self._pull(similarity, positive) + self._push(expanded, negative)).mean()


def directions(similarity: Tensor, partner: Tensor) -> Tensor:
    """κ of each anchor, its partner and every image: the cosine of the angle at the anchor. (B, B)

    Args:
        similarity: Cosines of a batch with itself. (B, B)
        partner: The index of one image for each anchor. (B,)
    """
    own = similarity.gather(1, partner[:, None])  # s_ip, (B, 1)
    product = similarity[partner] - similarity - own + 1.0  # (x_n - x_i) · (x_p - x_i)
    squares = (2.0 - 2.0 * similarity) * (2.0 - 2.0 * own)
    # Below this distance from the anchor rounding has eaten the angle.
    least = 8.0 * torch.finfo(similarity.dtype).eps
    defined = (2.0 - 2.0 * similarity > least) & (2.0 - 2.0 * own > least)
    lengths = squares.masked_fill(~defined, 1.0).sqrt()
    return (product / lengths).masked_fill(~defined, 0.0)


def partners(labels: Tensor) -> Tensor:
    """For each image the one it is paired with by the order of its class; itself where odd. (B,)"""
    same = labels[:, None] == labels[None, :]
    earlier = same.tril(-1).sum(dim=1)  # how many of its class come before
    # The first with the second, the third with the fourth.
    paired = same & (earlier[:, None] ^ 1 == earlier[None, :])
    alone = ~paired.any(dim=1)
    return (paired | alone.diag()).int().argmax(dim=1)


def expanded_similarity(units: Tensor, partner: Tensor, points: int) -> Tensor:
    """The largest similarity of any two points of two images' segments. (B, B)

    Args:
        units: Embeddings of length one. (B, D)
        partner: The other end of each image's segment. (B,)
    """
    share = torch.arange(points + 1, device=units.device, dtype=units.dtype) / (points + 1)
    share = share[None, :, None]
    mixed = (1.0 - share) * units[:, None] + share * units[partner][:, None]  # (B, n + 1, D)
    lengths = torch.linalg.vector_norm(mixed.detach(), dim=2, keepdim=True)
    # Between opposite ends there is no direction: the point falls back on the image itself.
    mixed = torch.where(lengths > 1e-4, mixed, units[:, None])
    segments = functional.normalize(mixed, dim=2)
    size = len(units)
    table = segments.flatten(0, 1) @ segments.flatten(0, 1).T
    table = table.view(size, points + 1, size, points + 1).transpose(1, 2).flatten(2)
    return table.max(dim=2).values  # one combination has the gradient


# Multi-similarity loss against a memory of past batches, whose whole state can be saved.


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
        memory_size: Length of the queue. 8192, from the authors' program; the paper's best is as
            many as there are training images.
        warmup_steps: Training steps before the queue is used. 2000, which the authors' program has
            beside 8192; their sample recipe has 1000 beside a queue of 55,000.
        batch_weight: ω. 1, from the authors' program; 0 is the paper's Algorithm 1.
        positive_scale: α of `MultiSimilarity`.
        negative_scale: β of `MultiSimilarity`. 50, as there; the authors' program has 40.
        base: λ of `MultiSimilarity`.
        mining_margin: ε of `MultiSimilarity`.
    """

    smallest_batch = (1, 1)  # the queue has the rest

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
