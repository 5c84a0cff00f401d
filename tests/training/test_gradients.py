"""Chunks and several processes give the gradient of the whole batch."""

import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from cbml.errors import BadData
from cbml.losses import LOSSES
from cbml.outputs import Outputs
from cbml.training import Distributed, Settings, loss_terms
from cbml.training.gradients import accumulate_gradients, check_chunks
from tests.training import children
from tests.training.small import CLASSES, bayes_loss, embedder, make_images, run_small

IMAGES = 12


class Dropped(nn.Module):
    """A network whose output is random: both passes must draw the same."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = embedder("frozen_statistics")
        self.drop = nn.Dropout(0.3)

    def forward(self, batch: Tensor) -> Tensor:
        return nn.functional.normalize(self.drop(self.inner(batch)), dim=1)


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(IMAGES, 3, 16, 16, generator=generator), torch.arange(IMAGES) // 3


def losses(name: str) -> nn.Module:
    if name == "cbml":
        return bayes_loss()
    return LOSSES[name](num_classes=CLASSES, embedding_size=8)


def gradients(
    model: nn.Module,
    loss: nn.Module,
    chunk_size: int | None,
    distributed: Distributed | None = None,
) -> tuple[float, dict[str, Tensor]]:
    distributed, (pixels, labels) = distributed or Distributed(), batch()
    torch.manual_seed(7)
    result = accumulate_gradients(
        lambda chunk: Outputs(model(chunk)),
        lambda outputs: loss_terms(loss, outputs.embeddings, labels),
        distributed.local_rows(pixels),
        parameters=list(model.parameters()),
        loss_parameters=list(loss.parameters()),
        distributed=distributed,
        chunk_size=chunk_size,
    )
    named = [*model.named_parameters(), *loss.named_parameters("loss")]
    assert len(result.outputs) == IMAGES
    return result.loss, {name: p.grad for name, p in named if p.grad is not None}


def plain(model: nn.Module, loss: nn.Module) -> tuple[float, dict[str, Tensor]]:
    """What everybody writes: the oracle of this file."""
    pixels, labels = batch()
    torch.manual_seed(7)
    value = loss(model(pixels), labels)
    value.backward()
    named = [*model.named_parameters(), *loss.named_parameters("loss")]
    return float(value.detach()), {name: p.grad for name, p in named if p.grad is not None}


def loss_tolerance(value: float) -> float:
    """1e-6, of the value where it is above one: at 17 one float32 digit is 1.9e-6."""
    return 1e-6 * max(1.0, abs(value))


def assert_close(first: dict[str, Tensor], second: dict[str, Tensor], tolerance: float) -> None:
    assert first.keys() == second.keys()
    largest = max(float(gradient.abs().max()) for gradient in first.values())
    assert largest > 1e-3, "a gradient of nothing proves nothing"
    for name in first:
        assert float((first[name] - second[name]).abs().max()) <= tolerance * largest, name


@pytest.mark.parametrize("name", ["cbml", "proxy_anchor"])
@pytest.mark.parametrize("chunk_size", [None, 1, 4, 5, IMAGES])
def test_chunks_give_the_gradient_of_the_batch(name: str, chunk_size: int | None) -> None:
    value, expected = plain(embedder("frozen_statistics"), losses(name))
    got, found = gradients(embedder("frozen_statistics"), losses(name), chunk_size)
    assert abs(got - value) <= loss_tolerance(value)
    assert_close(expected, found, 1e-5)


def test_dropout_is_the_same_in_both_passes() -> None:
    torch.manual_seed(0)
    model = Dropped()
    pixels, labels = batch()
    torch.manual_seed(7)
    rows = torch.cat([model(chunk) for chunk in torch.split(pixels, 4)])  # one graph, same draws
    bayes_loss()(rows, labels).backward()
    expected = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    found = gradients(model, bayes_loss(), 4)[1]
    assert_close(expected, found, 1e-5)


def test_chunks_are_refused_where_batch_norm_would_see_them() -> None:
    with pytest.raises(BadData, match="frozen_statistics"):
        check_chunks(embedder("trained"))
    check_chunks(embedder("frozen_statistics"))


def test_fit_refuses_chunks_with_trained_batch_norm(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="chunk_size"):
        run_small(make_images(tmp_path), None, Settings(steps=1, chunk_size=4))


def save_gradients(folder: Path, name: str, chunk: int, rank: int, size: int, port: int) -> None:
    torch.set_num_threads(1)
    children.join(rank, size, port)
    distributed = Distributed(dist.group.WORLD)
    torch.save(
        gradients(embedder("frozen_statistics"), losses(name), chunk or None, distributed),
        folder / f"{rank}.pt",
    )
    dist.destroy_process_group()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize(
    ("size", "name", "chunk"), [(1, "cbml", 0), (2, "proxy_anchor", 0), (4, "cbml", 2)]
)
def test_processes_compute_the_loss_of_the_global_batch(
    size: int, name: str, chunk: int, tmp_path: Path
) -> None:
    value, expected = plain(embedder("frozen_statistics"), losses(name))
    port = free_port()
    distributed = [
        children.start(save_gradients, tmp_path, name, chunk, rank, size, port)
        for rank in range(size)
    ]
    for child in distributed:
        child.join(120)
        child.kill()
    assert [child.exitcode for child in distributed] == [0] * size
    for rank in range(size):
        got, found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert abs(got - value) <= loss_tolerance(value)
        assert_close(expected, found, 1e-5)
