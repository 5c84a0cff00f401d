"""How long `cbml --help` takes, beside `python -c pass` in the same run.

Time of the processor is printed as well: on a crowded machine it is the steadier number.
"""

import resource
import statistics
import subprocess
import sys
import time

ROUNDS = 15
GOAL = 0.3


def seconds(*words: str) -> tuple[float, float]:
    """By the clock, and of the processor."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return time.perf_counter() - start, used


def main() -> None:
    runs = {"python -c pass": ["-c", "pass"], "cbml --help": ["-m", "cbml", "--help"]}
    times = [{name: seconds(*words) for name, words in runs.items()} for _ in range(ROUNDS)]
    clock = {name: statistics.median(one[name][0] for one in times) for name in runs}
    used = {name: statistics.median(one[name][1] for one in times) for name in runs}
    for name in runs:
        print(f"{name:<16} {clock[name]:6.3f} s   of the processor {used[name]:6.3f} s")
    bare, asked = clock.values()
    print(f"  help takes {asked / bare:.1f} times as long as nothing at all")
    print(f"  {'kept' if asked <= GOAL else 'MISSED'}: help within {GOAL} s, median of {ROUNDS}")


if __name__ == "__main__":
    main()
