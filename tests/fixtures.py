"""Fixtures that several folders of tests share; a folder's conftest.py imports those it wants."""

from collections.abc import Iterator

import pytest
import torch

from cbml.cli import main
from cbml.data import ImageDataset
from tests.training.small import make_images


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    """Models of tests are so small that a second thread only waits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True, scope="package")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Packed images are kept for as long as the tests run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CBML_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="package")
def images(tmp_path_factory: pytest.TempPathFactory) -> ImageDataset:
    """A few classes of tiny images."""
    return make_images(tmp_path_factory.mktemp("images"))


def run_program(words: list[str]) -> int:
    """The exit code of `cbml` with these words, in this process."""
    with pytest.raises(SystemExit) as end:
        main(words)
    return int(end.value.code or 0)
