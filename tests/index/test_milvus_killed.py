"""A Milvus server that is killed while `cbml index` and `cbml search` are talking to it."""

import contextlib
import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from cbml.cli import main
from cbml.gallery import Gallery, loading
from cbml.index.milvus import Collection, MilvusStore
from tests.gallery import small
from tests.index.milvus_server import MilvusServer

TOTAL = small.CLASSES * small.EACH + 1
EVERY = range(1, 1000)  # until a command ends before


class Program:
    """The command line, and a server that dies before the n-th request of a command."""

    def __init__(
        self,
        server: MilvusServer,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        self.server, self.capsys, self.requests, self.moment = server, capsys, 0, 0
        real = Collection._one_line

        @contextlib.contextmanager
        def counted(collection: Collection) -> Iterator[None]:
            self.requests += 1
            if self.requests == self.moment:
                server.kill()
                collection.timeout = 5.0  # nobody will answer
            with real(collection):
                yield

        monkeypatch.setattr(Collection, "_one_line", counted)
        monkeypatch.setattr(loading, "CHUNK", 8)  # images: the rows come in four batches
        # The first answer after a kill takes up to 5 s, and 20 times as long on a busy machine.
        monkeypatch.setitem(MilvusStore.__init__.__kwdefaults__, "timeout", 240.0)

    def run(self, words: list[object], *, moment: int = 0) -> tuple[int, str, str]:
        """Exit code, standard output and standard error."""
        self.requests, self.moment = 0, moment
        with pytest.raises(SystemExit) as end:
            main([str(word) for word in words])
        output = self.capsys.readouterr()
        return int(end.value.code or 0), output.out, output.err

    def kills(self, words: list[object], moments: Iterable[int]) -> Iterator[int]:
        """Run a command again and again; at each moment the server dies and is started again."""
        for moment in moments:
            code, _, errors = self.run(words, moment=moment)
            if self.requests < moment:
                assert code == 0, errors
                return
            # gRPC may write lines of its own; the program says one, and what to do.
            lines = [line for line in errors.splitlines() if line.startswith("cbml: ")]
            assert (code, len(lines)) == (1, 1), errors
            assert lines[0].startswith(f"cbml: Milvus at {self.server.address}: ")
            assert lines[0].endswith("; repeat the command when it answers again")
            assert "Traceback" not in errors
            self.server.start()
            yield moment


@pytest.fixture
def program(
    milvus_server: MilvusServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Program:
    return Program(milvus_server, monkeypatch, capsys)


@pytest.fixture
def index(program: Program, tmp_path: Path) -> list[object]:
    """The command that makes a gallery on the server."""
    small.model().save(tmp_path / "run" / "model")
    files, store = small.images(tmp_path / "images"), f"milvus:{program.server.address}"
    words = ["index", tmp_path / "run", files, "--out", tmp_path / "gallery"]
    return [*words, "--store", store, "--json"]


def assert_whole(folder: Path) -> None:
    with Gallery(folder) as opened:
        assert len(opened) == TOTAL
        assert set(opened.store.ids()) == set(opened.ids)


def results(output: tuple[int, str, str]) -> list[object]:
    assert output[0] == 0, output[2]
    return [answer["results"] for answer in json.loads(output[1])]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "moments", [[12], pytest.param(EVERY, marks=pytest.mark.slow)], ids=["one", "every"]
)
def test_a_server_killed_during_the_first_index(
    program: Program, index: list[object], tmp_path: Path, moments: Iterable[int]
) -> None:
    kills = 0
    for _ in program.kills(index, moments):
        code, out, errors = program.run(index)
        assert code == 0, errors
        assert json.loads(out)["images"] == TOTAL
        assert_whole(tmp_path / "gallery")
        shutil.rmtree(tmp_path / "gallery")
        kills += 1
    assert kills >= 1


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_server_killed_during_a_rebuild(
    program: Program, index: list[object], tmp_path: Path
) -> None:
    program.run(index)
    kills = 0
    for _ in program.kills([*index, "--rebuild"], EVERY):
        # A server has one collection for both, so that some images may be missing, but ...
        with Gallery(tmp_path / "gallery") as opened:
            assert set(opened.ids) <= set(opened.store.ids()), "what is listed can be found"
        code, _, errors = program.run(index)
        assert code == 0, errors
        assert_whole(tmp_path / "gallery")
        kills += 1
    assert kills >= 10


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_server_killed_during_a_search(
    program: Program, index: list[object], tmp_path: Path
) -> None:
    program.run(index)
    search: list[object] = ["search", tmp_path / "gallery", "--id", "4", "--json"]
    before, kills = results(program.run(search)), 0
    for _ in program.kills(search, EVERY):
        assert results(program.run(search)) == before
        kills += 1
    assert kills >= 3
