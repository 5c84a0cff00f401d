"""The gradient of the loss of one global batch: in one pass or two, by one process or many.

The outputs of all processes, embeddings and parts, are gathered, and each computes the loss of all
of them. What comes back to a process is the gradient of its own rows, which it sends through its
own network; the sum of the networks' gradients over the processes is then the gradient of the loss
of the whole batch. Where the loss uses weights of the network itself, such as those of its head,
every process finds the same gradient for them, and each adds its share of it.

The same cut between network and loss allows a batch that is larger than the memory: it is embedded
in chunks without a graph, and each chunk again with a graph once its rows' gradient is known
(Gao et al. 2021, "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup").
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from cbml.errors import BadData
from cbml.outputs import Outputs
from cbml.training.distributed import Distributed
from cbml.training.method import StepLoss

Network = Callable[[Tensor], Outputs]
Teacher = Callable[[Tensor], Mapping[str, Tensor]]


@dataclass(frozen=True)
class BatchResult:
    """What the global batch gave: loss, its terms by name, and outputs without a graph."""

    loss: float
    terms: dict[str, float]
    outputs: Outputs


def accumulate_gradients(
    network: Network,
    loss: Callable[[Outputs], StepLoss],
    images: Tensor,
    *,
    parameters: Sequence[nn.Parameter],
    loss_parameters: Sequence[nn.Parameter] = (),
    distributed: Distributed,
    chunk_size: int | None = None,
    teacher: Teacher | None = None,
    check: Callable[[Outputs], None] | None = None,
) -> BatchResult:
    """Add the gradient of the loss of the global batch to the parameters' `grad`.

    Args:
        network: One forward pass, (B, 3, H, W) -> outputs with B rows.
        loss: Gives the loss of the outputs of the global batch.
        images: This process's share of the batch.
        parameters: Parameters of the network, whose gradients are added up over the processes.
        loss_parameters: Those of the loss, whose gradients are the same in all processes.
        chunk_size: Images in one forward pass; None for all at once.
        teacher: Gives further parts that take no gradient.
        check: Called with the global outputs before the loss sees them.
    """
    chunks = [images] if chunk_size is None else list(torch.split(images, chunk_size))
    own, taught, random_states = _first_pass(network, teacher, chunks)
    leaves = own.map(distributed.all_gather)
    for leaf in leaves.tensors:
        leaf.requires_grad_(leaf.is_floating_point())
    gathered = {name: distributed.all_gather(part) for name, part in taught.items()}
    everyones = leaves.with_parts(gathered) if gathered else leaves  # B rows
    if check is not None:
        check(everyones.map(Tensor.detach))
    value = loss(everyones)
    value.total.backward()  # type: ignore[no-untyped-call]
    _share(parameters, distributed)
    gradients = [
        None if leaf.grad is None else distributed.local_rows(leaf.grad) for leaf in leaves.tensors
    ]
    if len(chunks) == 1:
        _backward(own, gradients)
    else:
        _second_pass(network, chunks, gradients, random_states)
    distributed.all_reduce(
        [parameter.grad for parameter in parameters if parameter.grad is not None]
    )
    # Every process has computed the same; a rounding that differed would make the losses drift.
    distributed.broadcast([p.grad for p in loss_parameters if p.grad is not None])
    terms = {name: float(term.detach()) for name, term in value.terms.items()}
    return BatchResult(float(value.total.detach()), terms, everyones.map(Tensor.detach))


def has_trained_batch_norm(model: nn.Module) -> bool:
    """Whether an image's embedding depends on the others of its forward pass."""
    return any(isinstance(part, _BatchNorm) and part.training for part in model.modules())


def check_chunks(model: nn.Module) -> None:
    """Refuse chunks where an image's embedding depends on the others of its chunk.

    Args:
        model: The model, in training mode.
    """
    if has_trained_batch_norm(model):
        raise BadData(
            "chunk_size: batch norm in training mode sees one chunk at a time, so the gradient "
            "would not be that of the batch; use batch_norm='frozen_statistics', or no chunks"
        )


def _first_pass(
    network: Network, teacher: Teacher | None, chunks: list[Tensor]
) -> tuple[Outputs, Mapping[str, Tensor], list[list[Tensor]]]:
    """Outputs of this process, those of the teacher, and the random state before each chunk."""
    random_states, found, taught = [], [], []
    for chunk in chunks:
        random_states.append(_random_state(chunk.device))
        with torch.set_grad_enabled(len(chunks) == 1):
            found.append(network(chunk))
        if teacher is not None:
            with torch.no_grad():
                taught.append(teacher(chunk))
    if len(chunks) == 1:
        return found[0], taught[0] if taught else {}, random_states
    joined = Outputs(
        torch.cat([outputs.embeddings for outputs in found]), _joined([o.parts for o in found])
    )
    return joined, _joined(taught), random_states


def _joined(parts: list[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.cat([each[name] for each in parts]) for name in (parts[0] if parts else ())}


def _share(parameters: Sequence[nn.Parameter], distributed: Distributed) -> None:
    """Divide what the loss itself has put on the network's parameters: their sum comes later."""
    if distributed.size > 1:
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.div_(distributed.size)


def _backward(outputs: Outputs, gradients: Sequence[Tensor | None]) -> None:
    pairs = [
        (tensor, gradient)
        for tensor, gradient in zip(outputs.tensors, gradients, strict=True)
        if gradient is not None and tensor.requires_grad
    ]
    if pairs:
        torch.autograd.backward([tensor for tensor, _ in pairs], [grad for _, grad in pairs])


def _second_pass(
    network: Network,
    chunks: list[Tensor],
    gradients: Sequence[Tensor | None],
    random_states: list[list[Tensor]],
) -> None:
    device = chunks[0].device
    after, start = _random_state(device), 0
    for chunk, state in zip(chunks, random_states, strict=True):
        rows = slice(start, start := start + len(chunk))
        _set_random_state(device, state)  # the same dropout as in the first pass
        _backward(network(chunk), [None if g is None else g[rows] for g in gradients])
    _set_random_state(device, after)


def _random_state(device: torch.device) -> list[Tensor]:
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return states


def _set_random_state(device: torch.device, states: list[Tensor]) -> None:
    torch.set_rng_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)
