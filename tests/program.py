"""The program `cbml` in a process of its own that starts in a blink.

A server that has imported torch and cbml forks it, which takes a hundredth of what importing them
does. All else is as in a process that a shell starts: words, folder, environment, pipes, signals
and exit code. Tests of what is imported, and of the interpreter's own end, start an interpreter.
"""

import io
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import types
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path

import sklearn.isotonic
import sklearn.linear_model
import sklearn.metrics
import torch

import cbml.experiments
import cbml.gallery
import cbml.runs
from cbml.cli import main
from cbml.models import Embedder
from cbml.training import fit

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.program", "tests.training.children"])
# Imported where they are first used, and so in every fork that uses them, but for this.
LOADED = (
    (cbml.experiments.run_jobs, cbml.gallery.Gallery, cbml.runs.run, Embedder, fit),
    (sklearn.isotonic, sklearn.linear_model, sklearn.metrics),
)


class Program:
    """What of `subprocess.Popen` the tests use, for `cbml` with these words.

    Args:
        words: Behind the program's name.
        cwd: The folder it runs in, by default that of the tests.
        env: Its whole environment, by default that of the tests.
        code: Python that runs in place of the program.
    """

    def __init__(
        self,
        *words: object,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        code: str | None = None,
    ) -> None:
        pipes = [_CONTEXT.Pipe(duplex=False) for _ in range(2)]
        inner = [writer for _, writer in pipes]
        self._process = _CONTEXT.Process(
            target=_run,
            args=([*map(str, words)], os.fspath(cwd or Path.cwd()), dict(env or os.environ), inner),
            kwargs={"code": code},
        )
        self._process.start()
        for writer in inner:
            writer.close()
        self.stdout, self.stderr = (_text(reader) for reader, _ in pipes)
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise TimeoutError(f"still running after {timeout} s")
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it prints until its end, on standard output and on standard error."""
        if self.stdout.closed:  # asked before
            return "", ""
        said: list[str] = []
        reading = threading.Thread(target=lambda: said.append(self.stdout.read()), daemon=True)
        reading.start()
        errors = self.stderr.read()
        reading.join()
        self.wait(timeout)
        self.stdout.close()
        self.stderr.close()
        return said[0], errors

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *_: object) -> None:
        self.stdout.close()
        self.stderr.close()
        self.wait()


def run(
    *words: object,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    code: str | None = None,
) -> "subprocess.CompletedProcess[str]":
    """`cbml` with these words, or this Python, from its start to its end."""
    program = Program(*words, cwd=cwd, env=env, code=code)
    out, errors = program.communicate()
    return subprocess.CompletedProcess([*map(str, words)], program.wait(), out, errors)


def _text(reader: "Connection") -> io.TextIOWrapper:
    number = os.dup(reader.fileno())
    reader.close()
    return os.fdopen(number, "r", encoding="utf-8")


def _run(
    words: list[str],
    folder: str,
    environment: dict[str, str],
    pipes: "list[Connection]",
    *,
    code: str | None,
) -> None:
    for number, pipe in enumerate(pipes, start=1):
        os.dup2(pipe.fileno(), number)
        pipe.close()
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), "utf-8", write_through=True)
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), "utf-8", write_through=True)
    sys.argv = ["-c", *words]
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the server ignores it
    torch.set_num_threads(1)
    if code is None:
        main()
    else:
        sys.modules["__main__"] = module = types.ModuleType("__main__")
        exec(code, module.__dict__)
