"""CBSwR: ISIF against centers of clusters within the batch, and a decoder of their mean maps."""

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from cbml.losses import check_count, check_number
from cbml.methods.instance_spreading import InstanceSpreading, log_complement
from cbml.methods.unlabeled import HeadStart
from cbml.models import Embedder
from cbml.outputs import Outputs
from cbml.training import BatchInfo, StepLoss

_KEPT = 0.4  # of the classifier's inputs: dropout of 0.6 in the authors' program
_WIDTHS = (256, 128, 64, 32, 16)  # of the decoder's maps; how wide the authors' are is not known


class CBSwR(InstanceSpreading):
    """Center-based softmax with reconstruction (Nguyen et al., BMVC 2020).

    Rows are views of images, two of each; E their maps, F the linear layer, sg stops gradients:

        x = normalize(F(pool(E))),   y = normalize(Linear(Dropout(BatchNorm(x)))),   q = softmax(y)
        k_i = argmax y of the first view of the image;   G_c = mean of E over cluster c
        c_c = normalize(F(pool(sg G_c))),   e_ic = exp(x_i·sg(c_c) / T)
        metric         = -mean_i { log[exp(x_i·sg(x_pos(i)) / T) / sum_c e_ic]
                                   + sum_{c != k_i} log(1 - e_ic / sum_c' e_ic') }
        clustering     = -mean_i sum q_i log q_i / log B + 1 + sum m log m / log K,   m = mean_i q_i
        reconstruction = mean (decoder(G_{k_i}) - pixels)²
        loss = 0.9 metric + 0.3 clustering + 0.001 reconstruction

    B counts the rows. One of the authors' two programs leaves the own cluster out of the first sum,
    so that its "probability" exceeds 1: `own_cluster=False`. Pixels are those of [0, 1], which a
    logistic function can reach; the authors' are not. pool(G_c) is the mean of the pooled features.

    Args:
        embedding_size: Width of the embedding, D.
        temperature: T. 0.1 in the authors' program.
        batch_clusters: K. 32 in the authors' summary, 100 in their program.
        own_cluster: Whether the first sum has the own cluster too.
        metric_weight: 0.9 in the authors' program.
        clustering_weight: 0.3 in the authors' program.
        reconstruction_weight: 0.001 in the authors' program; 0 is their CBS, without a decoder.
        neighbor_probability: See `InstanceSpreading`. 0.5 in the authors' program on CUB.
        head_start: "random" or "whitened", how the linear layer starts.
        seed: Random seed of the classifier, the decoder and the dropout.
    """

    smallest_batch = (2, 2)
    parts: tuple[str, ...] = ("features", "map")

    def __init__(
        self,
        *,
        embedding_size: int,
        temperature: float = 0.1,
        batch_clusters: int = 32,
        own_cluster: bool = True,
        metric_weight: float = 0.9,
        clustering_weight: float = 0.3,
        reconstruction_weight: float = 0.001,
        neighbor_probability: float = 0.0,
        head_start: HeadStart = "random",
        seed: int = 0,
    ) -> None:
        super().__init__(
            temperature=temperature,
            neighbor_probability=neighbor_probability,
            head_start=head_start,
            seed=seed,
        )
        check_count(batch_clusters, "batch_clusters", at_least=2)
        weights = {
            "metric": metric_weight,
            "clustering": clustering_weight,
            "reconstruction": reconstruction_weight,
        }
        self.weights = {
            term: check_number(weight, f"{term}_weight", at_least=0.0)
            for term, weight in weights.items()
        }
        self.own_cluster = own_cluster
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.norm = nn.BatchNorm1d(embedding_size)
            self.classifier = nn.Linear(embedding_size, batch_clusters)
        self.decoder: nn.Module = nn.Identity()  # as wide as the model's maps

    def attach(self, model: Embedder) -> None:
        """Meet the model, and make the decoder of its maps."""
        super().attach(model)
        if not self.weights["reconstruction"]:
            self.parts = ("features",)
            return
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            self.decoder = _decoder(model.head.in_features)  # type: ignore[arg-type]
        self.decoder.to(next(model.parameters()).device)

    def teach(self, images: Tensor) -> Mapping[str, Tensor]:
        """The pixels in [0, 1], which the decoder is to give."""
        if not self.weights["reconstruction"]:
            return {}
        expected = self.model.preprocessing
        mean, std = (
            torch.tensor(each, device=images.device).view(3, 1, 1)
            for each in (expected.mean, expected.std)
        )
        return {"pixels": (images.float() * std + mean) / (255 * expected.scale)}

    def forward(self, outputs: Outputs, batch: BatchInfo) -> StepLoss:
        """The loss of a step, with its three terms."""
        x = outputs.embeddings.float()
        scores = self.scores(x, batch.step)  # y (B, K)
        clusters = _of_first_view(scores.argmax(dim=1), batch.labels)
        present, clusters = torch.unique(clusters, return_inverse=True)
        share = functional.one_hot(clusters, len(present)).to(x).T
        share = share / share.sum(dim=1, keepdim=True)  # (G, B), rows add up to one
        with torch.no_grad():
            centers = self.model.head(share @ outputs.parts["features"].float())
            centers = functional.normalize(centers, dim=1)
        terms = {
            "metric": center_softmax(
                x,
                batch.labels,
                centers,
                clusters,
                temperature=self.temperature,
                own_cluster=self.own_cluster,
            ),
            "clustering": information(scores),
        }
        if "pixels" in outputs.parts:
            maps = outputs.parts["map"].float()
            means = (share @ maps.flatten(1)).view(len(present), *maps.shape[1:])
            terms["reconstruction"] = self._reconstruction(means, clusters, outputs.parts["pixels"])
        weighted = [self.weights[name] * term for name, term in terms.items()]
        return StepLoss(torch.stack(weighted).sum(), terms)

    def scores(self, x: Tensor, step: int) -> Tensor:
        """y, how far each row belongs to each cluster. (B, K)

        Args:
            x: Unit vectors. (B, D)
            step: Number of the update, which seeds the dropout.
        """
        normed = self.norm(x)
        chance = np.random.default_rng([self.seed, step]).random(tuple(normed.shape))
        kept = torch.from_numpy(chance < _KEPT).to(x) / _KEPT  # the same in every process
        return functional.normalize(self.classifier(normed * kept), dim=1)

    def _reconstruction(self, means: Tensor, clusters: Tensor, pixels: Tensor) -> Tensor:
        """How far the images are from what the mean map of their cluster looks like."""
        # A row for each image: of one cluster with a map of one place a batch norm has no variance.
        made = self.decoder(means[clusters])
        made = functional.interpolate(made, size=pixels.shape[2:], mode="nearest")
        return (made - pixels).square().mean()


def _decoder(channels: int) -> nn.Module:
    """Six convolutions; before all but the first the map is doubled, 7 places to 224."""
    layers: list[nn.Module] = []
    for width in _WIDTHS:
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        layers.append(nn.Upsample(scale_factor=2.0))
        channels = width
    return nn.Sequential(*layers, nn.Conv2d(channels, 3, 3, padding=1), nn.Sigmoid())


def _of_first_view(clusters: Tensor, labels: Tensor) -> Tensor:
    """The cluster of each image's first row, for all of its rows. (B,)"""
    first = (labels[:, None] == labels[None, :]).int().argmax(dim=1)
    return clusters[first]


def center_softmax(
    x: Tensor,
    labels: Tensor,
    centers: Tensor,
    clusters: Tensor,
    *,
    temperature: float,
    own_cluster: bool,
) -> Tensor:
    """The metric term.

    Args:
        x: Unit embeddings. (B, D)
        labels: Image of each row. (B,)
        centers: Unit vectors. (G, D)
        clusters: Center of each row. (B,)
        temperature: T.
        own_cluster: Whether the first sum has the own cluster too.
    """
    itself = torch.eye(len(x), dtype=torch.bool, device=x.device)
    positives = (labels[:, None] == labels[None, :]) & ~itself
    similarities = x @ x.detach().T / temperature
    found = (similarities * positives).sum(dim=1) / positives.sum(dim=1).clamp(min=1)
    logits = x @ centers.detach().T / temperature  # (B, G)
    own = functional.one_hot(clusters, len(centers)).bool()
    # Where all are in one cluster there is no other, and nothing to compare with but the own.
    compared = logits if own_cluster or len(centers) == 1 else logits.masked_fill(own, -torch.inf)
    apart = torch.where(own, 0.0, log_complement(logits))
    return -(found - compared.logsumexp(dim=1) + apart.sum(dim=1)).mean()


def information(scores: Tensor) -> Tensor:
    """The clustering term: each row certain of its cluster, all clusters used alike."""
    rows, clusters = scores.shape
    odds = scores.softmax(dim=1)
    mean = odds.mean(dim=0)
    uncertain = -(odds * odds.log()).sum() / (rows * math.log(rows))
    used = -(mean * mean.log()).sum() / math.log(clusters)
    return uncertain + 1 - used
