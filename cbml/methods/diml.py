"""PA+DIML: a proxy-anchor loss, and results reranked by the structure of the images."""

from cbml.errors import BadData
from cbml.losses import LOSSES
from cbml.models import Embedder
from cbml.training import Method


class ProxyAnchorDIML(Method):
    """A proxy-anchor loss whose model names the reranker "diml" (Zhao et al. 2021).

    Training is that of the loss "proxy_anchor" alone. Searches with the model then put the 100
    nearest images in order again by `cbml.index.DIML`. The authors' program has no such loss: the
    row of the tables is taken to be a proxy-anchor model that is reranked.

    Args:
        num_classes: Number of training classes.
        embedding_size: Width of the embedding; 128 in the paper's tables.
        margin: Margin of the proxy-anchor loss. 0.1, from its paper.
        scale: Scale of the proxy-anchor loss. 32, from its paper.
        proxy_factor: Factor on the proxies' learning rate. 100, from its authors' program.
        seed: Random seed of the proxies.
    """

    reranker = "diml"

    def __init__(
        self,
        *,
        num_classes: int,
        embedding_size: int = 512,
        margin: float = 0.1,
        scale: float = 32.0,
        proxy_factor: float = 100.0,
        seed: int = 0,
    ) -> None:
        super().__init__(
            LOSSES["proxy_anchor"](
                num_classes=num_classes,
                embedding_size=embedding_size,
                margin=margin,
                scale=scale,
                learning_rate_factor=proxy_factor,
                seed=seed,
            )
        )

    def attach(self, model: Embedder) -> None:
        """Refuse models without cells."""
        super().attach(model)
        if model.pooling == "backbone":
            raise BadData("DIML: pooling 'backbone' hides the map; use pooling='average'")
