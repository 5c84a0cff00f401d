"""A loss from its name and plain options."""

from typing import Any

import pytest
import torch

from cbml import LOSSES, LinearRatio, MetricVariance, QuadraticRatio
from cbml.losses import PRODUCTS, CBMLLoss, WithVariance, build_loss
from tests.losses.test_zoo import CLASSES, WIDTH, batch


def built(name: str, **options: Any) -> Any:
    return build_loss(name, options, classes=CLASSES, dim=WIDTH, seed=3)


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_every_loss_is_built_and_takes_the_constraint(name: str) -> None:
    embeddings, labels = batch()
    torch.manual_seed(0)
    plain = built(name, variance_weight=0.0)(embeddings, labels).item()
    torch.manual_seed(0)
    loss = built(name, variance_weight=2.0)
    value = loss(embeddings, labels).item()
    if name == "cbml_authors":  # its constraint is a sum
        constraint = float(MetricVariance(reduction="sum")(embeddings, labels))
        assert plain <= value <= plain + 2.0 * constraint + 1e-4
        return
    constraint = float(MetricVariance()(embeddings, labels))
    assert value == pytest.approx(plain + 2.0 * constraint, rel=1e-5)
    assert isinstance(loss, WithVariance) == (not name.startswith("cbml"))


def test_proxies_are_as_asked() -> None:
    shape = tuple(built("proxy_anchor")._loss.proxies.shape)
    assert shape == (CLASSES, WIDTH)
    first, again = (built("proxy_nca").proxies for _ in range(2))
    assert torch.equal(first, again)


def test_names_are_taken_in_any_case() -> None:
    assert isinstance(built("CBML", Mining_Margin=0.2, ratio="Fine_Grained"), CBMLLoss)
    assert built("Cbml", ratio="Fine_Grained").ratio == LinearRatio()
    assert built("CBML", **{"Ratio.Negative_Center": 0.75}).ratio.negative_center == 0.75
    assert built("cbml", averaging="SQRT").averaging == "sqrt"
    assert CBMLLoss.paper("InShop").variance_weight == 0.001  # type: ignore[arg-type]
    assert built("Triplet_Easy_Positive", negatives="Hard").negatives == "hard"


def test_margin_has_one_boundary_for_each_class() -> None:
    assert tuple(built("margin").beta.shape) == (CLASSES,)
    assert tuple(built("margin", num_classes=None).beta.shape) in {(), (1,)}


def test_the_constraint_s_options_reach_it() -> None:
    loss = built("multi_similarity", variance_weight=3, target_mix=0.5, variance_reduction="sum")
    assert (loss.variance_weight, loss.variance.target_mix, loss.variance.reduction) == (
        3.0,
        0.5,
        "sum",
    )


def test_ratios_by_name_number_and_value() -> None:
    assert built("cbml").ratio == PRODUCTS
    assert built("cbml", ratio="fine_grained").ratio == LinearRatio()
    changed = built("cbml", **{"ratio.negative_center": 0.75}).ratio
    assert (changed.negative_center, changed.negative_scale) == (0.75, PRODUCTS.negative_scale)
    ratio = QuadraticRatio(positive_mean=0.8, positive_std=0.1, negative_mean=0.2, negative_std=0.2)
    numbers = {f"ratio.{name}": getattr(ratio, name) for name in ratio.__dataclass_fields__}
    assert built("cbml", ratio="quadratic", **numbers).ratio == ratio
    assert built("cbml", ratio=ratio, **{"ratio.negative_mean": 0.3}).ratio.negative_mean == 0.3


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("cmbl", {}, "did you mean 'cbml'"),
        ("cbml", {"mining_marin": 0.1}, "did you mean 'loss.mining_margin'"),
        ("cbml", {"ratio": "cub"}, "use one of fine_grained, products, quadratic"),
        ("cbml", {"ratio.negative_centre": 0.5}, "did you mean 'loss.ratio.negative_center'"),
        ("cbml", {"ratio": "quadratic", "ratio.negative_mean": 0.2}, "give loss.ratio.positive_me"),
        ("multi_similarity", {"ratio.negative_center": 1.0}, "multi_similarity has no such option"),
        ("multi_similarity", {"target_mix": 0.5}, "needs loss.variance_weight beside it"),
        ("multi_similarity", {"variance_weight": -1.0}, "variance_weight must be a finite number"),
        ("cbml_authors", {"variance_reduction": "mean"}, "cbml_authors has no such option"),
    ],
)
def test_wrong_options_are_named(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        built(name, **options)


def test_the_default_is_the_table_s() -> None:
    assert isinstance(built("cbml", delta="derived"), CBMLLoss)
    assert built("cbml", delta="derived").delta == "derived"
