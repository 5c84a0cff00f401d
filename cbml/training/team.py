"""The processes that train together: who I am, and the few things that they do in step."""

import contextlib
import datetime
import os
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, distributed

__all__ = ["Team", "joined_team"]

# Far above what one process may wait for another that writes a checkpoint. A process that dies is
# noticed at once, by its closed connection or by torchrun.
_PATIENCE = datetime.timedelta(minutes=10)


class Team:
    """The processes of a group, or this process alone.

    Args:
        group: of torch.distributed; None for one process.
    """

    def __init__(self, group: distributed.ProcessGroup | None = None) -> None:
        self.group = group
        self.rank = 0 if group is None else distributed.get_rank(group)
        self.size = 1 if group is None else distributed.get_world_size(group)

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes files and speaks."""
        return self.rank == 0

    def gathered(self, rows: Tensor) -> Tensor:
        """The rows of all processes in the order of their ranks, without a graph.

        Args:
            rows: equally many in each process.
        """
        if self.group is None:
            return rows.detach()
        rows = rows.detach().contiguous()
        parts = [torch.empty_like(rows) for _ in range(self.size)]
        distributed.all_gather(parts, rows, group=self.group)
        return torch.cat(parts)

    def own_rows(self, rows: Tensor) -> Tensor:
        """The part of gathered rows that came from this process.

        Args:
            rows: what `gathered` gave, or anything as long.
        """
        length = len(rows) // self.size
        return rows[self.rank * length : (self.rank + 1) * length]

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all processes.

        Args:
            tensors: of the same shapes in each process.
        """
        if self.group is None or not tensors:
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        distributed.all_reduce(flat, group=self.group)
        start = 0
        for tensor in tensors:
            tensor.copy_(flat[start : start + tensor.numel()].view(tensor.shape))
            start += tensor.numel()

    def follow(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by that of the first process.

        Args:
            tensors: of the same shapes in each process.
        """
        if self.group is not None:
            for tensor in tensors:
                # A channels-last tensor is not contiguous, and only such can travel.
                copy = tensor.detach().contiguous()
                distributed.broadcast(copy, src=0, group=self.group)
                tensor.detach().copy_(copy)

    def largest(self, number: int) -> int:
        """The largest of the numbers that the processes give.

        Args:
            number: of this process.
        """
        if self.group is None:
            return number
        value = torch.tensor(number)
        distributed.all_reduce(value, op=distributed.ReduceOp.MAX, group=self.group)
        return int(value)

    def wait(self) -> None:
        """Return when every process has come here."""
        self.largest(0)


@contextlib.contextmanager
def joined_team() -> Iterator[Team]:
    """The team that torchrun started this process in; a team of one where it did not."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        yield Team()
        return
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=_PATIENCE)
    try:
        yield Team(distributed.group.WORLD)
    finally:
        distributed.destroy_process_group()
