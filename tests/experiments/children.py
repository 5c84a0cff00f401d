"""Processes that start in a blink: torch is imported once, in a server that forks them."""

import json
import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from cbml.experiments import Job, Sources, run_jobs
from cbml.experiments.running import lease
from cbml.training import Callback

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.experiments.children"])


def start(target: Callable[..., None], *arguments: object) -> BaseProcess:
    child = _CONTEXT.Process(target=target, args=arguments)
    child.start()
    return child


def contend(folder: Path, meeting: Path, count: int) -> None:
    """Ask for a lease when `count` processes are ready; keep it until all of them have asked."""
    _meet(meeting / "ready", count)
    with lease(folder) as held:
        if held:
            _note(meeting / "won")
        _meet(meeting / "asked", count)


def hold(folder: Path, won: Path) -> None:
    """Take the lease and never give it back."""
    with lease(folder) as held:
        assert held
        _note(won)
        while True:
            time.sleep(1)


def _meet(place: Path, count: int) -> None:
    _note(place)
    while len(os.listdir(place)) < count:
        time.sleep(0.001)


def _note(place: Path) -> None:
    place.mkdir(parents=True, exist_ok=True)
    (place / str(os.getpid())).touch()


def run(jobs: list[Job], out: Path, root: Path, cache: Path, answer: Path) -> None:
    os.environ["CBML_CACHE"] = str(cache)
    torch.set_num_threads(1)
    progress = run_jobs(jobs, out, sources=Sources(str(root)), callback=Callback())
    answer.write_text(json.dumps(asdict(progress)))
