"""Numbers stay numbers: NaN and infinity put in at many points of a run, one at a time."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from cbml.data import Batch, Batches, ImageDataset
from cbml.errors import BadData
from cbml.losses import LOSSES
from cbml.models import Embedder
from cbml.training import Callback, NonFiniteError, Run, Settings, fit, read_metrics
from cbml.training.checkpoints import newest_checkpoint
from tests.training.small import CLASSES, batches, embedder, make_images

STEPS, BAD_STEP = 3, 2
NAN, INF = math.nan, math.inf


class Clock(Callback):
    """Knows which update is under way, and keeps what was said."""

    def __init__(self) -> None:
        self.now, self.lines = 1, list[str]()

    def step(self, report: Any) -> None:
        self.now = report.step + 1

    def on_message(self, text: str) -> None:
        self.lines.append(text)
        if text.startswith("update skipped"):
            self.now += 1

    @property
    def bad(self) -> bool:
        return self.now == BAD_STEP


class Images:
    """Batches whose pixels are broken in one step, as a faulty transform would leave them."""

    def __init__(self, inner: Batches, clock: Clock, value: float, rows: slice) -> None:
        self.inner, self.clock, self.value, self.rows = inner, clock, value, rows

    def __call__(self, epoch: int, step: int) -> Batch:
        batch = Batches.batch(self.inner, epoch, step)
        pixels = embedder().preprocessing.normalize(batch.pixels)
        if self.clock.bad:
            pixels[self.rows, 1, 5, 7] = self.value
        return batch._replace(pixels=pixels)


class Loss(nn.Module):
    """A loss with proxies whose value may be replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = LOSSES["proxy_anchor"](num_classes=CLASSES, embedding_size=8, seed=2)
        self.change: Callable[[Tensor, Tensor], Tensor] = lambda value, rows: value

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return self.change(self.inner(embeddings, labels), embeddings)


Setup = tuple[Clock, Embedder, Loss, Batches]
Inject = Callable[[Setup], None]


def pixels(value: float, rows: slice) -> Inject:
    def inject(setup: Setup) -> None:
        clock, _, _, source = setup
        source.batch = Images(source, clock, value, rows)  # type: ignore[method-assign]

    return inject


def weight(name: str, value: float) -> Inject:
    """Into a tensor of the model just before a forward pass, as a broken memory would."""

    def inject(setup: Setup) -> None:
        clock, model, _, _ = setup

        def strike(module: nn.Module, inputs: Any) -> None:
            if clock.bad:
                model.state_dict()[name][0] = value

        model.register_forward_pre_hook(strike)

    return inject


def gradient(name: str, value: float) -> Inject:
    def inject(setup: Setup) -> None:
        clock, model, loss, _ = setup
        parameters = dict(model.named_parameters()) | dict(loss.named_parameters("loss"))

        def strike(grad: Tensor) -> Tensor:
            return torch.full_like(grad, value) if clock.bad else grad

        parameters[name].register_hook(strike)

    return inject


def loss_value(change: Callable[[Tensor, Tensor], Tensor]) -> Inject:
    def inject(setup: Setup) -> None:
        clock, _, loss, _ = setup
        loss.change = lambda value, rows: change(value, rows) if clock.bad else value

    return inject


def proxy(value: float) -> Inject:
    def inject(setup: Setup) -> None:
        clock, model, loss, _ = setup

        def strike(module: nn.Module, inputs: Any) -> None:
            if clock.bad:
                next(loss.parameters()).data.view(-1)[3] = value

        model.register_forward_pre_hook(strike)

    return inject


def embeddings(value: float, rows: slice) -> Inject:
    def inject(setup: Setup) -> None:
        clock, model, _, _ = setup

        def strike(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
            if clock.bad:
                output = output.clone()
                output[rows, 2] = value
            return output

        model.register_forward_hook(strike)

    return inject


HOOKS: list[Any] = []


def optimizer_state(name: str, value: float) -> Inject:
    def inject(setup: Setup) -> None:
        clock, model, _, _ = setup

        def strike(optimizer: torch.optim.Optimizer, *rest: Any) -> None:
            if clock.bad:
                optimizer.state[model.head.weight][name].view(-1)[0] = value

        HOOKS.append(register_optimizer_step_pre_hook(strike))

    return inject


def learning_rate(value: float) -> Inject:
    def inject(setup: Setup) -> None:
        def strike(optimizer: torch.optim.Optimizer, *rest: Any) -> None:
            if setup[0].bad:
                optimizer.param_groups[1]["lr"] = value

        HOOKS.append(register_optimizer_step_pre_hook(strike))

    return inject


@pytest.fixture(autouse=True)
def no_hooks_left() -> Iterator[None]:
    yield
    while HOOKS:
        HOOKS.pop().remove()


ONE, ALL = slice(4, 5), slice(None)
# What passes: the update can be skipped, and the run is sound again.
PASSING: dict[str, Inject] = {
    "pixel of one image NaN": pixels(NAN, ONE),
    "pixel of one image infinite": pixels(INF, ONE),
    "pixels of all images NaN": pixels(NAN, ALL),
    "embedding of one image NaN": embeddings(NAN, ONE),
    "embedding of one image infinite": embeddings(-INF, ONE),
    "all embeddings NaN": embeddings(NAN, ALL),
    "loss NaN": loss_value(lambda value, rows: value * NAN),
    "loss infinite": loss_value(lambda value, rows: value + INF),
    "loss minus infinity": loss_value(lambda value, rows: value - INF),
    "gradient of the loss alone NaN": loss_value(
        lambda value, rows: value + (rows[0] * 0.0).abs().sqrt().sum()
    ),
    "gradient of the backbone NaN": gradient("backbone.0.weight", NAN),
    "gradient of the head infinite": gradient("head.weight", INF),
    "gradient of a bias NaN": gradient("head.bias", NAN),
    "gradient of the proxies NaN": gradient("loss.inner._loss.proxies", NAN),
    "gradient so large that its square overflows": gradient("head.weight", 1e30),
}
# What stays broken until a checkpoint is loaded.
LASTING: dict[str, Inject] = {
    "weight of the backbone NaN": weight("backbone.0.weight", NAN),
    "weight of the head infinite": weight("head.weight", INF),
    "bias of the head NaN": weight("head.bias", NAN),
    "running mean of a batch norm NaN": weight("backbone.1.running_mean", NAN),
    "running variance of a batch norm infinite": weight("backbone.1.running_var", INF),
    "proxy NaN": proxy(NAN),
    "proxy infinite": proxy(INF),
    "first moment of Adam NaN": optimizer_state("exp_avg", NAN),
    "first moment of Adam infinite": optimizer_state("exp_avg", INF),
    "second moment of Adam NaN": optimizer_state("exp_avg_sq", NAN),
    "second moment of Adam infinite": optimizer_state("exp_avg_sq", INF),
    "learning rate NaN": learning_rate(NAN),
    "learning rate infinite": learning_rate(INF),
}
POINTS = PASSING | LASTING


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> ImageDataset:
    return make_images(tmp_path_factory.mktemp("images"))


def trained(
    images: ImageDataset, folder: Path, inject: Inject | None, clock: Clock, **changes: Any
) -> dict[str, Tensor]:
    setup = clock, embedder(), Loss(), batches(images)
    if inject is not None:
        inject(setup)
    resume = (folder / "run.json").exists()
    fit(
        setup[1],
        setup[2],
        setup[3],
        settings=Settings(steps=STEPS, checkpoint_every=1, keep_checkpoints=STEPS, **changes),
        run=Run(folder, resume=resume),
        callback=clock,
    )
    checkpoint = newest_checkpoint(folder / "checkpoints", print)
    assert checkpoint is not None
    assert checkpoint.step == STEPS
    return checkpoint.tensors


@pytest.fixture(scope="module")
def unbroken(images: ImageDataset, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    return trained(images, tmp_path_factory.mktemp("unbroken"), None, Clock())


def test_there_are_enough_points() -> None:
    assert len(POINTS) >= 20


@pytest.mark.parametrize("point", POINTS)
def test_the_run_stops_within_the_step_and_keeps_a_good_checkpoint(
    images: ImageDataset, unbroken: dict[str, Tensor], tmp_path: Path, point: str
) -> None:
    with pytest.raises(NonFiniteError, match=rf"^step {BAD_STEP}: .*\.png"):
        trained(images, tmp_path, POINTS[point], Clock())
    checkpoint = newest_checkpoint(tmp_path / "checkpoints", print)
    assert checkpoint is not None
    assert checkpoint.step == BAD_STEP - 1
    assert all(bool(torch.isfinite(value).all()) for value in checkpoint.tensors.values())
    while HOOKS:
        HOOKS.pop().remove()
    after = trained(images, tmp_path, None, Clock())
    different = [name for name in unbroken if not torch.equal(unbroken[name], after[name])]
    assert not [name for name in different if name != "random.python"]


@pytest.mark.parametrize("point", PASSING)
def test_one_bad_update_can_be_skipped(images: ImageDataset, tmp_path: Path, point: str) -> None:
    clock = Clock()
    tensors = trained(images, tmp_path, PASSING[point], clock, non_finite="skip")
    assert all(bool(torch.isfinite(value).all()) for value in tensors.values())
    said = [line for line in clock.lines if line.startswith(f"update skipped: step {BAD_STEP}:")]
    assert len(said) == 1
    assert ".png" in said[0]
    lines = read_metrics(tmp_path)
    assert [line["step"] for line in lines if "skipped" in line] == [BAD_STEP]
    assert [line["step"] for line in lines if "loss" in line] == [1, 3]


@pytest.mark.parametrize("point", LASTING)
def test_what_stays_broken_stops_the_run_whatever_the_policy(
    images: ImageDataset, tmp_path: Path, point: str
) -> None:
    with pytest.raises(NonFiniteError, match=rf"^step {BAD_STEP}: .*\.png"):
        trained(images, tmp_path, LASTING[point], Clock(), non_finite="skip")
    checkpoint = newest_checkpoint(tmp_path / "checkpoints", print)
    assert checkpoint is not None
    assert all(bool(torch.isfinite(value).all()) for value in checkpoint.tensors.values())


@pytest.mark.parametrize("score", [NAN, INF, -INF])
def test_such_a_score_is_never_best(images: ImageDataset, tmp_path: Path, score: float) -> None:
    scores = iter([score, 0.5, score, 0.4])
    fitted = fit(
        embedder(),
        Loss(),
        batches(images),
        settings=Settings(steps=3, validate_every=1),
        validate=lambda model: {"recall@1": next(scores)},
        run=tmp_path,
        callback=Callback(),
    )
    assert (fitted.best_step, fitted.best_score) == (1, 0.5)


def test_a_learning_rate_that_is_none_is_refused(images: ImageDataset) -> None:
    loss = Loss()
    loss.learning_rate_factor = NAN  # type: ignore[assignment]
    with pytest.raises(BadData, match="learning rate of the loss is nan"):
        fit(embedder(), loss, batches(images), settings=Settings(steps=1), callback=Callback())


def test_bad_rows_of_a_validation_name_step_and_image(images: ImageDataset) -> None:
    def validate(model: Embedder) -> dict[str, float]:
        raise BadData("a.png: the model gives no direction for it")

    with pytest.raises(BadData, match=r"validation after step 0: a\.png"):
        fit(
            embedder(),
            Loss(),
            batches(images),
            settings=Settings(steps=1),
            validate=validate,
            callback=Callback(),
        )
