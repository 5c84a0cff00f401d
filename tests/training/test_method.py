"""Every hook of a method, in chunks, in processes, across a resume and a skipped update."""

import shutil
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from cbml.data import ImageDataset
from cbml.errors import BadData
from cbml.models import Embedder, Execution, Head
from cbml.outputs import Outputs
from cbml.training import BatchInfo, Callback, Distributed, Run, Settings, fit, read_metrics
from cbml.training.gradients import accumulate_gradients
from tests.training import children
from tests.training.small import batches, make_images
from tests.training.test_gradients import assert_close, batch, free_port
from tests.training.toy import DIM, Toy, toy_model

STEPS = 12  # epochs of 3, 4, 3 and 4 batches


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> ImageDataset:
    return make_images(tmp_path_factory.mktemp("images"))


def gradients(chunk_size: int | None, distributed: Distributed) -> dict[str, Tensor]:
    method = Toy()
    model = toy_model(method)
    method.attach(model)
    with torch.no_grad():
        for parameter in method.teacher.parameters():
            parameter.mul_(1.1)  # a teacher that agrees teaches nothing
    pixels, labels = batch()
    result = accumulate_gradients(
        lambda chunk: Execution().run_outputs(model, chunk, method.parts),
        lambda outputs: method(outputs, BatchInfo(labels, torch.arange(len(labels)))),
        distributed.local_rows(pixels),
        parameters=list(model.parameters()),
        loss_parameters=list(method.parameters()),
        distributed=distributed,
        chunk_size=chunk_size,
        teacher=method.teach,
    )
    assert {"shallow", "deep", "extra", "features", "teacher"} <= result.outputs.parts.keys()
    named = [*model.named_parameters(), *method.named_parameters("method")]
    return {name: p.grad for name, p in named if p.grad is not None}


def direct() -> dict[str, Tensor]:
    """One graph through network, teacher and loss: the oracle."""
    method = Toy()
    model = toy_model(method)
    method.attach(model)
    with torch.no_grad():
        for parameter in method.teacher.parameters():
            parameter.mul_(1.1)
    pixels, labels = batch()
    outputs = model.forward_outputs(pixels, method.parts).with_parts(method.teach(pixels))
    method(outputs, BatchInfo(labels, torch.arange(len(labels)))).total.backward()
    named = [*model.named_parameters(), *method.named_parameters("method")]
    return {name: p.grad for name, p in named if p.grad is not None}


def test_the_direct_gradient_reaches_everything_that_is_trained() -> None:
    found = direct()
    assert {"backbone.0.weight", "head.shallow.0.weight", "head.deep.2.weight"} <= found.keys()
    assert {"head.extra.0.weight", "method.regressor.weight"} <= found.keys()
    assert not [name for name in found if "teacher" in name or "policy" in name]


@pytest.mark.parametrize("chunk_size", [None, 1, 5])
def test_chunks_give_the_gradient_of_every_part(chunk_size: int | None) -> None:
    assert_close(direct(), gradients(chunk_size, Distributed()), 1e-5)


def save_gradients(folder: Path, chunk: int, rank: int, size: int, port: int) -> None:
    torch.set_num_threads(1)
    children.join(rank, size, port)
    distributed = Distributed(dist.group.WORLD)
    torch.save(gradients(chunk or None, distributed), folder / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize(("size", "chunk"), [(2, 0), (2, 4)])
def test_processes_give_the_gradient_of_every_part(size: int, chunk: int, tmp_path: Path) -> None:
    port = free_port()
    started = [
        children.start(save_gradients, tmp_path, chunk, rank, size, port) for rank in range(size)
    ]
    for child in started:
        child.join(120)
        child.kill()
    assert [child.exitcode for child in started] == [0] * size
    expected = direct()
    for rank in range(size):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert_close(expected, found, 1e-5)


def settings(**changes: object) -> Settings:
    given = {"steps": STEPS, "checkpoint_every": 1, "keep_checkpoints": STEPS, "validate_every": 3}
    return Settings(**{**given, "learning_rate": 1e-3, **changes})


def train(
    images: ImageDataset, folder: Path | None, *, resume: bool = False, **changes: object
) -> tuple[Embedder, Toy]:
    method = Toy()
    method.poison_at = changes.pop("poison_at", None)
    model = toy_model(method, "trained")

    def validate(candidate: Embedder) -> dict[str, float]:
        return {"recall@1": float(candidate.head["deep"][-1].weight.abs().mean().detach())}

    fit(
        model,
        method,
        batches(images),
        settings=settings(**changes),
        validate=validate,
        run=None if folder is None else Run(folder, resume=resume),
        callback=Callback(),
    )
    return model, method


@pytest.fixture(scope="module")
def unbroken(
    images: ImageDataset, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Embedder, Toy]:
    folder = tmp_path_factory.mktemp("runs") / "unbroken"
    return folder, *train(images, folder)


def test_hooks_are_called_when_promised(unbroken: tuple[Path, Embedder, Toy]) -> None:
    called = unbroken[2].called
    assert called[:3] == ["start", "validation 0", "epoch 0 at 0"]
    assert [call for call in called if call.startswith("step")] == [
        f"step {step}" for step in range(1, STEPS + 1)
    ]
    epochs = [call for call in called if call.startswith("epoch")]
    assert epochs == ["epoch 0 at 0", "epoch 1 at 3", "epoch 2 at 7", "epoch 3 at 10"]
    assert called.index("step 3") < called.index("validation 3") < called.index("epoch 1 at 3")


def test_plans_are_followed_and_groups_rest(unbroken: tuple[Path, Embedder, Toy]) -> None:
    lines = [line for line in read_metrics(unbroken[0]) if "loss" in line]
    assert [line["epoch"] for line in lines] == [0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 3, 3]
    resting = [line["step"] for line in lines if line["learning_rates"]["backbone"] == 0]
    assert resting == [4, 5, 6, 7, 11, 12]
    late = [line["learning_rates"]["regressor"] for line in lines]
    assert late == pytest.approx([0, 0] + [3e-3] * 10)
    plans = [line["plan"] for line in read_metrics(unbroken[0]) if "plan" in line]
    assert plans == [{"streams": 2}] * 2


def different(first: torch.nn.Module, second: torch.nn.Module) -> list[str]:
    pairs = zip(first.state_dict().items(), second.state_dict().items(), strict=True)
    return [name for (name, a), (_, b) in pairs if not torch.equal(a, b)]


@pytest.mark.parametrize("step", [0, 2, 3, 5, 8, 11])
def test_resume_is_equal_to_the_bit(
    images: ImageDataset, unbroken: tuple[Path, Embedder, Toy], tmp_path: Path, step: int
) -> None:
    folder, model, method = unbroken
    shutil.copytree(folder, tmp_path / "run")
    for checkpoint in (tmp_path / "run" / "checkpoints").iterdir():
        if int(checkpoint.name.removeprefix("step-")) > step:
            shutil.rmtree(checkpoint)
    shutil.rmtree(tmp_path / "run" / "model", ignore_errors=True)  # written at the end
    resumed, again = train(images, tmp_path / "run", resume=True)
    assert not different(model, resumed)
    assert not different(method, again), "memory, teacher, policy"
    momentum = [m.own.state[m.policy]["momentum_buffer"] for m in (method, again)]
    assert torch.equal(*momentum)
    assert float(momentum[0].abs().sum()) > 0
    lines = [
        [{k: v for k, v in line.items() if k != "seconds"} for line in read_metrics(run)]
        for run in (folder, tmp_path / "run")
    ]
    assert lines[0] == lines[1]


def test_a_skipped_update_restores_the_buffers(images: ImageDataset) -> None:
    _, method = train(images, None, poison_at=0, steps=1, non_finite="skip", validate_every=0)
    assert int(method.seen) == 0
    assert float(method.memory.abs().sum()) == 0
    assert not [call for call in method.called if call.startswith("step")]
    _, method = train(images, None, steps=1, validate_every=0)
    assert int(method.seen) == 1
    assert float(method.memory.abs().sum()) > 0


def test_a_saved_model_embeds_the_same(
    unbroken: tuple[Path, Embedder, Toy], tmp_path: Path
) -> None:
    model = unbroken[1].eval()
    model.reranker = "some_reranker"
    model.save(tmp_path / "model")
    loaded = Embedder.load(tmp_path / "model")
    assert (loaded.heads, loaded.reranker, loaded.dim) == (model.heads, "some_reranker", DIM)
    pixels, _ = batch()
    with torch.no_grad():
        torch.testing.assert_close(loaded(pixels), model(pixels))  # folded batch norms round
    assert not different(loaded, model)
    with torch.no_grad():
        outputs = loaded.forward_outputs(pixels)
    shallow, deep = outputs.parts["shallow"], outputs.parts["deep"]
    wanted = torch.cat([0.5 * shallow, 2.0 * deep], dim=1) / (0.25 + 4.0) ** 0.5
    torch.testing.assert_close(outputs.embeddings, wanted)
    assert outputs.parts["extra"].shape == (len(pixels), 3)


def test_what_a_model_cannot_give_is_refused() -> None:
    pixels, _ = batch()
    with pytest.raises(BadData, match="no such module"):
        Embedder("conv4", heads=[Head(name="a", dim=2, tap="layer9")])
    with pytest.raises(BadData, match="a weight above zero"):
        Embedder("conv4", heads=[Head(name="a", dim=2, weight=0.0)])
    with pytest.raises(BadData, match="part 'raw:a'"):
        Embedder("conv4", dim=2).forward_outputs(pixels, ["raw:a"])
    with pytest.raises(ValueError, match="one row per image"):
        Outputs(torch.zeros(3, 2), {"a": torch.zeros(2, 2)})
