"""Work done ahead by threads, handed out in order."""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

__all__ = ["in_order"]

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_order(
    work: Callable[[Item], Result], items: Iterable[Item], *, workers: int, ahead: int
) -> Generator[Result, None, None]:
    """The result of each item, in the order of the items, a few of them worked on ahead.

    Leaving early, also by an interruption, waits only for what is being worked on.

    Args:
        work: what to do with an item; must be safe to run in several threads.
        items: any number of them; taken as the work goes on.
        workers: threads; 0 does each when it is asked for.
        ahead: how many results may wait or be worked on at once.
    """
    if not workers:
        yield from map(work, items)
        return
    pool = ThreadPoolExecutor(workers, thread_name_prefix="cbml-ahead")
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
