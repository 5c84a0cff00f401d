"""Losses with one learned vector, a proxy, for each class of the training set."""

from functools import partial

import torch
from pytorch_metric_learning.losses import ProxyAnchorLoss
from torch import Tensor, nn
from torch.nn import functional

from cbml.losses.baselines.baseline import ProxyLoss, masked_logsumexp
from cbml.losses.options import check_count, check_number


class ProxyNCA(ProxyLoss):
    """Nearer to the proxy of the class than to all other proxies (Movshovitz-Attias et al. 2017).

    With D_ic² the squared distance between unit embedding i and the unit proxy of class c; the
    proxy of the own class y_i is not in the sum:

        loss = mean_i σ² D_iy² + log Σ_{c≠y} exp(-σ² D_ic²)

    Written here because pytorch-metric-learning has the own proxy in the sum, which is the form of
    `ProxyNCAPlusPlus`. This form has no lower bound at zero.

    Args:
        num_classes: C, number of training classes; labels are 0 ... C - 1.
        embedding_size: D, width of the embeddings.
        scale: σ. 3, from Roth et al. 2020; the paper leaves it open. At 1 the exponents span 4 and
            the softmax over many proxies is nearly flat.
        learning_rate_factor: Factor on the learning rate of the proxies. 50, from Roth et al. 2020.
        seed: Random seed of the first proxies.
    """

    def __init__(
        self,
        *,
        num_classes: int,
        embedding_size: int,
        scale: float = 3.0,
        learning_rate_factor: float = 50.0,
        seed: int = 0,
    ) -> None:
        super().__init__(num_classes, embedding_size, learning_rate_factor, seed)
        self.scale = check_number(scale, "scale", above=0.0)
        self.proxies = _eighths(num_classes, embedding_size, self._generator())

    def _against_proxies(self, anchors: Tensor, labels: Tensor) -> Tensor:
        squares = self.scale**2 * _squares(anchors, self.proxies)  # (B, C)
        own = functional.one_hot(labels, self.num_classes).bool()
        if self.num_classes == 1:  # no other proxy to flee from
            return squares.mean()
        return (squares[own] + masked_logsumexp(-squares, ~own, dim=1)).mean()


class ProxyNCAPlusPlus(ProxyLoss):
    """Proxy-NCA as a probability, with a temperature and fast proxies (Teh et al. 2020).

    With D_ic² the squared distance between unit embedding i and the unit proxy of class c:

        loss = mean_i -log(exp(-D_iy² / T) / Σ_c exp(-D_ic² / T))

    Written here because pytorch-metric-learning takes the logarithm after the sum, so that at
    low temperatures an embedding far from its proxy drops out, or the mean of none is not a number.

    Args:
        num_classes: C, number of training classes; labels are 0 ... C - 1.
        embedding_size: D, width of the embeddings.
        temperature: T. 1/9, from the paper.
        learning_rate_factor: Factor on the learning rate of the proxies. 100, as for `ProxyAnchor`.
            The authors' program gives 4e2 to the proxies and 4e-3 to the network, a factor of 1e5,
            but with ε = 1 in Adam, where a step is the rate times the gradient. With the usual ε
            each step is as long as the rate, and 1e5 would throw the proxies about.
        seed: Random seed of the first proxies.
    """

    def __init__(
        self,
        *,
        num_classes: int,
        embedding_size: int,
        temperature: float = 1.0 / 9.0,
        learning_rate_factor: float = 100.0,
        seed: int = 0,
    ) -> None:
        super().__init__(num_classes, embedding_size, learning_rate_factor, seed)
        self.temperature = check_number(temperature, "temperature", above=0.0)
        self.proxies = _eighths(num_classes, embedding_size, self._generator())

    def _against_proxies(self, anchors: Tensor, labels: Tensor) -> Tensor:
        squares = _squares(anchors, self.proxies)
        return functional.cross_entropy(-squares / self.temperature, labels)


class ProxyAnchor(ProxyLoss):
    """Each proxy is an anchor that meets the whole batch (Kim et al. 2020).

    With s_ic the similarity of embedding i and proxy c, over the proxies C⁺ that have embeddings of
    their class in the batch, and over all C proxies:

        loss = mean_{c∈C⁺} log(1 + Σ_{i: y_i=c} exp(-α (s_ic - δ)))
             + mean_{c∈C}  log(1 + Σ_{i: y_i≠c} exp(α (s_ic + δ)))

    Args:
        num_classes: C, number of training classes; labels are 0 ... C - 1.
        embedding_size: D, width of the embeddings.
        margin: δ. 0.1, from the paper.
        scale: α. 32, from the paper.
        learning_rate_factor: Factor on the learning rate of the proxies. 100, from the authors'
            program.
        seed: Random seed of the first proxies.
    """

    def __init__(
        self,
        *,
        num_classes: int,
        embedding_size: int,
        margin: float = 0.1,
        scale: float = 32.0,
        learning_rate_factor: float = 100.0,
        seed: int = 0,
    ) -> None:
        super().__init__(num_classes, embedding_size, learning_rate_factor, seed)
        self.margin = check_number(margin, "margin", at_least=0.0)
        self.scale = check_number(scale, "scale", above=0.0)
        self._loss = ProxyAnchorLoss(
            num_classes,
            embedding_size,
            margin=margin,
            alpha=scale,
            weight_init_func=partial(
                nn.init.kaiming_normal_, mode="fan_out", generator=self._generator()
            ),
        )

    def _against_proxies(self, anchors: Tensor, labels: Tensor) -> Tensor:
        # In the proxies' own type: the library would otherwise change that of the proxies.
        value: Tensor = self._loss(anchors.to(self._loss.proxies.dtype), labels)
        return value


def _eighths(num_classes: int, embedding_size: int, generator: torch.Generator) -> nn.Parameter:
    """Random proxies, an eighth of a standard normal as in the program of Teh et al. (C, D)"""
    return nn.Parameter(torch.randn(num_classes, embedding_size, generator=generator) / 8.0)


def _squares(anchors: Tensor, proxies: Tensor) -> Tensor:
    """Squared distances of unit embeddings to the proxies divided by their length. (B, C)"""
    directions = functional.normalize(proxies.to(anchors.dtype), dim=1)
    return 2.0 - 2.0 * anchors @ directions.T


# Proxy-anchor with the classes of past steps beside the present ones, all in a saved memory.


class ProxyAnchorMemVir(ProxyLoss):
    """`ProxyAnchor` with memory-based virtual classes, MemVir (Ko et al. 2021).

    Every training step after the first `warmup_steps` is remembered: its embeddings, labels, and
    the proxies as they were. Steps of age M + 1, 2 (M + 1), ..., N (M + 1), as far as there are
    any, join the present one, each with classes of its own:

        E' = (E, e_1, ..., e_n),   P' = (P, P_1, ..., P_n),   y' = (y, y_1 + C, ..., y_n + nC)
        loss = ProxyAnchor(E', y', P')

    Old embeddings and proxies carry no gradient. n grows from 0 to N, which is the curriculum. In
    evaluation mode the plain loss, and the memory stays as it is. It holds N (M + 1) copies of
    all proxies: 0.1 GB for 100 classes of width 512, 12 GB for 11,318; lower `gap` there.

    The wrapper is that of the authors' program, which has no proxy-anchor; N and M for it are not
    known.

    Args:
        num_classes: C, number of training classes; labels are 0 ... C - 1.
        embedding_size: D, width of the embeddings.
        virtual_steps: N. 5, from a figure of the authors; they have 45 for softmax and 20 for
            proxy-NCA.
        gap: M. 100, from the same figure; 10 and 25 for the other two.
        warmup_steps: Training steps before the memory is used. 2500, the authors' 40 epochs of
            Cars at batch 128.
        batch_rows: The largest batch that can be remembered. 128, the authors' batch.
        margin: δ of `ProxyAnchor`. 0.1, from its paper.
        scale: α of `ProxyAnchor`. 32, from its paper.
        learning_rate_factor: Factor on the learning rate of the proxies. 100, as `ProxyAnchor` and
            the authors' program.
        seed: Random seed of the first proxies.
    """

    def __init__(
        self,
        *,
        num_classes: int,
        embedding_size: int,
        virtual_steps: int = 5,
        gap: int = 100,
        warmup_steps: int = 2500,
        batch_rows: int = 128,
        margin: float = 0.1,
        scale: float = 32.0,
        learning_rate_factor: float = 100.0,
        seed: int = 0,
    ) -> None:
        super().__init__(num_classes, embedding_size, learning_rate_factor, seed)
        self.virtual_steps = check_count(virtual_steps, "virtual_steps", at_least=0)
        self.gap = check_count(gap, "gap", at_least=0)
        self.warmup_steps = check_count(warmup_steps, "warmup_steps", at_least=0)
        self.batch_rows = check_count(batch_rows, "batch_rows")
        self.margin = check_number(margin, "margin", at_least=0.0)
        self.scale = check_number(scale, "scale", above=0.0)
        first = torch.empty(num_classes, embedding_size)
        nn.init.kaiming_normal_(first, mode="fan_out", generator=self._generator())
        self.proxies = nn.Parameter(first)
        self.memory: Tensor
        self.memory_labels: Tensor
        self.memory_proxies: Tensor
        self.stored: Tensor
        self.steps: Tensor
        slots = virtual_steps * (gap + 1)
        # A label of -1 marks a row that a smaller batch left empty.
        labels = torch.full((slots, batch_rows), -1, dtype=torch.int64)
        self.register_buffer("memory", torch.zeros(slots, batch_rows, embedding_size))
        self.register_buffer("memory_labels", labels)
        self.register_buffer("memory_proxies", torch.zeros(slots, num_classes, embedding_size))
        self.register_buffer("stored", torch.zeros((), dtype=torch.int64))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    @property
    def largest_batch(self) -> int | None:
        """The most images of a batch, where batches are remembered."""
        return self.batch_rows if len(self.memory) else None

    def _against_proxies(self, anchors: Tensor, labels: Tensor) -> Tensor:
        everything: list[tuple[Tensor, Tensor, Tensor]] = [(anchors, labels, self.proxies)]
        if self.training:
            if len(anchors) > (
                self.largest_batch or len(anchors)
            ):  # also during the warm-up: nobody waits to hear it
                raise ValueError(
                    f"batch_rows is {self.batch_rows}, too small for a batch of {len(anchors)}"
                )
            self.steps += 1
            if len(self.memory) and int(self.steps) > self.warmup_steps:
                everything += self._remembered()
                self._store(anchors, labels)
        return proxy_anchor_value(
            torch.cat([rows.to(anchors.dtype) for rows, _, _ in everything]),
            torch.cat([of + age * self.num_classes for age, (_, of, _) in enumerate(everything)]),
            torch.cat([proxies.to(anchors.dtype) for _, _, proxies in everything]),
            margin=self.margin,
            scale=self.scale,
        )

    def _remembered(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Embeddings, labels and proxies of the chosen old steps, the newest first."""
        slots, stored = len(self.memory), int(self.stored)
        found = []
        for back in chosen_steps(min(stored, slots), self.gap):
            slot = (stored - 1 - back) % slots
            filled = self.memory_labels[slot] >= 0
            # Copies: the next steps overwrite the memory, perhaps before a backward pass.
            rows, labels = self.memory[slot][filled], self.memory_labels[slot][filled]
            found.append((rows, labels, self.memory_proxies[slot].clone()))
        return found

    def _store(self, anchors: Tensor, labels: Tensor) -> None:
        """Put the step over the oldest one."""
        size = len(anchors)
        slot = int(self.stored) % len(self.memory)
        self.memory[slot, :size] = anchors.detach().to(self.memory.dtype)
        self.memory_labels[slot] = -1
        self.memory_labels[slot, :size] = labels
        self.memory_proxies[slot] = self.proxies.detach().to(self.memory.dtype)
        self.stored += 1


def chosen_steps(length: int, gap: int) -> range:
    """Which steps of the memory are used, counted back from the newest, which is 0."""
    return range(gap, length, gap + 1)


def proxy_anchor_value(
    anchors: Tensor, labels: Tensor, proxies: Tensor, *, margin: float, scale: float
) -> Tensor:
    """The formula of `ProxyAnchor` for proxies of any kind.

    Args:
        anchors: Unit vectors. (B, D)
        labels: The proxy of each. (B,)
        proxies: Proxies of any length. (C, D)
        margin: δ.
        scale: α.
    """
    similarity = functional.normalize(proxies, dim=1) @ anchors.T  # (C, B)
    own = torch.arange(len(proxies), device=labels.device)[:, None] == labels[None, :]
    pull = functional.softplus(masked_logsumexp(-scale * (similarity - margin), own, dim=1))
    push = functional.softplus(masked_logsumexp(scale * (similarity + margin), ~own, dim=1))
    return pull.sum() / own.any(dim=1).sum().clamp(min=1) + push.mean()
