"""Peak memory of `cbml train`, with chunks as they are chosen by default and without.

Each form trains on generated photos in a process of its own, two steps and two validations, and its
largest resident set is compared with the estimate that the plan prints. At 227 pixels and 120
images a batch, the default must stay within 3 GB.

    python benchmarks/memory.py                          EfficientNet-Lite0 at 227, batches of 120
    python benchmarks/memory.py --crop 128               another size
    python benchmarks/memory.py --batches 60 240 960     how memory grows with the batch
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

SAMPLES = 8
FORMS = {"default": (), "whole batch": ("--set", "chunk_size=0")}

_CHILD = """
import pathlib, sys
from cbml.cli import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    assert not end.code, end.code
# Not `ru_maxrss`: until the child's own program runs, it counts the memory of its parent.
status = pathlib.Path("/proc/self/status").read_text().split()
print(int(status[status.index("VmHWM:") + 1]) * 1024)
"""


def make_photos(folder: Path, side: int, classes: int) -> Path:
    """Enough classes for a batch after some are kept for the test and for validation."""
    random = np.random.default_rng(0)
    for name in range(3 * classes):
        (folder / f"class-{name}").mkdir(parents=True)
        colors = random.integers(0, 200, (8, 8, 3))
        for number in range(SAMPLES):
            noisy = colors + random.integers(0, 56, colors.shape)
            small = Image.fromarray(noisy.astype(np.uint8))
            small.resize((side, side)).save(folder / f"class-{name}" / f"{number}.jpg")
    return folder


def peak(photos: Path, out: Path, classes: int, *words: str) -> tuple[float, float, int]:
    """Bytes that a training took, bytes that its plan expected, and the size of its chunks."""
    batch = [
        f"classes_per_batch={classes}",
        f"samples_per_class={SAMPLES}",
        "steps=2",
        "parameters=given",
    ]
    options = [part for text in batch for part in ("--set", text)]
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, "train", str(photos), "--out", str(out), *options, *words],
        env={**os.environ, "CBML_CACHE": str(out.parent / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{done.stderr[-2000:]}\nexit code {done.returncode}")
    plan = json.loads((out / "run.json").read_text())["plan"]
    return float(done.stdout.split()[-1]), plan["peak_bytes"], plan["chunk_size"]


def main() -> None:
    """Print both forms for each batch."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--crop", type=int, default=227)
    parser.add_argument("--batches", type=int, nargs="+", default=[120], help="multiples of 8")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        most = max(options.batches) // SAMPLES
        photos = make_photos(Path(scratch) / "photos", options.crop + 32, most)
        for batch in options.batches:
            for form, words in FORMS.items():
                out = Path(scratch) / f"{form}-{batch}"
                crop = ("--crop", str(options.crop))
                taken, expected, chunk = peak(photos, out, batch // SAMPLES, *crop, *words)
                cut = f"chunks of {chunk}" if chunk else "in one pass"
                print(
                    f"{form:<12} {options.crop} pixels, batches of {batch} {cut:<13} peak "
                    f"{taken / 1e9:.2f} GB, expected {expected / 1e9:.2f} GB",
                    flush=True,
                )


if __name__ == "__main__":
    main()
