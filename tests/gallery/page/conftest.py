"""A labelled gallery on a loopback port, a browser for each module, a fresh tab for each test."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cbml.gallery import Listed
from tests.gallery.page.visits import (
    FLAGS,
    Visit,
    browser_path,
    listed_pictures,
    make_gallery,
    serving,
    visiting,
)

pytest.importorskip("uvicorn", reason="needs the extra cbml[serve]")
playwright = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Listed]:
    return listed_pictures(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="session")
def main_gallery(tmp_path_factory: pytest.TempPathFactory, pictures: list[Listed]) -> Path:
    return make_gallery(tmp_path_factory.mktemp("galleries") / "discs", pictures, calibrated=True)


@pytest.fixture(scope="session")
def address(
    tmp_path_factory: pytest.TempPathFactory, pictures: list[Listed], main_gallery: Path
) -> Iterator[str]:
    """Two models over the same labelled pictures."""
    other = make_gallery(tmp_path_factory.mktemp("galleries") / "second", pictures[:-1], seed=1)
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
    """A fresh tab on the labelled gallery; the test fails if the browser has anything to say."""
    with visiting(browser, address) as tab:
        yield tab


Opener = Callable[..., contextlib.AbstractContextManager[Visit]]


@pytest.fixture
def visit_of(browser: Any) -> Opener:
    """Tabs on other galleries or with other settings."""
    return lambda url, **options: visiting(browser, url, **options)
