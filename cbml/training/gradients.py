"""The gradient of the loss of one global batch: in one pass or two, by one process or many.

The embeddings of all processes are gathered, and each computes the loss of all of them. What comes
back to a process is the gradient of its own rows, which it sends through its own network; the sum
of the networks' gradients over the processes is then the gradient of the loss of the whole batch.
The same cut between network and loss allows a batch that is larger than the memory: it is embedded
in chunks without a graph, and each chunk again with a graph once its rows' gradient is known
(Gao et al. 2021, "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup").
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from cbml.errors import BadData
from cbml.training.team import Team

__all__ = ["BatchResult", "accumulate_gradients", "check_chunks"]

Embed = Callable[[Tensor], Tensor]
Check = Callable[[Tensor], None]


@dataclass(frozen=True)
class BatchResult:
    """What one batch gave.

    Args:
        loss: its value.
        terms: its parts by name, where the loss tells them.
        embeddings: of the global batch, without a graph. (B, D)
        labels: of the global batch. (B,)
    """

    loss: float
    terms: dict[str, float]
    embeddings: Tensor
    labels: Tensor


def accumulate_gradients(
    embed: Embed,
    loss: nn.Module,
    pictures: Tensor,
    labels: Tensor,
    *,
    parameters: list[nn.Parameter],
    team: Team,
    chunk_size: int | None = None,
    check: Check | None = None,
) -> BatchResult:
    """Add the gradient of the loss of the global batch to the parameters' `grad`.

    Args:
        embed: one forward pass of the network, (B, 3, H, W) -> (B, D).
        loss: embeddings and labels in, one number out.
        pictures: this process's share of the batch.
        labels: of these pictures.
        parameters: of the network, whose gradients are added up over the processes.
        team: the processes.
        chunk_size: pictures in one forward pass; None for all at once.
        check: called with the global embeddings before the loss sees them.
    """
    chunks = [pictures] if chunk_size is None else list(torch.split(pictures, chunk_size))
    whole = len(chunks) == 1
    random_states = []
    rows: list[Tensor] = []
    for chunk in chunks:
        random_states.append(_random_state(chunk.device))
        with torch.set_grad_enabled(whole):
            rows.append(embed(chunk))
    own = rows[0] if whole else torch.cat(rows)  # (B / team, D)
    everyones = team.gathered(own).requires_grad_()  # (B, D)
    everyones_labels = team.gathered(labels.to(own.device))
    if check is not None:
        check(everyones.detach())
    value, terms = _loss_value(loss, everyones, everyones_labels)
    value.backward()  # type: ignore[no-untyped-call]
    assert everyones.grad is not None
    gradient = team.own_rows(everyones.grad)
    if whole:
        own.backward(gradient)  # type: ignore[no-untyped-call]
    else:
        _second_pass(embed, chunks, gradient, random_states)
    team.add_up([parameter.grad for parameter in parameters if parameter.grad is not None])
    # Every process has computed the same; a rounding that differed would make the losses drift.
    team.follow([p.grad for p in loss.parameters() if p.grad is not None])
    return BatchResult(float(value.detach()), terms, everyones.detach(), everyones_labels)


def check_chunks(model: nn.Module) -> None:
    """Refuse chunks where a picture's embedding depends on the others of its chunk.

    Args:
        model: in training mode.
    """
    if any(isinstance(part, _BatchNorm) and part.training for part in model.modules()):
        raise BadData(
            "chunk_size: batch norm in training mode sees one chunk at a time, so the gradient "
            "would not be that of the batch; use batch_norm='frozen_statistics', or no chunks"
        )


def _second_pass(
    embed: Embed, chunks: list[Tensor], gradient: Tensor, random_states: list[list[Tensor]]
) -> None:
    after = _random_state(gradient.device)
    parts = torch.split(gradient, [len(chunk) for chunk in chunks])
    for chunk, part, state in zip(chunks, parts, random_states, strict=True):
        _set_random_state(gradient.device, state)  # the same dropout as in the first pass
        embed(chunk).backward(part)  # type: ignore[no-untyped-call]
    _set_random_state(gradient.device, after)


def _loss_value(loss: nn.Module, rows: Tensor, labels: Tensor) -> tuple[Tensor, dict[str, float]]:
    if not callable(getattr(loss, "terms", None)):
        value: Tensor = loss(rows, labels)
        return value, {}
    terms = loss.terms(rows, labels)  # type: ignore[operator]
    names = [field.name for field in dataclasses.fields(terms) if field.name != "total"]
    return terms.total, {name: float(getattr(terms, name).detach()) for name in names}


def _random_state(device: torch.device) -> list[Tensor]:
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return states


def _set_random_state(device: torch.device, states: list[Tensor]) -> None:
    torch.set_rng_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)
