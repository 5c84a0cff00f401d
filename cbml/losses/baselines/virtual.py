"""Proxy-anchor with the classes of past steps beside the present ones, all in a saved memory."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from cbml.losses.baselines.baseline import ProxyLoss, masked_logsumexp
from cbml.losses.options import check_count, check_number

__all__ = ["ProxyAnchorMemVir", "chosen_steps", "proxy_anchor_value"]


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
        warmup_steps: training steps before the memory is used. 2500, the authors' 40 epochs of
            Cars at batch 128.
        batch_rows: the largest batch that can be remembered. 128, the authors' batch.
        margin: δ of `ProxyAnchor`. 0.1, from its paper.
        scale: α of `ProxyAnchor`. 32, from its paper.
        learning_rate_factor: for the proxies. 100, as `ProxyAnchor` and the authors' program.
        seed: of the first proxies.
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

    def _against_proxies(self, anchors: Tensor, labels: Tensor) -> Tensor:
        everything: list[tuple[Tensor, Tensor, Tensor]] = [(anchors, labels, self.proxies)]
        if self.training:
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
        if size > self.batch_rows:
            raise ValueError(f"batch_rows is {self.batch_rows}, too small for a batch of {size}")
        slot = int(self.stored) % len(self.memory)
        self.memory[slot, :size] = anchors.detach().to(self.memory.dtype)
        self.memory_labels[slot] = -1
        self.memory_labels[slot, :size] = labels
        self.memory_proxies[slot] = self.proxies.detach().to(self.memory.dtype)
        self.stored += 1


def chosen_steps(length: int, gap: int) -> range:
    """Which steps of the memory are used, counted back from the newest, which is 0.

    Args:
        length: how many steps it holds.
        gap: M.
    """
    return range(gap, length, gap + 1)


def proxy_anchor_value(
    anchors: Tensor, labels: Tensor, proxies: Tensor, *, margin: float, scale: float
) -> Tensor:
    """The formula of `ProxyAnchor` for proxies of any kind.

    Args:
        anchors: unit vectors. (B, D)
        labels: the proxy of each. (B,)
        proxies: of any length. (C, D)
        margin: δ.
        scale: α.
    """
    similarity = functional.normalize(proxies, dim=1) @ anchors.T  # (C, B)
    own = torch.arange(len(proxies), device=labels.device)[:, None] == labels[None, :]
    pull = functional.softplus(masked_logsumexp(-scale * (similarity - margin), own, dim=1))
    push = functional.softplus(masked_logsumexp(scale * (similarity + margin), ~own, dim=1))
    return pull.sum() / own.any(dim=1).sum().clamp(min=1) + push.mean()
