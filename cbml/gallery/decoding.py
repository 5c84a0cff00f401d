"""Uploaded images decoded in processes of their own, which can be ended when one takes too long.

Decoding is where foreign bytes do their work: in memory, in time, in the libraries that read them.
Here all of that happens outside the service, for large images at a lower priority, and what comes
back is small: the pixels that each model sees, and the signature. Messages are a length and JSON,
then raw bytes.

    to the process      {"bytes": n, "preprocessing": [{...}, ...]}   the image
    from the process    {"ready": true}        once, when it has started
                        {"crops": [227, ...]}  signature, then the framed pixels of each model
                        {"reason": "..."}      where it cannot be read
"""

import contextlib
import json
import os
import queue
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from cbml.gallery.thumbnails import SIGNATURE_SIZE, Signature

DECODERS = 2
DECODE_SECONDS = 20.0
START_SECONDS = 120.0
# Larger images are decoded at a lower priority, smaller ones are done before it would matter.
QUICK_PIXELS = 4_000_000
_MESSAGE_LIMIT = 1 << 20


class DecodingFailed(Exception):
    """Why an image was not decoded, and the status of the answer: 422 unless it says another."""

    def __init__(self, reason: str, *, status: int = 422) -> None:
        super().__init__(reason)
        self.reason, self.status = reason, status


@dataclass(frozen=True, eq=False)
class DecodedImage:
    """What searches need of an image: its signature and what each model sees, (3, crop, crop)."""

    signature: Signature
    framed: tuple[NDArray[np.uint8], ...]


class ImageDecoder:
    """A few processes that decode images, one at a time each; whoever finds none free waits."""

    def __init__(self, *, processes: int = DECODERS, seconds: float = DECODE_SECONDS) -> None:
        self.processes, self.seconds = processes, seconds
        self._idle: queue.LifoQueue[subprocess.Popen[bytes] | None] = queue.LifoQueue()
        for _ in range(processes):
            self._idle.put(None)  # started at its first use

    def decode(self, content: bytes, preprocessing: Sequence[dict[str, Any]]) -> DecodedImage:
        """Decode an image, framed as each of some models sees it; raises DecodingFailed."""
        process = self._idle.get()
        try:
            if process is None or process.poll() is not None:
                process = _start()
                # Not on the image's time: on a busy machine it may take longer than the image.
                _wait_until_ready(process)
            return self._ask(process, content, preprocessing)
        finally:
            self._idle.put(process)

    def warm_up(self) -> None:
        """Start every process, so that the first upload does not wait for it."""
        idle = [self._idle.get() for _ in range(self.processes)]
        started = list(idle)
        with contextlib.suppress(DecodingFailed):  # the first upload will hear of it
            for index, process in enumerate(idle):
                started[index] = process or _start()
        for before, process in zip(idle, started, strict=True):
            if process is not before and process is not None:
                with contextlib.suppress(DecodingFailed):
                    _wait_until_ready(process)
            self._idle.put(process)

    def close(self) -> None:
        """End every process that is idle; one at work ends when nobody listens to it."""
        with contextlib.suppress(queue.Empty):
            while True:
                process = self._idle.get_nowait()
                if process is not None:
                    _end(process)

    def _ask(
        self, process: subprocess.Popen[bytes], content: bytes, wanted: Sequence[dict[str, Any]]
    ) -> DecodedImage:
        assert process.stdin is not None
        assert process.stdout is not None
        with _within(process, self.seconds, "decoding"):
            _send(process.stdin, {"bytes": len(content), "preprocessing": list(wanted)}, content)
            answer = _receive(process.stdout)
            if "reason" in answer:
                raise DecodingFailed(str(answer["reason"]))
            signature = _read(process.stdout, SIGNATURE_SIZE)
            framed = tuple(_pixels(process.stdout, crop) for crop in answer["crops"])
            return DecodedImage(np.frombuffer(signature, np.uint8), framed)


@contextlib.contextmanager
def _within(process: subprocess.Popen[bytes], seconds: float, what: str) -> Iterator[None]:
    """End a process that takes longer; what it leaves undone becomes a DecodingFailed."""
    overdue = threading.Event()

    def stop() -> None:
        overdue.set()
        process.kill()

    timer = threading.Timer(seconds, stop)
    timer.start()
    try:
        yield
    except (OSError, EOFError, ValueError) as error:
        _end(process)
        if overdue.is_set():
            reason = f"{what} took longer than {seconds:g} s"
            raise DecodingFailed(reason, status=408) from None
        raise DecodingFailed("not an image that can be decoded") from error
    finally:
        timer.cancel()


def _wait_until_ready(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    try:
        with _within(process, START_SECONDS, "starting to decode"):
            _receive(process.stdout)
    except DecodingFailed as failure:
        raise _no_decoder() from failure


def _no_decoder() -> DecodingFailed:
    """Killed, or no memory or file left for it: the image is not to blame."""
    return DecodingFailed("nothing to decode it with; try again", status=503)


def _start() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "cbml.gallery.decoding"]
    # One thread each: the cores belong to the searches.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the service, which ends them in order
        )
    except OSError as failure:
        raise _no_decoder() from failure


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


def _send(stream: IO[bytes], message: dict[str, Any], content: bytes = b"") -> None:
    text = json.dumps(message).encode()
    stream.write(struct.pack("!I", len(text)) + text)
    stream.write(content)
    stream.flush()


def _receive(stream: IO[bytes]) -> dict[str, Any]:
    (length,) = struct.unpack("!I", _read(stream, 4))
    if length > _MESSAGE_LIMIT:
        raise ValueError("a message out of bounds")
    message: dict[str, Any] = json.loads(_read(stream, length))
    return message


def _read(stream: IO[bytes], length: int) -> bytes:
    content = stream.read(length)
    if len(content) < length:
        raise EOFError
    return content


def _pixels(stream: IO[bytes], crop: int) -> NDArray[np.uint8]:
    return np.frombuffer(_read(stream, 3 * crop * crop), np.uint8).reshape(3, crop, crop)


def _decoded(
    content: bytes, wanted: Sequence[dict[str, Any]], pixel_limit: int
) -> tuple[dict[str, Any], bytes]:
    """The answer to one request, inside the process."""
    import torch

    from cbml.data import UnreadableImage, read_image
    from cbml.gallery.thumbnails import signature_of
    from cbml.models import Preprocessing

    try:
        image = read_image(content, pixel_limit=pixel_limit)
    except UnreadableImage as refusal:
        return {"reason": refusal.reason}, b""
    except MemoryError:
        return {"reason": "too large to be decoded"}, b""
    signature = signature_of(image)
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    del image  # 192 MB at the pixel limit
    framed = [Preprocessing(**one).frame(pixels) for one in wanted]
    raw = [signature.tobytes(), *(one.contiguous().numpy().tobytes() for one in framed)]
    return {"crops": [one.shape[1] for one in framed]}, b"".join(raw)


def _main() -> None:
    """Answer requests until nobody asks any more."""
    import torch

    from cbml.data import PIXEL_LIMIT

    torch.set_num_threads(1)
    _decoded(b"", [], 1)  # imports what it needs, not on the time of the first image
    with (
        contextlib.suppress(EOFError, BrokenPipeError),
        ThreadPoolExecutor(1, initializer=_step_back) as slow,
    ):
        _send(sys.stdout.buffer, {"ready": True})
        while True:
            request = _receive(sys.stdin.buffer)
            content = _read(sys.stdin.buffer, request["bytes"])
            answer, raw = _decoded(content, request["preprocessing"], QUICK_PIXELS)
            if "reason" in answer:  # too large, or unreadable; the header tells at once
                again = (content, request["preprocessing"], PIXEL_LIMIT)
                answer, raw = slow.submit(_decoded, *again).result()
            _send(sys.stdout.buffer, answer, raw)


def _step_back() -> None:
    """Let everything else go first; on Linux this holds for the calling thread alone."""
    with contextlib.suppress(OSError):
        os.nice(10)


if __name__ == "__main__":
    _main()
