"""DCML: the worked example of its gates, plain loops, its limits, who gets which gradient."""

import itertools
import math

import pytest
import torch
from torch.nn import functional

from cbml.errors import BadData
from cbml.methods import DCML
from cbml.methods.dcml import self_reinforced
from cbml.methods.margin import MarginTriplets
from cbml.models import Embedder, Gates
from cbml.outputs import Outputs
from cbml.training import BatchInfo
from tests.oracles import methods

CLASSES, DIM = 4, 8
LABELS = torch.arange(12) // 3
ROWS = [torch.tensor([[1.0, 0], [2, 1]]).double(), torch.tensor([[0.0, 2], [-1, 1]]).double()]


def test_worked_example() -> None:
    gates = Gates(2, 2).double()
    with torch.no_grad():
        gates.gate.weight.copy_(torch.tensor([[0.5, 0, 0, 0.5], [0, 0.2, 0.1, 0]]))
        gates.gate.bias.copy_(torch.tensor([0.0, 0.1]))
    log_weights = gates.logits(ROWS).log_softmax(dim=1)
    expected = torch.tensor([[0.802184, 0.197816], [0.785835, 0.214165]]).double()
    torch.testing.assert_close(log_weights.exp(), expected, atol=1e-6, rtol=0)
    mixed = gates(torch.empty(2, 0), ROWS)
    expected = torch.tensor([[0.802184, 0.395632], [1.357505, 1.0]]).double()
    torch.testing.assert_close(mixed, expected, atol=1e-6, rtol=0)
    unit = torch.tensor([[0.896855, 0.442324], [0.805131, 0.593096]]).double()
    torch.testing.assert_close(functional.normalize(mixed, dim=1), unit, atol=1e-6, rtol=0)
    assert self_reinforced(log_weights[:, None]).item() == pytest.approx(0.230713, abs=1e-6)


def attached(**options: object) -> tuple[Embedder, DCML]:
    method = DCML(num_classes=CLASSES, **options)  # type: ignore[arg-type]
    model = Embedder("conv4", dim=DIM, heads=method.heads(DIM), batch_norm="frozen", seed=1)
    method.attach(model)
    return model, method


def outputs_of(model: Embedder, method: DCML) -> Outputs:
    pixels = torch.randn(12, 3, 16, 16, generator=torch.Generator().manual_seed(4))
    return model.forward_outputs(pixels, method.parts)


INFO = BatchInfo(LABELS, torch.arange(12))


@pytest.mark.parametrize("embedding", ["composites", "sub_embeddings"])
@pytest.mark.parametrize("losses", ["per_composite", "joint"])
def test_plain_loops_give_the_same(losses: str, embedding: str) -> None:
    model, method = attached(losses=losses, embedding=embedding, sub_embeddings=4, composites=4)
    outputs = outputs_of(model, method)
    found = method(outputs, INFO)
    raw = [outputs.parts[f"raw:sub_{k + 1}"].tolist() for k in range(4)]
    layers = [model.head[f"composite_{number + 1}"].gate for number in range(4)]
    maps = [(layer.weight.tolist(), layer.bias.tolist()) for layer in layers]
    composites, unsure = methods.composites(raw, maps)
    assert found.terms["gates"].item() == pytest.approx(unsure, rel=1e-5)
    if losses == "joint":
        composites = [[[*itertools.chain(*(q[n] for q in composites))] for n in range(12)]]
    expected = 0.0
    for number, rows in enumerate(composites):
        unit = functional.normalize(torch.tensor(rows), dim=1)
        expected += MarginTriplets(num_classes=CLASSES, seed=number)(unit, INFO).item()
    assert found.terms["margin"].item() == pytest.approx(expected, rel=1e-4)
    total = found.terms["margin"] + found.terms["gates"]
    assert found.total.item() == pytest.approx(total.item())
    names = method.mixed if embedding == "composites" else method.subs
    whole = torch.cat([outputs.parts[name] for name in names], dim=1) / 2.0
    torch.testing.assert_close(outputs.embeddings, whole)


def test_one_sub_embedding_is_the_plain_loss() -> None:
    model, method = attached(sub_embeddings=1, composites=1)
    outputs = outputs_of(model, method)
    found = method(outputs, INFO)
    assert found.terms["gates"].item() == 0.0
    torch.testing.assert_close(outputs.parts["composite_1"], outputs.parts["sub_1"])
    plain = MarginTriplets(num_classes=CLASSES)(outputs.parts["sub_1"], INFO)
    assert found.total.item() == pytest.approx(plain.item(), rel=1e-6)


def test_gates_that_know_nothing_take_the_mean() -> None:
    model, method = attached()
    for name in method.mixed:
        torch.nn.init.zeros_(model.head[name].gate.weight)
    outputs = outputs_of(model, method)
    mean = torch.stack([outputs.parts[f"raw:{name}"] for name in method.subs]).mean(dim=0)
    torch.testing.assert_close(outputs.parts["composite_3"], functional.normalize(mean, dim=1))
    found = method(outputs, INFO)
    assert found.terms["gates"].item() == pytest.approx(4 * math.log(4), rel=1e-6)
    assert found.terms["gate_use"].item() == pytest.approx(0.25)


def test_sure_gates_train_the_gates_alone() -> None:
    model, method = attached()
    method(outputs_of(model, method), INFO).terms["gates"].backward()
    moved = {key for key, parameter in model.named_parameters() if parameter.grad is not None}
    gates = {f"head.{name}.gate" for name in method.mixed}
    assert moved == {f"{gate}.{kind}" for gate in gates for kind in ("weight", "bias")}


def test_the_margin_reaches_gates_and_sub_embeddings() -> None:
    model, method = attached()
    method(outputs_of(model, method), INFO).terms["margin"].backward()
    for name in (*method.subs, *method.mixed):
        assert all(float(p.grad.abs().sum()) > 0 for p in model.head[name].parameters())


def test_the_betas_have_a_group_without_weight_decay() -> None:
    _, method = attached()
    (group,) = method.parameter_groups()
    assert (group.factor, group.weight_decay, len(group.parameters)) == (50.0, 0.0, 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"losses": "both"}, "losses"),
        ({"embedding": "gates"}, "embedding"),
        ({"composites": 0}, "composites"),
        ({"self_weight": -1.0}, "self_weight"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attached(**options)


def test_widths_that_do_not_fit_are_refused() -> None:
    with pytest.raises(BadData, match="dim 10: 4 composites of one width need a multiple of 4"):
        DCML(num_classes=2).heads(10)
