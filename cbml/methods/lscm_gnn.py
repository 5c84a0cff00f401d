"""LSCM-GNN, a reconstruction: embeddings mixed with those of their neighbors."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from cbml.losses import LOSSES, check_count, check_number
from cbml.outputs import Outputs
from cbml.training import BatchInfo, Method, StepLoss

_ROWS_AT_ONCE = 1024  # of a whole evaluated set


class LSCMGNN(Method):
    """A graph of nearest neighbors whose edges are learned; after Kan et al. 2022.

    A reconstruction: no equation of the authors is public. Known are a network that predicts which
    neighbors belong together, and embeddings that are sums over neighbors with these weights. With
    z the unit vectors of the model and N(i) the K nearest other rows:

        e_ij = sigmoid(MLP(z_i ⊙ z_j, |z_i - z_j|)),   j in N(i);   MLP: 2D → hidden → ReLU → 1
        f_i  = unit(z_i + Σ_j e_ij z_j)
        loss = L(f) + μ mean_{i, j in N(i)} BCE(e_ij, [y_i = y_j]),   L multi-similarity

    Neighbors are those of the batch in training, and those of the whole set where a run scores it:
    such scores are transductive. A saved model gives z, of which plain scores are.

    Args:
        neighbors: K. 5, our choice, as all numbers here; 0 leaves the embeddings as they are.
        hidden: Width of the network's layer. 128.
        edge_weight: μ. 1.
        embedding_size: Width of the embedding, D.
        seed: Random seed of the network.
    """

    smallest_batch = (2, 2)

    def __init__(
        self,
        *,
        neighbors: int = 5,
        hidden: int = 128,
        edge_weight: float = 1.0,
        embedding_size: int = 512,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.neighbors = check_count(neighbors, "neighbors", at_least=0)
        check_count(hidden, "hidden")
        self.edge_weight = check_number(edge_weight, "edge_weight", at_least=0.0)
        self.pair_loss = LOSSES["multi_similarity"]()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            layers = (nn.Linear(2 * embedding_size, hidden), nn.ReLU(), nn.Linear(hidden, 1))
            self.edges = nn.Sequential(*layers) if neighbors else None

    def forward(self, outputs: Outputs, batch: BatchInfo) -> StepLoss:
        """The loss of the mixed rows, and that of the edges."""
        rows = outputs.embeddings
        near = nearest_rows(rows, rows, self.neighbors)  # (B, K)
        logits = self.edge_logits(rows, rows[near])
        terms = {"pairs": self.pair_loss(mixed(rows, rows[near], logits.sigmoid()), batch.labels)}
        total = terms["pairs"]
        if near.shape[1]:
            same = (batch.labels[:, None] == batch.labels[near]).to(logits.dtype)
            terms["edges"] = functional.binary_cross_entropy_with_logits(logits, same)
            total = total + self.edge_weight * terms["edges"]
        return StepLoss(total, terms)

    def edge_logits(self, rows: Tensor, others: Tensor) -> Tensor:
        """What the network says of rows and their neighbors, before the sigmoid. (B, K)

        Args:
            rows: z_i. (B, D)
            others: z_j. (B, K, D)
        """
        if self.edges is None or not others.shape[1]:
            return rows.new_zeros(others.shape[:2])
        each = rows[:, None, :]
        both = torch.cat([each * others, (each - others).abs()], dim=2)  # (B, K, 2D)
        found: Tensor = self.edges(both)
        return found[..., 0]

    def refine(self, outputs: Outputs) -> Tensor:
        """Every row of an evaluated set, mixed with its neighbors in it. (N, D)"""
        rows = outputs.embeddings
        device = next(self.parameters(), rows).device
        rows, found = rows.to(device), []
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            some = rows[start : start + _ROWS_AT_ONCE]
            others = rows[nearest_rows(some, rows, self.neighbors, start=start)]
            found.append(mixed(some, others, self.edge_logits(some, others).sigmoid()))
        return torch.cat(found)


@torch.no_grad()
def nearest_rows(rows: Tensor, gallery: Tensor, count: int, *, start: int = 0) -> Tensor:
    """Indices of the most similar other rows of a gallery, the lower one of equals first. (B, K)

    Args:
        rows: Unit vectors, which are in the gallery. (B, D)
        gallery: Unit vectors. (N, D)
        count: K; all others where they are fewer.
        start: Index of the first row in the gallery.
    """
    similarity = rows @ gallery.T
    index = torch.arange(len(rows), device=rows.device)
    similarity[index, index + start] = -torch.inf  # none is a neighbor of itself
    order = similarity.argsort(dim=1, descending=True, stable=True)
    return order[:, : min(count, len(gallery) - 1)]


def mixed(rows: Tensor, others: Tensor, weights: Tensor) -> Tensor:
    """unit(z_i + Σ_j e_ij z_j). (B, D)

    Args:
        rows: z_i. (B, D)
        others: z_j. (B, K, D)
        weights: e_ij. (B, K)
    """
    return functional.normalize(rows + (weights[:, :, None] * others).sum(dim=1), dim=1)
