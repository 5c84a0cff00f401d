"""DIML: its worked example, plain loops, its limits, and the cells that a model gives."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from cbml.errors import BadData
from cbml.index import DIML, RERANKERS, find_reranker
from cbml.index.rerankers import marginal, transport
from cbml.models import Embedder, Head
from cbml.models.heads import cut_cells
from cbml.outputs import Outputs
from tests.oracles import diml

FIRST = torch.tensor([[1.0, 0.0], [0.6, 0.8]]).double()
SECOND = torch.tensor([[0.8, 0.6], [0.0, 1.0]]).double()
CENTERS = [functional.normalize(cells.mean(dim=0), dim=0) for cells in (FIRST, SECOND)]


def test_worked_example() -> None:
    own, other = marginal(FIRST @ CENTERS[1]), marginal(SECOND @ CENTERS[0])
    assert own.tolist() == pytest.approx([0.312498, 0.687495], abs=1e-6)
    assert other.tolist() == pytest.approx([0.687495, 0.312498], abs=1e-6)
    similarity = FIRST @ SECOND.T
    moved = transport(similarity, own, other, 0.05, 5)
    expected = torch.tensor([[0.312363, 0.000001], [0.375132, 0.312497]]).double()
    torch.testing.assert_close(moved, expected, atol=1e-6, rtol=0)
    assert (moved * similarity).sum().item() == pytest.approx(0.860015, abs=1e-6)
    converged = transport(similarity, own, other, 0.05, 20)
    assert (converged * similarity).sum().item() == pytest.approx(0.859994, abs=2e-6)
    even = transport(similarity, torch.full((2,), 0.5), torch.full((2,), 0.5), 0.05, 2000)
    assert (even * similarity).sum().item() == pytest.approx(0.799469, abs=1e-6)
    found = score(FIRST, SECOND, *CENTERS, rounds=5)
    assert found == pytest.approx(1.660015, abs=2e-6)


def score(first: Tensor, second: Tensor, a: Tensor, b: Tensor, rounds: int = 20) -> float:
    reranker = DIML(rounds=rounds)
    return reranker.scores(first[None], a[None], second[None, None], b[None, None]).item()


def random_outputs(count: int, seed: int, cells: int = 9) -> Outputs:
    generator = torch.Generator().manual_seed(seed)
    rows = functional.normalize(torch.randn(count, cells, 5, generator=generator) + 0.3, dim=2)
    return Outputs(functional.normalize(rows.mean(dim=1), dim=1), {"cells:4": rows})


def test_plain_loops_give_the_same_for_every_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cbml.index.rerankers._BLOCK", 200)  # a few queries at a time
    queries, gallery = random_outputs(7, 1), random_outputs(11, 2)
    generator = torch.Generator().manual_seed(3)
    candidates = torch.stack([torch.randperm(11, generator=generator)[:3] for _ in range(7)])
    found = DIML()(queries, gallery, candidates)
    for q in range(7):
        for k, number in enumerate(candidates[q].tolist()):
            a, b = queries.embeddings[q], gallery.embeddings[number]
            cells = queries.parts["cells:4"][q], gallery.parts["cells:4"][number]
            plain = diml.structural(*(x.tolist() for x in cells), a.tolist(), b.tolist(), 20)
            assert found[q, k].item() == pytest.approx(plain + float(a @ b), abs=1e-5)


def test_a_single_cell_counts_the_cosine_twice() -> None:
    a, b = functional.normalize(torch.tensor([[1.0, 0.2], [0.7, 0.6]]), dim=1)
    assert score(a[None], b[None], a, b) == pytest.approx(2.0 * float(a @ b), abs=5e-5)


def test_an_image_matches_itself() -> None:
    outputs = random_outputs(1, 4)
    cells, center = outputs.parts["cells:4"][0], outputs.embeddings[0]
    even = torch.full((9,), 1.0 / 9.0)
    moved = transport(cells @ cells.T, even, even, 0.05, 20)
    assert float((moved * (cells @ cells.T)).sum()) > 0.9
    found = DIML()(outputs, random_outputs(6, 5), torch.arange(6)[None])
    assert score(cells, cells, center, center) > float(found.max())


def test_cells_that_agree_with_nothing_are_worth_the_same() -> None:
    assert marginal(torch.tensor([-0.2, -0.1, 0.0, -1.0])).tolist() == [0.25] * 4
    opposite = score(FIRST, -FIRST, CENTERS[0], -CENTERS[0])
    assert -2.0 <= opposite < -1.0


@pytest.mark.parametrize("crop", [16, 40])  # maps of 2 by 2, drawn larger, and of 5 by 5
def test_cells_are_those_of_the_map_before_or_after_the_linear_layer(crop: int) -> None:
    model = Embedder("conv4", dim=6, batch_norm="frozen", seed=2).eval()
    torch.nn.init.normal_(model.head.bias)
    images = torch.randn(3, 3, crop, crop, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        outputs = model.forward_outputs(images, ("cells:4", "map"))
        found = outputs.parts["map"]
        after = model.head(found.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        plain = functional.normalize(cut_cells(after, 4).flatten(2).transpose(1, 2), dim=2)
    assert outputs.parts["cells:4"].shape == (3, 16, 6)
    torch.testing.assert_close(outputs.parts["cells:4"], plain, atol=1e-5, rtol=1e-5)


def test_a_map_that_fits_is_averaged() -> None:
    found = torch.arange(64.0).reshape(1, 1, 8, 8)
    assert cut_cells(found, 4)[0, 0, 0].tolist() == [4.5, 6.5, 8.5, 10.5]


def test_models_without_cells_and_unknown_names_are_refused() -> None:
    model = Embedder("conv4", heads=[Head(name="a", dim=4), Head(name="b", dim=4)])
    with pytest.raises(BadData, match="one linear layer on a map"):
        model.forward_outputs(torch.zeros(1, 3, 32, 32), ("cells:4",))
    with pytest.raises(BadData, match="reranker 'dml', which is none of diml"):
        find_reranker("dml")
    assert isinstance(RERANKERS["diml"].load(), DIML)
