"""Loader workers are threads: whatever ends one of them ends the run at once, with its reason."""

import threading
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cbml.data import Batches, FileImages, ImageDataset
from cbml.training import Callback, Run, Settings, fit
from cbml.training.checkpoints import newest_checkpoint
from tests.training.small import batches, bayes_loss, embedder, make_images

BATCH = 16
SETTINGS = Settings(steps=6, checkpoint_every=1)


class Failing:
    """Images from files, until one of the threads that read them fails."""

    def __init__(self, inner: FileImages, error: BaseException | None) -> None:
        self.inner, self.error, self.reads = inner, error, 0

    def sized(self, number: int, length: int) -> Tensor:
        self.reads += 1
        if self.error is not None and self.reads > 3 * BATCH:
            assert threading.current_thread().name.startswith("cbml-prefetch")
            raise self.error
        return self.inner.sized(number, length)


def train(images: ImageDataset, folder: Path, error: BaseException | None) -> dict[str, Tensor]:
    model, source = embedder(), batches(images, workers=2)
    assert isinstance(source, Batches)
    assert isinstance(source.source, FileImages)
    source.source = Failing(source.source, error)
    run = Run(folder, resume=(folder / "run.json").exists())
    fit(model, bayes_loss(), source, settings=SETTINGS, run=run, callback=Callback())
    return model.state_dict()


@pytest.mark.parametrize(
    "error",
    [
        OSError(5, "Input/output error"),
        MemoryError("no room for the image"),
        RuntimeError("the decoder gave up"),
        SystemExit(9),
        KeyboardInterrupt(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_lost_worker_ends_the_run_and_nothing_is_lost(
    tmp_path: Path, error: BaseException
) -> None:
    images = make_images(tmp_path / "images")
    started = time.monotonic()
    with pytest.raises(type(error)) as raised:
        train(images, tmp_path / "run", error)
    assert raised.value is error
    assert time.monotonic() - started < 10
    assert not [t for t in threading.enumerate() if t.name.startswith("cbml-prefetch")], "left over"
    checkpoint = newest_checkpoint(tmp_path / "run" / "checkpoints", print)
    assert checkpoint is not None
    assert 1 <= checkpoint.step < SETTINGS.steps  # type: ignore[operator]
    resumed = train(images, tmp_path / "run", None)
    unbroken = train(images, tmp_path / "unbroken", None)
    assert all(torch.equal(resumed[name], unbroken[name]) for name in unbroken)
