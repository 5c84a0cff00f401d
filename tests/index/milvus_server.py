"""A real Milvus server for the tests, reachable at one loopback port and nowhere else.

The server opens nine ports on all addresses, some of them fixed. So it gets a network of its own,
in which nobody else lives. Run as a program, this file is the keeper that stands between: it
listens on the one port outside, moves into the private network, starts the server there and
carries bytes both ways. The server dies with its keeper, and the keeper when its input ends.
"""

import asyncio
import contextlib
import ctypes
import fcntl
import importlib.util
import lzma
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

# From <sched.h>, <sys/prctl.h> and <linux/sockios.h>.
CLONE_NEWUSER, CLONE_NEWNET, PR_SET_PDEATHSIG, SIOCSIFFLAGS, IFF_UP = 2**28, 2**30, 1, 0x8914, 1
PATIENCE = 240  # seconds; a start takes ten on an idle machine
# The server writes here whatever it is told.
OUTSIDE = (Path("/run/milvus"), Path("/tmp/milvus"))


class MilvusServer:
    """The server as the tests see it: start, kill, start again with the same data."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = 0  # its process id
        self._servers: set[str] = set()  # all that were started
        with socket.socket() as finder:
            finder.bind(("127.0.0.1", 0))
            self.port = finder.getsockname()[1]
        self._keeper: subprocess.Popen[str] | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [sys.executable, __file__, str(self.folder), str(self.port)]
        self._keeper = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # it complains of connections that the tests cut
            text=True,
        )
        assert self._keeper.stdout is not None
        answer = self._keeper.stdout.readline().split()
        if answer[:1] != ["ready"]:
            self.stop()
            raise RuntimeError(" ".join(answer) or "the keeper of the Milvus server died")
        self.server = int(answer[1])
        self._servers.add(answer[1])

    def kill(self) -> None:
        """End the server as kill -9 does; the keeper follows it."""
        assert self._keeper is not None
        os.kill(self.server, signal.SIGKILL)
        self._wait()

    def stop(self) -> None:
        self._wait()
        for folder in OUTSIDE:
            for path in folder.glob("*"):
                if {path.name.rpartition("_")[2], path.read_text()} & self._servers:
                    path.unlink()
            with contextlib.suppress(OSError):  # missing, or somebody else's server is at work
                folder.rmdir()

    def _wait(self) -> None:
        if self._keeper is not None:
            assert self._keeper.stdin is not None
            assert self._keeper.stdout is not None
            with self._keeper.stdin, self._keeper.stdout:
                pass
            self._keeper.wait(PATIENCE)
            self._keeper = None


def why_not() -> str | None:
    """Why no server can run here, or None."""
    for package in ("pymilvus", "milvus"):
        if importlib.util.find_spec(package) is None:
            return f"the package {package} is not installed"
    trial = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
    trial += "import milvus_server; milvus_server.enter_private_network()"
    if subprocess.run([sys.executable, "-c", trial], capture_output=True, check=False).returncode:
        return "this system allows no private network (namespaces)"
    return None


def unpack(folder: Path) -> None:
    """The server's files from the package `milvus`, and its settings."""
    import milvus

    (folder / "bin").mkdir(parents=True)
    for packed in (Path(milvus.__file__).parent / "data" / "bin").glob("*.lzma"):
        target = folder / "bin" / packed.stem
        with lzma.open(packed) as source, target.open("wb") as file:
            shutil.copyfileobj(source, file, 2**20)
        target.chmod(0o755)
    config = milvus.MilvusServerConfig(data_dir=str(folder))
    config.resolve_storage()
    config.set("log.level", "error")
    config.set("common.session.ttl", 5)  # seconds until a killed server is forgotten
    config.write_config()


def enter_private_network() -> None:
    """Leave the host's network for an empty one with its own loopback."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.geteuid(), os.getegid()
    if libc.unshare(CLONE_NEWNET | (CLONE_NEWUSER if user else 0)):
        raise OSError(ctypes.get_errno(), "unshare")
    if user:  # without these maps the server's files would belong to nobody
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh", b"lo", IFF_UP))


def launch(folder: Path) -> subprocess.Popen[bytes]:
    libc = ctypes.CDLL(None)
    environment = os.environ | {
        "DEPLOY_MODE": "STANDALONE",
        "LD_LIBRARY_PATH": str(folder / "bin"),
    }
    with (folder / "server.log").open("ab") as log:
        return subprocess.Popen(
            [folder / "bin" / "milvus", "run", "standalone"],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # The keeper has one thread only.
            preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),  # noqa: PLW1509
        )


def wait_until_healthy(server: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + PATIENCE
    while server.poll() is None and time.monotonic() < end:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen("http://127.0.0.1:9091/healthz", timeout=2) as answer,
        ):
            if b"OK" in answer.read():
                return
        time.sleep(0.1)
    raise RuntimeError(f"the Milvus server did not start (exit code {server.poll()})")


async def carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError), contextlib.closing(sink):
        while piece := await source.read(2**16):
            sink.write(piece)
            await sink.drain()


async def greet(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        inner_source, inner_sink = await asyncio.open_connection("127.0.0.1", 19530)
    except OSError:
        sink.close()
        return
    await asyncio.gather(carry(source, inner_sink), carry(inner_source, sink))


async def keep(server: subprocess.Popen[bytes], door: socket.socket) -> None:
    """Serve the door until the server dies or our input ends."""
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin.fileno(), over.set)
    async with await asyncio.start_server(greet, sock=door):
        print("ready", server.pid, flush=True)
        while server.poll() is None and not over.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), 0.1)


def main() -> None:
    folder, port = Path(sys.argv[1]), int(sys.argv[2])
    if not folder.exists():
        unpack(folder)
    with socket.create_server(("127.0.0.1", port)) as door:
        enter_private_network()
        server = launch(folder)
        try:
            wait_until_healthy(server)
            asyncio.run(keep(server, door))
        except RuntimeError as error:
            print(error, flush=True)
        finally:
            server.kill()
            server.wait()


if __name__ == "__main__":
    main()
