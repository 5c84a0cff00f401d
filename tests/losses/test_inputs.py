"""Wrong input gets an error that names the argument, the rows and the remedy."""

import math
import warnings

import numpy as np
import pytest
import torch

from cbml import CBMLLoss, LinearRatio, MetricVariance, QuadraticRatio

ROWS = torch.randn(6, 4)
LABELS = torch.tensor([0, 0, 1, 1, 2, 2])


def with_row(row: int, value: float) -> torch.Tensor:
    rows = ROWS.clone()
    rows[row] = value
    return rows


@pytest.mark.parametrize("loss", [CBMLLoss(), MetricVariance()], ids=["cbml", "variance"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((ROWS[0], LABELS), r"embeddings must have shape \(batch, dim\), got \(4,\)"),
        ((ROWS[:, :0], LABELS), r"embeddings must have shape"),
        ((ROWS.long(), LABELS), "embeddings must hold floating point numbers"),
        (([[1, 2]], LABELS), "embeddings must hold floating point numbers"),
        (([*ROWS], LABELS), r"embeddings is a list of tensors; use torch\.stack\(embeddings\)"),
        (({1: 2}, LABELS), "embeddings must be a tensor, a numpy array or a list, got dict"),
        (([[1.0, 2.0], [1.0]], LABELS), "embeddings must hold numbers in rows of one length"),
        (([[None, 1.0]], LABELS), "embeddings must hold numbers"),
        ((ROWS, LABELS[:5]), r"labels must have shape \(6,\).*got \(5,\)"),
        ((ROWS, LABELS[:, None]), r"labels must have shape \(6,\)"),
        ((ROWS, LABELS.float()), "labels must be integers"),
        ((ROWS, [0.5] * 6), "labels must be integers"),
        (
            (ROWS, list("aabbcc")),
            r"labels are strings: .*numpy\.unique\(names, return_inverse=True",
        ),
        ((ROWS, np.array(["cat", "dog"] * 3)), "labels are strings: number them"),
        ((ROWS, np.array(["cat", "dog"] * 3, dtype=object)), "labels are strings: number them"),
        ((with_row(3, math.nan), LABELS), "embeddings holds NaN or infinity in 1 of 6 rows: 3"),
        ((with_row(2, math.inf), LABELS), "embeddings holds NaN or infinity in 1 of 6 rows: 2"),
        ((with_row(5, 0.0), LABELS), "embeddings holds only zeros.*in 1 of 6 rows: 5"),
        ((ROWS, LABELS, None, ROWS[:3]), "ref_labels is missing"),
        ((ROWS, LABELS, None, None, LABELS), "ref_emb is missing"),
        (
            (ROWS, LABELS, None, ROWS[:3, :2], LABELS[:3]),
            "ref_emb has 2 dimensions, embeddings has 4",
        ),
        ((ROWS, LABELS, None, ROWS[:3], LABELS[:2]), r"ref_labels must have shape \(3,\)"),
        ((ROWS, LABELS, None, with_row(1, 0.0), LABELS), "ref_emb holds only zeros.*rows: 1"),
        ((ROWS, LABELS, (LABELS, LABELS)), "indices_tuple must hold 3 tensors"),
        ((ROWS, LABELS, (LABELS, LABELS, LABELS[:2])), "anchors and partners differ in length"),
        ((ROWS, LABELS, (LABELS, LABELS - 1, LABELS)), "the positives hold an index outside"),
        ((ROWS, LABELS, (LABELS, LABELS.float(), LABELS)), "the positives must be a tensor of int"),
        ((ROWS, LABELS, (LABELS, LABELS.bool(), LABELS)), "the positives must be a tensor of int"),
        ((ROWS, LABELS, None, ROWS, LABELS + 1), "ref_labels differ from labels"),
        ((ROWS, LABELS, (LABELS, LABELS + 5, LABELS)), r"outside 0 \.\.\. 5"),
    ],
)
def test_bad_input_names_the_argument(
    loss: torch.nn.Module, arguments: tuple[object, ...], message: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        loss(*arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"averaging": "logs"},
            "averaging must be one of 'log', 'sqrt', 'const'.*did you mean 'log'",
        ),
        ({"delta": "derive"}, "delta must be one of 'derived', 'mean'"),
        ({"delta": 0.0}, "delta must be above zero"),
        ({"skip_easy_anchors": "false"}, "skip_easy_anchors must be True or False"),
        ({"averaging": "sqrt", "delta": 1e38}, r"averaging='sqrt' sums exponentials"),
        ({"mining_margin": math.nan}, "mining_margin must be a finite number"),
        ({"variance_weight": -1.0}, "variance_weight must be a finite number of at least 0"),
        ({"variance_reduction": "max"}, "variance_reduction must be one of"),
        ({"target_mix": "a"}, "target_mix must be a number, got str"),
        ({"ratio": 3.0}, "ratio must be a LinearRatio or QuadraticRatio"),
        ({"variance_wieght": 1.0}, "unexpected keyword argument 'variance_wieght'"),
        (
            {"averaging": "const", "ratio": LinearRatio(positive_scale=0.01)},
            r"averaging='const' sums exponentials up to exp\(150\)",
        ),
    ],
)
def test_bad_options_are_refused_when_the_loss_is_made(
    options: dict[str, object], message: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        CBMLLoss(**options)  # type: ignore[arg-type]


def test_bad_ratios_and_datasets_are_refused() -> None:
    with pytest.raises(ValueError, match=r"negative_scale must be .* at least 1e-06"):
        LinearRatio(negative_scale=0.0)
    with pytest.raises(ValueError, match="positive_mean must be a finite number"):
        QuadraticRatio(positive_mean=math.nan, positive_std=1, negative_mean=0, negative_std=1)
    with pytest.raises(ValueError, match=r"dataset must be one of 'cub'.*did you mean 'inshop'"):
        CBMLLoss.paper("in-shop")  # type: ignore[arg-type]


def test_the_largest_exponent_is_found_inside_and_at_the_ends() -> None:
    inside = QuadraticRatio(
        positive_mean=0.5, positive_std=0.1, negative_mean=0.1, negative_std=0.3
    )
    for exponent in [inside.positive, inside.negative, LinearRatio().negative]:
        places = [i / 10_000 for i in range(-10_000, 10_001)]
        brute = max(
            exponent.quadratic * s * s + exponent.slope * s + exponent.constant for s in places
        )
        assert exponent.largest() == pytest.approx(brute, abs=1e-4)


def test_numbers_of_numpy_are_numbers() -> None:
    loss = CBMLLoss(
        variance_weight=np.float32(0.5), ratio=LinearRatio(negative_scale=np.float64(0.1))
    )
    assert loss.variance_weight == 0.5
    assert loss(ROWS, LABELS).isfinite()


def test_the_line_that_numbers_strings_does() -> None:
    names = ["cat", "cat", "dog", "dog", "eel", "eel"]
    with pytest.raises(TypeError) as error:
        CBMLLoss()(ROWS, names)  # type: ignore[arg-type]
    line = str(error.value).split("labels = ")[1]
    labels = eval(line, {"torch": torch, "numpy": np, "names": names})
    assert torch.equal(CBMLLoss()(ROWS, labels), CBMLLoss()(ROWS, LABELS))


def test_a_batch_without_positives_is_mentioned_once() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for loss in (CBMLLoss(), CBMLLoss(), MetricVariance()):
            loss(ROWS, torch.arange(6))
    assert len(caught) == 1
    assert "no two images of this batch share a label" in str(caught[0].message)
    assert "ClassBalancedSampler" in str(caught[0].message)
    # Nothing to say of an empty batch, of references, or of what a miner chose.
    CBMLLoss()(ROWS[:0], LABELS[:0])
    CBMLLoss()(ROWS, torch.arange(6), None, ROWS.clone(), LABELS + 10)
    nothing = torch.empty(0, dtype=torch.int64)
    CBMLLoss()(ROWS, LABELS, (nothing, nothing, nothing, nothing))
