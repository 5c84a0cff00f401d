"""A labeled gallery on a loopback port, a browser for each module, a fresh tab for each test."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cbml.gallery import ImageRef
from tests.gallery.page.visits import (
    FLAGS,
    Visit,
    browser_path,
    listed_images,
    make_gallery,
    serving,
    visiting,
)

pytest.importorskip("uvicorn", reason="needs the extra cbml[serve]")
playwright = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[ImageRef]:
    return listed_images(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="session")
def main_gallery(tmp_path_factory: pytest.TempPathFactory, images: list[ImageRef]) -> Path:
    return make_gallery(tmp_path_factory.mktemp("galleries") / "discs", images, calibrated=True)


@pytest.fixture(scope="session")
def address(
    tmp_path_factory: pytest.TempPathFactory, images: list[ImageRef], main_gallery: Path
) -> Iterator[str]:
    """Two models over the same labeled images."""
    other = make_gallery(tmp_path_factory.mktemp("galleries") / "second", images[:-1], seed=1)
    with serving(main_gallery, other) as url:
        yield url


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = browser_path()
    if path is None:
        pytest.skip("needs a browser: install chromium")
    flags = [*FLAGS, "--no-sandbox"] if os.geteuid() == 0 else FLAGS
    with playwright.sync_playwright() as engine:
        opened = engine.chromium.launch(executable_path=path, args=flags)
        yield opened
        opened.close()


@pytest.fixture
def visit(browser: Any, address: str) -> Iterator[Visit]:
    """A fresh tab on the labeled gallery; the test fails if the browser has anything to say."""
    with visiting(browser, address) as tab:
        yield tab


Opener = Callable[..., contextlib.AbstractContextManager[Visit]]


@pytest.fixture
def visit_of(browser: Any) -> Opener:
    """Tabs on other galleries or with other settings."""
    return lambda url, **options: visiting(browser, url, **options)
