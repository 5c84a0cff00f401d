"""Larger views: the model learns to see at its own size what it saw before, enlarged."""

import functools
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from cbml.data import EpochBatches
from cbml.errors import BadData
from cbml.losses import CBMLLoss, check_count, check_number
from cbml.methods.unlabeled import (
    COMPARED,
    HeadStart,
    Unlabeled,
    directions_of,
    image_features,
    nearest_others,
    shared_neighbors,
    whiten_head,
    whitening,
)
from cbml.models import Embedder, Preprocessing
from cbml.outputs import Outputs
from cbml.training import BatchInfo, EpochPlan, StepLoss, TrainingView

Vectors = NDArray[np.float32]
Indices = NDArray[np.int64]

_COMPONENTS = 512  # of the teacher's vectors
LARGEST_VIEW = 224  # pixels that pretrained backbones saw; more show them nothing they know
_HELD_OUT = 10  # one image in so many is not trained on, and judges
_FEWEST = 4  # images
_NOTHING = -1e30  # instead of minus infinity, whose gradients are NaN


class LargerViews(Unlabeled):
    """Neighbors and similarities of enlarged images, taught to the model at its own size. Ours.

    Once, before the first step, u_i are the whitened features of image i, enlarged and averaged
    with those of its mirror image, of unit length, and t_i the mean of u_i and its nearest by u,
    each by its similarity: what neighbors share is what they are, not how the photos were taken. x
    are the embeddings of crops at the model's own size; a batch is made of images with their
    nearest by t. Over the rows of other images:

        keep  = mean_i KL( softmax_j(t_i·t_j / T) || softmax_j(x_i·x_j / T) )
        pairs = CBML with positives that are among each other's nearest 3, negatives of which
                neither is among the other's nearest 15; what lies between is ignored
        loss  = keep + pair_weight * pairs

    One image in ten is not trained on. `agreement` is the share of their nearest neighbors that are
    also theirs by t: with choose_by=agreement the model that agrees best is kept, which is the
    start itself where training only did harm. At the end a linear layer that started as a whitening
    becomes that of the trained network's features, unless the old one agrees better.

    Args:
        num_images: Number of training images, N, unreadable ones included.
        enlarge: How much larger than the training crops the teacher's views are; None takes 2, more
            where searches are that large themselves, and less where it would exceed 224 pixels.
        averaged: Nearest neighbors that each t is averaged with; 0 leaves it alone.
        temperature: T of both softmaxes.
        pair_weight: Weight of CBML on the neighbors. It did not help on fixed features.
        positives: Nearest neighbors among which positives are.
        doubtful: Nearest neighbors that are no negatives.
        group: Images of a batch that are each other's neighbors.
        head_start: "random" or "whitened", how the linear layer starts.
        seed: Random seed of the batches and of the images that judge.
    """

    judged_by = ("agreement",)

    teacher: Tensor  # (N, W) t
    nearest: Tensor  # (N, doubtful) images by t, -1 where there are fewer
    held_out: Tensor  # (N,) bool

    def __init__(
        self,
        *,
        num_images: int,
        enlarge: float | None = None,
        averaged: int = 3,
        temperature: float = 0.1,
        pair_weight: float = 0.0,
        positives: int = 3,
        doubtful: int = 15,
        group: int = 4,
        head_start: HeadStart = "whitened",
        seed: int = 0,
    ) -> None:
        super().__init__(head_start=head_start)
        if not 1 <= positives <= doubtful:
            raise ValueError(f"positives must be between 1 and doubtful={doubtful}")
        if enlarge is not None:
            check_number(enlarge, "enlarge", at_least=1.0, at_most=8.0)
        self.enlarge, self.positives, self.seed = enlarge, positives, seed
        self.averaged = check_count(averaged, "averaged", at_least=0)
        self.temperature = check_number(temperature, "temperature", above=0.0)
        self.pair_weight = check_number(pair_weight, "pair_weight", at_least=0.0)
        self.group = check_count(group, "group", at_least=2)
        self.pairs = CBMLLoss.paper("sop", mining_margin=None)
        self.register_buffer("teacher", torch.zeros(num_images, _COMPONENTS))
        self.register_buffer("nearest", torch.full((num_images, doubtful), -1))
        self.register_buffer("held_out", torch.zeros(num_images, dtype=torch.bool))

    def check_images(self, class_sizes: NDArray[np.int64]) -> None:
        """Refuse too few images to have neighbors."""
        if class_sizes.sum() < _FEWEST:
            raise BadData(
                f"--method larger_views: {class_sizes.sum()} images; at least {_FEWEST} are needed"
            )

    def start(self, view: TrainingView) -> None:
        """Look at the enlarged images, once."""
        super().start(view)
        self.check_images(np.ones(len(view.readable), dtype=np.int64))
        found = torch.from_numpy(self._look(view))
        readable = torch.from_numpy(view.readable)
        device = self.teacher.device
        self.teacher[readable.to(device), : found.shape[1]] = found.to(device)
        neighbors = nearest_others(found.numpy(), self.nearest.shape[1])
        images = view.readable[neighbors]
        self.nearest[readable.to(device), : images.shape[1]] = torch.from_numpy(images).to(device)
        chance = np.random.default_rng(self.seed).permutation(view.readable)
        judges = max(1, len(chance) // _HELD_OUT)
        self.held_out[torch.from_numpy(chance[:judges]).to(device)] = True

    def _look(self, view: TrainingView) -> Vectors:
        """t of the readable images, as the main process sees them. (N, W)"""
        crop, searched = view.batches.transform.crop, view.model.preprocessing.crop
        # A view of the size of searches would teach nothing that the start does not see there.
        seen = crop if searched < 2 * crop else searched
        side = min(2 * seen, max(crop, LARGEST_VIEW))
        if self.enlarge is not None:
            side = round(crop * self.enlarge)
        embed = functools.partial(view.embed, from_files=True)
        plain, mirrored = (
            image_features(_Enlarged(view.model, side, flip), embed)  # type: ignore[arg-type]
            for flip in (False, True)
        )
        components = directions_of(len(plain), _COMPONENTS)

        def find() -> Tensor:
            weight, bias = whitening(plain, components)
            unit = [
                functional.normalize(torch.from_numpy(each @ weight.T + bias), dim=1)
                for each in (plain, mirrored)
            ]
            seen = functional.normalize(unit[0] + unit[1], dim=1).float()
            seen = average_with_nearest(seen, self.averaged)
            # What goes from process to process has one shape, and is never negative.
            return functional.pad(seen, (0, components - seen.shape[1])) + 2

        like = torch.zeros(len(plain), components)
        found: Vectors = view.distributed.from_main_process(find, like).numpy() - 2
        return found

    def judge(self, view: TrainingView) -> Mapping[str, float]:
        """The share of the nearest neighbors of images not trained on that t gives them too.

        They are embedded at the size of the training: at a larger one the untrained network agrees
        best with its own larger views.
        """
        embeddings = view.embed(view.model.at_crop(view.batches.transform.crop))
        return {"agreement": self._agreement(view.readable, embeddings)}

    def finish(self, view: TrainingView) -> bool:
        """Whiten the features anew: those of the trained network are no longer white."""
        head = view.model.head
        if self.head_start != "whitened" or not isinstance(head, nn.Linear):
            return False
        features = image_features(view.model, view.embed)
        trained = [parameter.detach().clone() for parameter in head.parameters()]
        before = self._agreement(view.readable, _embedded(head, features))
        whiten_head(head, features)
        if self._agreement(view.readable, _embedded(head, features)) < before:
            with torch.no_grad():
                for parameter, value in zip(head.parameters(), trained, strict=True):
                    parameter.copy_(value)
        return True

    def _agreement(self, readable: Indices, embeddings: Vectors) -> float:
        judges = np.flatnonzero(self.held_out.cpu().numpy()[readable])
        by_model = readable[nearest_others(embeddings, COMPARED, of=judges)]
        by_teacher = self.nearest.cpu().numpy()[readable[judges], :COMPARED]
        return shared_neighbors(by_teacher, by_model)

    def before_epoch(self, view: TrainingView) -> EpochPlan:
        """Batches of images with their neighbors."""
        shape = view.batches.sampler.plan(view.epoch).shape  # type: ignore[attr-defined]
        trained = view.readable[~self.held_out.cpu().numpy()[view.readable]]
        generator = np.random.default_rng([self.seed, view.epoch])
        nearest = self.nearest.cpu().numpy()[:, : self.group - 1]
        return EpochPlan(batches=EpochBatches(neighbor_batches(nearest, trained, shape, generator)))

    def forward(self, outputs: Outputs, batch: BatchInfo) -> StepLoss:
        """The loss of a step, with its terms."""
        x = outputs.embeddings.float()
        images = batch.indices.to(x.device)
        seen = self.teacher[images]
        other = images[:, None] != images[None, :]
        terms = {"keep": similarity_distillation(x @ x.T, seen @ seen.T, other, self.temperature)}
        total = terms["keep"]
        if self.pair_weight:
            lists = neighbor_pairs(images, self.nearest[images], self.positives)
            terms["pairs"] = self.pairs(x, images, lists)
            total = total + self.pair_weight * terms["pairs"]
        return StepLoss(total, terms)


def _embedded(head: nn.Linear, features: Vectors) -> Vectors:
    """Unit vectors that a linear layer gives of features. (N, D)"""
    with torch.no_grad():
        rows = head(torch.from_numpy(features).to(head.weight))
        embedded: Vectors = functional.normalize(rows, dim=1).float().cpu().numpy()
    return embedded


class _Enlarged(nn.Module):
    """A model that sees the same part of an image in more pixels, mirrored if asked."""

    def __init__(self, model: Embedder, side: int, mirror: bool) -> None:
        super().__init__()
        self.model, self.mirror = model, mirror
        self.preprocessing: Preprocessing = model.preprocessing.with_crop(side)

    def features(self, images: Tensor) -> Tensor:
        """Pooled features. (B, C)"""
        return self.model.features(images.flip(-1) if self.mirror else images)


def similarity_distillation(
    similarities: Tensor, wanted: Tensor, counted: Tensor, temperature: float
) -> Tensor:
    """mean_i KL( softmax_j(wanted_ij / T) || softmax_j(similarities_ij / T) ) over counted pairs.

    Args:
        similarities: Of the student. (B, B)
        wanted: Of the teacher. (B, B)
        counted: Which pairs count; a row without any counts zero. (B, B)
        temperature: T.
    """
    rows = [
        (each / temperature).masked_fill(~counted, _NOTHING).log_softmax(dim=1)
        for each in (wanted, similarities)
    ]
    terms = rows[0].exp() * (rows[0] - rows[1]).masked_fill(~counted, 0.0)
    return terms.sum(dim=1).mean()


def average_with_nearest(vectors: Tensor, count: int) -> Tensor:
    """The mean of each vector and its nearest others, each by its similarity, of unit length.

        t_i = normalize( u_i + sum_j max(u_i·u_j, 0) u_j )        over the nearest others j

    Args:
        vectors: Of unit length, u. (N, D)
        count: How many others.
    """
    if not count:
        return vectors
    total = vectors.clone()
    for places in torch.from_numpy(nearest_others(vectors.numpy(), count)).T:
        others = vectors[places]
        alike = (vectors * others).sum(dim=1, keepdim=True).clamp(min=0)
        total += alike * others
    return functional.normalize(total, dim=1)


def neighbor_pairs(
    images: Tensor, nearest: Tensor, positives: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Pairs of rows (a, p, a, n): mutual neighbors or one image, and those far from each other.

    Args:
        images: Of each row. (B,)
        nearest: Neighbors of each row's image, the nearest first. (B, K)
    """
    itself = torch.eye(len(images), dtype=torch.bool, device=images.device)
    same = images[:, None] == images[None, :]
    listed = nearest[:, :, None] == images[None, None, :]  # (B, K, B)
    near, known = listed[:, :positives].any(dim=1), listed.any(dim=1)
    positive = ((near & near.T) | same) & ~itself
    negative = ~(known | known.T | same)
    return *positive.nonzero(as_tuple=True), *negative.nonzero(as_tuple=True)  # type: ignore[return-value]


def neighbor_batches(
    nearest: Indices, trained: Indices, shape: tuple[int, ...], generator: np.random.Generator
) -> Indices:
    """Batches of images, each followed by its neighbors; an image comes once in a batch. (S, B)

    Only where a batch is larger than the set do images come again.

    Args:
        nearest: Neighbors of every image, -1 where there are fewer. (N, K)
    """
    allowed = np.zeros(len(nearest), dtype=np.bool_)
    allowed[trained] = True
    batches: list[list[int]] = []
    queue: list[int] = []
    for _ in range(shape[0]):
        rows: list[int] = []
        taken: set[int] = set()
        while len(rows) < shape[1]:
            if not queue:
                queue = generator.permutation(trained).tolist()
            if len(taken) == len(trained):
                taken = set()
            anchor = queue.pop()
            for image in (anchor, *nearest[anchor].tolist()):
                if image >= 0 and allowed[image] and image not in taken:
                    rows.append(image)
                    taken.add(image)
        batches.append(rows[: shape[1]])
    return np.array(batches, dtype=np.int64)
