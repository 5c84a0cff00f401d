"""Saved models come back bit for bit; damaged and hostile ones are refused and run nothing."""

import contextlib
import hashlib
import io
import json
import os
import random
import shutil
import struct
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.torch
import torch

from cbml.errors import BadData, DamagedFile
from cbml.files import write_json
from cbml.models import Embedder
from tests.faults import failing_call, full_disk


@pytest.fixture(scope="module")
def model() -> Embedder:
    return Embedder("conv4", dim=3, pooling="generalized_mean", seed=3)


@pytest.fixture
def saved(model: Embedder, tmp_path: Path) -> Path:
    model.save(tmp_path / "model")
    return tmp_path / "model"


def test_a_model_comes_back_bit_for_bit(model: Embedder, saved: Path) -> None:
    loaded = Embedder.load(saved)
    assert not loaded.training
    assert loaded.describe() == model.describe()
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor)
    again = saved.parent / "again"
    loaded.save(again)
    assert sorted(path.name for path in again.glob("[!.]*")) == sorted(
        path.name for path in saved.glob("[!.]*")
    ), "equal content gives equal names"


def test_provenance_settings_and_size_survive(tmp_path: Path) -> None:
    preprocessing = Embedder("conv4").preprocessing.with_crop(28)
    model = Embedder("efficientnet_lite0", dim=4, preprocessing=preprocessing, batch_norm="frozen")
    model.save(tmp_path)
    loaded = Embedder.load(tmp_path)
    assert loaded.provenance == model.provenance
    assert loaded.provenance.startswith("package: ")
    assert loaded.preprocessing.crop == 28
    assert loaded.batch_norm == "frozen"
    assert not any(p.requires_grad for n, p in loaded.named_parameters() if ".bn" in n)


def test_a_channels_last_model_is_saved_as_well(model: Embedder, tmp_path: Path) -> None:
    other = Embedder("conv4", dim=3, pooling="generalized_mean", seed=3)
    other.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    other.save(tmp_path)
    loaded = Embedder.load(tmp_path).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_the_umask_is_respected(model: Embedder, tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        model.save(tmp_path / "model")
    finally:
        os.umask(before)
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "model").iterdir()}
    assert modes == {mode}


def test_a_symbolic_link_to_the_folder_stays(model: Embedder, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    model.save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert Embedder.load(tmp_path / "real").dim == 3


def test_what_is_not_finite_is_not_saved(tmp_path: Path) -> None:
    model = Embedder("conv4", dim=3)
    model.save(tmp_path)
    torch.nn.init.constant_(model.head.bias, torch.inf)
    with pytest.raises(BadData, match=r"not saved, head\.bias holds NaN or infinity"):
        model.save(tmp_path)
    assert not Embedder.load(tmp_path).head.bias.any(), "the old model is whole"


def first_number(folder: Path) -> float:
    return float(Embedder.load(folder).head.weight.detach()[0, 0])


@pytest.mark.parametrize("call", ["open", "replace", "fsync", "chmod"])
def test_a_fault_at_every_call_leaves_the_old_or_the_new_model(tmp_path: Path, call: str) -> None:
    """Fail the n-th system call for n = 1, 2, 3 ... until a save succeeds without a fault."""
    old, new = Embedder("conv4", dim=3, seed=1), Embedder("conv4", dim=3, seed=2)
    old.save(tmp_path)
    numbers = {float(model.head.weight.detach()[0, 0]) for model in (old, new)}
    for nth in range(1, 50):
        with failing_call(call, nth), contextlib.suppress(OSError):
            new.save(tmp_path)
            break
        assert first_number(tmp_path) in numbers
        old.save(tmp_path)
    assert 1 < nth < 49, "the call was reached, and the last save met no fault"
    assert first_number(tmp_path) == float(new.head.weight.detach()[0, 0])


def test_a_full_disk_leaves_the_old_model(tmp_path: Path) -> None:
    old, new = Embedder("conv4", dim=3, seed=1), Embedder("conv4", dim=3, seed=2)
    old.save(tmp_path)
    number = first_number(tmp_path)
    for limit in (1, 1_000, 100_000, 400_000):
        with full_disk(limit), pytest.raises((OSError, safetensors.SafetensorError)):
            new.save(tmp_path)
        assert first_number(tmp_path) == number
    assert len(list(tmp_path.iterdir())) == 4, "three parts and the lock, no litter"


def mutated(content: bytes, chance: random.Random) -> bytes:
    """The content with one bit flipped, cut off, a byte put in, a stretch zeroed or swapped."""
    data = bytearray(content)
    place = chance.randrange(len(data) - 1)
    match chance.randrange(5):
        case 0:
            data[place] ^= 1 << chance.randrange(8)
        case 1:
            del data[place:]
        case 2:
            data.insert(place, 65)
        case 3:
            data[place : place + 64] = bytes(len(data[place : place + 64]))
        case _:
            other = chance.randrange(len(data))
            data[place], data[other] = data[other], data[place]
    return bytes(data)


def check_mutated(saved: Path, count: int) -> None:
    chance = random.Random(0)
    originals = {path: path.read_bytes() for path in sorted(saved.glob("[!.]*"))}
    assert len(originals) == 3
    done = 0
    while done < count:
        victim = chance.choice(list(originals))
        damaged = mutated(originals[victim], chance)
        if damaged == originals[victim]:
            continue
        victim.write_bytes(damaged)
        with pytest.raises(DamagedFile) as caught:
            Embedder.load(saved)
        assert str(saved) in str(caught.value)
        assert "\n" not in str(caught.value)
        victim.write_bytes(originals[victim])
        done += 1
    Embedder.load(saved)


def test_100_mutated_models_are_refused(saved: Path) -> None:
    check_mutated(saved, 100)


@pytest.mark.slow
def test_1000_mutated_models_are_refused(saved: Path) -> None:
    check_mutated(saved, 1000)


def forge(folder: Path, name: str, content: bytes) -> None:
    """Replace a part and set every hash right, as an attacker would."""
    manifest = json.loads((folder / "manifest.json").read_text())
    entry = manifest["parts"][name]
    (folder / entry["file"]).write_bytes(content)
    entry.update(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
    del manifest["sha256"]
    digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    write_json(folder / "manifest.json", {**manifest, "sha256": digest})


FORGED: list[dict[str, Any]] = [
    {"backbone": "timm:vit_giant_patch14_224"},  # gigabytes, if it were built
    {"backbone": "resnet152"},
    {"backbone": "timm:hf-hub:somebody/model"},
    {"backbone": "timm:local-dir:/tmp"},
    {"backbone": "__import__('os')"},
    {"backbone": 7},
    {"dim": 65_536},
    {"dim": 10**15},
    {"dim": True},
    {"dim": -3},
    {"pooling": "average"},
    {"pooling": ["max"]},
    {"batch_norm": "melted"},
    {"preprocessing": {}},
    {"preprocessing": {"crop": 10**9}},
    {"provenance": None},
    {"surprise": 1},
]


@pytest.mark.parametrize("change", FORGED, ids=str)
def test_settings_that_lie_are_refused(saved: Path, change: dict[str, Any]) -> None:
    facts = json.loads(next(saved.glob("model-*.json")).read_text())
    forge(saved, "model.json", json.dumps({**facts, **change}).encode())
    with pytest.raises(DamagedFile) as caught:
        Embedder.load(saved)
    assert "\n" not in str(caught.value)


def test_senseless_numbers_in_preprocessing_are_refused(saved: Path) -> None:
    facts = json.loads(next(saved.glob("model-*.json")).read_text())
    for change in ({"std": [0, 0, 0]}, {"mean": "abc"}, {"crop": None}, {"scale": "1"}):
        forged = {**facts, "preprocessing": {**facts["preprocessing"], **change}}
        forge(saved, "model.json", json.dumps(forged).encode())
        with pytest.raises(DamagedFile, match="preprocessing"):
            Embedder.load(saved)


@pytest.mark.parametrize("kind", ["nan", "missing", "surplus", "shape"])
def test_tensors_that_lie_are_refused(model: Embedder, saved: Path, kind: str) -> None:
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    if kind == "nan":
        tensors["head.weight"][0, 0] = torch.nan
    elif kind == "missing":
        del tensors["head.weight"]
    elif kind == "surplus":
        tensors["hat.weight"] = torch.ones(1)
    else:
        tensors["head.weight"] = tensors["head.weight"].T.contiguous()
    forge(saved, "model.safetensors", safetensors.torch.save(tensors))
    with pytest.raises(DamagedFile, match=r"head\.weight|hat\.weight"):
        Embedder.load(saved)


class Gadget:
    """Unpickling an instance runs a program that leaves a mark."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call


def gadgets(mark: Path) -> Iterator[Any]:
    import builtins
    import subprocess

    yield Gadget(os.system, f"touch {mark}")
    yield Gadget(builtins.exec, f"__import__('pathlib').Path({str(mark)!r}).touch()")
    yield Gadget(builtins.eval, f"__import__('pathlib').Path({str(mark)!r}).touch()")
    yield Gadget(subprocess.check_output, ["touch", str(mark)])
    yield Gadget(builtins.open, str(mark), "w")
    yield Gadget(torch.load, str(mark))


def hostile_files(mark: Path) -> Iterator[tuple[str, bytes]]:
    """File endings and contents, each of which would leave a mark if anything in it were run."""
    import pickle  # only here, to build what must never be read

    import numpy as np

    for gadget in gadgets(mark):
        for content in (gadget, {"0.weight": gadget}, [torch.ones(1), gadget]):
            for new in (True, False):
                buffer = io.BytesIO()
                torch.save(content, buffer, _use_new_zipfile_serialization=new)
                yield ".pt", buffer.getvalue()
        for protocol in (0, 2, 5):
            yield ".bin", pickle.dumps(gadget, protocol)
    attack = next(gadgets(mark))
    buffer = io.BytesIO()
    np.save(buffer, np.array([attack], dtype=object), allow_pickle=True)
    yield ".npy", buffer.getvalue()
    yield ".pth", buffer.getvalue()
    for inner in ("data.pkl", "archive/data.pkl", "../data.pkl", "archive/constants.pkl"):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr(inner, pickle.dumps(attack))
            archive.writestr("archive/version", "3")
        yield ".pt", buffer.getvalue()
        nested = io.BytesIO()
        with zipfile.ZipFile(nested, "w") as archive:
            archive.writestr("archive/data.pkl", buffer.getvalue())
        yield ".pth", nested.getvalue()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive_tar:
        for name in ("sys_info", "pickle", "storages", "tensors"):
            info = tarfile.TarInfo(name)
            info.size = len(pickle.dumps(attack))
            archive_tar.addfile(info, io.BytesIO(pickle.dumps(attack)))
    yield ".pth", buffer.getvalue()
    yield ".pt2", buffer.getvalue()
    yield ".yaml", f"!!python/object/apply:os.system ['touch {mark}']".encode()
    header = json.dumps({"0.weight": {"dtype": "F32", "shape": [2], "data_offsets": [0, 10**9]}})
    yield ".safetensors", struct.pack("<Q", len(header)) + header.encode()
    yield ".safetensors", struct.pack("<Q", 2**63) + b"{}"
    yield ".safetensors", pickle.dumps(attack)
    yield ".safetensors", b""


def test_hostile_files_run_nothing_through_any_entry(saved: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    files = list(hostile_files(mark))
    assert len(files) >= 50
    for number, (ending, content) in enumerate(files):
        path = tmp_path / f"hostile{number}{ending}"
        path.write_bytes(content)
        entries = [
            lambda path=path: Embedder("conv4", weights=path),
            lambda path=path: Embedder("conv4", weights=f"path:{path}"),
            lambda: Embedder.load(saved),
        ]
        forge(saved, "model.safetensors", content)
        for entry in entries:
            with pytest.raises((BadData, DamagedFile)) as caught:
                entry()
            assert "\n" not in str(caught.value)
            assert str(tmp_path) in str(caught.value)
        other = tmp_path / "other"
        shutil.copytree(saved, other)
        forge(other, "model.json", content)
        with pytest.raises(DamagedFile):
            Embedder.load(other)
        shutil.rmtree(other)
        assert not mark.exists(), f"{path.name} was run"


def test_the_gadgets_would_leave_a_mark_if_they_were_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    for gadget in list(gadgets(mark))[:5]:
        function, arguments = gadget.__reduce__()
        result = function(*arguments)
        if hasattr(result, "close"):
            result.close()
        assert mark.exists()
        mark.unlink()


def test_a_missing_folder_and_an_ordinary_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="no such folder"):
        Embedder.load(tmp_path / "nothing")
    with pytest.raises(DamagedFile, match=r"no manifest\.json"):
        Embedder.load(tmp_path)
