"""Two processes train on the same clusters as one; a killed run loses nothing across a refresh."""

import os
import random
import signal
import socket
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from cbml.data import ImageDataset
from cbml.training import Distributed, Settings, read_metrics
from cbml.training.checkpoints import newest_checkpoint
from tests.methods.unlabeled import SETTINGS, run_small
from tests.training import children


def train(
    images: ImageDataset, folder: Path, settings: Settings, rank: int, size: int, port: int
) -> None:
    torch.set_num_threads(1)
    distributed = Distributed()
    if size > 1:
        children.join(rank, size, port)
        distributed = Distributed(dist.group.WORLD)
    run_small(images, folder, settings, distributed=distributed, batch_norm="frozen_statistics")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(images: ImageDataset, folder: Path, size: int) -> list[BaseProcess]:
    port = free_port()
    return [
        children.start(train, images, folder, SETTINGS, rank, size, port) for rank in range(size)
    ]


def finish(images: ImageDataset, folder: Path, size: int) -> dict[str, Tensor]:
    started = start(images, folder, size)
    for child in started:
        child.join(120)
    assert [child.exitcode for child in started] == [0] * size
    checkpoint = newest_checkpoint(folder / "checkpoints", print)
    assert checkpoint is not None
    assert checkpoint.step == SETTINGS.steps
    return {n: value for n, value in checkpoint.tensors.items() if n != "random.python"}


def test_two_processes_train_on_the_clusters_of_one(images: ImageDataset, tmp_path: Path) -> None:
    one, two = (finish(images, tmp_path / str(size), size) for size in (1, 2))
    assert one["labels.images"].tolist() == two["labels.images"].tolist()
    told = [
        [(line["plan"]["alive"], line["plan"]["moved"]) for line in lines if "plan" in line]
        for lines in (read_metrics(tmp_path / "1"), read_metrics(tmp_path / "2"))
    ]
    assert told[0] == told[1]
    losses = [
        [line["loss"] for line in lines if "loss" in line]
        for lines in (read_metrics(tmp_path / "1"), read_metrics(tmp_path / "2"))
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kills", [3, pytest.param(100, marks=pytest.mark.slow)])
def test_kill_at_random_moments_loses_nothing(
    images: ImageDataset, tmp_path: Path, kills: int
) -> None:
    unbroken = finish(images, tmp_path / "unbroken", 1)
    chance, done, number = random.Random(7), 0, 0
    while done < kills:
        folder = tmp_path / str(number)
        for _ in range(min(4, kills - done)):
            (child,) = start(images, folder, 1)
            while child.is_alive() and not (folder / "run.json").exists():
                time.sleep(0.005)
            child.join(chance.uniform(0.0, 0.4))
            if child.exitcode is None:
                os.kill(child.pid or 0, signal.SIGKILL)
                child.join()
                done += 1
        ended = finish(images, folder, 1)
        assert ended.keys() == unbroken.keys()
        assert not [name for name in ended if not torch.equal(ended[name], unbroken[name])]
        number += 1
