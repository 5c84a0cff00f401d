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
from torch import distributed

from cbml.data import ImageSet
from cbml.training import Interrupted, Listener, Run, Settings, Team, fit
from tests.training.small import batches, bayes_loss, embedder

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.training.children"])


def start(target: Callable[..., None], *arguments: object) -> BaseProcess:
    child = _CONTEXT.Process(target=target, args=arguments)
    child.start()
    return child


def train(
    images: ImageSet,
    folder: Path,
    settings: Settings,
    rank: int = 0,
    size: int = 1,
    port: int = 0,
) -> None:
    """Start a run or go on with it; the exit code is that of `cbml train`."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the server ignores it
    torch.set_num_threads(1)
    team = Team()
    if size > 1:
        join(rank, size, port)
        team = Team(distributed.group.WORLD)
    resume = (folder / "run.json").exists()
    try:
        fit(
            embedder("frozen_statistics"),
            bayes_loss(),
            batches(images, team=team),
            settings=settings,
            run=Run(folder, resume=resume),
            team=team,
            listener=Listener(),
        )
    except Interrupted as stop:
        sys.exit(stop.exit_code)


def join(rank: int, size: int, port: int) -> None:
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.update(address, RANK=str(rank), WORLD_SIZE=str(size))
    distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
