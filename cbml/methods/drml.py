"""DRML: branches on pieces of the features, each trained on the images that it knows best."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cbml.errors import BadData
from cbml.losses import LOSSES, check_count, check_number
from cbml.models import Embedder, Head, feature_piece
from cbml.outputs import Outputs
from cbml.training import BatchInfo, EpochPlan, Method, ParameterGroup, StepLoss, TrainingView


class DRML(Method):
    """Branches routed by reconstruction, and relations between them (Zheng et al. 2021).

    With h_k the k-th piece of the pooled features, v_k the unit vector of the linear branch on it
    and "out" the branches and their relations side by side (`cbml.models.heads`):

        e_k  = mean (sg(h_k) - Dec_k sg(v_k))²        (B,) what branch k loses of an image
        k(n) = argmin_k e_k[n]                        the branch of image n
        loss = Σ_k L_k(v_k[n: k(n) = k]) + λ_whole L(out) + λ_rec mean e

    L and the L_k are losses of their own; one of no image, or of no pair, is zero. The decoders
    Dec are of the training alone. The embedding is "out", of length one. In the first epochs the
    backbone rests.

    Args:
        branch_losses: L_k, one for each branch.
        whole_loss: L.
        whole_weight: λ_whole.
        reconstruction_weight: λ_rec.
        warmup_epochs: Epochs in which the backbone rests.
        decoder_factor: Factor on the decoders' learning rate.
        seed: Random seed of the decoders.
    """

    parts = ("features",)

    def __init__(
        self,
        branch_losses: Sequence[nn.Module],
        whole_loss: nn.Module,
        *,
        whole_weight: float,
        reconstruction_weight: float,
        warmup_epochs: int,
        decoder_factor: float,
        seed: int,
    ) -> None:
        super().__init__()
        self.branch_losses, self.whole_loss = nn.ModuleList(branch_losses), whole_loss
        self.whole_weight = check_number(whole_weight, "whole_weight", at_least=0.0)
        self.reconstruction_weight = check_number(
            reconstruction_weight, "reconstruction_weight", at_least=0.0
        )
        self.warmup_epochs = check_count(warmup_epochs, "warmup_epochs", at_least=0)
        self.decoder_factor = check_number(decoder_factor, "decoder_factor", above=0.0)
        self.seed = seed
        self.decoders = nn.ModuleList()

    @property
    def branches(self) -> list[str]:
        """Names of the branches' heads."""
        return [f"branch_{number + 1}" for number in range(len(self.branch_losses))]

    def heads(self, dim: int) -> tuple[Head, ...]:
        """The branches, and the head that relates them.

        Args:
            dim: Width of the embedding; 512 in the paper's tables.
        """
        width, count = branch_width(dim, len(self.branch_losses)), len(self.branch_losses)
        branches = [
            Head(name=name, dim=width, weight=0.0, piece=(number, count))
            for number, name in enumerate(self.branches)
        ]
        whole = Head(name="whole", dim=dim, mixes=tuple(self.branches), mixing="relations")
        return (*branches, whole)

    def attach(self, model: Embedder) -> None:
        """Build the decoders."""
        super().attach(model)
        if len(self.decoders):
            return
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            for name in self.branches:
                weight = model.get_parameter(f"head.{name}.0.weight")
                decoder = nn.Linear(*weight.shape)
                nn.init.kaiming_normal_(decoder.weight, mode="fan_out")
                nn.init.zeros_(decoder.bias)
                self.decoders.append(decoder)
        self.to(weight.device)

    def parameter_groups(self) -> list[ParameterGroup]:
        """What the losses learn, and the decoders."""
        losses = [*self.branch_losses.parameters(), *self.whole_loss.parameters()]
        factor = float(getattr(self.whole_loss, "learning_rate_factor", 1.0))
        decoders = [*self.decoders.parameters()]
        return [
            ParameterGroup("loss", losses, factor),
            ParameterGroup("decoders", decoders, self.decoder_factor),
        ]

    def before_epoch(self, view: TrainingView) -> EpochPlan | None:
        """Let the backbone rest at first."""
        return EpochPlan(rest=frozenset({"backbone"})) if view.epoch < self.warmup_epochs else None

    def errors(self, features: Tensor, branches: Sequence[Tensor]) -> Tensor:
        """e: what each branch loses of each image. (B, K)

        Args:
            features: h. (B, C)
            branches: v_k. (B, d) each
        """
        found = []
        for number, (decoder, branch) in enumerate(zip(self.decoders, branches, strict=True)):
            piece = feature_piece(features, number, len(branches)).detach()
            found.append((piece - decoder(branch.detach())).square().mean(dim=1))
        return torch.stack(found, dim=1)

    def forward(self, outputs: Outputs, batch: BatchInfo) -> StepLoss:
        """The losses of the branches on their images, of the whole, and of the decoders.

        Args:
            outputs: With the parts of the branches, and features.
        """
        branches = [outputs.parts[name] for name in self.branches]
        errors = self.errors(outputs.parts["features"], branches)
        chosen = errors.detach().argmin(dim=1)
        routed = [
            loss(rows[chosen == number], batch.labels[chosen == number])
            for number, (loss, rows) in enumerate(zip(self.branch_losses, branches, strict=True))
        ]
        terms = {
            "branches": torch.stack(routed).sum(),
            "whole": self.whole_loss(outputs.embeddings, batch.labels),
            "reconstruction": errors.mean(),
        }
        total = terms["branches"] + self.whole_weight * terms["whole"]
        return StepLoss(total + self.reconstruction_weight * terms["reconstruction"], terms)


def branch_width(dim: int, branches: int) -> int:
    """Width of each branch, all of which are alike."""
    if dim % branches:
        raise BadData(f"dim {dim}: {branches} branches of one width need a multiple of {branches}")
    return dim // branches


class ProxyAnchorDRML(DRML):
    """DRML with a proxy-anchor loss of each branch and of the whole.

    Args:
        num_classes: Number of training classes.
        embedding_size: Width of the embedding.
        branches: K. 4, from the authors' program, as all numbers here.
        margin: Margin of the proxy-anchor losses. 0.2.
        scale: Scale of the proxy-anchor losses. 64.
        whole_weight: λ_whole. 10.
        reconstruction_weight: λ_rec. 1.
        warmup_epochs: Epochs in which the backbone rests. 1.
        proxy_factor: Factor on the proxies' learning rate. 200.
        decoder_factor: Factor on the decoders' learning rate. 20, the program's for the whole head.
        seed: Random seed of proxies and decoders.
    """

    def __init__(
        self,
        *,
        num_classes: int,
        embedding_size: int = 512,
        branches: int = 4,
        margin: float = 0.2,
        scale: float = 64.0,
        whole_weight: float = 10.0,
        reconstruction_weight: float = 1.0,
        warmup_epochs: int = 1,
        proxy_factor: float = 200.0,
        decoder_factor: float = 20.0,
        seed: int = 0,
    ) -> None:
        width = branch_width(embedding_size, check_count(branches, "branches"))
        losses = [
            LOSSES["proxy_anchor"](
                num_classes=num_classes,
                embedding_size=size,
                margin=margin,
                scale=scale,
                learning_rate_factor=proxy_factor,
                seed=seed + number,
            )
            for number, size in enumerate([embedding_size, *[width] * branches])
        ]
        super().__init__(
            losses[1:],
            losses[0],
            whole_weight=whole_weight,
            reconstruction_weight=reconstruction_weight,
            warmup_epochs=warmup_epochs,
            decoder_factor=decoder_factor,
            seed=seed,
        )


class MarginDRML(DRML):
    """DRML with a margin loss, negatives drawn by distance, of each branch and of the whole.

    No setting of the authors is left for this form: weights and warm-up are those of
    `ProxyAnchorDRML`.

    Args:
        num_classes: Number of training classes, each with a β of its own in each loss.
        embedding_size: Width of the embedding.
        branches: K. 4, from the authors' program.
        margin: m. 0.2, from the paper of the margin loss.
        beta: Start of β. 1.2, from the same.
        near: Smallest distance of the sampling weights. 0.5, from the same.
        far: Distance beyond which negatives are not drawn. 1.4, from the same.
        whole_weight: λ_whole. 10.
        reconstruction_weight: λ_rec. 1.
        warmup_epochs: Epochs in which the backbone rests. 1.
        beta_factor: Factor on the learning rate of β. 50, as for the loss "margin".
        decoder_factor: Factor on the decoders' learning rate. 20.
        seed: Random seed of the draws and the decoders.
    """

    smallest_batch = (2, 2)

    def __init__(
        self,
        *,
        num_classes: int,
        embedding_size: int = 512,
        branches: int = 4,
        margin: float = 0.2,
        beta: float = 1.2,
        near: float = 0.5,
        far: float = 1.4,
        whole_weight: float = 10.0,
        reconstruction_weight: float = 1.0,
        warmup_epochs: int = 1,
        beta_factor: float = 50.0,
        decoder_factor: float = 20.0,
        seed: int = 0,
    ) -> None:
        branch_width(embedding_size, check_count(branches, "branches"))
        losses = [
            LOSSES["margin"](
                num_classes=num_classes,
                margin=margin,
                beta=beta,
                near=near,
                far=far,
                learning_rate_factor=beta_factor,
                seed=seed + number,
            )
            for number in range(branches + 1)
        ]
        super().__init__(
            losses[1:],
            losses[0],
            whole_weight=whole_weight,
            reconstruction_weight=reconstruction_weight,
            warmup_epochs=warmup_epochs,
            decoder_factor=decoder_factor,
            seed=seed,
        )
