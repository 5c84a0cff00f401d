"""One proxy for each class beside the pairs of a batch."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from cbml import CBMLLoss
from cbml.errors import BadData
from cbml.losses import WithProxies, build_loss
from cbml.training import Settings
from tests.losses.test_zoo import CLASSES, WIDTH, batch
from tests.training.small import CLASSES as TINY
from tests.training.small import make_images, run_small


def built(name: str = "cbml", weight: float = 0.5) -> WithProxies:
    options = {"proxy_weight": weight}
    loss = build_loss(name, options, classes=CLASSES, dim=WIDTH, seed=0)
    assert isinstance(loss, WithProxies)
    return loss


def unit(rows: Tensor) -> Tensor:
    return functional.normalize(rows, dim=-1)


@pytest.mark.parametrize("name", ["cbml", "multi_similarity", "contrastive", "binomial_deviance"])
def test_the_proxies_are_references_that_start_at_the_means_of_their_classes(name: str) -> None:
    embeddings, labels = batch()
    here = sorted(set(labels.tolist()))[:-1]  # one class comes later
    early = torch.isin(labels, torch.tensor(here))
    loss, plain = built(name), build_loss(name, {}, classes=CLASSES, dim=WIDTH, seed=0)
    means = torch.stack([unit(unit(embeddings[labels == label]).mean(dim=0)) for label in here])
    some, theirs = embeddings[early], labels[early]
    expected = plain(some, theirs) + 0.5 * plain(some, theirs, None, means, torch.tensor(here))
    torch.testing.assert_close(loss(some, theirs), expected)
    assert loss.met.nonzero()[:, 0].tolist() == here
    before = loss.proxies.detach().clone()
    loss(embeddings, labels).backward()
    assert torch.equal(loss.proxies.detach()[here], before[here]), "known proxies stay"
    assert int(loss.met.sum()) == len(here) + 1
    assert loss.proxies.grad is not None
    assert (loss.proxies.grad[here].abs().sum(dim=1) > 0).any()
    assert not loss.proxies.grad[~loss.met].any()


def test_without_weight_it_is_the_loss_and_evaluation_starts_no_proxy() -> None:
    embeddings, labels = batch()
    alone = build_loss("cbml", {}, classes=CLASSES, dim=WIDTH, seed=0)(embeddings, labels)
    assert torch.equal(built(weight=0.0)(embeddings, labels), alone)
    judged = built().eval()
    assert torch.equal(judged(embeddings, labels), alone)
    assert not judged.met.any()
    assert built()(embeddings[:0], labels[:0]).item() == 0.0


def test_it_tells_the_terms_that_the_loss_tells() -> None:
    embeddings, labels = batch()
    terms, total = built().terms(embeddings, labels), built()(embeddings, labels)
    plain = built().loss.terms(embeddings, labels)  # type: ignore[operator]
    torch.testing.assert_close(terms.total, total)
    assert torch.equal(terms.positive, plain.positive)
    assert terms.total > plain.total
    assert not hasattr(built("multi_similarity"), "terms")


def test_renamed_classes_change_nothing() -> None:
    embeddings, labels = batch()
    order = torch.randperm(CLASSES, generator=torch.Generator().manual_seed(0))
    first, second = built(), built()
    for _ in range(2):
        value = first(embeddings, labels)
        torch.testing.assert_close(second(embeddings, order[labels]), value)


def test_a_class_whose_mean_has_no_direction_waits_for_the_next_batch() -> None:
    loss = WithProxies(CBMLLoss(), num_classes=2, embedding_size=2)
    rows = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.6, 0.8]], requires_grad=True)
    labels = torch.tensor([0, 0, 1, 1])
    loss(rows, labels).backward()
    assert loss.met.tolist() == [False, True]
    assert rows.grad is not None
    assert torch.isfinite(rows.grad).all()
    loss(rows[1:], labels[1:])
    assert loss.met.all()
    assert torch.equal(loss.proxies[0].detach(), torch.tensor([-1.0, 0.0]))


def test_training_resumes_to_the_bit_with_its_proxies(tmp_path: Path) -> None:
    def loss() -> WithProxies:
        return WithProxies(CBMLLoss(), num_classes=TINY, embedding_size=8)

    images = make_images(tmp_path / "images")
    half, whole = Settings(steps=3, checkpoint_every=1), Settings(steps=6, checkpoint_every=1)
    straight, resumed = loss(), loss()
    weights, _ = run_small(images, tmp_path / "a", whole, loss=straight)
    run_small(images, tmp_path / "b", half, loss=loss())
    again, _ = run_small(images, tmp_path / "b", whole, loss=resumed, resume=True)
    assert all(torch.equal(weights[name], again[name]) for name in weights)
    assert torch.equal(straight.proxies, resumed.proxies)
    assert straight.met.all()


def test_wrong_uses_are_refused() -> None:
    embeddings, labels = batch()
    with pytest.raises(BadData, match="num_classes=2 takes 0 to one less"):
        WithProxies(CBMLLoss(), num_classes=2, embedding_size=WIDTH)(embeddings, labels)
    for name in ("proxy_anchor", "margin"):
        with pytest.raises(ValueError, match="is not a loss of pairs alone"):
            built(name)
    with pytest.raises(ValueError, match="proxy_weight must be"):
        built(weight=-1.0)
