"""Two processes train as one does, by every method."""

import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from cbml.data import ImageDataset
from cbml.methods import METHODS
from cbml.training import Distributed, read_metrics
from cbml.training.checkpoints import newest_checkpoint
from tests.methods.test_all import CASES, adam_parameters, embedder, train
from tests.training import children


def train_by_all(images: ImageDataset, folder: Path, rank: int, size: int, port: int) -> None:
    torch.set_num_threads(1)
    children.join(rank, size, port)
    for name in METHODS:
        train_by(name, images, folder / name, Distributed(dist.group.WORLD))


def train_by(name: str, images: ImageDataset, folder: Path, distributed: Distributed) -> None:
    train(
        name,
        images,
        folder,
        4,  # one more than the batches of an epoch
        batch_norm="frozen_statistics",
        samples_per_class=2,
        optimizer="sgd",  # Adam makes a whole step of a gradient that is rounding alone
        distributed=distributed,
    )


@pytest.fixture(scope="module")
def by_two(images: ImageDataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of all methods, each by the same two processes."""
    folder = tmp_path_factory.mktemp("two")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    started = [children.start(train_by_all, images, folder, rank, 2, port) for rank in range(2)]
    for child in started:
        child.join(240)
    assert [child.exitcode for child in started] == [0, 0]
    return folder


@pytest.mark.parametrize("name", METHODS)
def test_two_processes_train_as_one(
    name: str, images: ImageDataset, tmp_path: Path, by_two: Path
) -> None:
    train_by(name, images, tmp_path, Distributed())
    losses = [
        [line["loss"] for line in read_metrics(folder) if "loss" in line]
        for folder in (tmp_path, by_two / name)
    ]
    assert len(losses[0]) == 4
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    one, two = (
        newest_checkpoint(folder / "checkpoints", print) for folder in (tmp_path, by_two / name)
    )
    assert one is not None
    assert two is not None
    method = CASES[name]()
    method.attach(embedder(method))
    own = adam_parameters(method)
    for part, value in one.tensors.items():
        if part.removeprefix("method.") in own:
            assert float((value - two.tensors[part]).abs().mean()) < 1e-4
        elif part.startswith(("model.", "method.")):
            torch.testing.assert_close(value, two.tensors[part], atol=1e-5, rtol=1e-5)
