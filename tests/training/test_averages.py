"""A moving average of the weights is validated, kept, and resumed to the bit."""

import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from cbml.training import Callback, Run, Settings, fit
from tests.training.small import batches, bayes_loss, embedder, make_images

STEPS, EMA, WEIGHT = 6, 0.5, "head.weight"


def train(
    folder: Path, ema: float, *, run: Run | None = None, validated: bool = True, best: int = STEPS
) -> tuple[dict[str, Tensor], list[Tensor]]:
    """The weights after training, and those of the head at every validation; the `best`-th wins."""
    model, seen = embedder(), list[Tensor]()

    def validate(candidate: nn.Module) -> dict[str, float]:
        seen.append(candidate.state_dict()[WEIGHT].clone())
        return {"recall@1": float(len(seen)) if len(seen) <= best else 0.5 / len(seen)}

    settings = Settings(
        steps=STEPS,
        validate_every=1,
        checkpoint_every=1,
        keep_checkpoints=9,
        learning_rate=1e-2,
        ema=ema,
    )
    images = batches(make_images(folder))
    judge = validate if validated else None
    loss, callback = bayes_loss(), Callback()
    fit(model, loss, images, settings=settings, validate=judge, run=run, callback=callback)
    return model.state_dict(), seen


def test_the_average_is_that_of_its_formula(tmp_path: Path) -> None:
    _, plain = train(tmp_path, 0.0)
    weights, seen = train(tmp_path, EMA)
    assert torch.equal(seen[0], plain[0]), "the average begins with the start"
    expected = plain[0].double()
    for step in range(1, STEPS + 1):
        share = max(1 / (EMA * STEPS), 9 / (9 + step))
        expected += share * (plain[step].double() - expected)
        torch.testing.assert_close(seen[step].double(), expected, rtol=1e-5, atol=1e-7)
        assert not torch.equal(seen[step], plain[step])
    assert torch.equal(weights[WEIGHT], seen[STEPS - 1]), "the sixth validation was the best"


def test_without_validation_the_average_is_kept(tmp_path: Path) -> None:
    seen = train(tmp_path, EMA)[1]
    assert torch.equal(train(tmp_path, EMA, validated=False)[0][WEIGHT], seen[-1])
    assert not torch.equal(train(tmp_path, 0.0, validated=False)[0][WEIGHT], seen[-1])


@pytest.mark.parametrize("step", [1, 3, 5])
@pytest.mark.parametrize("validated", [True, False])
def test_it_resumes_to_the_bit(tmp_path: Path, step: int, validated: bool) -> None:
    images, run = tmp_path / "images", tmp_path / "run"
    whole, _ = train(images, EMA, run=Run(run), validated=validated, best=2)
    for checkpoint in (run / "checkpoints").iterdir():
        if int(checkpoint.name.removeprefix("step-")) > step:
            shutil.rmtree(checkpoint)
    again, _ = train(images, EMA, run=Run(run, resume=True), validated=validated, best=0)
    assert all(torch.equal(whole[name], again[name]) for name in whole)
