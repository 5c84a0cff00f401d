"""Several training processes on this machine, started and watched by torchrun.

torchrun starts all processes again after any failure. That helps when one was lost, and never when
one found its data or settings unfit: such a process leaves its last word in a file, and the
launcher says it once and ends all of them.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

from cbml.files import write_json

_RESTARTS = 2
_LAST_WORD = "CBML_LAST_WORD"
_WORKER = "from cbml.cli import main; main()"


@contextlib.contextmanager
def last_word(exit_code: Callable[[Exception], int]) -> Iterator[None]:
    """Tell the launcher of an error that would be the same after a restart.

    Args:
        exit_code: of an error.
    """
    try:
        yield
    except (ValueError, ImportError) as error:  # what users can mend; a lost process is neither
        path = os.environ.get(_LAST_WORD)
        if path is not None:
            debug = "--debug" in sys.argv
            text = traceback.format_exc() if debug else f"cbml: {' '.join(str(error).split())}"
            write_json(Path(path), {"code": exit_code(error), "text": text})
        raise


def run_processes(count: int, words: Sequence[str], how_to_go_on: str) -> int:
    """Run `cbml` with the same words in several processes; gives the exit code.

    A lost process ends all of them, and torchrun starts them again from the newest checkpoint, at
    most twice. Ctrl-C and SIGTERM are passed on; the processes write a checkpoint and end.

    Args:
        count: of processes.
        words: behind the program's name.
        how_to_go_on: the command to name when it was interrupted.
    """
    with tempfile.TemporaryDirectory(prefix="cbml-") as folder:
        word = Path(folder) / "last-word.json"
        asked, code = _watched(_command(count, words), _environment(count, word), word)
        said = json.loads(word.read_text(encoding="utf-8")) if word.exists() else None
    if asked:
        name = signal.Signals(asked[0]).name
        print(f"stopped by {name}; go on with:  {how_to_go_on}", file=sys.stderr)
        return 128 + asked[0]
    if said is not None:
        print(said["text"], file=sys.stderr)
        return int(said["code"])
    return code


def _command(count: int, words: Sequence[str]) -> list[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(count), "--max-restarts", str(_RESTARTS), "--no-python"]
    return [*command, sys.executable, "-c", _WORKER, *words]


def _environment(count: int, word: Path) -> dict[str, str]:
    threads = max(1, (os.cpu_count() or 1) // count)
    return {
        "OMP_NUM_THREADS": str(threads),
        **os.environ,
        # Without it a restart over gloo waits for the store of the processes that are gone.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        _LAST_WORD: str(word),
    }


def _watched(command: list[str], environment: dict[str, str], word: Path) -> tuple[list[int], int]:
    """The signals that were passed on, and the exit code of torchrun."""
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
        _show(child, asked, word)
        return asked, child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _end_session(child.pid)


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
                sys.stderr.buffer.write(line)
                sys.stderr.buffer.flush()


def _end_session(number: int) -> None:
    """Nothing that was started outlives its start."""
    try:
        os.killpg(number, signal.SIGKILL)
    except ProcessLookupError:
        return
