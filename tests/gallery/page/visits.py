"""Small galleries behind a real server, and tabs of a real browser that look at them."""

import contextlib
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

import cbml
from cbml.bayes import MatchProbability
from cbml.gallery import Gallery, ImageRef, build
from cbml.models import Embedder

COLORS = {
    "cherry": (190, 30, 60),
    "leaf": (40, 140, 60),
    "sky": (60, 120, 210),
    "sand": (210, 180, 120),
}
EACH = 8
PATIENCE = 30_000  # milliseconds; machines that run tests may be busy
FLAGS = [
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def draw_image(path: Path, color: tuple[int, int, int], seed: int) -> None:
    """A disc of a color on a background of its own, so that a random network errs sometimes."""
    random = np.random.default_rng(seed)
    image = Image.new("RGB", (96, 72), tuple(random.integers(0, 256, 3).tolist()))
    x, y, r = random.integers(20, 70), random.integers(20, 50), random.integers(12, 30)
    ImageDraw.Draw(image).ellipse((x - r, y - r, x + r, y + r), fill=color)
    image.save(path, quality=95)


def listed_images(folder: Path) -> list[ImageRef]:
    """Eight images of each color, and a near-duplicate of the first."""
    listed = []
    for color, (label, value) in enumerate(COLORS.items()):
        for number in range(EACH):
            path = folder / f"{label}-{number}.png"
            draw_image(path, value, seed=100 * color + number)
            listed.append(ImageRef(str(path), f"{label}/{number}.png", label))
    copy = folder / "cherry-again.jpg"
    with Image.open(listed[0].path) as first:
        first.convert("RGB").resize((192, 144)).save(copy, quality=88)
    return [*listed, ImageRef(str(copy), "cherry/again.jpg", "cherry")]


def calibration() -> MatchProbability:
    """Fitted to rows around centers, ten for each of twenty labels."""
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(20), 10)
    rows = random.normal(size=(20, 16))[labels] + random.normal(size=(200, 16))
    return MatchProbability.fit(rows.astype(np.float32), labels)


def make_gallery(
    folder: Path, listed: list[ImageRef], *, seed: int = 0, calibrated: bool = False
) -> Path:
    model = Embedder("conv4", dim=16, weights="none", seed=seed)
    chances = calibration() if calibrated else None
    build(model, listed, folder, evaluate=cbml.evaluate, calibration=chances)
    return folder


PROGRAM = "env/bin/python -m cbml"  # where cbml is not on PATH


@contextlib.contextmanager
def serving(
    gallery: Path, compare: Path | None = None, *, token: str | None = None
) -> Iterator[str]:
    """The address of a gallery that is served by a thread of this process."""
    import uvicorn

    from cbml.gallery.middleware import allowed_hosts
    from cbml.gallery.service import listen, make_app

    with contextlib.ExitStack() as stack:
        galleries = [
            stack.enter_context(Gallery(folder)) if folder else None
            for folder in (gallery, compare)
        ]
        assert galleries[0] is not None
        hosts = allowed_hosts("127.0.0.1")
        app = make_app(
            galleries[0], hosts=hosts, compare=galleries[1], program=PROGRAM, token=token
        )
        config = uvicorn.Config(app, log_level="warning", ws="none", lifespan="off")
        server = uvicorn.Server(config)
        listening = stack.enter_context(listen("127.0.0.1", 0))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        finally:
            server.should_exit = True
            app.app.state.service.close()  # type: ignore[attr-defined]
            thread.join()


def fixed(value: float, places: int = 3) -> str:
    """As JavaScript's toFixed writes it: ties of the exact value go up."""
    return str(Decimal(value).quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP))


def browser_path() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    return next(filter(None, map(shutil.which, names)), None)


@dataclass
class Visit:
    """A tab of the browser, and whatever went wrong in it."""

    page: Any
    url: str
    complaints: list[str] = field(default_factory=list)
    forgiven: tuple[str, ...] = ()  # complaints that a test provokes

    def open(self, query: str = "", *, wait: str = "#main > *") -> Any:
        self.page.goto(self.url + query)
        self.page.wait_for_selector(wait)
        return self.page

    def api(self, path: str) -> Any:
        answer = self.page.request.get(f"{self.url}api/v1/{path}")
        assert answer.ok, answer.text()
        return answer.json()

    def check(self) -> None:
        bad = [text for text in self.complaints if not any(part in text for part in self.forgiven)]
        assert not bad, bad


@contextlib.contextmanager
def visiting(browser: Any, url: str, **options: Any) -> Iterator[Visit]:
    options = {"viewport": {"width": 1280, "height": 900}, "accept_downloads": True, **options}
    context = browser.new_context(**options)
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    visit = Visit(page, url)

    def dialog(asked: Any) -> None:
        visit.complaints.append(f"dialog: {asked.message}")
        asked.dismiss()

    page.on("dialog", dialog)
    page.on("pageerror", lambda error: visit.complaints.append(f"error: {error}"))
    page.on(
        "console",
        lambda said: (
            said.type in {"error", "warning"} and visit.complaints.append(f"console: {said.text}")
        ),
    )
    try:
        yield visit
        visit.check()
    finally:
        context.close()
