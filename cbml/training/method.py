"""What a training run learns by: a loss, and whatever a method needs beside it.

`Method` is one class with a hook for each moment at which the methods of the field differ from
"embed a batch, compute a loss, update". Every hook has a default that does nothing, so that a
method is one file which overrides the few it needs. Networks, memories and histograms of a method
are its parameters and buffers: the optimizer, checkpoints and skipped updates treat them like
those of the model.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cbml.data import Batches, EpochBatches, FileImages
from cbml.errors import BadData
from cbml.models import Embedder, Head, HeadKind, resolve_head
from cbml.outputs import Outputs
from cbml.training.batches import embed_indices
from cbml.training.distributed import Distributed

_NO_GROUPS: frozenset[str] = frozenset()


@dataclass(frozen=True)
class BatchInfo:
    """What is known of the rows of a step, those of all processes.

    Args:
        labels: Class of each row. (B,)
        indices: Index of each row's image in the training set. (B,)
        stream: Which of several streams of batches this one is from; see `EpochPlan`.
        step: Updates done before this one.
    """

    labels: Tensor
    indices: Tensor
    stream: int = 0
    step: int = 0


@dataclass(frozen=True)
class StepLoss:
    """The loss of a step.

    Args:
        total: One number, with its graph.
        terms: Terms of the loss by name, for the records.
    """

    total: Tensor
    terms: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class EpochPlan:
    """How an epoch differs from the one that the sampler would draw.

    Args:
        labels: New classes of all training images, from 0; None keeps those they have. (N,)
        batches: The batches of this epoch, where the sampler is not to draw them.
        rest: Names of parameter groups whose learning rate is zero in this epoch.
        metadata: Plain values for the records.
        text: One line that describes the plan.
    """

    labels: NDArray[np.int64] | None = None
    batches: EpochBatches | None = None
    rest: frozenset[str] = _NO_GROUPS
    metadata: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters of a method that are optimized alike.

    Args:
        name: Other than those of the other groups.
        parameters: The parameters of the group.
        factor: Multiple of the learning rate.
        weight_decay: None takes that of the settings.
        momentum: Momentum where the optimizer is "sgd"; None takes that of the settings.
        first_step: Updates before it leave the group alone.
    """

    name: str
    parameters: Sequence[nn.Parameter]
    factor: float = 1.0
    weight_decay: float | None = None
    momentum: float | None = None
    first_step: int = 0


@dataclass(frozen=True)
class TrainingView:
    """What a method may look at between two steps.

    Args:
        model: The model as trained so far.
        batches: Batches of this process; their sampler knows the epoch.
        distributed: The processes that train together.
        step: Number of updates done.
        steps: Number of updates in all.
    """

    model: Embedder
    batches: Batches
    distributed: Distributed
    step: int
    steps: int

    @property
    def epoch(self) -> int:
        """The epoch that is under way or about to begin, from 0."""
        return self.batches.sampler.epoch

    @property
    def readable(self) -> NDArray[np.int64]:
        """Indices of the training images that can be read, ascending."""
        unreadable = {*getattr(self.batches.source, "reasons", ()), *self.batches.bad.reasons}
        count = len(self.batches.images)
        return np.array([index for index in range(count) if index not in unreadable])

    def embed(
        self,
        network: nn.Module | None = None,
        *,
        indices: NDArray[np.int64] | None = None,
        from_files: bool = False,
    ) -> NDArray[np.float32]:
        """Unit vectors of the readable training images, the same in every process. (N, D)

        Args:
            network: Another network than the model, with a `preprocessing` of its own.
            indices: Some of the readable images; None for all.
            from_files: Decode the images again, for a network that sees more of their pixels than
                were kept for the model.
        """
        network = self.model if network is None else network
        chosen = self.readable if indices is None else indices
        source = FileImages(self.batches.images.paths) if from_files else self.batches.source
        return embed_indices(network, source, chosen, self.distributed)


class Method(nn.Module):
    """A way to train. This one is a plain loss on embeddings and labels.

    Everything a method computes from the outputs of a step is computed from those of the global
    batch, in every process alike; the loop sees to chunks and processes. Whatever is random in a
    method comes from a generator of its own, seeded alike in all processes and kept in a buffer.

    Args:
        loss: Embeddings and labels in, one number out; None where the method has no such part.
    """

    #: Further tensors that the model gives in training; see `Embedder.forward_outputs`.
    parts: tuple[str, ...] = ()
    #: Names of the scores that `judge` gives. Where nothing else validates and `choose_by` is one
    #: of them, it chooses the model.
    judged_by: tuple[str, ...] = ()
    #: The reranker that a model trained by this method names, a key of `cbml.index.RERANKERS`.
    reranker: str | None = None
    #: Another head of the model than a linear layer; see `cbml.models.head_kinds`.
    head: HeadKind | None = None
    #: Fewest classes in a batch, and images of each, that it can learn from.
    smallest_batch: tuple[int, int] = (1, 1)

    def __init__(self, loss: nn.Module | None = None) -> None:
        super().__init__()
        self.loss = loss
        self.smallest_batch = getattr(loss, "smallest_batch", self.smallest_batch)
        self._attached: tuple[Embedder, ...] = ()  # in a tuple: the model is no part of the method

    @property
    def model(self) -> Embedder:
        """The model that is trained: its head's weights may be used in the loss.

        The gradient that reaches them this way is that of the global batch, with any number of
        processes.
        """
        if not self._attached:
            raise RuntimeError("the method is not attached to a model yet; fit does that")
        return self._attached[0]

    def heads(self, dim: int) -> tuple[Head, ...]:
        """What the model needs instead of one linear layer; empty where one is enough.

        Args:
            dim: Width of the whole embedding.
        """
        del dim
        return ()

    def check_images(self, class_sizes: NDArray[np.int64]) -> None:
        """Refuse a training set that it cannot learn from, before any image is read.

        Args:
            class_sizes: Number of images of each class; 1 for each image where no class is known.
        """

    def attach(self, model: Embedder) -> None:
        """Meet the model, before the optimizer is built; a teacher copies it here.

        Also called before images are read, so that a model which does not suit is refused then.

        Args:
            model: What will be trained, on its device.
        """
        missing = {head.name for head in self.heads(model.dim)} - {h.name for h in model.heads}
        if missing:
            raise BadData(
                f"{type(self).__name__}: the model has no head {sorted(missing)[0]!r}; build it "
                "with heads=method.heads(dim)"
            )
        if self.head is not None and model.head_kind != resolve_head(
            self.head, model.backbone_name, model.dim
        ):
            raise BadData(f"{type(self).__name__}: build the model with head=method.head")
        self._attached = (model,)

    def parameter_groups(self) -> list[ParameterGroup]:
        """What the run's optimizer optimizes, at which multiple of the learning rate."""
        own = {id(p) for optimizer in self.optimizers().values() for p in _parameters(optimizer)}
        rest = [p for p in self.parameters() if p.requires_grad and id(p) not in own]
        factor = float(getattr(self.loss, "learning_rate_factor", 1.0))
        return [ParameterGroup("loss", rest, factor)]

    def optimizers(self) -> Mapping[str, torch.optim.Optimizer]:
        """Optimizers of the method's own, by name; it steps them itself, checkpoints hold them."""
        return {}

    def start(self, view: TrainingView) -> None:
        """Prepare, once, before the first step of a new run; a resumed run does not come here.

        Args:
            view: The model may be changed.
        """

    def before_epoch(self, view: TrainingView) -> EpochPlan | None:
        """Say how the coming epoch differs; None leaves it to the sampler.

        Must give the same in every process; see `Distributed.from_main_process`.

        Args:
            view: Can embed the training set.
        """

    def teach(self, images: Tensor) -> Mapping[str, Tensor]:
        """Further parts of the outputs that take no gradient, such as those of a teacher.

        Args:
            images: Images as the model sees them; a share of the batch, or a chunk of it.
        """
        del images
        return {}

    def forward(self, outputs: Outputs, batch: BatchInfo) -> StepLoss:
        """The loss of a step.

        Args:
            outputs: Outputs of the model for the global batch, parts included.
            batch: Labels and indices of the rows.
        """
        assert self.loss is not None, "a method without a loss computes its own"
        return loss_terms(self.loss, outputs.embeddings, batch.labels)

    def after_step(self, view: TrainingView, outputs: Outputs, batch: BatchInfo) -> None:
        """Follow an update that was done: move a teacher, write a memory. Skipped ones are not.

        Args:
            view: The model after the update.
            outputs: Outputs of the global batch before the update, without a graph.
            batch: Labels and indices of the rows.
        """

    def after_validation(self, view: TrainingView, scores: Mapping[str, float]) -> None:
        """Learn from the scores on held-out classes.

        Args:
            view: The model that was validated.
            scores: Scores by name.
        """

    def judge(self, view: TrainingView) -> Mapping[str, float]:
        """Scores of the model that need no labels, larger for better; see `judged_by`.

        Args:
            view: The model to judge; it can embed the training set.
        """
        del view
        return {}

    def finish(self, view: TrainingView) -> bool:
        """Complete the trained model that is kept, once, at the end; gives whether it did.

        Must give the same in every process. A start model that nothing surpassed is left alone.

        Args:
            view: The model with its best weights, which may be changed.
        """
        del view
        return False

    @property
    def refines(self) -> bool:
        """Whether embeddings of a set depend on each other."""
        return type(self).refine is not Method.refine

    def refine(self, outputs: Outputs) -> Tensor:
        """Embeddings of a whole evaluated set, where they depend on each other. (N, D)

        Scores of refined embeddings are transductive and must be reported as such.

        Args:
            outputs: Outputs of all images of the dataset.
        """
        return outputs.embeddings


def as_method(method: nn.Module) -> Method:
    """The method itself, or a plain loss as a method."""
    return method if isinstance(method, Method) else Method(method)


def loss_terms(loss: nn.Module, embeddings: Tensor, labels: Tensor) -> StepLoss:
    """The value of a loss, with its terms where it tells them.

    Args:
        loss: Embeddings and labels in, one number out.
        embeddings: Unit vectors. (B, D)
        labels: Class of each row. (B,)
    """
    if not callable(getattr(loss, "terms", None)):
        return StepLoss(loss(embeddings, labels))
    terms = loss.terms(embeddings, labels)  # type: ignore[operator]
    names = [each.name for each in dataclasses.fields(terms) if each.name != "total"]
    return StepLoss(terms.total, {name: getattr(terms, name) for name in names})


def _parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
