from collections.abc import Iterator
from pathlib import Path

import pytest

from cbml.gallery import Gallery
from cbml.gallery.middleware import allowed_hosts
from cbml.gallery.service import make_app
from tests.gallery import small
from tests.gallery.asgi import Client


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.images(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="session")
def gallery_folder(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("galleries") / "main"
    small.built(folder, target)
    return target


@pytest.fixture(scope="session")
def second_folder(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("galleries") / "second"
    small.built(folder, target, seed=2)
    return target


@pytest.fixture(scope="session")
def gallery(gallery_folder: Path) -> Iterator[Gallery]:
    with Gallery(gallery_folder) as opened:
        yield opened


@pytest.fixture(scope="session")
def second(second_folder: Path) -> Iterator[Gallery]:
    with Gallery(second_folder) as opened:
        yield opened


@pytest.fixture(scope="module")
def client(gallery: Gallery, second: Gallery) -> Iterator[Client]:
    app = make_app(gallery, hosts=allowed_hosts("127.0.0.1"), compare=second)
    with Client(app) as opened:
        yield opened


@pytest.fixture(scope="module")
def lone(gallery: Gallery) -> Iterator[Client]:
    with Client(make_app(gallery, hosts=allowed_hosts("127.0.0.1"))) as opened:
        yield opened
