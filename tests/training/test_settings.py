"""Settings, schedules, groups and recipes."""

import inspect
from pathlib import Path

import pytest
import torch

from cbml.errors import BadData
from cbml.losses import LOSSES
from cbml.training import Callback, Settings, fit, read_metrics
from cbml.training.method import as_method
from cbml.training.optimizers import base_learning_rates, build_optimizer, rate_factor
from tests.training.small import CLASSES, batches, bayes_loss, embedder, make_images, run_small


def test_the_papers_schedule_drops_once() -> None:
    settings = Settings(schedule="step", drop_at=3, drop_factor=0.1)
    factors = [rate_factor(settings, step, 6) for step in range(6)]
    assert factors == pytest.approx([1, 1, 1, 0.1, 0.1, 0.1])


def test_warmup_and_cosine() -> None:
    settings = Settings(schedule="cosine", warmup_steps=2)
    factors = [rate_factor(settings, step, 4) for step in range(4)]
    assert factors == pytest.approx([0.5, 0.853553, 0.5, 0.146447], abs=1e-6)
    assert rate_factor(Settings(), 10**6, 10) == 1.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": 0},
        {"steps": 5, "epochs": 2},
        {"steps": None},
        {"learning_rate": 0.0},
        {"learning_rate": float("nan")},
        {"optimizer": "lion"},
        {"schedule": "linear"},
        {"clip_norm": -1.0},
        {"chunk_size": 0},
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(BadData):
        Settings(**wrong)


def test_losses_own_parameters_that_are_trained_at_their_own_rate() -> None:
    loss = LOSSES["proxy_anchor"](num_classes=CLASSES, embedding_size=8)
    settings = Settings(learning_rate=1e-3, backbone_factor=0.1, head_factor=2.0)
    rates = base_learning_rates(as_method(loss), settings)
    assert rates == pytest.approx({"backbone": 1e-4, "head": 2e-3, "loss": 0.1})
    assert base_learning_rates(as_method(loss), Settings(loss_factor=3.0))["loss"] == pytest.approx(
        3e-4
    )
    groups = build_optimizer(embedder(), as_method(loss), settings).param_groups
    assert {group["name"]: group["lr"] for group in groups} == pytest.approx(rates)
    trained = {id(parameter) for group in groups for parameter in group["params"]}
    assert {id(parameter) for parameter in loss.parameters()} <= trained


def test_every_loss_with_parameters_is_trained(tmp_path: Path) -> None:
    images = make_images(tmp_path)
    seen = 0
    for name, kind in LOSSES.items():
        needs = {"num_classes": CLASSES, "embedding_size": 8}
        options = inspect.signature(kind).parameters
        known = {key: value for key, value in needs.items() if key in options}
        loss = kind(**known)
        before = [parameter.detach().clone() for parameter in loss.parameters()]
        if not before:
            continue
        seen += 1
        run_small(images, None, Settings(steps=1, learning_rate=1e-2), loss=loss)
        changed = [not torch.equal(a, b) for a, b in zip(before, loss.parameters(), strict=True)]
        assert any(changed), name
    assert seen >= 5


def test_rates_are_recorded_as_they_are(tmp_path: Path) -> None:
    settings = Settings(steps=3, schedule="step", drop_at=1, learning_rate=1e-3)
    run_small(make_images(tmp_path / "p"), tmp_path / "run", settings)
    rates = [line["learning_rates"]["head"] for line in read_metrics(tmp_path / "run")]
    assert rates == pytest.approx([1e-3, 1e-4, 1e-4])


def test_clipping_shortens_the_gradient(tmp_path: Path) -> None:
    images = make_images(tmp_path)
    model, free = embedder(), embedder()
    tight = Settings(steps=1, clip_norm=1e-12, weight_decay=0.0)
    fit(model, bayes_loss(), batches(images), settings=tight, callback=Callback())
    loose = Settings(steps=1, weight_decay=0.0)
    fit(free, bayes_loss(), batches(images), settings=loose, callback=Callback())
    start = embedder().head.weight
    moved = [float((m.head.weight - start).detach().abs().max()) for m in (model, free)]
    assert moved[0] < moved[1] / 100


def test_epochs_are_passes_of_the_sampler(tmp_path: Path) -> None:
    images = make_images(tmp_path)
    settings = Settings(steps=None, epochs=2)
    assert run_small(images, None, settings)[1].steps == 2 * len(batches(images))


def test_patience_ends_a_run(tmp_path: Path) -> None:
    fitted = fit(
        embedder(),
        bayes_loss(),
        batches(make_images(tmp_path)),
        settings=Settings(steps=50, validate_every=1, patience=3),
        validate=lambda model: {"recall@1": 0.5},
        callback=Callback(),
    )
    assert fitted.stopped_early
    assert fitted.steps == 3
    assert fitted.best_step == 3, "of equal models the latest is kept"


def test_the_model_afterwards_is_the_best_one(tmp_path: Path) -> None:
    model, scores, seen = embedder(), iter([0.1, 0.2, 0.9, 0.3]), []

    def validate(candidate: torch.nn.Module) -> dict[str, float]:
        seen.append({name: value.clone() for name, value in candidate.state_dict().items()})
        return {"recall@1": next(scores)}

    settings = Settings(steps=3, validate_every=1)
    images = make_images(tmp_path)
    fit(
        model,
        bayes_loss(),
        batches(images),
        settings=settings,
        validate=validate,
        callback=Callback(),
    )
    assert all(torch.equal(value, seen[2][name]) for name, value in model.state_dict().items())
