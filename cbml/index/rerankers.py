"""Rerankers, which put the nearest images of a search in a better order, by name."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from cbml.errors import BadData
from cbml.outputs import Outputs, Reranker

_BLOCK = 1 << 22  # numbers of the candidates' cells in memory at a time


class DIML:
    """Structural similarity by optimal transport between cells (Zhao et al. 2021).

    With x_r the unit vectors of R cells of a query A and a candidate B, c their embeddings:

        S_rs = x^A_r · x^B_s
        u_r  = max(0, x^A_r · c^B) / (Σ + 1e-5),   v_s = max(0, x^B_s · c^A) / (Σ + 1e-5)
        T    = the transport from u to v of cost 1 - S, blurred by ε
        score = Σ T S + c^A · c^B

    Where no cell agrees with the other image, u or v is even. T comes from so many rounds of
    Sinkhorn's, in logarithms; the authors stop when the factors hardly change, which depends on
    their size.

    Args:
        part: Name of the cells among the parts of the outputs. (B, R, D)
        blur: ε. 0.05, from the authors' program.
        rounds: 20.
    """

    def __init__(self, *, part: str = "cells:4", blur: float = 0.05, rounds: int = 20) -> None:
        self.part, self.blur, self.rounds = part, blur, rounds

    def __call__(self, queries: Outputs, gallery: Outputs, candidates: Tensor) -> Tensor:
        """Scores of the candidates of each query. (Q, K)

        Args:
            queries: Q images with cells.
            gallery: N images with cells.
            candidates: Indices into the gallery. (Q, K)
        """
        cells, others = queries.parts[self.part].float(), gallery.parts[self.part].float()
        height = max(1, _BLOCK // max(1, candidates.shape[1] * others[0].numel()))
        found = [
            self.scores(
                cells[start : start + height],
                queries.embeddings[start : start + height],
                others[candidates[start : start + height]],
                gallery.embeddings[candidates[start : start + height]],
            )
            for start in range(0, len(candidates), height)
        ]
        return torch.cat(found) if found else candidates.float()

    def scores(
        self, cells: Tensor, centers: Tensor, near_cells: Tensor, near_centers: Tensor
    ) -> Tensor:
        """Scores of images that lie side by side. (Q, K)

        Args:
            cells: Cells of the queries. (Q, R, D)
            centers: Their embeddings. (Q, D)
            near_cells: Cells of their candidates. (Q, K, R, D)
            near_centers: Their embeddings. (Q, K, D)
        """
        similarity = torch.einsum("qrd,qksd->qkrs", cells, near_cells)
        own = marginal(torch.einsum("qrd,qkd->qkr", cells, near_centers))
        other = marginal(torch.einsum("qksd,qd->qks", near_cells, centers))
        moved = transport(similarity, own, other, self.blur, self.rounds)
        return (moved * similarity).sum(dim=(2, 3)) + torch.einsum(
            "qd,qkd->qk", centers, near_centers
        )


def marginal(correlation: Tensor) -> Tensor:
    """How much of an image each of its cells is worth to another image. (..., R)

    Args:
        correlation: Correlation of the cells with the other image's embedding. (..., R)
    """
    worth = correlation.clamp(min=0.0)
    total = worth.sum(dim=-1, keepdim=True)
    return torch.where(total > 0.0, worth / (total + 1e-5), 1.0 / correlation.shape[-1])


def transport(similarity: Tensor, own: Tensor, other: Tensor, blur: float, rounds: int) -> Tensor:
    """T: what each cell sends to each cell of the other image. (..., R, S)

    Args:
        similarity: S; the cost is 1 - S. (..., R, S)
        own: u, what the rows send. (..., R)
        other: v, what the columns get. (..., S)
        blur: ε.
        rounds: Rounds of Sinkhorn's iteration.
    """
    kernel = (similarity - 1.0) / blur
    log_own, log_other = own.log(), other.log()
    rows, columns = torch.zeros_like(log_own), torch.zeros_like(log_other)
    for _ in range(rounds):
        rows = log_own - (kernel + columns[..., None, :]).logsumexp(dim=-1)
        columns = log_other - (kernel + rows[..., :, None]).logsumexp(dim=-2)
    return (rows[..., :, None] + kernel + columns[..., None, :]).exp()


@dataclass(frozen=True, kw_only=True)
class RerankerEntry:
    """One entry of `RERANKERS`.

    Args:
        load: Makes it.
        title: One line for people.
        parts: What it reads of the outputs, as `Embedder.forward_outputs` names it.
        candidates: How many of the nearest it puts in order.
    """

    load: Callable[[], Reranker]
    title: str
    parts: tuple[str, ...]
    candidates: int = 100


RERANKERS: dict[str, RerankerEntry] = {
    "diml": RerankerEntry(
        load=DIML,
        title="cells of one image moved to those of the other at least cost",
        parts=("cells:4",),
    ),
}


def find_reranker(name: str) -> RerankerEntry:
    """The reranker of that name.

    Args:
        name: A key of RERANKERS, as a model names it.
    """
    if name not in RERANKERS:
        known = ", ".join(RERANKERS)
        raise BadData(f"the model asks for reranker {name!r}, which is none of {known}")
    return RERANKERS[name]
