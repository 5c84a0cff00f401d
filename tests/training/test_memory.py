"""Freed memory is kept, and the numbers of a step stay what they were."""

import sys

import pytest

from tests.program import run

PROBE = """
import resource, sys
import torch
from cbml.training.machine import keep_freed_memory
if sys.argv[-1] == "keep":
    assert keep_freed_memory()
def step():
    return [torch.ones(2**23) for _ in range(4)][0].sum()  # 4 x 32 MiB
for _ in range(5):  # the heap grows until freed blocks fit the next ones
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    assert float(step()) == 2.0**23
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    done = run(how, code=PROBE)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc has this choice")
def test_later_steps_ask_for_no_memory() -> None:
    given_back, kept = faults("leave"), faults("keep")
    assert given_back > 5 * 4 * 2**25 // 2**21  # at least one for each large page
    assert kept < given_back / 5
