"""The processes that train together: who I am, and the few things that they do in step."""

import contextlib
import datetime
import os
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from cbml.errors import BadData

# Far above what one process may wait for another that writes a checkpoint. A process that dies is
# noticed at once, by its closed connection or by torchrun.
_PATIENCE = datetime.timedelta(minutes=10)


class Distributed:
    """The processes of a group, or this process alone.

    Args:
        group: of torch.distributed; None for one process.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        self.rank = 0 if group is None else dist.get_rank(group)
        self.size = 1 if group is None else dist.get_world_size(group)

    @property
    def is_main_process(self) -> bool:
        """Whether this is the process that writes files and speaks."""
        return self.rank == 0

    def all_gather(self, rows: Tensor) -> Tensor:
        """The rows of all processes in the order of their ranks, without a graph.

        Args:
            rows: equally many in each process.
        """
        if self.group is None:
            return rows.detach()
        rows = rows.detach().contiguous()
        parts = [torch.empty_like(rows) for _ in range(self.size)]
        dist.all_gather(parts, rows, group=self.group)
        return torch.cat(parts)

    def local_rows(self, rows: Tensor) -> Tensor:
        """The part of gathered rows that came from this process.

        Args:
            rows: what `gathered` gave, or anything as long.
        """
        length = len(rows) // self.size
        return rows[self.rank * length : (self.rank + 1) * length]

    def all_reduce(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all processes.

        Args:
            tensors: of the same shapes in each process.
        """
        if self.group is None or not tensors:
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        dist.all_reduce(flat, group=self.group)
        start = 0
        for tensor in tensors:
            tensor.copy_(flat[start : start + tensor.numel()].view(tensor.shape))
            start += tensor.numel()

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by that of the first process.

        Args:
            tensors: of the same shapes in each process.
        """
        if self.group is not None:
            for tensor in tensors:
                # A channels-last tensor is not contiguous, and only such can travel.
                copy = tensor.detach().contiguous()
                dist.broadcast(copy, src=0, group=self.group)
                tensor.detach().copy_(copy)

    def from_main_process(self, compute: Callable[[], Tensor], like: Tensor) -> Tensor:
        """What the main process computes, in every process; its failure is heard by all.

        Args:
            compute: gives a tensor of whole numbers from 0; called in the main process alone.
            like: a tensor of the same shape and type.
        """
        failure: Exception | None = None
        found = torch.full_like(like, -1)
        if self.is_main_process:
            try:
                found = compute()
            except Exception as error:  # the others must hear of it, or they would wait for ever
                failure = error
        self.broadcast([found])
        if failure is not None:
            raise failure
        if bool((found < 0).any()):
            raise BadData("the main process could not go on; its message says why")
        return found

    def all_reduce_max(self, number: int) -> int:
        """The largest of the numbers that the processes give.

        Args:
            number: of this process.
        """
        if self.group is None:
            return number
        value = torch.tensor(number)
        dist.all_reduce(value, op=dist.ReduceOp.MAX, group=self.group)
        return int(value)

    def barrier(self) -> None:
        """Return when every process has come here."""
        self.all_reduce_max(0)


@contextlib.contextmanager
def join_processes() -> Iterator[Distributed]:
    """The processes that torchrun started this one with; this process alone where it did not."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        yield Distributed()
        return
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=_PATIENCE)
    try:
        yield Distributed(dist.group.WORLD)
    finally:
        dist.destroy_process_group()
