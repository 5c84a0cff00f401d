"""Processes that start in a blink: torch is imported once, in a server that forks them."""

import datetime
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
import torch.distributed as dist

from cbml.data import ImageDataset
from cbml.training import Callback, Distributed, Interrupted, Run, Settings, fit
from tests.training.small import batches, bayes_loss, embedder

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.training.children"])


def start(target: Callable[..., None], *arguments: object) -> BaseProcess:
    child = _CONTEXT.Process(target=target, args=arguments)
    child.start()
    return child


def train(
    images: ImageDataset,
    folder: Path,
    settings: Settings,
    rank: int = 0,
    size: int = 1,
    port: int = 0,
) -> None:
    """Start a run or go on with it; the exit code is that of `cbml train`."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the server ignores it
    torch.set_num_threads(1)
    distributed = Distributed()
    if size > 1:
        join(rank, size, port)
        distributed = Distributed(dist.group.WORLD)
    resume = (folder / "run.json").exists()
    try:
        fit(
            embedder("frozen_statistics"),
            bayes_loss(),
            batches(images, distributed=distributed),
            settings=settings,
            run=Run(folder, resume=resume),
            distributed=distributed,
            callback=Callback(),
        )
    except Interrupted as stop:
        sys.exit(stop.exit_code)


def join(rank: int, size: int, port: int) -> None:
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.update(address, RANK=str(rank), WORLD_SIZE=str(size))
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
