"""What Ortho and sSUML share: a linear map of unit features, which is the model's linear layer."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from cbml.errors import BadData
from cbml.methods.memory import HeadStart, Unlabeled
from cbml.methods.whitening import image_features
from cbml.models import Embedder
from cbml.outputs import Outputs
from cbml.training import BatchInfo, TrainingView


class Projection(Unlabeled):
    """A method that learns L of L'x, x the features of unit length, as the model's linear layer.

    Its authors compare by the distance |L'(x - y)|, which no shift changes; the model compares by
    cosines, which one does. The layer's bias is therefore kept at -L'c, c the mean feature of the
    images before the first step.

    Args:
        head_start: "random", or "whitened": the principal directions of the features.
    """

    parts = ("features",)

    center: Tensor  # (C,)

    def __init__(self, *, head_start: HeadStart = "random") -> None:
        super().__init__(head_start=head_start)
        self.register_buffer("center", torch.zeros(0))

    def attach(self, model: Embedder) -> None:
        """Meet the model, whose features tell how wide L is."""
        if not isinstance(model.head, nn.Linear):
            raise BadData(f"{type(self).__name__}: needs a model with one linear layer")
        super().attach(model)
        self.center = torch.zeros(model.head.in_features, device=model.head.weight.device)

    @property
    def projection(self) -> Tensor:
        """L', the weight of the model's linear layer. (D, C)"""
        weight: Tensor = self.model.head.weight  # type: ignore[assignment]
        return weight

    def start(self, view: TrainingView) -> None:
        """Make the columns of L orthonormal, and let the bias subtract the mean feature.

        A whitening start becomes the principal directions: divided by their deviations they would
        be far from what either method calls a good L.
        """
        super().start(view)
        features = image_features(view.model, view.embed)
        self.center.copy_(torch.from_numpy(features.mean(axis=0)))
        self.orthonormalize()
        self.settle()

    @torch.no_grad()
    def orthonormalize(self) -> None:
        """Make the columns of L orthonormal; those of a good L stay as they are."""
        turned, upper = torch.linalg.qr(self.projection.T.double())
        signs = torch.where(upper.diagonal() < 0, -1.0, 1.0)
        self.projection.copy_((turned * signs).T)

    @torch.no_grad()
    def settle(self) -> None:
        """Bring the linear layer back to where the method allows it to be."""
        bias: Tensor = self.model.head.bias  # type: ignore[assignment]
        bias.copy_(-self.projection @ self.center)

    def after_step(self, view: TrainingView, outputs: Outputs, batch: BatchInfo) -> None:
        """Bring the linear layer back after an update."""
        del view, outputs, batch
        self.settle()

    def unit_features(self, outputs: Outputs) -> Tensor:
        """x, the positive part of the pooled features, of unit length. (B, C)"""
        return functional.normalize(functional.relu(outputs.parts["features"].float()), dim=1)


def angular_factor(alpha: float) -> float:
    """4 tan²(alpha), alpha in degrees."""
    if not 0 < alpha < 90:
        raise ValueError(f"alpha must be between 0 and 90 degrees, got {alpha}")
    return 4 * float(torch.tan(torch.deg2rad(torch.tensor(alpha, dtype=torch.float64))) ** 2)
