"""The processes that train together: their ranks, and the few things that they do in step."""

import contextlib
import ctypes
import datetime
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist
from torch import Tensor

from cbml.errors import BadData, stop_signals, stopped_by
from cbml.files import write_json
from cbml.progress import say
from cbml.regular import read_text
from cbml.training.signals import StopRequest

# Far above what one process may wait for another that writes a checkpoint. A process that dies is
# noticed at once, by its closed connection or by torchrun.
_PATIENCE = datetime.timedelta(minutes=10)
# Seconds. One that is stopped, or on a machine that hangs, is noticed by nobody: it is said aloud.
_LONG_WAIT, _LOOK = 60.0, 5.0


class MainProcessFailed(BadData):
    """What the other processes get when the main one fails; its own error says why."""


class Distributed:
    """The processes of a group, or this process alone.

    Args:
        group: Group of torch.distributed; None for one process.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        self.rank = 0 if group is None else dist.get_rank(group)
        self.size = 1 if group is None else dist.get_world_size(group)
        self.waiting_since: float | None = None

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        """A step in which this process waits for the others."""
        self.waiting_since = time.monotonic()
        try:
            yield
        finally:
            self.waiting_since = None

    @property
    def is_main_process(self) -> bool:
        """Whether this is the process that writes files and speaks."""
        return self.rank == 0

    def all_gather(self, rows: Tensor) -> Tensor:
        """The rows of all processes in the order of their ranks, without a graph.

        Args:
            rows: Equally many in each process.
        """
        if self.group is None:
            return rows.detach()
        rows = rows.detach().contiguous()
        parts = [torch.empty_like(rows) for _ in range(self.size)]
        with self._waiting():
            dist.all_gather(parts, rows, group=self.group)
        return torch.cat(parts)

    def local_rows(self, rows: Tensor) -> Tensor:
        """The part of gathered rows that came from this process.

        Args:
            rows: What `gathered` gave, or anything as long.
        """
        length = len(rows) // self.size
        return rows[self.rank * length : (self.rank + 1) * length]

    def all_reduce(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all processes.

        Args:
            tensors: Tensors of the same shapes in each process.
        """
        if self.group is None or not tensors:
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        with self._waiting():
            dist.all_reduce(flat, group=self.group)
        start = 0
        for tensor in tensors:
            tensor.copy_(flat[start : start + tensor.numel()].view(tensor.shape))
            start += tensor.numel()

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by that of the first process.

        Args:
            tensors: Tensors of the same shapes in each process.
        """
        if self.group is not None:
            for tensor in tensors:
                # A channels-last tensor is not contiguous, and only such can travel.
                copy = tensor.detach().contiguous()
                with self._waiting():
                    dist.broadcast(copy, src=0, group=self.group)
                tensor.detach().copy_(copy)

    def from_main_process(self, compute: Callable[[], Tensor], like: Tensor) -> Tensor:
        """What the main process computes, in every process; its failure is heard by all.

        Args:
            compute: Gives a tensor of whole numbers from 0; called in the main process alone.
            like: A tensor of the same shape and type.
        """
        failure: Exception | None = None
        found = torch.full_like(like, -1)
        if self.is_main_process:
            try:
                found = compute()
            except Exception as error:  # the others must be told, or they would wait forever
                failure = error
        self.broadcast([found])
        if failure is not None:
            raise failure
        if bool((found < 0).any()):
            raise MainProcessFailed("the main process failed; its message says why")
        return found

    def all_reduce_max(self, number: int) -> int:
        """The largest of the numbers that the processes give.

        Args:
            number: The number of this process.
        """
        if self.group is None:
            return number
        value = torch.tensor(number)
        with self._waiting():
            dist.all_reduce(value, op=dist.ReduceOp.MAX, group=self.group)
        return int(value)

    def barrier(self) -> None:
        """Return when every process has come here."""
        self.all_reduce_max(0)


@contextlib.contextmanager
def join_processes() -> Iterator[Distributed]:
    """The processes that torchrun started this one with; this process alone where it did not."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        yield Distributed()
        return
    if end_with_torchrun := _end_with_parent():
        end_with_torchrun()  # else nobody would be left who passes Ctrl-C on
    if word := os.environ.get(_LAST_WORD):
        write_json(Path(word).with_name(f"{_PROCESS}{os.environ['RANK']}"), os.getpid())
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=_PATIENCE)
    try:
        distributed = Distributed(dist.group.WORLD)
        with _said_aloud(distributed):
            yield distributed
    finally:
        dist.destroy_process_group()


@contextlib.contextmanager
def _said_aloud(distributed: Distributed) -> Iterator[None]:
    """One line for each long wait of this process for another."""
    ended = threading.Event()

    def watch() -> None:
        said = None
        while not ended.wait(_LOOK):
            since = distributed.waiting_since
            if since not in (None, said) and time.monotonic() - since > _LONG_WAIT:
                said = since
                say(
                    f"process {distributed.rank} has waited {_LONG_WAIT:.0f} s for another one; "
                    "is it stopped, or its machine?"
                )

    thread = threading.Thread(target=watch, name="cbml-waiting", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


# Several training processes on this machine, started and watched by torchrun.
#
# torchrun starts all processes again after any failure. That helps when one was lost, and never
# when one found its data or settings unfit: such a process leaves its last word in a file, and the
# launcher says it once and ends all of them.

_RESTARTS = 2
_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>
_LAST_WORD = "CBML_LAST_WORD"
_PROCESS = "process-"  # and the rank: a file beside the last word, with the number of the process
# With the launcher's own first word, so that lines to copy name the program as the user called it.
_WORKER = "import sys; del sys.argv[0]; from cbml.cli import main; main()"
# Seconds that torchrun gives processes to end after a signal, before it kills them. A step, or a
# validation, may take more than its usual 30; whoever cannot wait asks again.
_TO_END = 3600


@contextlib.contextmanager
def last_word(exit_code: Callable[[Exception], int]) -> Iterator[None]:
    """Tell the launcher of an error that would be the same after a restart.

    Args:
        exit_code: Exit code of an error.
    """
    try:
        yield
    except (ValueError, ImportError) as error:  # what users can mend; a lost process is neither
        path = os.environ.get(_LAST_WORD)
        follows = isinstance(error, MainProcessFailed) or bool(stopped_by())
        # The first word counts: what fails while all are being ended is no reason of its own.
        if path is not None and not follows and not os.path.lexists(path):
            debug = "--debug" in sys.argv
            text = traceback.format_exc() if debug else f"cbml: {' '.join(str(error).split())}"
            write_json(Path(path), {"code": exit_code(error), "text": text})
        raise


def run_processes(count: int, words: Sequence[str], how_to_resume: str) -> int:
    """Run `cbml` with the same words in several processes; gives the exit code.

    A lost process ends all of them, and torchrun starts them again from the newest checkpoint, at
    most twice. Ctrl-C and SIGTERM are passed on; the processes write a checkpoint and end. Asked
    again, all are ended at once.

    Args:
        count: Number of processes.
        words: Words of the command line behind the program's name.
        how_to_resume: The command to name when it was interrupted.
    """
    with tempfile.TemporaryDirectory(prefix="cbml-") as folder:
        word = Path(folder) / "last-word.json"
        asked, code = _watched(_command(count, words), _environment(count, word), word)
        said = json.loads(read_text(word)) if word.exists() else None
    if asked:
        name = signal.Signals(asked[0]).name
        say(f"stopped by {name}; resume with:  {how_to_resume}")
        return 128 + asked[0]
    if said is not None:
        say(said["text"])
        return int(said["code"])
    if code < 0:
        name = signal.Signals(-code).name
        say(f"cbml: torchrun was ended by {name}; resume with:  {how_to_resume}")
        return 1
    return code


def _command(count: int, words: Sequence[str]) -> list[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(count), "--max-restarts", str(_RESTARTS), "--no-python"]
    return [*command, sys.executable, "-c", _WORKER, sys.argv[0], *words]


def _environment(count: int, word: Path) -> dict[str, str]:
    threads = max(1, (os.cpu_count() or 1) // count)
    return {
        "OMP_NUM_THREADS": str(threads),
        **os.environ,
        # Without it a restart over gloo waits for the store of the processes that are gone.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(_TO_END),
        _LAST_WORD: str(word),
    }


def _watched(command: list[str], environment: dict[str, str], word: Path) -> tuple[list[int], int]:
    """The signals that were passed on, and the exit code of torchrun."""
    asked: list[int] = []
    # In a session of its own, so that Ctrl-C in a terminal reaches it once: through us.
    child = subprocess.Popen(
        command,
        env=environment,
        start_new_session=True,
        stderr=subprocess.PIPE,
        preexec_fn=_end_with_parent(),  # noqa: PLW1509 - one system call, looked up before
    )

    request = StopRequest()  # answered here: the processes may be waiting for each other

    def pass_on(number: int, frame: FrameType | None) -> None:
        request.ask(number, frame)
        if not asked:
            asked.append(number)
            child.send_signal(number)

    before = {n: signal.signal(n, pass_on) for n in stop_signals()}
    try:
        _show(child, asked, word)
        return asked, child.wait()
    except KeyboardInterrupt:  # asked again: nobody is waited for any more
        child.kill()
        for path in word.parent.glob(f"{_PROCESS}*"):  # each has a session of its own
            with contextlib.suppress(ProcessLookupError):
                os.kill(json.loads(read_text(path)), signal.SIGKILL)
        return asked, child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _end_session(child.pid)


def _end_with_parent() -> Callable[[], object] | None:
    """What a new process does to be sent SIGTERM when its parent dies; None but on Linux."""
    if not sys.platform.startswith("linux"):
        return None
    control = ctypes.CDLL(None).prctl
    return lambda: control(_PARENT_DEATH_SIGNAL, int(signal.SIGTERM))


def _show(child: subprocess.Popen[bytes], asked: list[int], word: Path) -> None:
    """Pass on what the processes say, without torchrun's own account of an end we know of."""
    assert child.stderr is not None
    ended = False
    with child.stderr as lines:
        for line in lines:
            if not ended and word.exists():
                ended = True
                child.terminate()
            if not ended and (not asked or line.startswith((b"step", b"cbml:"))):
                with contextlib.suppress(OSError):
                    sys.stderr.buffer.write(line)
                    sys.stderr.buffer.flush()


def _end_session(number: int) -> None:
    """Nothing that was started outlives its start."""
    try:
        os.killpg(number, signal.SIGKILL)
    except ProcessLookupError:
        return
