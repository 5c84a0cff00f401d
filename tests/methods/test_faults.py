"""Killed runs of methods resume to the bit, and their models become ONNX files.

One member of each kind is tried always, the others under `make slow`.
"""

import os
import signal
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor

from cbml.data import ImageDataset
from cbml.methods import METHODS
from cbml.models import export_onnx
from cbml.training.checkpoints import newest_checkpoint
from tests.methods.test_all import CASES, CROP, embedder, train
from tests.training import children

STEPS = 5
#: Taps of other depths; streams and heads; a head of training alone; an optimizer of its own;
#: a head of another kind.
KINDS = ("hdc", "divide_conquer", "mic", "pads", "deml")
MEMBERS = [
    name if name in KINDS else pytest.param(name, marks=pytest.mark.slow) for name in METHODS
]


def train_alone(name: str, images: ImageDataset, folder: Path) -> None:
    torch.set_num_threads(1)
    train(name, images, folder, STEPS)


def tensors(folder: Path) -> dict[str, Tensor]:
    checkpoint = newest_checkpoint(folder / "checkpoints", print)
    assert checkpoint is not None
    assert checkpoint.step == STEPS
    return {key: value for key, value in checkpoint.tensors.items() if key != "random.python"}


@pytest.mark.timeout(1800)  # a busy machine takes its time; a child that hangs is told by it
@pytest.mark.parametrize("name", MEMBERS)
def test_a_killed_run_resumes_to_the_bit(name: str, images: ImageDataset, tmp_path: Path) -> None:
    for folder, kills in ((tmp_path / "whole", 0), (tmp_path / "killed", 1)):
        for kill in range(kills, -1, -1):
            child = children.start(train_alone, name, images, folder)
            second = folder / "checkpoints" / "step-000000002"
            while kill and child.is_alive() and not second.exists():
                time.sleep(0.002)
            if kill:
                os.kill(child.pid or 0, signal.SIGKILL)
            child.join(600)
            assert child.exitcode == (-signal.SIGKILL if kill else 0)
    whole, killed = tensors(tmp_path / "whole"), tensors(tmp_path / "killed")
    assert whole.keys() == killed.keys()
    assert not [key for key in whole if not torch.equal(whole[key], killed[key])]


@pytest.mark.parametrize("name", MEMBERS)
def test_what_inference_needs_becomes_an_onnx_file(name: str, tmp_path: Path) -> None:
    method = CASES[name]()
    model = embedder(method).eval()
    chance = np.random.default_rng(0)
    images = [chance.integers(0, 256, (20, 24, 3), dtype=np.uint8) for _ in range(2)]
    done = export_onnx(model, tmp_path / "model.onnx", images=images)
    assert done.images == 2
    assert done.largest_difference < 1e-5
    graph = onnx.load(done.path).graph
    assert [output.name for output in graph.output] == ["embeddings"]
    assert graph.input[0].type.tensor_type.shape.dim[2].dim_value == CROP
    # Heads of training alone are no part of it, unless another one mixes them.
    mixed = {name for head in model.heads for name in head.mixes}
    named = {head.name for head in model.heads if not head.weight} - mixed
    assert not [one.name for one in graph.initializer if any(n in one.name for n in named)]
