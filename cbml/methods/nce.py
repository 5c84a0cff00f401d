"""NCE: every image is told from all others by a memory of them."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from cbml.losses import check_count, check_number
from cbml.methods.unlabeled import HeadStart, Memory, Unlabeled
from cbml.outputs import Outputs
from cbml.training import BatchInfo, StepLoss, TrainingView

# The full softmax is affordable up to here, and it needs no estimate of its normalizer.
_FULL_SOFTMAX = 20_000
_SMALL = 1e-7


class NCE(Unlabeled):
    """Non-parametric instance discrimination (Wu, Xiong, Yu and Lin, CVPR 2018).

    One view x of an image y is compared with a memory M of one vector for each of the N images. The
    full softmax, negatives = 0:

        loss = mean_b [ logsumexp_i(M_i·x_b / T) - M_y·x_b / T ]

    With K drawn negatives, with replacement from all images, column 0 being the image's own:

        o_bk = exp(M_k·x_b / T),   Z = N mean(o) of the first batch,   p_bk = o_bk / Z
        loss = -mean_b { log[p_b0 / (p_b0 + K/N + 1e-7)] + sum_k log[(K/N) / (p_bk + K/N + 1e-7)] }

    The gradient reaches x alone. After each update M_y <- normalize(m M_y + (1 - m) x). The
    proximal term of the paper is not in the authors' program, nor here.

    Args:
        num_images: Number of training images, N.
        embedding_size: Width of the embedding, D. 128 in the authors' program.
        temperature: T. 0.1 in the authors' program with the full softmax, 0.07 with 4096 negatives.
        negatives: K; 0 for the full softmax; None for it up to 20,000 images (our choice) and for
            4096 above, as the authors' program has on ImageNet.
        memory_momentum: m. 0.5 in the authors' program.
        head_start: "random" or "whitened", how the linear layer starts.
        seed: Random seed of the memory's start and of the negatives.
    """

    normalizer: Tensor  # Z; zero until the first batch

    def __init__(
        self,
        *,
        num_images: int,
        embedding_size: int,
        temperature: float = 0.1,
        negatives: int | None = None,
        memory_momentum: float = 0.5,
        head_start: HeadStart = "random",
        seed: int = 0,
    ) -> None:
        super().__init__(head_start=head_start)
        if negatives is None:
            negatives = 0 if num_images <= _FULL_SOFTMAX else 4096
        self.temperature = check_number(temperature, "temperature", above=0.0)
        self.negatives = check_count(negatives, "negatives", at_least=0)
        self.seed = seed
        self.memory = Memory(num_images, embedding_size, momentum=memory_momentum, seed=seed)
        self.register_buffer("normalizer", torch.zeros(()))

    def forward(self, outputs: Outputs, batch: BatchInfo) -> StepLoss:
        """The loss of a step."""
        logits = self.memory.similarities(outputs.embeddings) / self.temperature  # (B, N)
        own = batch.indices.to(logits.device)
        if not self.negatives:
            return StepLoss(functional.cross_entropy(logits, own))
        drawn = self.draw(len(own), batch.step).to(logits.device)
        chosen = torch.cat([own[:, None], drawn], dim=1)  # (B, 1 + K)
        return StepLoss(self._noise_contrastive(logits.gather(1, chosen).exp()))

    def draw(self, rows: int, step: int) -> Tensor:
        """The negatives of a step, the same in every process and in a resumed run. (B, K)

        Args:
            rows: Rows of the batch, B.
            step: Updates done before this one.
        """
        generator = np.random.default_rng([self.seed, step])
        count = len(self.memory.vectors)
        return torch.from_numpy(generator.integers(count, size=(rows, self.negatives)))

    def _noise_contrastive(self, odds: Tensor) -> Tensor:
        """The loss from the odds of each row's image and of its negatives. (B, 1 + K) -> ()"""
        count = len(self.memory.vectors)
        if self.normalizer == 0:
            self.normalizer.copy_(count * odds.detach().mean())
        noise = self.negatives / count
        probability = odds / self.normalizer
        below = probability + noise + _SMALL
        own = (probability[:, 0] / below[:, 0]).log()
        others = (noise / below[:, 1:]).log().sum(dim=1)
        return -(own + others).mean()

    def after_step(self, view: TrainingView, outputs: Outputs, batch: BatchInfo) -> None:
        """Write the embeddings of the step into the memory."""
        del view
        self.memory.write(batch.indices.to(outputs.embeddings.device), outputs.embeddings)
