"""AND: images whose neighborhood is certain may be recognized as their neighbor."""

import torch
from torch import Tensor

from cbml.losses import check_count, check_number
from cbml.methods.unlabeled import HeadStart, Memory, Unlabeled
from cbml.outputs import Outputs
from cbml.training import BatchInfo, StepLoss, TrainingView

_ROWS = 1024  # rows of the memory that are compared with all of it at once


class AnchorNeighborhoods(Unlabeled):
    """Anchor neighborhood discovery (Huang, Dong, Gong and Zhu, ICML 2019).

    A view x of image y is recognized among a memory M of all N images, p = softmax(x·M / T). The
    updates of a run are cut into rounds r = 0 .. R - 1. At the beginning of each but the first,

        H_i = entropy of softmax_j(M_i·M_j / T)
        A   = the int(N r / (R - 1)) images with the smallest H
        O_i = the k images nearest to M_i, i left out

    and with A empty in the first round

        loss = -mean_b log(p_b,y + [y in A] sum_{j in O_y} p_b,j)

    The gradient reaches x alone. After each update M_y <- normalize(m M_y + (1 - m) x). Unlike in
    the authors' program the learning rate does not start again with a round.

    Args:
        num_images: Number of training images, N.
        embedding_size: Width of the embedding, D. 128 in the authors' program.
        temperature: T. 0.1 in the authors' program.
        neighbors: k. 1 in the authors' program.
        rounds: R. 5 in the authors' program, of 200 epochs each.
        round_steps: Updates in a round; None for an equal share of the run's, which a run that is
            resumed with more steps cannot have had from its start.
        memory_momentum: m. 0.5 in the authors' program.
        head_start: "random" or "whitened", how the linear layer starts.
        seed: Random seed of the memory's start.
    """

    anchors: Tensor  # (N,) whether an image is one
    neighborhoods: Tensor  # (N, k) the nearest of each
    round: Tensor

    def __init__(
        self,
        *,
        num_images: int,
        embedding_size: int,
        temperature: float = 0.1,
        neighbors: int = 1,
        rounds: int = 5,
        round_steps: int | None = None,
        memory_momentum: float = 0.5,
        head_start: HeadStart = "random",
        seed: int = 0,
    ) -> None:
        super().__init__(head_start=head_start)
        if not 1 <= neighbors < num_images:
            raise ValueError(f"neighbors must be in 1..{num_images - 1}, got {neighbors}")
        self.neighbors = neighbors
        self.temperature = check_number(temperature, "temperature", above=0.0)
        self.rounds = check_count(rounds, "rounds", at_least=2)
        self.round_steps = None if round_steps is None else check_count(round_steps, "round_steps")
        self.memory = Memory(num_images, embedding_size, momentum=memory_momentum, seed=seed)
        self.register_buffer("anchors", torch.zeros(num_images, dtype=torch.bool))
        none = torch.zeros(num_images, neighbors, dtype=torch.int64)
        self.register_buffer("neighborhoods", none)
        self.register_buffer("round", torch.zeros((), dtype=torch.int64))

    def forward(self, outputs: Outputs, batch: BatchInfo) -> StepLoss:
        """The loss of a step."""
        logits = self.memory.similarities(outputs.embeddings) / self.temperature  # (B, N)
        own = batch.indices.to(logits.device)
        near = logits.gather(1, self.neighborhoods[own])  # (B, k)
        near = near.masked_fill(~self.anchors[own, None], -torch.inf)
        accepted = torch.cat([logits.gather(1, own[:, None]), near], dim=1)
        return StepLoss((logits.logsumexp(dim=1) - accepted.logsumexp(dim=1)).mean())

    def after_step(self, view: TrainingView, outputs: Outputs, batch: BatchInfo) -> None:
        """Write the embeddings of the step into the memory, and begin a round where one is due."""
        self.memory.write(batch.indices.to(outputs.embeddings.device), outputs.embeddings)
        if self.round_steps is None:
            due = view.step * self.rounds // view.steps
        else:
            due = view.step // self.round_steps
        due = min(due, self.rounds - 1)
        if due != int(self.round):
            self.discover(due)

    @torch.no_grad()
    def discover(self, number: int) -> None:
        """Choose the anchors of a round and their neighbors, from the memory.

        Args:
            number: The round, from 0.
        """
        vectors, entropies, start = self.memory.vectors, [], 0
        for rows in torch.split(vectors, _ROWS):
            similarities = self.memory.similarities(rows)
            log_odds = (similarities / self.temperature).log_softmax(dim=1)
            entropies.append(-(log_odds.exp() * log_odds).sum(dim=1))
            indices = torch.arange(len(rows), device=rows.device)
            similarities[indices, start + indices] = -torch.inf
            nearest = similarities.topk(self.neighbors, dim=1).indices
            self.neighborhoods[start : start + len(rows)] = nearest
            start += len(rows)
        count = int(len(vectors) * number / (self.rounds - 1))
        certain = torch.cat(entropies).argsort(stable=True)[:count]
        self.anchors.fill_(False)
        self.anchors[certain] = True
        self.round.fill_(number)
