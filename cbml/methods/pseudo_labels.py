"""Pseudo-labels: any loss on clusters of the training images, renewed between epochs."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from cbml.methods.clusters import Labeling, cluster_labels, spread_labels
from cbml.methods.unlabeled import HeadStart, Unlabeled, image_features, whitened
from cbml.models import Embedder
from cbml.training import EpochPlan, NonFiniteError, TrainingView

Vectors = NDArray[np.float32]
Labels = NDArray[np.int64]
Study = Callable[[Embedder, Labels], Mapping[str, float]]


class PseudoLabels(Unlabeled):
    """A loss on labels that are clusters of what the model sees, found again every few epochs.

    The main process clusters and the others get its labels. An image that cannot be read gets the
    label of the next one that can: it is replaced by a member of that cluster when it is drawn.
    Class vectors that the loss keeps, such as proxies, move to the new clusters.

    Args:
        loss: The loss, or, with `estimate`, a function that makes it from estimated options; that
            loss must have no parameters, which would be lost.
        clusters: How many clusters, K; None never clusters: every image stays a class of its own.
        every: Epochs between two clusterings.
        cluster_by: "embedding", or "features", those before the linear layer, whitened.
        head_start: "whitened" lets the linear layer start as the whitening of the training
            images' features; "random" leaves it as it is.
        estimate: Gives a record with the "options" of the loss from embeddings and labels, asked
            at each clustering.
        study: Gives scores to record, from the model and the labels of readable images.
        seed: Random seed of the first centers.
        collapse: "warn", "stop" or "ignore", as for the training loop.
    """

    def __init__(
        self,
        loss: nn.Module | Callable[[Mapping[str, Any]], nn.Module],
        *,
        clusters: int | None,
        every: int = 1,
        cluster_by: Literal["embedding", "features"] = "embedding",
        head_start: HeadStart = "random",
        estimate: Callable[[Vectors, Labels], Mapping[str, Any]] | None = None,
        study: Study | None = None,
        seed: int = 0,
        collapse: Literal["warn", "stop", "ignore"] = "warn",
    ) -> None:
        made = loss if isinstance(loss, nn.Module) else loss({})
        super().__init__(made, head_start=head_start)
        self.make_loss = None if isinstance(loss, nn.Module) else loss
        if (estimate is None) != (self.make_loss is None):
            raise ValueError("loss: a function that makes it goes with estimate, and only with it")
        if estimate is not None and any(True for _ in made.parameters()):
            raise ValueError("loss: one with parameters cannot be made again while it is trained")
        self.options: dict[str, Any] = {}
        self.clusters = clusters
        self.every = every
        self.cluster_by = cluster_by
        self.estimate = estimate
        self.study = study
        self.seed = seed
        self.collapse = collapse

    def before_epoch(self, view: TrainingView) -> EpochPlan | None:
        """New labels where they are due."""
        if self.clusters is None or view.epoch % self.every:
            return None
        readable, images = view.readable, view.batches.images
        previous = images.known_labels[readable] if view.batches.relabeled else None
        if self.cluster_by == "embedding":
            vectors = view.embed()
        else:
            vectors = image_features(view.model, view.embed)
        labels = self._clustered(view, vectors, self.clusters, previous)
        found = Labeling.of(labels, self.clusters, vectors, previous)
        metadata, text = found.metadata(), found.text()
        metadata |= self._tell_loss(view, vectors, labels, self.clusters)
        alarm = None if self.collapse == "ignore" else found.alarm()
        if alarm is not None:
            if self.collapse == "stop":
                raise NonFiniteError(f"collapse: {alarm}")
            metadata["collapse"], text = alarm, f"{text}; collapse: {alarm}"
        if self.study is not None:
            scores = dict(self.study(view.model, labels))
            metadata["study"] = scores
            text += "; study: " + ", ".join(f"{name} {scores[name]:.4f}" for name in scores)
        everyones = spread_labels(labels, readable, len(images))
        return EpochPlan(labels=everyones, metadata=metadata, text=text)

    def _clustered(
        self, view: TrainingView, vectors: Vectors, clusters: int, previous: Labels | None
    ) -> Labels:
        """The labels of the main process, in every process."""

        def cluster() -> Tensor:
            unit = vectors
            if self.cluster_by == "features":
                unit = whitened(vectors, view.model.dim)
            found = cluster_labels(unit, clusters, previous=previous, seed=self.seed)
            return torch.from_numpy(found)

        like = torch.zeros(len(vectors), dtype=torch.int64)
        return view.distributed.from_main_process(cluster, like).numpy()

    def _tell_loss(
        self, view: TrainingView, vectors: Vectors, labels: Labels, clusters: int
    ) -> dict[str, Any]:
        """Move the loss's class vectors, or make it again with constants of the new clusters."""
        assert self.loss is not None
        keeps_vectors = any(True for _ in self.loss.parameters())
        if self.estimate is None and not keeps_vectors:
            return {}
        if self.cluster_by != "embedding":
            vectors = view.embed()
        move_class_vectors(self.loss, vectors, labels, clusters)
        if self.estimate is None:
            return {}
        self._renew(self.estimate(vectors, labels)["options"])
        return {"options": self.options}

    def _renew(self, options: Mapping[str, Any]) -> None:
        assert self.make_loss is not None
        self.options = dict(options)
        self.loss = self.make_loss(self.options)

    def get_extra_state(self) -> Tensor:
        """The estimated options as the bytes of a JSON text: a checkpoint holds tensors."""
        return torch.tensor(list(json.dumps(self.options).encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Resume with the options that a checkpoint holds.

        Args:
            state: As `get_extra_state` gave it.
        """
        options = json.loads(bytes(state.tolist()))
        if self.make_loss is not None:
            self._renew(options)


def move_class_vectors(loss: nn.Module, vectors: Vectors, labels: Labels, clusters: int) -> None:
    """Put the vectors that a loss keeps for its classes where the clusters now are.

    A parameter of the shape K × D or D × K is taken to hold them. Where K equals D nothing says
    which it is, and it stays as it is; so do those of empty clusters.
    """
    sums = torch.zeros(clusters, vectors.shape[1])
    sums.index_add_(0, torch.from_numpy(labels), torch.from_numpy(vectors))
    alive = torch.from_numpy(np.bincount(labels, minlength=clusters) > 0)
    centers = functional.normalize(sums, dim=1)
    for parameter in loss.parameters():
        if clusters == vectors.shape[1]:
            continue
        if parameter.shape == centers.shape:
            parameter.data[alive] = centers[alive].to(parameter)
        elif parameter.shape == centers.T.shape:
            parameter.data[:, alive] = centers[alive].T.to(parameter)
