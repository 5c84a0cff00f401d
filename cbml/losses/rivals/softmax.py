"""Classification of the training classes by cosine, whose features serve as embeddings."""

from functools import partial
from math import sqrt

import torch
from pytorch_metric_learning.distances import CosineSimilarity
from pytorch_metric_learning.losses import ArcFaceLoss, NormalizedSoftmaxLoss, SoftTripleLoss
from torch import Tensor, nn
from torch.nn import functional

from cbml.losses.rivals.rival import Batch, Rival, check_classes, check_width, distances

__all__ = ["ArcFace", "NormalizedSoftmax", "SoftTriple"]


class NormalizedSoftmax(Rival):
    """Cross-entropy over cosines to one unit vector per class (Zhai and Wu 2019).

    With s_ic the similarity of embedding i and the vector of class c:

        loss = mean_i -log(exp(s_iy / σ) / Σ_c exp(s_ic / σ))

    Args:
        num_classes: C, number of training classes; labels are 0 ... C - 1.
        embedding_size: D, width of the embeddings.
        temperature: σ. 0.05, from the paper.
        learning_rate_factor: for the class vectors. 1, from the authors' program.
        seed: of the first class vectors.
    """

    _takes_indices = False
    _takes_references = False

    def __init__(
        self,
        *,
        num_classes: int,
        embedding_size: int,
        temperature: float = 0.05,
        learning_rate_factor: float = 1.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.embedding_size = embedding_size
        self.temperature = temperature
        self.learning_rate_factor = learning_rate_factor
        self.seed = seed
        generator = torch.Generator().manual_seed(seed)
        self._loss = NormalizedSoftmaxLoss(
            num_classes,
            embedding_size,
            temperature=temperature,
            weight_init_func=partial(nn.init.normal_, generator=generator),
        )

    def _value(self, batch: Batch) -> Tensor:
        check_classes(batch, self.num_classes)
        check_width(batch, self.embedding_size)
        # In the vectors' own type: the library would otherwise change that of the vectors.
        value: Tensor = self._loss(batch.anchors.to(self._loss.W.dtype), batch.labels)
        return value


class ArcFace(Rival):
    """Cross-entropy over angles, the own class handicapped by a margin (Deng et al. 2019).

    With θ_ic the angle between embedding i and the vector of class c, and beyond θ = π - m the
    straight continuation cos θ - m sin m:

        z_iy = σ cos(θ_iy + m),  z_ic = σ cos θ_ic for the other classes
        loss = mean_i -log(exp(z_iy) / Σ_c exp(z_ic))

    Args:
        num_classes: C, number of training classes; labels are 0 ... C - 1.
        embedding_size: D, width of the embeddings.
        margin: m in degrees. 28.6, the paper's 0.5 radians.
        scale: σ. 64, from the paper.
        learning_rate_factor: for the class vectors. 1: the paper has one rate for all.
        seed: of the first class vectors.
    """

    _takes_indices = False
    _takes_references = False

    def __init__(
        self,
        *,
        num_classes: int,
        embedding_size: int,
        margin: float = 28.6,
        scale: float = 64.0,
        learning_rate_factor: float = 1.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.embedding_size = embedding_size
        self.margin = margin
        self.scale = scale
        self.learning_rate_factor = learning_rate_factor
        self.seed = seed
        generator = torch.Generator().manual_seed(seed)
        self._loss = ArcFaceLoss(
            num_classes,
            embedding_size,
            margin=margin,
            scale=scale,
            distance=_InnerCosine(),
            weight_init_func=partial(nn.init.normal_, generator=generator),
        )

    def _value(self, batch: Batch) -> Tensor:
        check_classes(batch, self.num_classes)
        check_width(batch, self.embedding_size)
        value: Tensor = self._loss(batch.anchors.to(self._loss.W.dtype), batch.labels)
        return value


class SoftTriple(Rival):
    """Cross-entropy with several centres per class that may merge (Qian et al. 2019).

    With s_ick the similarity of embedding i and centre k of class c:

        S_ic = Σ_k softmax_k(s_ick / γ) s_ick
        loss = mean_i -log(exp(λ (S_iy - δ)) / (exp(λ (S_iy - δ)) + Σ_{c≠y} exp(λ S_ic)))
             + τ / (C K (K - 1)) Σ_c Σ_{k<l} |w_ck - w_cl|

    The second term, which draws the centres of a class together, is added here: pytorch-metric-
    learning leaves it out.

    Args:
        num_classes: C, number of training classes; labels are 0 ... C - 1.
        embedding_size: D, width of the embeddings.
        centers_per_class: K. 10, from the paper.
        scale: λ. 20, from the paper.
        temperature: γ. 0.1, from the paper.
        margin: δ. 0.01, from the paper.
        center_weight: τ. 0.2, from the paper.
        learning_rate_factor: for the centres. 100, from the authors' 0.01 against 0.0001.
        seed: of the first centres.
    """

    _takes_indices = False
    _takes_references = False

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
        super().__init__()
        self.num_classes = num_classes
        self.embedding_size = embedding_size
        self.centers_per_class = centers_per_class
        self.scale = scale
        self.temperature = temperature
        self.margin = margin
        self.center_weight = center_weight
        self.learning_rate_factor = learning_rate_factor
        self.seed = seed
        generator = torch.Generator().manual_seed(seed)
        self._loss = SoftTripleLoss(
            num_classes,
            embedding_size,
            centers_per_class=centers_per_class,
            la=scale,
            gamma=temperature,
            margin=margin,
            weight_init_func=partial(nn.init.kaiming_uniform_, a=sqrt(5), generator=generator),
        )

    def _value(self, batch: Batch) -> Tensor:
        check_classes(batch, self.num_classes)
        check_width(batch, self.embedding_size)
        value: Tensor = self._loss(batch.anchors.to(self._loss.fc.dtype), batch.labels)
        return value + self.center_weight * self._spread() if self.centers_per_class > 1 else value

    def _spread(self) -> Tensor:
        """Half the mean distance between two centres of a class."""
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
