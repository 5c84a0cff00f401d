"""What a network gives for a batch of images, and what may rerank the results of a search."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # spelling and help need neither torch nor its seconds
    from torch import Tensor

__all__ = ["Outputs", "Reranker"]


@dataclass(frozen=True)
class Outputs:
    """Tensors with one row per image.

    Args:
        embeddings: Unit vectors, what is searched with. (B, D)
        parts: Further tensors by name: sub-embeddings, features of other depths, maps. Each has B
            rows and any shape behind them.
    """

    embeddings: "Tensor"
    parts: Mapping[str, "Tensor"] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, part in self.parts.items():
            # By shape: len() would fix the batch size of an exported model.
            if part.shape[0] != self.embeddings.shape[0]:
                raise ValueError(
                    f"part {name!r} has {len(part)} rows, the embeddings have "
                    f"{len(self.embeddings)}: give one row per image"
                )

    def __len__(self) -> int:
        return len(self.embeddings)

    @property
    def tensors(self) -> "list[Tensor]":
        """The embeddings, then the parts in their order."""
        return [self.embeddings, *self.parts.values()]

    def map(self, function: "Callable[[Tensor], Tensor]") -> "Outputs":
        """The same with a function applied to every tensor.

        Args:
            function: Gives a tensor with as many rows for each of them.
        """
        parts = {name: function(part) for name, part in self.parts.items()}
        return Outputs(function(self.embeddings), parts)

    def with_parts(self, parts: "Mapping[str, Tensor]") -> "Outputs":
        """The same with further parts.

        Args:
            parts: New tensors by name; a name that is there already is replaced.
        """
        return Outputs(self.embeddings, {**self.parts, **parts})


class Reranker(Protocol):
    """Scores for the candidates of a first search; only their order among each other changes."""

    def __call__(
        self, queries: Outputs, gallery: Outputs, candidates: "Tensor"
    ) -> "Tensor":  # (Q, K) larger is closer
        """How close each candidate is to its query.

        Args:
            queries: Q images, with the parts that the reranker reads.
            gallery: N images, with the same parts.
            candidates: Indices into the gallery, best first. (Q, K)
        """
