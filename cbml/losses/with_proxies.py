"""A proxy for each class beside the pairs of a batch, under any loss of pairs."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from cbml.errors import BadData
from cbml.losses.options import check_count, check_number


class WithProxies(nn.Module):
    """Any loss of pairs, of a batch and of the batch against one learned proxy for each class.

        L = loss(batch) + weight · loss(batch, proxies)

    A batch shows each image a few dozen classes; the proxies show it all classes that were met so
    far, under the same posterior and with the same constants. A proxy starts at the mean embedding
    of its class in the first batch that has it: one drawn at random would be a false negative
    of everything until it has found its class.

    Args:
        loss: Takes (embeddings, labels, indices_tuple, ref_emb, ref_labels), and references.
        num_classes: C, number of training classes; labels are 0 ... C - 1.
        embedding_size: D, width of the embeddings.
        proxy_weight: Weight of the part with proxies.
        learning_rate_factor: For the proxies, in a training loop.
    """

    met: Tensor

    def __init__(
        self,
        loss: nn.Module,
        *,
        num_classes: int,
        embedding_size: int,
        proxy_weight: float = 0.5,
        learning_rate_factor: float = 10.0,
    ) -> None:
        super().__init__()
        learns = next(loss.parameters(), None) is not None
        if learns or not getattr(loss, "_takes_references", True):
            raise ValueError(f"proxy_weight: {type(loss).__name__} is not a loss of pairs alone")
        self.loss = loss
        self.proxy_weight = check_number(proxy_weight, "proxy_weight", at_least=0.0)
        self.learning_rate_factor = check_number(
            learning_rate_factor, "learning_rate_factor", above=0.0
        )
        shape = (check_count(num_classes, "num_classes"), embedding_size)
        self.proxies = nn.Parameter(torch.zeros(shape))
        self.register_buffer("met", torch.zeros(num_classes, dtype=torch.bool))

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
        """The loss of one batch.

        A miner's pairs and references go to the part without proxies.

        Args:
            embeddings: One row per image. (B, D)
            labels: One integer per row. (B,)
            indices_tuple: Pairs or triplets for the loss.
            ref_emb: Embeddings to compare with instead of the batch itself. (R, D)
            ref_labels: Labels of `ref_emb`. (R,)
        """
        loss: Tensor = self.loss(embeddings, labels, indices_tuple, ref_emb, ref_labels)
        if not self.proxy_weight or not len(embeddings):
            return loss
        if self.training:
            self._meet(embeddings, labels)
        classes = self.met.nonzero()[:, 0]
        if not len(classes):
            return loss
        columns = functional.normalize(self.proxies[classes], dim=1)
        beside: Tensor = self.loss(embeddings, labels, None, columns, classes)
        return loss + self.proxy_weight * beside

    @torch.no_grad()
    def _meet(self, embeddings: Tensor, labels: Tensor) -> None:
        """Start the proxies of classes that are here for the first time."""
        largest = int(labels.max())
        if largest >= len(self.met) or int(labels.min()) < 0:
            raise BadData(
                f"labels reach from {int(labels.min())} to {largest}; num_classes={len(self.met)} "
                "takes 0 to one less"
            )
        units = functional.normalize(embeddings.detach().to(self.proxies.dtype), dim=1)
        for label in torch.unique(labels[~self.met[labels]]).tolist():
            mean = units[labels == label].mean(dim=0)
            self.proxies[label] = functional.normalize(mean, dim=0)
            self.met[label] = True

    def extra_repr(self) -> str:
        """The settings, for print."""
        return f"num_classes={len(self.met)}, proxy_weight={self.proxy_weight}"
