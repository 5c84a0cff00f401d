"""LSCM-GNN, the reconstruction: the worked example of its design, plain loops, and its limits."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from cbml.losses import LOSSES
from cbml.methods import LSCMGNN
from cbml.methods.lscm_gnn import mixed, nearest_rows
from cbml.outputs import Outputs
from cbml.training import BatchInfo, StepLoss
from tests.oracles import methods

ROWS = functional.normalize(
    torch.tensor([[1, 0], [0.9, 0.3], [0, 1], [-0.5, 1]], dtype=torch.float64), dim=1
)


def test_worked_example() -> None:
    near = nearest_rows(ROWS, ROWS, 2)
    assert near[[0, 2]].tolist() == [[1, 2], [3, 1]]
    weights = (ROWS @ ROWS.T).gather(1, near).clamp(min=0.0)
    shares = torch.cat([torch.ones(4, 1).double(), weights], dim=1)
    shares = shares / shares.sum(dim=1, keepdim=True)
    assert shares[0].tolist() == pytest.approx([0.513167, 0.486833, 0.0], abs=1e-6)
    assert shares[2].tolist() == pytest.approx([0.452355, 0.404598, 0.143047], abs=1e-6)
    found = mixed(ROWS, ROWS[near], weights)
    assert found[0].tolist() == pytest.approx([0.987763, 0.155963], abs=1e-6)
    assert found[2].tolist() == pytest.approx([-0.052559, 0.998618], abs=1e-6)


def random_rows(count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return functional.normalize(torch.randn(count, 4, generator=generator).double(), dim=1)


@pytest.mark.parametrize("seed", range(3))
def test_plain_loops_give_the_same(seed: int) -> None:
    rows, labels = random_rows(9, seed), torch.arange(9) // 3
    method = LSCMGNN(neighbors=3, hidden=6, embedding_size=4, edge_weight=0.7, seed=seed).double()
    assert method.edges is not None

    def edge(i: int, j: int) -> float:
        both = torch.cat([rows[i] * rows[j], (rows[i] - rows[j]).abs()])
        return float(method.edges(both).sigmoid().detach())  # type: ignore[misc]

    expected = torch.tensor(methods.neighbor_mix(rows.tolist(), 3, edge), dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(method.refine(Outputs(rows)), expected)
        found: StepLoss = method(Outputs(rows), BatchInfo(labels, torch.arange(9)))
    near = nearest_rows(rows, rows, 3).tolist()
    pairs = [(edge(i, j), labels[i] == labels[j]) for i in range(9) for j in near[i]]
    cost = [-torch.tensor(e if same else 1 - e).log() for e, same in pairs]
    edges = float(torch.stack(cost).mean())
    assert float(found.terms["edges"]) == pytest.approx(edges, rel=1e-5)
    pair_loss = float(LOSSES["multi_similarity"]()(expected, labels))
    assert float(found.total) == pytest.approx(pair_loss + 0.7 * edges, rel=1e-5)


def test_without_neighbors_it_is_the_pair_loss() -> None:
    rows, labels = random_rows(8, 4), torch.arange(8) // 2
    method = LSCMGNN(neighbors=0)
    found: StepLoss = method(Outputs(rows), BatchInfo(labels, torch.arange(8)))
    torch.testing.assert_close(found.total, LOSSES["multi_similarity"]()(rows, labels))
    torch.testing.assert_close(method.refine(Outputs(rows)), rows)


def test_certain_edges_are_an_average_and_order_does_not_matter() -> None:
    rows = random_rows(7, 5)
    near = nearest_rows(rows, rows, 2)
    expected = functional.normalize(rows + rows[near].sum(dim=1), dim=1)
    torch.testing.assert_close(mixed(rows, rows[near], torch.ones(7, 2).double()), expected)
    method = LSCMGNN(neighbors=2, hidden=5, embedding_size=4).double()
    order = torch.randperm(7, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = method.refine(Outputs(rows))
        torch.testing.assert_close(method.refine(Outputs(rows[order])), found[order])


def test_a_set_smaller_than_its_neighbors_is_mixed_with_what_there_is() -> None:
    rows = random_rows(3, 6)
    assert nearest_rows(rows, rows, 5).shape == (3, 2)
    assert (
        nearest_rows(rows[1:], rows, 5, start=1).tolist()
        == nearest_rows(rows, rows, 5)[1:].tolist()
    )


def test_what_cannot_be_meant_is_refused() -> None:
    for options in ({"neighbors": -1}, {"hidden": 0}, {"edge_weight": -1.0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            LSCMGNN(**options)  # type: ignore[arg-type]
