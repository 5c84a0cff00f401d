"""A loss that follows the clusters, and remembers how."""

import io

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from cbml.losses import LOSSES, CBMLLoss
from cbml.pseudo import StagedLoss
from cbml.pseudo.staged import move_class_vectors
from tests.pseudo.small import staged_loss


def batch() -> tuple[Tensor, Tensor]:
    rows = torch.randn(12, 5, generator=torch.Generator().manual_seed(0))
    return nn.functional.normalize(rows, dim=1), torch.arange(12) // 3


def test_new_options_change_the_loss_and_are_part_of_its_state() -> None:
    loss, other = staged_loss(), staged_loss()
    before = loss(*batch())
    loss.renew({"center": 0.1 + 0.2})
    assert loss(*batch()) != before
    assert loss.terms(*batch()).total == loss(*batch())
    state = safetensors.torch.load(safetensors.torch.save(loss.state_dict()))
    other.load_state_dict(state)
    assert other.options == {"center": 0.1 + 0.2}
    assert other(*batch()) == loss(*batch())
    torch.save(loss.state_dict(), io.BytesIO())


def test_losses_with_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="with parameters cannot be made anew"):
        StagedLoss(lambda _: LOSSES["proxy_nca"](num_classes=3, embedding_size=5))


@pytest.mark.parametrize("name", ["normalized_softmax", "proxy_anchor", "proxy_nca"])
def test_class_vectors_move_to_the_clusters(name: str) -> None:
    rows, labels = batch()
    labels = labels.clone()
    labels[labels == 2] = 3  # cluster 2 is empty
    loss = LOSSES[name](num_classes=4, embedding_size=5)
    before = next(loss.parameters()).detach().clone()
    worth = loss(rows, labels)
    move_class_vectors(loss, rows.numpy(), labels.numpy(), 4)
    vectors = next(loss.parameters()).detach()
    if vectors.shape == (5, 4):
        vectors, before = vectors.T, before.T
    for label in (0, 1, 3):
        center = rows[labels == label].mean(dim=0)
        torch.testing.assert_close(vectors[label], center / center.norm())
    assert torch.equal(vectors[2], before[2])
    assert loss(rows, labels) < worth


def test_losses_without_vectors_stay_as_they_are() -> None:
    rows, labels = batch()
    move_class_vectors(CBMLLoss(), rows.numpy(), labels.numpy(), 4)
    square = LOSSES["proxy_nca"](num_classes=5, embedding_size=5)
    before = next(square.parameters()).detach().clone()
    move_class_vectors(square, rows.numpy(), labels.numpy().astype(np.int64), 5)
    assert torch.equal(next(square.parameters()), before)
