"""A folder has one worker at a time, whoever asks, and a dead one is followed."""

import os
import platform
import signal
import time
from pathlib import Path

import pytest

from cbml.experiments import claims
from cbml.experiments.claims import ClaimLost, claimed
from cbml.files import write_json
from tests.experiments import children

CONTENDERS = 6


def race(folder: Path, place: Path) -> int:
    """How many of several processes that ask in the same moment get the claim."""
    asking = [
        children.start(children.contend, folder, place, CONTENDERS) for _ in range(CONTENDERS)
    ]
    for child in asking:
        child.join(240)
        assert child.exitcode == 0
    return len(list((place / "won").iterdir()))


@pytest.mark.parametrize("rounds", [2, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.parametrize("before", ["nothing", "given back", "dead", "old"])
def test_of_many_who_ask_one_gets_it(tmp_path: Path, before: str, rounds: int) -> None:
    for number in range(rounds):
        place = tmp_path / str(number)
        folder = place / "run"
        folder.mkdir(parents=True)
        claim = folder / "claim-3.json"
        if before == "given back":
            write_json(claim, {"given_back": True})
        if before == "dead":
            child = children.start(children.contend, place / "other", place / "alone", 1)
            child.join()
            facts = {"host": claims._host(), "pid": child.pid, "started": "1"}
            write_json(claim, facts)
        if before == "old":
            write_json(claim, {"host": "elsewhere", "pid": 1, "started": "1"})
            os.utime(claim, (time.time() - 1000, time.time() - 1000))
        assert race(folder, place) == 1


def test_a_living_process_keeps_its_claim(tmp_path: Path) -> None:
    with claimed(tmp_path) as first:
        assert first is not None
        with claimed(tmp_path) as second:
            assert second is None
    with claimed(tmp_path) as third:
        assert third is not None


def test_another_machine_is_believed_until_it_is_silent_too_long(tmp_path: Path) -> None:
    path = tmp_path / "claim-1.json"
    write_json(path, {"host": f"not {platform.node()}", "pid": os.getpid(), "started": "1"})
    with claimed(tmp_path) as claim:
        assert claim is None
    then = time.time() - claims.STALE_SECONDS - 5
    os.utime(path, (then, then))
    with claimed(tmp_path) as claim:
        assert claim is not None
        assert claim.path.name == "claim-2.json"
        assert not path.exists()


def test_a_killed_process_is_followed_at_once(tmp_path: Path) -> None:
    child = children.start(children.hold, tmp_path / "run", tmp_path / "won")
    while child.is_alive() and not (tmp_path / "won").exists():
        time.sleep(0.001)
    with claimed(tmp_path / "run") as claim:
        assert claim is None
    os.kill(child.pid or 0, signal.SIGKILL)
    child.join()
    with claimed(tmp_path / "run") as claim:
        assert claim is not None


def test_a_file_server_that_stumbles_does_not_end_the_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "_RENEW_SECONDS", 0.01)
    newest, failures = claims._newest, iter(range(3))

    def stumbling(folder: Path) -> Path | None:
        if next(failures, None) is not None:
            raise OSError(116, "Stale file handle")
        return newest(folder)

    with claimed(tmp_path) as claim:
        assert claim is not None
        monkeypatch.setattr(claims, "_newest", stumbling)
        while next(failures, None) is not None:
            time.sleep(0.01)
        write_json(tmp_path / "claim-2.json", {"host": "elsewhere", "pid": 1, "started": "1"})
        claim._thread.join(10)
        with pytest.raises(ClaimLost, match="taken over"):
            claim.check()


def test_who_slept_looks_before_it_writes(tmp_path: Path) -> None:
    with claimed(tmp_path) as claim:
        assert claim is not None
        write_json(tmp_path / "claim-2.json", {"host": "elsewhere", "pid": 1, "started": "1"})
        claim.check()  # the thread has yet to look
        claim._seen -= 100
        with pytest.raises(ClaimLost, match="taken over"):
            claim.check()


def test_where_processes_cannot_be_looked_up_age_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "_started", lambda pid: None)
    with claimed(tmp_path) as first:
        assert first is not None
        with claimed(tmp_path) as second:
            assert second is None


def test_who_was_overtaken_notices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "_RENEW_SECONDS", 0.01)
    with claimed(tmp_path) as claim:
        assert claim is not None
        claim.check()
        write_json(tmp_path / "claim-2.json", {"host": "elsewhere", "pid": 1, "started": "1"})
        claim._thread.join(10)
        with pytest.raises(ClaimLost, match="taken over"):
            claim.check()
    with claimed(tmp_path) as again:
        assert again is None, "the claim of the other one still holds"
