"""The gallery under random changes and kills, and the service under random requests."""

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cbml.gallery import Gallery, remove_images
from tests.gallery import small
from tests.gallery.asgi import Client

CALLS = ("replace", "fsync", "unlink", "rename")
QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """A child that is forked off has no other threads to compute with."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def killed_build(files: Path, target: Path, moment: int) -> bool:
    """Build in a child that dies at its n-th change of the disk; whether it died."""
    child = os.fork()
    if child == 0:
        left = [moment]
        for name in CALLS:
            real = getattr(os, name)

            def dying(*arguments: Any, real: Any = real, **options: Any) -> Any:
                left[0] -= 1
                if left[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*arguments, **options)

            setattr(os, name, dying)
        with contextlib.suppress(BaseException):
            small.built(files, target)
            os._exit(0)
        os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL), "the build failed"
    return status != 0


class GalleryMachine(RuleBasedStateMachine):
    """Files come, go, change and take other names; builds are done, killed, or undone by name."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="cbml-gallery-"))
        self.files, self.target = self.root / "files", self.root / "gallery"
        self.there: dict[str, int] = {}
        self.indexed: dict[str, int] = {}
        self.ids: dict[str, int] = {}
        self.seeds = 0
        for number in range(3):
            self.add(number)
        self.build()

    def write(self, name: str) -> None:
        self.seeds += 1
        small.save(self.files / name, self.seeds)
        self.there[name] = self.seeds

    @rule(number=st.integers(0, 5))
    def add(self, number: int) -> None:
        self.write(f"class {number % 2}/{number}.png")

    @precondition(lambda self: len(self.there) > 2)
    @rule(choice=st.integers(0, 99))
    def delete(self, choice: int) -> None:
        name = sorted(self.there)[choice % len(self.there)]
        (self.files / name).unlink()
        del self.there[name]

    @rule(choice=st.integers(0, 99), number=st.integers(6, 8))
    def rename(self, choice: int, number: int) -> None:
        old, new = sorted(self.there)[choice % len(self.there)], f"class 1/{number}.png"
        (self.files / "class 1").mkdir(exist_ok=True)
        (self.files / old).rename(self.files / new)
        self.there[new] = self.there.pop(old)

    @rule()
    def build(self) -> None:
        before = {seed: self.ids[name] for name, seed in self.indexed.items()}
        small.built(self.files, self.target)
        self.indexed = dict(self.there)
        self.read()
        kept = {self.indexed[name]: number for name, number in self.ids.items()}
        assert all(kept[seed] == number for seed, number in before.items() if seed in kept)

    @rule(moment=st.integers(0, 40))
    def kill(self, moment: int) -> None:
        killed_build(self.files, self.target, moment)
        with Gallery(self.target) as opened:
            names = {image.name for image in opened.images}
            assert names <= set(self.there) | set(self.indexed)
            assert set(opened.store.ids()) == set(opened.ids)
        self.indexed = {}  # the old or the new one, or a part of the way: the next build says
        self.build()

    @precondition(lambda self: len(self.indexed) > 2)
    @rule(choice=st.integers(0, 99))
    def take_out(self, choice: int) -> None:
        name = sorted(self.indexed)[choice % len(self.indexed)]
        remove_images(self.target, [name])
        del self.indexed[name]
        self.read()

    def read(self) -> None:
        with Gallery(self.target) as opened:
            self.ids = {image.name: int(image.id) for image in opened.images}

    @invariant()
    def is_what_was_indexed(self) -> None:
        with Gallery(self.target) as opened:
            assert {image.name for image in opened.images} == set(self.indexed)
            assert set(opened.store.ids()) == set(opened.ids)
            assert len(set(opened.ids.tolist())) == len(self.indexed)

    def teardown(self) -> None:
        shutil.rmtree(self.root)


def run_machine(examples: int, steps: int) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        GalleryMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=QUIET,
        ),
    )


def test_random_changes_and_kills_leave_the_gallery_of_the_files() -> None:
    run_machine(3, 10)


@pytest.mark.slow
def test_random_changes_and_kills_for_long() -> None:
    run_machine(60, 25)


NUMBERS = st.one_of(st.integers(-(2**70), 2**70), st.floats(), st.booleans())
VALUES = st.one_of(NUMBERS.map(str), st.text(max_size=30), st.just("9" * 5000), st.just(""))


def operations(client: Client) -> list[tuple[str, str, list[str], list[str]]]:
    """Method, path, and the names of path and query parameters of all that the service offers."""
    found = []
    for path, methods in client.get("/api/v1/openapi.json").json()["paths"].items():
        for method, operation in methods.items():
            named = [(one["in"], one["name"]) for one in operation.get("parameters", [])]
            inside = [name for place, name in named if place == "path"]
            found.append((method.upper(), path, inside, [n for p, n in named if p == "query"]))
    return found


def attack(client: Client, examples: int) -> int:
    offered, sent = operations(client), [0]
    assert len(offered) >= 10

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=QUIET,
    )
    @given(st.data())
    def ask(data: st.DataObject) -> None:
        method, path, inside, query = data.draw(st.sampled_from(offered))
        for name in inside:
            value = data.draw(st.one_of(st.integers(0, 40).map(str), VALUES))
            path = path.replace("{" + name + "}", quote(value, safe="", errors="replace"))
        chosen = data.draw(st.lists(st.sampled_from(query), max_size=6)) if query else []
        words = [(name, data.draw(VALUES)) for name in chosen]
        words += data.draw(st.lists(st.tuples(st.text(max_size=5), VALUES), max_size=1))
        target = path + ("?" + urlencode(words, errors="replace") if words else "")
        body = data.draw(st.binary(max_size=200)) if method == "POST" else b""
        answer = client.request(method, target, content=body)
        sent[0] += 1
        assert answer.status_code < 500, (method, target, answer.text[:300])
        assert "Traceback" not in answer.text
        if answer.status_code >= 400 and method != "HEAD":
            assert "\n" not in answer.text.strip()

    ask()
    return sent[0]


def test_random_requests_are_answered_or_refused(client: Client) -> None:
    assert attack(client, 150) >= 150


@pytest.mark.slow
def test_five_thousand_random_requests(client: Client) -> None:
    assert attack(client, 5000) >= 5000
