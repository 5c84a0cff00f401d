"""embed: the right rows in the right order, however they are read; failures name the image."""

import os
import signal
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from cbml.errors import BadData
from cbml.models import Embedder, Execution, embed
from cbml.progress import Progress
from tests.program import Program

Images = list[NDArray[np.uint8]]


@pytest.fixture(scope="module")
def model() -> Embedder:
    return Embedder("conv4", dim=8)


@pytest.fixture(scope="module")
def images(photographs: dict[str, NDArray[np.uint8]]) -> Images:
    """Seventy different pieces of real photographs, of many sizes."""
    whole = list(photographs.values())
    return [
        whole[n % len(whole)][n : n + 40 + 3 * n, 2 * n : 2 * n + 200 - 2 * n] for n in range(70)
    ]


def read(path: Path) -> NDArray[np.uint8]:
    return np.asarray(Image.open(path).convert("RGB"))


def test_rows_are_the_models_answers_in_order(model: Embedder, images: Images) -> None:
    rows = embed(model, images, batch_size=16, progress=False)
    assert rows.shape == (70, 8)
    assert rows.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
    model.eval()
    for number in (0, 15, 16, 69):
        image = torch.tensor(images[number]).permute(2, 0, 1)
        alone = model.preprocessing.normalize(model.preprocessing.frame(image))[None]
        with torch.no_grad():
            np.testing.assert_allclose(rows[number], model(alone)[0].numpy(), atol=1e-5)


def test_every_way_of_reading_gives_the_same_bits(
    model: Embedder, images: Images, tmp_path: Path
) -> None:
    rows = embed(model, images, batch_size=16, progress=False)
    for number, image in enumerate(images):
        Image.fromarray(image).save(tmp_path / f"{number:03}.png")
    paths = sorted(tmp_path.iterdir())
    ways: dict[str, NDArray[np.float32]] = {
        "two processes": embed(model, images, batch_size=16, processes=2, progress=False),
        "a generator": embed(model, iter(images), batch_size=16, progress=False),
        "tensors": embed(
            model,
            [torch.tensor(each).permute(2, 0, 1) for each in images],
            batch_size=16,
            progress=False,
        ),
        "paths": embed(model, paths, load=read, batch_size=16, processes=2, progress=False),
        "an dataset": embed(
            model,
            SimpleNamespace(paths=paths),
            load=read,
            batch_size=16,
            progress=False,  # type: ignore[arg-type]
        ),
    }
    for way, others in ways.items():
        assert np.array_equal(rows, others), way


def test_the_data_rooms_reader_and_image_set_fit(
    model: Embedder, photograph_paths: dict[str, Path]
) -> None:
    from cbml.data import ImageDataset, read_image

    paths = [photograph_paths["chelsea"], photograph_paths["coffee"]]
    images = ImageDataset(tuple(paths), (0, 1), ("cat", "cup"))
    rows = embed(model, images, load=read_image, progress=False)
    assert np.array_equal(rows, embed(model, [read(path) for path in paths], progress=False))


def test_one_array_or_tensor_of_many_images_is_a_sequence(model: Embedder) -> None:
    stack = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
    rows = embed(model, stack, progress=False)
    tensors = torch.tensor(stack).permute(0, 3, 1, 2)
    assert np.array_equal(rows, embed(model, tensors, processes=2, progress=False))


def test_no_images_give_no_rows(model: Embedder) -> None:
    assert embed(model, [], progress=False).shape == (0, 8)
    assert embed(model, iter([]), progress=False).shape == (0, 8)


def test_mode_and_numbers_of_the_model_stay(images: Images) -> None:
    model = Embedder("conv4", dim=8, batch_norm="trained")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    embed(model.train(), images[:5], progress=False)
    assert model.training
    assert all(module.training for module in model.modules())
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
    model(torch.zeros(2, 3, 32, 32))[:, 0].sum().backward()  # and it can still be trained
    embed(model.eval(), images[:5], progress=False)
    assert not model.training


FLOAT = np.zeros((4, 4, 3))


@pytest.mark.parametrize("processes", [0, 2])
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (FLOAT, "image 20: expected a uint8 array"),
        (np.zeros((4, 4), np.uint8), "image 20: expected a uint8 array"),
        (np.zeros((0, 4, 3), np.uint8), "image 20: an empty image"),
        (torch.zeros(4, 4, 3, dtype=torch.uint8), "image 20: expected a uint8 tensor"),
        ("some/file.png", "some/file.png: a path is not an image; pass `load` to read it"),
    ],
    ids=str,
)
def test_a_bad_image_is_named(
    model: Embedder, images: Images, bad: object, message: str, processes: int
) -> None:
    items = [*images[:20], bad, *images[20:30]]
    with pytest.raises(BadData) as caught:
        embed(model, items, batch_size=8, processes=processes, progress=False)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("processes", [0, 2])
def test_a_file_that_cannot_be_read_is_named(
    model: Embedder, tmp_path: Path, processes: int
) -> None:
    paths = [tmp_path / f"{number}.png" for number in range(10)]
    for path in paths:
        Image.new("RGB", (40, 40)).save(path)
    paths[7].write_text("<html>not an image</html>")
    with pytest.raises(BadData, match=r"7\.png") as caught:
        embed(model, paths, load=read, batch_size=2, processes=processes, progress=False)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 0.0])
def test_a_row_without_direction_is_refused_by_name(value: float, images: Images) -> None:
    class Spoilt(Embedder):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            vectors = super().forward(images)
            return torch.where((images.mean((1, 2, 3)) < -0.99)[:, None], value, vectors)

    black = np.zeros((40, 40, 3), np.uint8)
    items = [*images[:9], black]
    with pytest.raises(BadData, match=r"^image 9: the model gives no direction"):
        embed(Spoilt("conv4", dim=4), items, batch_size=4, progress=False)


def test_weights_that_are_not_numbers_are_noticed(images: Images) -> None:
    model = Embedder("conv4", dim=4)
    torch.nn.init.constant_(model.head.weight, torch.nan)
    with pytest.raises(BadData, match="image 0: the model gives no direction"):
        embed(model, images[:3], progress=False)


def test_any_module_with_preprocessing_will_do(model: Embedder, images: Images) -> None:
    plain = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 5))
    with pytest.raises(BadData, match="Sequential has no `preprocessing`"):
        embed(plain, images[:3], progress=False)
    plain.preprocessing = model.preprocessing  # type: ignore[assignment]
    rows = embed(plain, images[:3], progress=False)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)


def test_many_processes_need_a_sequence(model: Embedder, images: Images) -> None:
    with pytest.raises(BadData, match="put them into a list"):
        embed(model, iter(images), processes=2)


def die(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    if image.shape[0] == 41:
        os.kill(os.getpid(), signal.SIGKILL)
    return image


def test_a_killed_loading_process_is_noticed_at_once(model: Embedder) -> None:
    items = [np.zeros((40 + n, 40, 3), np.uint8) for n in range(8)]
    with pytest.raises(RuntimeError, match=r"exited unexpectedly|killed"):
        embed(model, items, load=die, batch_size=1, processes=2, progress=False)


def test_progress_is_reported(model: Embedder, images: Images) -> None:
    seen: list[int] = []
    embed(model, images, batch_size=30, progress=seen.append)
    assert seen == [30, 60, 70]


def test_progress_goes_to_standard_error_in_plain_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    times: Iterator[float] = iter([0.0, 5.0, 20.0, 25.0])
    monkeypatch.setattr("time.monotonic", lambda: next(times))
    with Progress("images", 100) as progress:
        for done in (10, 40, 50):
            progress.show(done)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "images 40 of 100: 2.0 per second, 30 s left\n"


def test_at_most_a_batch_of_images_is_alive(model: Embedder) -> None:
    born: list[weakref.ref[NDArray[np.uint8]]] = []
    most = 0

    def one_by_one() -> Iterator[NDArray[np.uint8]]:
        nonlocal most
        for _ in range(100):
            image = np.zeros((40, 40, 3), np.uint8)
            born.append(weakref.ref(image))
            most = max(most, sum(each() is not None for each in born))
            yield image

    assert len(embed(model, one_by_one(), batch_size=8, progress=False)) == 100
    assert most <= 2 * 8


GROUP = """
import sys
import numpy as np, torch, torch.distributed as distributed
from cbml.models import Embedder, embed

rank, world, store, count, bad = *map(int, sys.argv[1:3]), sys.argv[3], *map(int, sys.argv[4:6])
torch.set_num_threads(1)
distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
random = np.random.default_rng(0)
images = [random.integers(0, 256, (32, 32, 3), dtype=np.uint8) for _ in range(count)]
if bad >= 0:
    images[bad] = images[bad].astype(float)
model = Embedder("conv4", dim=8)
try:
    rows = embed(model, images, batch_size=1, group=distributed.group.WORLD)
    assert np.array_equal(rows, embed(model, images, batch_size=1, progress=False)), rows.shape
    print("equal", len(rows))
except ValueError as error:
    print(type(error).__name__, error)
distributed.destroy_process_group()
"""


def run_group(tmp_path: Path, world: int, count: int, bad: int = -1) -> list[str]:
    store = tmp_path / "store"
    children = [Program(rank, world, store, count, bad, code=GROUP) for rank in range(world)]
    return [child.communicate(timeout=120)[0].strip() for child in children]


def test_a_group_of_processes_shares_the_work(tmp_path: Path) -> None:
    assert run_group(tmp_path, 2, 11) == ["equal 11"] * 2


def test_a_failure_in_a_group_reaches_every_process(tmp_path: Path) -> None:
    first, second = run_group(tmp_path, 2, 11, bad=8)
    assert first.startswith("BadData process 1 of the group stopped")
    assert second.startswith("BadData image 8: expected a uint8 array")


@pytest.mark.slow
@pytest.mark.parametrize(("world", "count"), [(4, 11), (4, 3), (2, 0)])
def test_larger_groups_and_fewer_images(tmp_path: Path, world: int, count: int) -> None:
    assert run_group(tmp_path, world, count) == [f"equal {count}"] * world


def test_execution_is_obeyed(model: Embedder, images: Images) -> None:
    plain = embed(model, images[:8], execution=Execution(), progress=False)
    last = embed(model, images[:8], execution=Execution(channels_last=True), progress=False)
    np.testing.assert_allclose(plain, last, atol=1e-5)
    half = Execution(precision="float16")
    rows = embed(model, images[:8], execution=half, progress=False)
    assert 1e-6 < float(np.abs(rows - plain).max()) < 0.02
