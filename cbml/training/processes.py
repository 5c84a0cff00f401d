"""Several training processes on this machine, started and watched by torchrun."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType

__all__ = ["run_processes"]

_RESTARTS = 2
_WORKER = "from cbml.cli import main; main()"


def run_processes(count: int, words: Sequence[str], how_to_go_on: str) -> int:
    """Run `cbml` with the same words in several processes; gives the exit code.

    A lost process ends all of them, and torchrun starts them again from the newest checkpoint, at
    most twice. Ctrl-C and SIGTERM are passed on; the processes write a checkpoint and end.

    Args:
        count: of processes.
        words: behind the program's name.
        how_to_go_on: the command to name when it was interrupted.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(count), "--max-restarts", str(_RESTARTS), "--no-python"]
    command += [sys.executable, "-c", _WORKER, *words]
    threads = max(1, (os.cpu_count() or 1) // count)
    environment = {
        "OMP_NUM_THREADS": str(threads),
        **os.environ,
        # Without it a restart over gloo waits for the store of the processes that are gone.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    asked: list[int] = []
    # In a session of its own, so that Ctrl-C in a terminal reaches it once: through us.
    child = subprocess.Popen(
        command, env=environment, start_new_session=True, stderr=subprocess.PIPE
    )

    def pass_on(number: int, frame: FrameType | None) -> None:
        del frame
        asked.append(number)
        child.send_signal(number)

    before = {n: signal.signal(n, pass_on) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        _show(child, asked)
        code = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _end_session(child.pid)
    if asked:
        print(
            f"stopped by {signal.Signals(asked[0]).name}; go on with:  {how_to_go_on}",
            file=sys.stderr,
        )
        return 128 + asked[0]
    return code


def _show(child: subprocess.Popen[bytes], asked: list[int]) -> None:
    """Pass on what the processes say, without torchrun's own account of an end we asked for."""
    assert child.stderr is not None
    with child.stderr as lines:
        for line in lines:
            if not asked or line.startswith((b"step", b"cbml:")):
                sys.stderr.buffer.write(line)
                sys.stderr.buffer.flush()


def _end_session(number: int) -> None:
    """Nothing that was started outlives its start."""
    try:
        os.killpg(number, signal.SIGKILL)
    except ProcessLookupError:
        return
