"""When labels are due: embed the pictures, cluster them, tell the loss, say how it went."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from cbml.data import Batches
from cbml.errors import BadData
from cbml.models import Embedder
from cbml.pseudo.labels import Labelling, label_rows
from cbml.pseudo.staged import StagedLoss, move_class_vectors
from cbml.pseudo.whitening import picture_features, whitened
from cbml.training import BadNumbers, NewLabels, Team
from cbml.training.assembly import Shelf

__all__ = ["Refresh"]

Rows = NDArray[np.float32]
Labels = NDArray[np.int64]
Study = Callable[[Embedder, Labels], Mapping[str, float]]


@dataclass(frozen=True, kw_only=True)
class Refresh:
    """New labels for the pictures of a run, every so many passes; what `fit` takes as `relabel`.

    The first process clusters and the others get its labels. A picture that cannot be read gets
    the label of the next one that can: it is replaced by a member of that cluster when it is drawn.

    Args:
        shelf: the readable pictures.
        clusters: K.
        every: passes between two clusterings.
        cluster_by: "embedding", or "features", those before the linear layer, whitened.
        loss: is told: class vectors move to the clusters, a StagedLoss gets new options.
        estimate: gives a record with the "options" of a StagedLoss from embeddings and labels.
        study: gives scores to write down, from the model and the labels of readable pictures.
        seed: of the first centres.
        collapse: "warn", "stop" or "ignore", as for the training loop.
        team: the processes that train together.
    """

    shelf: Shelf
    clusters: int
    every: int
    cluster_by: Literal["embedding", "features"]
    loss: nn.Module
    estimate: Callable[[Rows, Labels], Mapping[str, Any]] | None = None
    study: Study | None = None
    seed: int = 0
    collapse: str = "warn"
    team: Team

    def __call__(self, model: Embedder, batches: Batches) -> NewLabels | None:
        """Labels for the pass to come, or None where those of the last pass stay.

        Args:
            model: as trained so far.
            batches: of the run; their sampler knows which pass it is.
        """
        if batches.sampler.epoch % self.every:
            return None
        numbers = np.array(self.shelf.numbers)
        previous = batches.images.labels if batches.relabelled else None
        rows = self._rows(model)  # unit vectors, or features
        known = None if previous is None else previous[numbers]
        labels = self._clustered(rows, model.dim, known)
        found = Labelling.of(labels, self.clusters, rows, known)
        facts, text = found.facts(), found.text()
        facts |= self._tell_loss(model, rows, found.labels)
        alarm = None if self.collapse == "ignore" else found.alarm()
        if alarm is not None:
            if self.collapse == "stop":
                raise BadNumbers(f"collapse: {alarm}")
            facts["collapse"], text = alarm, f"{text}; collapse: {alarm}"
        if self.study is not None:
            scores = dict(self.study(model, found.labels))
            facts["study"] = scores
            text += "; study: " + ", ".join(f"{name} {scores[name]:.4f}" for name in scores)
        next_readable = np.searchsorted(numbers, np.arange(len(batches.images)))
        everyones = found.labels[np.minimum(next_readable, len(numbers) - 1)]
        return NewLabels(everyones, facts, text)

    def _rows(self, model: Embedder) -> Rows:
        if self.cluster_by == "embedding":
            return self.shelf.embedded(model, self.team)
        return picture_features(model, self.shelf, self.team)

    def _clustered(self, rows: Rows, dim: int, previous: Labels | None) -> Labels:
        """The labels of the first process, in every process."""
        failure: Exception | None = None
        labels = torch.full((len(rows),), -1)
        if self.team.leads:
            try:
                clustered = rows if self.cluster_by == "embedding" else whitened(rows, dim)
                found = label_rows(clustered, self.clusters, previous=previous, seed=self.seed)
                labels = torch.from_numpy(found)
            except Exception as error:  # the others must hear of it, or they would wait for ever
                failure = error
        self.team.follow([labels])
        if failure is not None:
            raise failure
        if int(labels[0]) < 0:
            raise BadData("the first process could not cluster; its message says why")
        return labels.numpy()

    def _tell_loss(self, model: Embedder, rows: Rows, labels: Labels) -> dict[str, Any]:
        keeps_vectors = any(True for _ in self.loss.parameters())
        if self.estimate is None and not keeps_vectors:
            return {}
        if self.cluster_by != "embedding":
            rows = self.shelf.embedded(model, self.team)
        move_class_vectors(self.loss, rows, labels, self.clusters)
        if self.estimate is None or not isinstance(self.loss, StagedLoss):
            return {}
        options = dict(self.estimate(rows, labels)["options"])
        self.loss.renew(options)
        return {"options": options}
