"""The losses inside the real pytorch-metric-learning: miners, memory, sums, many processes."""

import os
import socket
from pathlib import Path

import pytest
import torch
from pytorch_metric_learning import losses, miners
from pytorch_metric_learning.utils import loss_and_miner_utils as library
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper
from torch import Tensor

from cbml import CBMLLoss, MetricVariance
from cbml.losses.interop import CrossBatchMemory, LibraryLoss
from tests.oracles import contrastive_bayesian as literal

CUB = literal.linear(0.5, 0.5, 1.0, 0.01)


def batch(seed: int, size: int = 24, classes: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(size, 8, generator=generator, dtype=torch.float64),
        torch.randint(0, classes, (size,), generator=generator),
    )


def pairs_of(indices_tuple: tuple[Tensor, ...]) -> tuple[set[tuple[int, int]], ...]:
    a1, p, a2, n = (part.tolist() for part in indices_tuple)
    return set(zip(a1, p, strict=True)), set(zip(a2, n, strict=True))


def test_a_pair_miner_chooses_the_pairs() -> None:
    rows, labels = batch(0)
    mined = miners.MultiSimilarityMiner(epsilon=0.1)(rows, labels)
    loss = CBMLLoss(mining_margin=None)
    expected = literal.terms(
        literal.Oracle(*CUB, epsilon=None),
        rows.tolist(),
        labels.tolist(),
        None,
        None,
        *pairs_of(mined),
    )
    assert loss(rows, labels, mined).item() == pytest.approx(expected[3], rel=1e-9)


def test_the_library_mines_the_same_pairs_as_the_loss_itself() -> None:
    rows, labels = batch(1)
    mined = miners.MultiSimilarityMiner(epsilon=0.1)(rows, labels)
    by_miner = CBMLLoss(mining_margin=None, variance_weight=0.0)(rows, labels, mined)
    by_loss = CBMLLoss(mining_margin=0.1, variance_weight=0.0)(rows, labels)
    torch.testing.assert_close(by_miner, by_loss)


def test_triplets_of_a_miner_are_sets_of_pairs() -> None:
    rows, labels = batch(2)
    triplets = library.get_all_triplets_indices(labels)
    assert len(triplets) == 3
    for loss in [CBMLLoss(), MetricVariance()]:
        complete = [i for i in range(24) if i in set(triplets[0].tolist())]
        assert len(complete) == 24, "every anchor has both kinds, so the triplets name all pairs"
        torch.testing.assert_close(loss(rows, labels, triplets), loss(rows, labels))


@pytest.mark.parametrize("inner_miner", [None, miners.MultiSimilarityMiner(epsilon=0.1)])
def test_cross_batch_memory_compares_with_the_last_batches(inner_miner: object) -> None:
    loss = CBMLLoss(mining_margin=None)
    memory = CrossBatchMemory(loss, embedding_size=8, memory_size=60, miner=inner_miner)  # type: ignore[arg-type]
    remembered: list[tuple[list[float], int]] = []
    for step in range(5):  # the memory of 60 wraps around in the third batch of 24
        rows, labels = batch(10 + step)
        rows.requires_grad_()
        found = memory(rows, labels)
        found.backward()
        assert rows.grad is not None
        assert bool(rows.grad.abs().sum() > 0)
        new = list(zip(rows.tolist(), labels.tolist(), strict=True))
        remembered = (remembered + new)[-60:]
        if inner_miner is None:
            expected = against_memory(rows.tolist(), labels.tolist(), remembered)
            assert found.item() == pytest.approx(expected, rel=1e-9)


def against_memory(
    rows: list[list[float]], labels: list[int], remembered: list[tuple[list[float], int]]
) -> float:
    own = len(remembered) - len(rows)  # where the batch's own copies begin
    positive, negative = set(), set()
    for i, label in enumerate(labels):
        for j, (_, other) in enumerate(remembered):
            if label != other:
                negative.add((i, j))
            elif j != own + i:
                positive.add((i, j))
    oracle = literal.Oracle(*CUB, epsilon=None)
    others, other_labels = [row for row, _ in remembered], [label for _, label in remembered]
    return literal.terms(oracle, rows, labels, others, other_labels, positive, negative)[3]


def test_the_library_memory_refuses_unknown_names_which_is_why_ours_exists() -> None:
    with pytest.raises(Exception, match="not supported for CBMLLoss"):
        losses.CrossBatchMemory(CBMLLoss(), embedding_size=8)


def test_multiple_losses_add_the_constraint_to_any_loss() -> None:
    rows, labels = batch(3)
    multi, variance = losses.MultiSimilarityLoss(), MetricVariance()
    together = losses.MultipleLosses([multi, variance], weights=[1.0, 0.5])
    torch.testing.assert_close(
        together(rows, labels), multi(rows, labels) + 0.5 * variance(rows, labels)
    )
    mined = losses.MultipleLosses({"cbml": CBMLLoss()}, miners={"cbml": miners.BatchHardMiner()})
    assert mined(rows, labels).item() > 0


def work(rank: int, folder: str, port: int, efficient: bool) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    try:
        rows, labels = batch(4)
        half = slice(12 * rank, 12 * rank + 12)
        leaf = rows[half].clone().requires_grad_()
        wrapped = DistributedLossWrapper(LibraryLoss(CBMLLoss.paper("sop")), efficient=efficient)
        loss = wrapped(leaf, labels[half])
        loss.backward()
        torch.save((loss.detach(), leaf.grad), Path(folder) / f"{rank}.pt")
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("efficient", [False, True])
def test_two_processes_compute_the_loss_of_one(tmp_path: Path, efficient: bool) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torch.multiprocessing.spawn(work, (str(tmp_path), port, efficient), nprocs=2)
    parts = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    rows, labels = batch(4)
    rows.requires_grad_()
    loss = CBMLLoss.paper("sop")(rows, labels)
    loss.backward()
    assert rows.grad is not None
    # The wrapper multiplies by the number of processes, which the mean of DDP takes back.
    if efficient:  # each process has the anchors of its own half
        torch.testing.assert_close((parts[0][0] + parts[1][0]) / 2, 2 * loss.detach())
    else:
        for value, _ in parts:
            torch.testing.assert_close(value, 2 * loss.detach())
        torch.testing.assert_close(torch.cat([part[1] for part in parts]), 2 * rows.grad)
