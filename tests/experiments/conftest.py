"""One thread, a cache of our own, and a folder of tiny images."""

from pathlib import Path

import pytest

from tests.experiments.small import folder_of_images
from tests.fixtures import one_thread, own_cache

__all__ = ["one_thread", "own_cache", "root"]


@pytest.fixture(scope="package")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of_images(tmp_path_factory.mktemp("tiny"))
