"""Tiles and threads, which decide how fast the loss is, decide nothing else."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from pytorch_metric_learning.utils.loss_and_miner_utils import get_all_pairs_indices

from cbml import CBMLLoss
from cbml.losses import kernel
from tests.losses.cases import make_batch, make_setting

# Batches without positives are among the cases.
pytestmark = pytest.mark.filterwarnings("ignore:no two images of this batch share a label")


def test_tiles_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(5)
    for _ in range(60):
        rows, labels = make_batch("ordinary", chance)
        refs, ref_labels = make_batch("ordinary", chance)
        refs = torch.nn.functional.pad(refs, (0, 8))[:, : rows.shape[1]] + 0.01
        loss = make_setting(chance).loss
        results = []
        for tile_rows, tile_size, cached in [
            (256, 2**24, 2**22),
            (3, 2**24, 2**22),
            (3, 2**24, 0),
            (256, 5, 2**22),
        ]:
            monkeypatch.setattr(kernel, "TILE_ROWS", tile_rows)
            monkeypatch.setattr(kernel, "TILE_SIZE", tile_size)
            monkeypatch.setattr(kernel, "_CACHED", cached)
            leaf, ref_leaf = rows.clone().requires_grad_(), refs.clone().requires_grad_()
            total = loss(leaf, labels) + loss(leaf, labels, None, ref_leaf, ref_labels)
            total = total + loss(leaf, labels, get_all_pairs_indices(labels))
            total.backward()
            assert leaf.grad is not None
            assert ref_leaf.grad is not None
            results.append((total.detach(), leaf.grad, ref_leaf.grad))
        for result in results[1:]:
            torch.testing.assert_close(result, results[0], rtol=1e-10, atol=1e-12)


def test_threads_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "TILE_ROWS", 8)
    monkeypatch.setattr(kernel, "_CACHED", 0)
    rows, labels = torch.randn(100, 16), torch.arange(100) % 9
    loss, results, before = CBMLLoss(), [], torch.get_num_threads()
    try:
        for threads in (1, 2, 3, kernel._OWN_THREADS + 1):
            torch.set_num_threads(threads)
            leaf = rows.clone().requires_grad_()
            value = loss(leaf, labels)
            value.backward()
            assert leaf.grad is not None
            results.append((value.detach(), leaf.grad))
            with torch.inference_mode():
                assert loss(rows + 0.0, labels) == value
            # Neither this thread nor one to come is left with another number.
            with ThreadPoolExecutor(1) as pool:
                assert pool.submit(torch.get_num_threads).result() == threads
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    for result in results[1:-1]:
        torch.testing.assert_close(result, results[0], rtol=0, atol=0)
    torch.testing.assert_close(results[-1], results[0])


def test_an_error_in_a_thread_ends_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(kernel, "_CACHED", 0)
    monkeypatch.setattr(kernel, "_Work", fail)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    with pytest.raises(MemoryError, match="no room"):
        CBMLLoss()(torch.randn(8, 4), torch.arange(8) % 2)
