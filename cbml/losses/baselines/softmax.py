"""Classification of the training classes by cosine, whose features serve as embeddings."""

from functools import partial
from math import degrees, sqrt

import torch
from pytorch_metric_learning.distances import CosineSimilarity
from pytorch_metric_learning.losses import ArcFaceLoss, NormalizedSoftmaxLoss, SoftTripleLoss
from torch import Tensor, nn
from torch.nn import functional

from cbml.losses.baselines.baseline import ProxyLoss, distances
from cbml.losses.options import check_count, check_number


class NormalizedSoftmax(ProxyLoss):
    """Cross-entropy over cosines to one unit vector per class (Zhai and Wu 2019).

    With s_ic the similarity of embedding i and the vector of class c:

        loss = mean_i -log(exp(s_iy / σ) / Σ_c exp(s_ic / σ))

    The vectors start uniform within ±1/√D, as in the authors' program. Only their direction counts
    in the loss, but a step turns a long vector less: from pytorch-metric-learning's standard
    normal, 40 times as long at D = 512, they would hardly learn.

    Args:
        num_classes: C, number of training classes; labels are 0 ... C - 1.
        embedding_size: D, width of the embeddings.
        temperature: σ. 0.05, from the paper.
        learning_rate_factor: Factor on the learning rate of the class vectors. 1, from the authors'
            program.
        seed: Random seed of the first class vectors.
    """

    def __init__(
        self,
        *,
        num_classes: int,
        embedding_size: int,
        temperature: float = 0.05,
        learning_rate_factor: float = 1.0,
        seed: int = 0,
    ) -> None:
        super().__init__(num_classes, embedding_size, learning_rate_factor, seed)
        self.temperature = check_number(temperature, "temperature", above=0.0)
        longest = 1.0 / sqrt(embedding_size)
        self._loss = NormalizedSoftmaxLoss(
            num_classes,
            embedding_size,
            temperature=temperature,
            weight_init_func=partial(
                nn.init.uniform_, a=-longest, b=longest, generator=self._generator()
            ),
        )

    def _against_proxies(self, anchors: Tensor, labels: Tensor) -> Tensor:
        # In the vectors' own type: the library would otherwise change that of the vectors.
        value: Tensor = self._loss(anchors.to(self._loss.W.dtype), labels)
        return value


class ArcFace(ProxyLoss):
    """Cross-entropy over angles, the own class handicapped by a margin (Deng et al. 2019).

    With θ_ic the angle between embedding i and the vector of class c, and beyond θ = π - m the
    straight continuation cos θ - m sin m:

        z_iy = σ cos(θ_iy + m),  z_ic = σ cos θ_ic for the other classes
        loss = mean_i -log(exp(z_iy) / Σ_c exp(z_ic))

    The vectors start normal with a deviation of 0.01, as in the authors' program: short, so that
    steps at the network's own rate turn them. The authors' program has no continuation.

    Args:
        num_classes: C, number of training classes; labels are 0 ... C - 1.
        embedding_size: D, width of the embeddings.
        margin: m in degrees. 28.648, the paper's 0.5 radians.
        scale: σ. 64, from the paper.
        learning_rate_factor: Factor on the learning rate of the class vectors. 1: the paper has one
            rate for all.
        seed: Random seed of the first class vectors.
    """

    def __init__(
        self,
        *,
        num_classes: int,
        embedding_size: int,
        margin: float = degrees(0.5),
        scale: float = 64.0,
        learning_rate_factor: float = 1.0,
        seed: int = 0,
    ) -> None:
        super().__init__(num_classes, embedding_size, learning_rate_factor, seed)
        self.margin = check_number(margin, "margin", at_least=0.0, at_most=90.0)
        self.scale = check_number(scale, "scale", above=0.0)
        self._loss = ArcFaceLoss(
            num_classes,
            embedding_size,
            margin=margin,
            scale=scale,
            distance=_InnerCosine(),
            weight_init_func=partial(nn.init.normal_, std=0.01, generator=self._generator()),
        )

    def _against_proxies(self, anchors: Tensor, labels: Tensor) -> Tensor:
        value: Tensor = self._loss(anchors.to(self._loss.W.dtype), labels)
        return value


class SoftTriple(ProxyLoss):
    """Cross-entropy with several centers per class that may merge (Qian et al. 2019).

    With s_ick the similarity of embedding i and center k of class c:

        S_ic = Σ_k softmax_k(s_ick / γ) s_ick
        loss = mean_i -log(exp(λ (S_iy - δ)) / (exp(λ (S_iy - δ)) + Σ_{c≠y} exp(λ S_ic)))
             + τ / (C K (K - 1)) Σ_c Σ_{k<l} |w_ck - w_cl|

    The second term, which draws the centers of a class together, is added here: pytorch-metric-
    learning leaves it out.

    Args:
        num_classes: C, number of training classes; labels are 0 ... C - 1.
        embedding_size: D, width of the embeddings.
        centers_per_class: K. 10, from the paper.
        scale: λ. 20, from the paper.
        temperature: γ. 0.1, from the paper.
        margin: δ. 0.01, from the paper.
        center_weight: τ. 0.2, from the paper.
        learning_rate_factor: Factor on the learning rate of the centers. 100, from the authors'
            0.01 against 0.0001.
        seed: Random seed of the first centers.
    """

    def __init__(
        self,
        *,
        num_classes: int,
        embedding_size: int,
        centers_per_class: int = 10,
        scale: float = 20.0,
        temperature: float = 0.1,
        margin: float = 0.01,
        center_weight: float = 0.2,
        learning_rate_factor: float = 100.0,
        seed: int = 0,
    ) -> None:
        super().__init__(num_classes, embedding_size, learning_rate_factor, seed)
        self.centers_per_class = check_count(centers_per_class, "centers_per_class")
        self.scale = check_number(scale, "scale", above=0.0)
        self.temperature = check_number(temperature, "temperature", above=0.0)
        self.margin = check_number(margin, "margin", at_least=0.0)
        self.center_weight = check_number(center_weight, "center_weight", at_least=0.0)
        self._loss = SoftTripleLoss(
            num_classes,
            embedding_size,
            centers_per_class=centers_per_class,
            la=scale,
            gamma=temperature,
            margin=margin,
            weight_init_func=partial(
                nn.init.kaiming_uniform_, a=sqrt(5), generator=self._generator()
            ),
        )

    def _against_proxies(self, anchors: Tensor, labels: Tensor) -> Tensor:
        value: Tensor = self._loss(anchors.to(self._loss.fc.dtype), labels)
        return value + self.center_weight * self._spread() if self.centers_per_class > 1 else value

    def _spread(self) -> Tensor:
        """Half the mean distance between two centers of a class."""
        count = self.centers_per_class
        units = functional.normalize(self._loss.fc.T, dim=1)
        units = units.view(self.num_classes, count, self.embedding_size)
        distance = distances(units @ units.transpose(1, 2))  # (C, K, K)
        upper = torch.ones_like(distance, dtype=torch.bool).triu(diagonal=1)
        return distance[upper].sum() / (self.num_classes * count * (count - 1))


class _InnerCosine(CosineSimilarity):  # type: ignore[misc]  # the library carries no types
    """Cosine kept off ±1, where the slope of the arc cosine is infinite."""

    def compute_mat(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
        product: Tensor = super().compute_mat(query_emb, ref_emb)
        limit = 1.0 - 4.0 * torch.finfo(product.dtype).eps
        return product.clamp(-limit, limit)
