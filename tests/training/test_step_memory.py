"""What a step needs is known before it."""

import runpy
import sys
from pathlib import Path

import pytest
import torch

import cbml
from cbml.models import Embedder, Execution
from cbml.training import StepMemory, step_memory

BENCHMARK = Path(cbml.__file__).parent.parent / "benchmarks" / "memory.py"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="RSS is counted as on Linux")
@pytest.mark.parametrize(
    ("backbone", "crop", "chunk"), [("efficientnet_lite0", 128, 40), ("resnet18", 128, 40)]
)
def test_the_estimate_is_within_a_quarter(
    tmp_path: Path, backbone: str, crop: int, chunk: int
) -> None:
    bench = runpy.run_path(str(BENCHMARK))
    words = ["--backbone", backbone, "--crop", str(crop), "--set", f"chunk_size={chunk}"]
    words += ["--set", "weights=none", "--set", "batch_norm=frozen_statistics"]
    classes = 6  # 48 images: a whole chunk and a part of one
    photos = bench["make_photos"](tmp_path / "photos", crop, classes)
    taken, expected, found = bench["peak"](photos, tmp_path / "run", classes, *words)
    assert found == chunk
    assert taken * 0.75 < expected < taken * 1.25, f"took {taken:.2e}, expected {expected:.2e}"


def test_the_fewest_equal_chunks_that_fit() -> None:
    need = StepMemory(fixed=100.0, per_image=10.0, embedding=30.0, batch=120, divisible=True)
    assert need.peak() == 1300
    assert need.peak(30) == 400
    assert need.peak(1) == 130, "validation needs more than a chunk"
    assert need.fitting_chunk(1300) is None
    assert need.fitting_chunk(1299) == 60
    assert need.fitting_chunk(778) == 60, "700 with a tenth to spare"
    assert need.fitting_chunk(777) == 40
    assert need.fitting_chunk(0) == 1
    whole = StepMemory(fixed=100.0, per_image=10.0, embedding=0.0, batch=120, divisible=False)
    assert whole.fitting_chunk(0) is None


def test_it_grows_with_pixels_and_leaves_the_generators_alone() -> None:
    model = Embedder("conv4", dim=8, batch_norm="frozen_statistics")
    before = torch.get_rng_state()
    small, large = (
        step_memory(model.train(), Execution(), crop=crop, batch=4).per_image for crop in (32, 64)
    )
    assert large == pytest.approx(4 * small, rel=0.05)
    assert torch.equal(before, torch.get_rng_state())
    assert not step_memory(
        Embedder("conv4", dim=8, batch_norm="trained"), Execution(), crop=16, batch=4
    ).divisible
