"""The losses inside the real pytorch-metric-learning: miners, memory, sums, many processes."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pytorch_metric_learning import losses, miners
from pytorch_metric_learning.utils import loss_and_miner_utils as library
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper
from torch import Tensor

from cbml import CBMLLoss, MetricVariance
from cbml.losses import BASELINES, WithVariance
from cbml.losses.interop import CrossBatchMemory, LibraryLoss, SelfSupervisedLoss
from tests.oracles import contrastive_bayesian as literal
from tests.training import children

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


def test_a_saved_memory_goes_on_equally() -> None:
    def new() -> CrossBatchMemory:
        return CrossBatchMemory(CBMLLoss(), embedding_size=8, memory_size=60)

    for steps in (1, 4):  # before and after the queue of 60 wraps around
        unbroken, resumed = new(), new()
        for step in range(steps):
            rows, labels = batch(20 + step)
            unbroken(rows.float(), labels)
        resumed.load_state_dict(unbroken.state_dict())
        for step in range(3):
            rows, labels = batch(30 + step)
            assert torch.equal(unbroken(rows.float(), labels), resumed(rows.float(), labels))
    unbroken.reset_queue()
    torch.testing.assert_close(unbroken(rows, labels), new()(rows, labels))


MINING = ["margin", "multi_similarity", "triplet_easy_positive", "triplet_semihard"]


@pytest.mark.parametrize("name", MINING)
def test_a_loss_that_mines_goes_on_mining_in_the_memory(name: str) -> None:
    """With nothing but the batch itself in the memory, the value is the plain one."""
    rows, labels = batch(5)
    for wrap in (lambda loss: loss, lambda loss: WithVariance(loss, variance_weight=0.0)):
        memory = CrossBatchMemory(
            wrap(BASELINES[name]().double()), embedding_size=8, memory_size=60
        )
        torch.testing.assert_close(memory(rows, labels), BASELINES[name]().double()(rows, labels))


def test_mining_in_the_memory_sees_all_of_it() -> None:
    memory = CrossBatchMemory(BASELINES["multi_similarity"](), embedding_size=8, memory_size=60)
    other = BASELINES["multi_similarity_xbm"](
        embedding_size=8, memory_size=60, warmup_steps=0, batch_weight=0.0
    ).double()
    for step in range(5):
        rows, labels = batch(40 + step)
        torch.testing.assert_close(memory(rows, labels), other(rows, labels))


def test_a_miner_that_is_given_comes_first() -> None:
    rows, labels = batch(6)
    inner = miners.MultiSimilarityMiner(epsilon=10.0)  # all pairs
    memory = CrossBatchMemory(BASELINES["multi_similarity"](), 8, 60, miner=inner)
    everything = BASELINES["multi_similarity"](mining_margin=10.0)(rows, labels)
    torch.testing.assert_close(memory(rows, labels), everything)


@pytest.mark.parametrize("symmetric", [True, False])
def test_two_views_are_the_two_members_of_a_class(symmetric: bool) -> None:
    first, second = batch(7)[0], batch(8)[0]
    labels, loss = torch.arange(len(first)), CBMLLoss.paper("sop")
    found = SelfSupervisedLoss(loss, symmetric=symmetric)(first, second)
    expected = loss(first, labels, None, second, labels.clone())
    if symmetric:
        expected = loss(torch.cat([first, second]), labels.repeat(2))
    torch.testing.assert_close(found, expected)


OURS = """
from cbml import CBMLLoss, MetricVariance
from cbml.losses import BASELINES, WithVariance

class Own(CBMLLoss):
    pass

made = [CBMLLoss(), Own(), WithVariance(MetricVariance())]
"""
NOT_YET = """
import sys
assert not any(name.startswith("pytorch_metric_learning") for name in sys.modules)
"""
LIBRARY = """
from pytorch_metric_learning.losses import CrossBatchMemory, SelfSupervisedLoss
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper
"""
DISTRIBUTED_FIRST = """
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper
from pytorch_metric_learning.losses import CrossBatchMemory, SelfSupervisedLoss
"""
LOOKED_FOR = """
import importlib.util
for name in ("losses.cross_batch_memory", "utils.distributed"):
    assert importlib.util.find_spec("pytorch_metric_learning." + name).origin.endswith(".py")
assert importlib.util.find_spec("pytorch_metric_learning.losses.nothing") is None
"""
RELOADED = """
import importlib, inspect, sys
from pytorch_metric_learning.losses import cross_batch_memory
for _ in range(2):
    importlib.reload(cross_batch_memory)
importlib.reload(sys.modules["cbml.losses.inputs"])
CrossBatchMemory = cross_batch_memory.CrossBatchMemory
assert "embedding_size" in inspect.signature(CrossBatchMemory).parameters
assert inspect.getsource(cross_batch_memory).startswith("import torch")
"""
REFUSED = """
import pytest, torch
wrappers = {
    "cbml.losses.interop.CrossBatchMemory": lambda loss: CrossBatchMemory(loss, 8),
    "cbml.losses.interop.SelfSupervisedLoss": lambda loss: SelfSupervisedLoss(loss=loss),
    "cbml.losses.interop.LibraryLoss": DistributedLossWrapper,
}
for adapter, wrapper in wrappers.items():
    for loss in (*made, BASELINES["fast_ap"]()):
        with pytest.raises(Exception, match=f"{type(loss).__name__}|extend") as refusal:
            wrapper(loss)
        assert str(refusal.value).endswith(")"), refusal.value
        assert str(refusal.value).count(f"; use ") == 1, refusal.value
        assert adapter in str(refusal.value), refusal.value
    with pytest.raises(Exception) as refusal:
        wrapper(torch.nn.Linear(2, 2))
    assert "cbml" not in str(refusal.value)  # what the library says to others stays
"""


@pytest.mark.parametrize(
    "program",
    [
        LIBRARY + OURS,
        OURS + NOT_YET + LIBRARY,
        OURS + NOT_YET + LOOKED_FOR + DISTRIBUTED_FIRST + RELOADED,
    ],
    ids=["library first", "loss first", "distributed first"],
)
def test_where_the_library_refuses_a_loss_it_names_the_adapter(program: str) -> None:
    # A process of its own: in this one the library has been imported.
    made = subprocess.run(
        [sys.executable, "-c", program + REFUSED], capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr


def test_multiple_losses_add_the_constraint_to_any_loss() -> None:
    rows, labels = batch(3)
    multi, variance = losses.MultiSimilarityLoss(), MetricVariance()
    together = losses.MultipleLosses([multi, variance], weights=[1.0, 0.5])
    torch.testing.assert_close(
        together(rows, labels), multi(rows, labels) + 0.5 * variance(rows, labels)
    )
    mined = losses.MultipleLosses({"cbml": CBMLLoss()}, miners={"cbml": miners.BatchHardMiner()})
    assert mined(rows, labels).item() > 0


# Their own positive is each image's easiest, a miner's hardest, or no pair at all.
IN_PROCESSES = ["contrastive", "lifted_structure", "nt_xent", "triplet_easy_positive"]


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
        baselines = [BASELINES[name]() for name in IN_PROCESSES]
        baselines.append(BASELINES["proxy_anchor"](num_classes=6, embedding_size=8).double())
        values = [
            DistributedLossWrapper(LibraryLoss(baseline))(rows[half], labels[half])
            for baseline in baselines
        ]
        torch.save((loss.detach(), leaf.grad, torch.stack(values)), Path(folder) / f"{rank}.pt")
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("efficient", [False, True])
def test_two_processes_compute_the_loss_of_one(tmp_path: Path, efficient: bool) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    both = [children.start(work, rank, str(tmp_path), port, efficient) for rank in range(2)]
    for child in both:
        child.join(200)
    assert [child.exitcode for child in both] == [0, 0]
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
        for value, *_ in parts:
            torch.testing.assert_close(value, 2 * loss.detach())
        baselines = [BASELINES[name]() for name in IN_PROCESSES]
        baselines.append(BASELINES["proxy_anchor"](num_classes=6, embedding_size=8).double())
        for place, baseline in enumerate(baselines):
            plain = baseline(rows.detach(), labels)
            for part in parts:
                torch.testing.assert_close(part[2][place], 2 * plain)
        torch.testing.assert_close(torch.cat([part[1] for part in parts]), 2 * rows.grad)
