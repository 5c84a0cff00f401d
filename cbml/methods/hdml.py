"""HDML: negatives made harder as the training goes on, and kept real by a generator."""

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from cbml.errors import BadData
from cbml.losses import check_count, check_number
from cbml.models import Embedder
from cbml.outputs import Outputs
from cbml.training import BatchInfo, Method, StepLoss, TrainingView

_START = 1e6  # of both averages in the authors' program: no change at first
_METRIC, _GENERATOR = 0, 1
_LARGE_ODD = 2_654_435_761


class HDML(Method):
    """N-pairs, real and with negatives pulled to the anchor (Zheng et al. 2019).

    y are features, z = fc(y) what the model's layer makes of them, not of length one. A batch is
    cut into pairs of one class, anchors a_i and positives p_i, with one pair of each of n classes;
    p_j is a negative of a_i. With d+_i = |a_i - p_i| and d-_ij = |a_i - p_j|:

        λ    = exp(-α / J_avg)
        ẑ_ij = a_i + (p_j - a_i) (d+_i + λ (d-_ij - d+_i)) / d-_ij   where d-_ij > d+_i, else p_j
        ã, z̃ = fc(G(a)), fc(G(ẑ)),   G the generator: D → hidden → ReLU → batch norm → C
        npair(A, P) = mean_i xent(A_i·P_ij over j, target i) + r/4 (mean |A|² + mean |P|²)

        w        = exp(-β / J_gen)
        J_metric = w npair(a, p) + (1 - w) npair(ã, z̃)                 trains the model
        J_gen    = (1 - μ) Σ |G(z) - y|²
                   + c μ (mean CE(C(G(ẑ_ij)), class of p_j) + mean CE(C(G(a_i)), class of a_i))
                                                                      trains the generator
        CE(C(y), classes)                                             trains the classifier C
        loss     = the sum of the three

    J_avg and J_gen in the exponents are means of w npair(a, p) and of J_gen over the last 64 steps
    that were complete. Each network has its own optimizer, as in the authors' program.

    Args:
        pull: α. 90, from the authors' program, as all numbers here.
        balance: β. 5e3, for all datasets but Cars, which has 1e4.
        class_weight: c. 1e4.
        class_share: μ. 0.5.
        norm_weight: r. 0.015 for CUB; 0.003 for Cars.
        window: Steps of an average. 64.
        hidden: Width of the generator's layer. 512.
        generator_rate: Learning rate of the generator, by Adam. 1e-2.
        classifier_rate: Learning rate of the classifier, by Adam. 1e-3.
        num_classes: How many there are to train on.
        seed: Random seed of the generator.
    """

    parts = ("raw", "features")
    smallest_batch = (2, 2)

    averages: Tensor
    sums: Tensor
    steps: Tensor

    def __init__(
        self,
        *,
        pull: float = 90.0,
        balance: float = 5e3,
        class_weight: float = 1e4,
        class_share: float = 0.5,
        norm_weight: float = 0.015,
        window: int = 64,
        hidden: int = 512,
        generator_rate: float = 1e-2,
        classifier_rate: float = 1e-3,
        num_classes: int = 2,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.pull = check_number(pull, "pull", at_least=0.0)
        self.balance = check_number(balance, "balance", at_least=0.0)
        self.class_weight = check_number(class_weight, "class_weight", at_least=0.0)
        self.class_share = check_number(class_share, "class_share", at_least=0.0, at_most=1.0)
        self.norm_weight = check_number(norm_weight, "norm_weight", at_least=0.0)
        self.window = check_count(window, "window")
        self.hidden = check_count(hidden, "hidden")
        self.generator_rate = check_number(generator_rate, "generator_rate", above=0.0)
        self.classifier_rate = check_number(classifier_rate, "classifier_rate", above=0.0)
        self.num_classes, self.seed = num_classes, seed
        self.generator, self.classifier = nn.Sequential(), nn.Sequential()
        self._optimizers: dict[str, torch.optim.Optimizer] = {}
        self.register_buffer("averages", torch.full((2,), _START))
        self.register_buffer("sums", torch.zeros(2))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def attach(self, model: Embedder) -> None:
        """Build generator and classifier for the model's features."""
        super().attach(model)
        if self._optimizers:
            return
        dim, features = self._layer().weight.shape
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            self.generator.extend(
                [
                    nn.Linear(dim, self.hidden),
                    nn.ReLU(),
                    # It is never used beyond the batch, so nothing of it is remembered.
                    nn.BatchNorm1d(self.hidden, track_running_stats=False),
                    nn.Linear(self.hidden, features),
                ]
            )
        self.classifier.append(nn.Linear(features, self.num_classes))
        for start in self.classifier.parameters():
            nn.init.zeros_(start)  # all classes alike, whatever they are called
        self.to(self._layer().weight.device)
        self._optimizers = {
            "generator": torch.optim.Adam(self.generator.parameters(), self.generator_rate),
            "classifier": torch.optim.Adam(self.classifier.parameters(), self.classifier_rate),
        }

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """One for each of the two networks."""
        return self._optimizers

    def after_step(self, view: TrainingView, outputs: Outputs, batch: BatchInfo) -> None:
        """Update the two networks."""
        del view, outputs, batch
        for optimizer in self._optimizers.values():
            optimizer.step()

    def forward(self, outputs: Outputs, batch: BatchInfo) -> StepLoss:
        """The losses of the model and of the two networks, each with a gradient for its own."""
        for optimizer in self._optimizers.values():
            optimizer.zero_grad()  # a skipped update leaves its gradient behind
        rows, features = outputs.parts["raw"], outputs.parts["features"].detach()
        rounds = [self._round(rows, batch.labels, *pair) for pair in pairs_of(batch)]
        if not rounds:
            raise BadData("HDML: no two images of a class in a batch; use samples_per_class=2")
        real, synthetic, classes = (torch.stack(each).mean() for each in zip(*rounds, strict=True))
        weight = torch.exp(-self.balance / self.averages[_GENERATOR].clamp(min=1e-30))
        rebuilt = self.generator(rows.detach())
        terms = {
            "real": real,
            "synthetic": synthetic,
            "reconstruction": (1.0 - self.class_share) * (rebuilt - features).square().sum(),
            "classes": self.class_weight * self.class_share * classes,
            "classifier": functional.cross_entropy(self.classifier(features), batch.labels),
        }
        generator = terms["reconstruction"] + terms["classes"]
        self._remember(weight * real, generator)
        metric = weight * real + (1.0 - weight) * synthetic
        return StepLoss(metric + generator + terms["classifier"], terms)

    def _round(
        self, rows: Tensor, labels: Tensor, anchors: Tensor, positives: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Real and synthetic N-pair loss, and the generator's loss of classes, of n pairs."""
        hardness = torch.exp(-self.pull / self.averages[_METRIC].clamp(min=1e-30))
        first, second = rows[anchors], rows[positives]
        harder = pulled(first, second, hardness)  # (n, n, D)
        given = torch.cat([first, harder.flatten(0, 1)])  # (n + n², D)
        # The model learns through a generator that stays, the generator from a model that stays.
        frozen = {name: value.detach() for name, value in self.generator.named_parameters()}
        again = self._layer()(functional_call(self.generator, frozen, (given,)))
        made, count = self.generator(given.detach()), len(first)
        guesses = self._frozen_guesses(made)
        classes = functional.cross_entropy(guesses[:count], labels[anchors])
        classes = classes + functional.cross_entropy(
            guesses[count:], labels[positives].repeat(count)
        )
        real = self.n_pair(first, second.expand(count, *second.shape))
        synthetic = self.n_pair(again[:count], again[count:].view_as(harder))
        return real, synthetic, classes

    def n_pair(self, anchors: Tensor, candidates: Tensor) -> Tensor:
        """npair(A, P); the candidate of an anchor's own number is its positive.

        Args:
            anchors: A. (n, D)
            candidates: P, for each anchor its own. (n, n, D)
        """
        logits = torch.einsum("id,ijd->ij", anchors, candidates)
        cost = functional.cross_entropy(logits, torch.arange(len(logits), device=logits.device))
        lengths = anchors.square().sum(dim=1).mean() + candidates.square().sum(dim=2).mean()
        return cost + 0.25 * self.norm_weight * lengths

    def _layer(self) -> nn.Linear:
        layer = self.model.head
        if not isinstance(layer, nn.Linear):
            raise BadData("HDML: needs a model with one linear layer")
        return layer

    def _frozen_guesses(self, features: Tensor) -> Tensor:
        layer = self.classifier[0]
        assert isinstance(layer, nn.Linear)
        return functional.linear(features, layer.weight.detach(), layer.bias.detach())

    @torch.no_grad()
    def _remember(self, metric: Tensor, generator: Tensor) -> None:
        """Add a step to the window; a full one gives the averages of the steps to come."""
        self.sums += torch.stack([metric, generator])
        self.steps += 1
        if int(self.steps) == self.window:
            self.averages.copy_(self.sums / self.window)
            self.sums.zero_()
            self.steps.zero_()


def pulled(anchors: Tensor, positives: Tensor, hardness: Tensor) -> Tensor:
    """ẑ: every positive as a negative of every anchor, pulled towards it. (n, n, D)

    Args:
        anchors: a. (n, D)
        positives: p. (n, D)
        hardness: λ: 1 leaves them where they are, 0 pulls them to the distance of the positive.
    """
    away = positives[None, :, :] - anchors[:, None, :]
    distance = away.square().sum(dim=2).clamp(min=1e-12).sqrt()  # (n, n), of anchors and positives
    own = distance.diagonal()[:, None]
    wanted = own + hardness * (distance - own)
    stretch = torch.where(distance > own, wanted / distance, 1.0)
    return anchors[:, None, :] + away * stretch[:, :, None]


def pairs_of(batch: BatchInfo) -> list[tuple[Tensor, Tensor]]:
    """Rows of anchors and of their positives: one pair of each class, as often as classes have two.

    Which images meet depends on their indices alone, not on the order of the batch.
    """
    # Spread: images of neighboring indices are often alike.
    order = (batch.indices * _LARGE_ODD % 2**32).argsort(stable=True).tolist()
    labels = batch.labels.tolist()
    members: dict[int, list[int]] = {}
    for row in order:
        members.setdefault(labels[row], []).append(row)
    rounds = []
    for start in range(0, max(map(len, members.values())) - 1, 2):
        found = [rows[start : start + 2] for rows in members.values() if len(rows) > start + 1]
        first, second = torch.tensor(found, device=batch.labels.device).T
        rounds.append((first, second))
    return rounds
