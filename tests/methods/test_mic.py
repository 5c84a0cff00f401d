"""MIC: its worked examples, who gains by a step, its streams, and its limits."""

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from cbml.data import ImageDataset
from cbml.errors import BadData
from cbml.index import kmeans
from cbml.methods import MIC
from cbml.methods.margin import Draws, sampled_pairs
from cbml.methods.mic import (
    CLASS,
    SHARED,
    _Clustered,
    centered,
    decorrelation,
    pooled_places,
)
from cbml.models import Embedder
from cbml.outputs import Outputs
from cbml.training import BatchInfo, Settings, TrainingView
from cbml.training.optimizers import build_optimizer
from tests.methods.examples import labeled_view
from tests.methods.test_margin import listed
from tests.oracles import stages
from tests.training.small import CLASSES, IMAGES

COUNT = CLASSES * IMAGES
CLASS_ROWS, SHARED_ROWS = [[1.0, 2], [2, -1]], [[1.0, 0.3], [1, 1]]
LAYERS = [[[1.0, 0], [0, 1], [1, -1]], [[1.0, 0, 1], [0, 2, 0]]]


def made(**options: object) -> MIC:
    chosen = {"num_classes": CLASSES, "num_images": COUNT, "embedding_size": 8, "clusters": 5}
    return MIC(**{**chosen, "hidden": 8, **options})


def adversary(layers: list[list[list[float]]]) -> nn.Sequential:
    weights = [torch.tensor(layer).double() for layer in layers]
    linear = [nn.Linear(*weight.T.shape, bias=False).double() for weight in weights]
    for layer, weight in zip(linear, weights, strict=True):
        layer.weight.data = weight
    return nn.Sequential(linear[0], nn.ReLU(), linear[1])


def test_worked_example_of_the_adversary() -> None:
    rows = torch.tensor(CLASS_ROWS).double().requires_grad_()
    source = functional.normalize(torch.tensor(SHARED_ROWS).double(), dim=1)
    found = decorrelation(source, functional.normalize(rows, dim=1), adversary(LAYERS))
    assert float(found.detach()) == pytest.approx(-0.146615, abs=1e-6)
    found.backward()
    reached = [[0.062277, -0.031138], [-0.024, -0.048]]  # the negative of the true gradient
    torch.testing.assert_close(rows.grad, torch.tensor(reached).double(), atol=1e-6, rtol=0)


def test_plain_loops_give_the_same_adversary() -> None:
    generator = torch.Generator().manual_seed(0)
    source, target = (torch.randn(6, 3, generator=generator).double() for _ in range(2))
    layers = [torch.randn(5, 3, generator=generator), torch.randn(3, 5, generator=generator)]
    lists = [layer.tolist() for layer in layers]
    units = [functional.normalize(rows, dim=1) for rows in (source, target)]
    found = float(decorrelation(*units, adversary(lists)).detach())
    assert found == pytest.approx(stages.decorrelation(source.tolist(), target.tolist(), lists))


def test_the_adversary_raises_the_agreement_and_both_embeddings_lower_it() -> None:
    network = adversary(LAYERS)
    rows = [
        functional.normalize(torch.tensor(each).double(), dim=1).requires_grad_()
        for each in (SHARED_ROWS, CLASS_ROWS)
    ]
    loss = decorrelation(*rows, network)
    loss.backward()
    start = -float(loss.detach())
    with torch.no_grad():
        for place in range(2):
            moved = [*rows]
            moved[place] = rows[place] - 1e-3 * rows[place].grad
            units = [functional.normalize(each, dim=1) for each in moved]
            assert -float(decorrelation(*units, network)) < start
        for parameter in network.parameters():
            parameter -= 1e-3 * parameter.grad
        assert -float(decorrelation(*rows, network)) > start


def test_worked_example_of_centering() -> None:
    vectors = np.array([[1, 0], [3, 2], [0, 4], [2, 0]], dtype=np.float32)
    labels = np.array([0, 0, 1, 1])
    found = centered(vectors, labels, deviation=False)
    assert found.tolist() == [[-1, -1], [1, 1], [-1, 2], [1, -2]]
    found = centered(vectors, labels, deviation=True)
    assert found.tolist() == [[-1, -1], [1, 1], [-1, 1], [1, -1]]
    alone = centered(vectors, np.arange(4), deviation=True)
    assert not alone.any(), "a class of one image has no deviation"


def test_a_map_becomes_four_by_four_places() -> None:
    features = torch.arange(56.0 * 56).view(1, 1, 56, 56)
    found = pooled_places(features)
    assert found.shape == (1, 16)
    assert float(found[0, 5]) == pytest.approx(float(features[0, 0, 12:30, 12:30].mean()))
    assert pooled_places(torch.zeros(2, 3, 14, 14)).shape == (2, 48)
    assert pooled_places(torch.zeros(2, 3, 1, 1)).shape == (2, 3)


def outputs_of(seed: int) -> Outputs:
    generator = torch.Generator().manual_seed(seed)
    rows = [functional.normalize(torch.randn(9, 8, generator=generator), dim=1) for _ in range(2)]
    return Outputs(rows[0], {"classes": rows[0], "shared": rows[1]})


@pytest.mark.parametrize("stream", [CLASS, SHARED])
def test_each_stream_has_its_embedding_its_labels_and_its_betas(stream: int) -> None:
    method, outputs = made(adversary_weight=3.0), outputs_of(1)
    method.class_beta.data.copy_(torch.linspace(0.6, 1.6, CLASSES))
    method.shared_beta.data.copy_(torch.linspace(1.5, 0.5, 5))
    batch = BatchInfo(torch.arange(9) // 2, torch.arange(9), stream)
    rows = outputs.parts["shared" if stream else "classes"]
    pairs = sampled_pairs(rows, batch, Draws(batch, 0), near=0.5)
    assert len(listed(pairs[0])) == 8, "one for each anchor that has a positive"
    beta = (method.shared_beta if stream else method.class_beta)[batch.labels].tolist()
    margin = stages.margin(rows.tolist(), *map(listed, pairs), beta, 0.2)
    found = method(outputs, batch)
    parts = [outputs.parts[name] for name in ("shared", "classes")]
    apart = float(decorrelation(*parts, method.adversary).detach())
    assert float(found.total.detach()) == pytest.approx(margin + 3.0 * apart, rel=1e-5)


def test_without_an_adversary_a_class_step_trains_its_layer_alone() -> None:
    method = made(adversary_weight=0.0)
    model = Embedder("conv4", dim=8, heads=method.heads(8), batch_norm="frozen_statistics")
    pixels = torch.randn(9, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    batch = BatchInfo(torch.arange(9) // 3, torch.arange(9), CLASS)
    method(model.forward_outputs(pixels), batch).total.backward()
    reached = {name for name, p in model.named_parameters() if p.grad is not None}
    assert "head.classes.0.weight" in reached
    assert not any(name.startswith("head.shared") for name in reached)
    method = made()
    method(model.forward_outputs(pixels), batch).total.backward()
    reached = {name for name, p in model.named_parameters() if p.grad is not None}
    assert "head.shared.0.weight" in reached, "the adversary couples them"


def view_at(images: ImageDataset, method: MIC, epoch: int) -> TrainingView:
    model = Embedder("conv4", dim=8, heads=method.heads(8), seed=1)
    return labeled_view(images, model, epoch=epoch)


def test_batches_of_clusters_follow_those_of_classes(images: ImageDataset) -> None:
    method = made(shared_probability=1.0, noise=0.0)
    view = view_at(images, method, 0)
    plan = method.before_epoch(view)
    assert plan.batches is not None
    assert plan.batches.labels is not None
    assert plan.batches.streams is not None
    own = view.batches.sampler.plan(0)
    assert plan.batches.streams.tolist() == [CLASS, SHARED] * len(own)
    assert np.array_equal(plan.batches.indices[::2], own)
    assert np.array_equal(plan.batches.labels[::2], images.known_labels[own])
    clusters = method.cluster_of.numpy()
    assert np.array_equal(plan.batches.labels[1::2], clusters[plan.batches.indices[1::2]])
    assert set(clusters) == set(range(5))
    never = made(shared_probability=0.0).before_epoch(view)
    assert never.batches is not None
    assert np.array_equal(never.batches.indices, own)


def test_some_images_of_a_cluster_are_strangers(images: ImageDataset) -> None:
    shares = []
    for epoch in range(0, 40, 4):
        method = made(shared_probability=1.0, noise=0.5, every=100)
        method.cluster_of.copy_(torch.arange(COUNT) % 5)
        plan = method.before_epoch(view_at(images, method, epoch + 1))
        assert plan.batches is not None
        assert plan.batches.labels is not None
        true = method.cluster_of.numpy()[plan.batches.indices[1::2]]
        shares.append((true != plan.batches.labels[1::2]).mean())
    assert np.mean(shares) == pytest.approx(0.5 * 4 / 5, abs=0.06)


def test_clusters_are_renewed_every_fourth_epoch(images: ImageDataset) -> None:
    method = made()
    found = []
    for epoch in range(6):
        method.before_epoch(view_at(images, method, epoch))
        found.append(method.cluster_of.tolist())
    changed = [a != b for a, b in itertools.pairwise(found)]
    assert changed == [False, False, False, True, False]


def test_first_clusters_know_no_classes_and_later_ones_are_those_of_the_shared_part(
    images: ImageDataset,
) -> None:
    method = made(every=1)
    view = view_at(images, method, 0)
    for epoch in range(2):
        view.batches.sampler.epoch = epoch
        method.before_epoch(view)
        vectors = view.embed(_Clustered(view.model, fresh=epoch == 0))
        assert vectors.shape[1] == (64 * 16 if epoch == 0 else 8)
        if epoch == 0:
            vectors = centered(vectors, images.known_labels, deviation=False)
        expected = kmeans(vectors, 5, iterations=20, seed=epoch).assignments
        assert method.cluster_of.tolist() == expected.tolist()


def test_impossible_runs_are_refused(images: ImageDataset) -> None:
    method = made(clusters=COUNT + 1)
    with pytest.raises(BadData, match=r"43 clusters of 42 images.*method.clusters"):
        method.before_epoch(view_at(images, method, 0))
    pytest.importorskip("timm")
    with pytest.raises(BadData, match="use another backbone"):
        made().attach(Embedder("timm:convnext_atto", dim=8, weights="none", heads=made().heads(8)))


def test_groups_have_rates_of_their_own() -> None:
    method = made()
    model = Embedder("conv4", dim=8, heads=method.heads(8))
    optimizer = build_optimizer(model, method, Settings(learning_rate=1e-5, weight_decay=4e-4))
    found = {
        group["name"]: (group["lr"], group["weight_decay"]) for group in optimizer.param_groups
    }
    assert found["beta"] == (pytest.approx(5e-4), 0.0)
    assert found["adversary"] == (pytest.approx(1e-5), 1e-6)


def test_the_embedding_is_that_of_classes() -> None:
    heads = made().heads(16)
    model = Embedder("conv4", dim=16, heads=heads, seed=1).eval()
    pixels = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        outputs: Outputs = model.forward_outputs(pixels)
    part: Tensor = outputs.parts["classes"]
    torch.testing.assert_close(outputs.embeddings, part)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clusters": 1}, "clusters"),
        ({"shared_probability": 1.5}, "shared_probability"),
        ({"center": "median"}, "center"),
        ({"adversary_weight": -1.0}, "adversary_weight"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made(**options)
