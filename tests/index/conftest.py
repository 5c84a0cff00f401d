"""A real Milvus server for each file of tests that needs it, stopped and cleaned away always."""

import shutil
from collections.abc import Iterator

# pytorch-metric-learning imports it, and it changes what faiss answers: the index must not mind.
import faiss.contrib.torch_utils  # noqa: F401
import pytest

from tests.index.milvus_server import MilvusServer, why_not


# Not for the session: it is at work also while nobody asks it anything.
@pytest.fixture(scope="module")
def milvus_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MilvusServer]:
    reason = why_not()
    if reason is not None:
        pytest.skip(f"no Milvus server: {reason}")
    folder = tmp_path_factory.mktemp("milvus")
    server = MilvusServer(folder / "server")
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder)
