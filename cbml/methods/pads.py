"""PADS: a policy that learns, while the model does, at which distances to draw negatives."""

import copy
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from cbml.data import ClassBalancedSampler, EpochBatches
from cbml.errors import BadData, check_choice
from cbml.evaluation import evaluate
from cbml.losses import check_count, check_number
from cbml.methods.margin import Draws, Pairs, distance_table, even_weights, margin_loss
from cbml.methods.streams import batches_of
from cbml.outputs import Outputs
from cbml.training import BatchInfo, EpochPlan, Method, ParameterGroup, StepLoss, TrainingView

Reward = Literal["recall", "recall_and_nmi"]
Indices = NDArray[np.int64]

BINS = 29
#: What an action multiplies the weight of its bin by.
FACTORS = (0.8, 1.0, 1.25)
_EDGES = torch.linspace(0.1, 1.4, BINS + 1, dtype=torch.float64)
_CUTOFFS, _METRICS = 4, 7  # values of K, and numbers of q
_KEPT, _SPANS = 20, (2, 8, 16, 32)  # metrics of so many turns; means over so many
_SMALLEST, _LARGEST = 1e-25, 1e25  # weights of bins
_DISCOUNT, _CLIP, _VALUE_WEIGHT = 0.99, 0.2, 0.5
_HIDDEN, _RATE, _COPY_EVERY = 128, 0.01, 5
_FEWEST = 2  # images of a class that are held back, and at least as many that are not


class _Policy(nn.Module):
    """A state to the logits of each bin's actions, (3, bins), and to the value of the state."""

    def __init__(self, state: int, bins: int) -> None:
        super().__init__()
        self.bins = bins
        self.trunk = nn.Sequential(
            nn.Linear(state, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, _HIDDEN), nn.ReLU()
        )
        self.actions = nn.Linear(_HIDDEN, len(FACTORS) * bins)
        self.value = nn.Linear(_HIDDEN, 1)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.trunk(state)
        return self.actions(hidden).view(len(FACTORS), self.bins), self.value(hidden)[0]


class PADS(Method):
    """The margin loss with negatives from a histogram that a policy adapts (Roth et al. 2020).

    A part of each class is held back. A batch of the others has for each anchor a positive, drawn
    evenly from its class, and a negative, drawn by p[bin(d)] with d its distance, both the anchor
    included: the authors call it important that "negatives" may be of the anchor's class. The loss
    is the margin loss with β learned, one for each class. Every M updates, t = 0, 1, ...:

        q_t = recall@K of four K, distances within and between classes, nmi of what is held back
        s_t = last 20 q; means of the last 2, 8, 16 and 32; p; updates done / updates in all
        R_t = recall@1, or its mean with nmi
        for t > 0:  r = sign(R_t - R_{t-1}),   A = r + 0.99 V(s_t) - V(s_{t-1})
                    ρ_b = π(a_b | s_{t-1}) / π_old(a_b | s_{t-1})
                    loss = -mean_b min(ρ_b A, clip(ρ_b, 0.8, 1.2) A) + ½ (V(s_{t-1}) - R_t)²
        a ~ π(s_t);   w_b <- w_b (0.8, 1 or 1.25 as a_b says);   p = w / Σ w
        every fifth time π_old <- π

    The value V is trained towards the metric and not towards the return, as in the authors'
    program. The policy has an Adam of its own.

    Args:
        num_classes: Training classes; labels are 0 ... num_classes - 1.
        every: M. 30 for CUB and Cars, from the authors' run files, as all numbers here; 60 for SOP.
        held_back: Share of each class, at least two images of it. 0.15 for CUB, else 0.1. Of a
            class of fewer than four nothing is held back.
        reward: "recall" for CUB, "recall_and_nmi" for Cars and SOP.
        recall_at: The four K of q. 1, 2, 4, 8; 1, 10, 100, 1000 for SOP.
        own_class: Whether an anchor's class is among its negatives.
        margin: m. 0.2.
        beta: Start of β. 0.6 for CUB and Cars, 1.2 for SOP.
        beta_factor: Multiple of the learning rate for β. 100; 50 for Cars.
        seed: Random seed of the policy, of what is held back, of batches and pairs.
    """

    smallest_batch = (2, 2)
    weights: Tensor  # (bins,) w
    history: Tensor  # (32, 7) q, oldest first
    last_state: Tensor
    last_actions: Tensor
    last_reward: Tensor
    turns: Tensor  # t of the next turn

    def __init__(
        self,
        *,
        num_classes: int,
        every: int = 30,
        held_back: float = 0.15,
        reward: Reward = "recall",
        recall_at: Sequence[int] = (1, 2, 4, 8),
        own_class: bool = True,
        margin: float = 0.2,
        beta: float = 0.6,
        beta_factor: float = 100.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.every = check_count(every, "every")
        self.own_class, self.seed = own_class, seed
        self.held_back = check_number(held_back, "held_back", above=0.0, at_most=0.5)
        self.reward = check_choice(reward, "reward", Reward)
        self.recall_at = [check_count(cutoff, "recall_at") for cutoff in recall_at]
        if len(self.recall_at) != _CUTOFFS or self.recall_at[0] != 1:
            raise ValueError(f"recall_at: give {_CUTOFFS} numbers, the first of them 1")
        self.margin = check_number(margin, "margin", at_least=0.0)
        self.beta_factor = check_number(beta_factor, "beta_factor", at_least=0.0)
        start = check_number(beta, "beta", above=0.0)
        self.beta = nn.Parameter(torch.full((num_classes,), start))
        length = _METRICS * (_KEPT + len(_SPANS)) + BINS + 1
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.policy = _Policy(length, BINS)
        self.old_policy = copy.deepcopy(self.policy).requires_grad_(False)
        self._optimizer = torch.optim.Adam(self.policy.parameters(), lr=_RATE)
        self.register_buffer("weights", start_weights())
        self.register_buffer("history", torch.zeros(max(_SPANS), _METRICS))
        self.register_buffer("last_state", torch.zeros(length))
        self.register_buffer("last_actions", torch.zeros(BINS, dtype=torch.int64))
        self.register_buffer("last_reward", torch.zeros(()))
        self.register_buffer("turns", torch.zeros((), dtype=torch.int64))

    def parameter_groups(self) -> list[ParameterGroup]:
        """β, without weight decay."""
        return [ParameterGroup("beta", [self.beta], self.beta_factor, weight_decay=0.0)]

    def optimizers(self) -> Mapping[str, torch.optim.Optimizer]:
        """That of the policy."""
        return {"policy": self._optimizer}

    def check_images(self, class_sizes: NDArray[np.int64]) -> None:
        """Refuse a dataset of which nothing can be held back."""
        if not (class_sizes >= 2 * _FEWEST).any():
            raise BadData(
                "--method pads: no class has four images, of which it holds two back to learn its "
                "policy by; use another method"
            )

    def before_epoch(self, view: TrainingView) -> EpochPlan:
        """Batches of what is not held back."""
        sampler, labels = view.batches.sampler, view.batches.images.known_labels
        assert isinstance(sampler, ClassBalancedSampler)
        held = self._held_back(view)
        rest = np.setdiff1d(np.arange(len(labels)), held)
        size = sampler.classes_per_batch * sampler.samples_per_class
        seed = (self.seed, view.epoch)
        plan = batches_of(rest, labels[rest], sampler, size=size, seed=seed)
        return EpochPlan(
            batches=EpochBatches(plan),
            metadata={"held_back": len(held)},
            text=f"{len(rest)} images to train on, {len(held)} held back for the policy",
        )

    def _held_back(self, view: TrainingView) -> Indices:
        """Images that are not trained on, by class and seed alone."""
        return hold_back(view.batches.images.known_labels, self.held_back, seed=self.seed)

    def forward(self, outputs: Outputs, batch: BatchInfo) -> StepLoss:
        """The margin loss of pairs that the histogram draws."""
        rows, beta = outputs.embeddings, self.beta[batch.labels]
        pairs = self.pairs(rows, batch)
        return StepLoss(margin_loss(rows, *pairs, beta=beta, margin=self.margin))

    def pairs(self, rows: Tensor, batch: BatchInfo) -> tuple[Pairs, Pairs]:
        """A positive and a negative of each anchor.

        Args:
            rows: Unit vectors. (B, D)
            batch: Labels and images of the rows.
        """
        draws = Draws(batch, self.seed)
        same = batch.labels[:, None] == batch.labels[None, :]
        weights = self.weights.log()[distance_bin(distance_table(rows), _EDGES)]
        anchors = torch.arange(len(rows), device=rows.device)
        if not self.own_class:
            weights = weights.masked_fill(same, -torch.inf)
            anchors = anchors[~same.all(dim=1)]
        partner, other = (draws.columns(each)[:, 0] for each in (even_weights(same), weights))
        return Pairs(anchors, partner[anchors]), Pairs(anchors, other[anchors])

    def after_step(self, view: TrainingView, outputs: Outputs, batch: BatchInfo) -> None:
        """Let the policy learn and act, every M updates and first after M + 1."""
        del outputs, batch
        if view.step > self.every * (int(self.turns) + 1):
            self._turn(self._metrics(view), view.step / view.steps)

    def _metrics(self, view: TrainingView) -> Tensor:
        """q of what is held back, as the main process finds it."""
        held = np.intersect1d(self._held_back(view), view.readable)
        labels, vectors = view.batches.images.known_labels[held], view.embed(indices=held)

        def measure() -> Tensor:
            found = evaluate(vectors, labels, recall_at=self.recall_at).metrics
            recalls = [found[f"recall@{cutoff}"] for cutoff in self.recall_at]
            return torch.tensor([*recalls, *class_distances(vectors, labels), found["nmi"]])

        return view.distributed.from_main_process(measure, torch.zeros(_METRICS))

    def _turn(self, metrics: Tensor, done: float) -> None:
        """One turn of the policy: learn from the last actions, then act."""
        metrics, turn = metrics.to(self.history), int(self.turns)
        if turn == 0:
            self.history.copy_(metrics.expand_as(self.history))
        else:
            self.history.copy_(torch.cat([self.history[1:], metrics[None]]))
        state = self._state(done)
        reward = metrics[0] if self.reward == "recall" else (metrics[0] + metrics[-1]) / 2.0
        if turn > 0:
            self._learn(state, reward)
        with torch.no_grad():
            logits = self.policy(state)[0]
        actions = self._act(logits, turn)
        factors = torch.tensor(FACTORS, device=actions.device, dtype=self.weights.dtype)
        self.weights.copy_((self.weights * factors[actions]).clamp(_SMALLEST, _LARGEST))
        if turn > 1 and turn % _COPY_EVERY == 0:
            self.old_policy.load_state_dict(self.policy.state_dict())
        self.last_state.copy_(state)
        self.last_actions.copy_(actions)
        self.last_reward.copy_(reward)
        self.turns += 1

    def _state(self, done: float) -> Tensor:
        means = [self.history[-span:].mean(dim=0) for span in _SPANS]
        shares = (self.weights / self.weights.sum()).to(self.history)
        progress = self.history.new_tensor([done])
        return torch.cat([self.history[-_KEPT:].flatten(), *means, shares, progress])

    def _act(self, logits: Tensor, turn: int) -> Tensor:
        """An action for each bin, drawn by its softmax. (bins,)"""
        mixed = np.random.SeedSequence((self.seed, turn)).generate_state(1)[0]
        generator = torch.Generator().manual_seed(int(mixed))
        chances = logits.softmax(dim=0).T.cpu()
        return torch.multinomial(chances, 1, generator=generator)[:, 0].to(logits.device)

    def _learn(self, state: Tensor, reward: Tensor) -> None:
        with torch.no_grad():
            value = self.policy(state)[1]
            old_logits = self.old_policy(self.last_state)[0]
        logits, last_value = self.policy(self.last_state)
        loss = policy_loss(
            logits,
            old_logits,
            self.last_actions,
            rewards=(self.last_reward, reward),
            values=(last_value, value),
        )
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)


def policy_loss(
    logits: Tensor,
    old_logits: Tensor,
    actions: Tensor,
    *,
    rewards: tuple[Tensor, Tensor],
    values: tuple[Tensor, Tensor],
) -> Tensor:
    """The clipped loss of a policy, and of the value of the state in which it acted.

    Args:
        logits: Of the actions of each bin, in the last state. (3, bins)
        old_logits: The same by the old policy. (3, bins)
        actions: Those that were taken. (bins,)
        rewards: R of the last state and of the present one.
        values: V of the last state and of the present one.
    """
    advantage = torch.sign(rewards[1] - rewards[0])
    advantage = advantage + _DISCOUNT * values[1].detach() - values[0].detach()
    bins = torch.arange(len(actions), device=actions.device)
    ratio = logits.log_softmax(dim=0)[actions, bins] - old_logits.log_softmax(dim=0)[actions, bins]
    ratio = ratio.exp()
    clipped = ratio.clamp(1.0 - _CLIP, 1.0 + _CLIP)
    gain = torch.minimum(ratio * advantage, clipped * advantage).mean()
    return -gain + _VALUE_WEIGHT * functional.mse_loss(values[0], rewards[1])


def distance_bin(distances: Tensor, edges: Tensor) -> Tensor:
    """The bin of each distance; the first and the last have no end.

    Args:
        edges: Of the bins, the outer two included. (bins + 1,)
    """
    inner = edges[1:-1].to(distances)
    return torch.bucketize(distances, inner)


def start_weights() -> Tensor:
    """w at the start: bins whose edge, moved by 2/30, lies in 0.3 ... 0.7. (bins,)"""
    moved = _EDGES[:-1] + 2.0 / (BINS + 1)
    inside = (moved >= 0.3) & (moved <= 0.7)
    weights = torch.where(inside, 1.0, 1e-15)
    return (weights / weights.sum()).float()


def hold_back(labels: Indices, share: float, *, seed: int) -> Indices:
    """Images of each class that are not trained on, ascending.

    Args:
        labels: Class of each image. (N,)
        share: Of each class, at least two of those that have four.
    """
    generator, held = np.random.default_rng(seed), []
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        if len(members) >= 2 * _FEWEST:
            held.append(members[: max(_FEWEST, round(share * len(members)))])
    return np.sort(np.concatenate(held)) if held else np.zeros(0, dtype=np.int64)


def class_distances(vectors: NDArray[np.float32], labels: Indices) -> tuple[float, float]:
    """Mean cosine distance within classes, and between the unit means of classes.

    Args:
        vectors: Unit vectors. (N, D)
        labels: Class of each. (N,)
    """
    within, means = [], []
    for label in np.unique(labels):
        own = vectors[labels == label].astype(np.float64)
        total = own.sum(axis=0)
        pairs = len(own) * (len(own) - 1)
        if pairs:
            within.append(1.0 - (total @ total - np.square(own).sum()) / pairs)
        means.append(total / max(float(np.linalg.norm(total)), 1e-12))
    total, count = np.sum(means, axis=0), len(means)
    alike = (total @ total - np.square(means).sum()) / max(1, count * (count - 1))
    between = 1.0 - alike if count > 1 else 0.0
    return max(0.0, float(np.mean(within)) if within else 0.0), max(0.0, float(between))
