"""Losses with one learned vector, a proxy, for each class of the training set."""

from functools import partial

import torch
from pytorch_metric_learning.losses import ProxyAnchorLoss
from torch import Tensor, nn
from torch.nn import functional

from cbml.losses.baselines.baseline import ProxyLoss, masked_logsumexp
from cbml.losses.options import check_number

__all__ = ["ProxyAnchor", "ProxyNCA", "ProxyNCAPlusPlus"]


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
        learning_rate_factor: for the proxies. 50, from Roth et al. 2020.
        seed: of the first proxies.
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
        learning_rate_factor: for the proxies. 100, as for `ProxyAnchor`. The authors' program
            gives 4e2 to the proxies and 4e-3 to the network, a factor of 1e5, but with ε = 1 in
            Adam, where a step is the rate times the gradient. With the usual ε each step is as
            long as the rate, and 1e5 would throw the proxies about.
        seed: of the first proxies.
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
        learning_rate_factor: for the proxies. 100, from the authors' program.
        seed: of the first proxies.
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
