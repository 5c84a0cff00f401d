"""What cannot be trained is refused in one line, before an image is read or a folder made."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from cbml.errors import BadData
from cbml.losses import LOSSES, build_loss
from cbml.methods import METHODS
from cbml.models import Embedder
from cbml.runs import RunConfig, check_names, check_options, run
from cbml.training import Callback, Distributed, fit
from tests.runs.test_methods import SMALL
from tests.training.small import make_images

METHOD_NAMES = [name for name in METHODS if name != "pseudo_labels"]
#: Classes and images of each: half of the classes are trained on.
FOLDERS = {"singles": (12, 1), "twos": (12, 2), "few": (4, 6), "three": (1, 3), "many": (16, 5)}
#: Classes of so many images are too little for these, by a line that says so.
REFUSED = {
    ("divide_conquer", "singles"): "4 clusters with two images of two classes need 16 images",
    ("divide_conquer", "few"): "there are 12; use fewer clusters",
    ("divide_conquer", "twos"): "there are 12; use fewer clusters",
    ("d_and_c", "singles"): "needs two classes of two images",
    ("mic", "singles"): "30 clusters of 6 images; use fewer, --set method.clusters=2",
    ("mic", "twos"): "30 clusters of 12 images; use fewer, --set method.clusters=3",
    ("mic", "few"): "30 clusters of 12 images",
    ("pads", "singles"): "no class has four images",
    ("pads", "twos"): "no class has four images",
    ("smart_mining", "singles"): "needs two classes, and a class of two images",
    ("sharing_dml", "few"): "classes_per_batch=2: Sharing needs at least 3",
    ("larger_views", "three"): "3 images; at least 4 are needed",
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Class folders of noise, too few for one method or another."""
    root, chance = tmp_path_factory.mktemp("few"), np.random.default_rng(0)
    for name, (classes, images) in FOLDERS.items():
        for label in range(classes):
            (root / name / f"class{label}").mkdir(parents=True)
            for number in range(images):
                pixels = chance.integers(0, 256, (20, 24, 3)).astype(np.uint8)
                Image.fromarray(pixels).save(root / name / f"class{label}" / f"{number}.png")
    return {name: str(root / name) for name in FOLDERS}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where images would be packed, if any were read."""
    monkeypatch.setenv("CBML_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def config_of(source: str, method: str | None = None, **sections: dict[str, Any]) -> RunConfig:
    labels = METHODS[method].labels if method else "known"
    options = SMALL.get(method or "", {}) if method != "mic" else {}
    return RunConfig(
        {"source": source, "labels": labels, "workers": 0, "validation": 0.0},
        model={"backbone": "conv4", "crop": 16, "dim": 24, **sections.pop("model", {})},
        training={"steps": 1, "validate_every": 0, **sections.pop("training", {})},
        method=None if method is None else {"name": method, **options},
        **sections,  # type: ignore[arg-type]
    )


def started(config: RunConfig, folder: Path) -> None:
    """What `cbml train` does."""
    check_names(config)
    check_options(config)
    run(config, folder, callback=Callback())


def refused(config: RunConfig, folder: Path, cache: Path, message: str) -> None:
    with pytest.raises(BadData) as error:
        started(config, folder)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert not folder.exists()
    assert not cache.exists()


@pytest.mark.parametrize(("name", "images"), REFUSED)
def test_too_few_images(
    name: str, images: str, folders: dict[str, str], tmp_path: Path, cache: Path
) -> None:
    message = REFUSED[name, images]
    refused(config_of(folders[images], name), tmp_path / "run", cache, message)


@pytest.mark.slow
@pytest.mark.parametrize("images", FOLDERS)
@pytest.mark.parametrize("name", METHOD_NAMES)
def test_every_method_trains_on_few_images_or_is_in_the_table(
    name: str, images: str, folders: dict[str, str], tmp_path: Path
) -> None:
    if images == "three" and METHODS[name].labels == "known":
        pytest.skip("one class")
    if (name, images) in REFUSED or (name == "mom" and images != "many"):
        pytest.skip("refused")  # MOM sees on embedded images alone whether they have triplets
    started(config_of(folders[images], name, training={"steps": 3}), tmp_path / "run")


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_a_method_refuses_other_labels(
    name: str, folders: dict[str, str], tmp_path: Path, cache: Path
) -> None:
    for labels in {"known", "none", "each"} - {METHODS[name].labels}:
        config = config_of(folders["few"], name).replace(data={"labels": labels})
        wanted = f"--method {name}: learns with --labels {METHODS[name].labels}, not {labels}"
        refused(config, tmp_path / "run", cache, wanted)


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_a_method_with_a_loss_of_its_own_refuses_another(
    name: str, folders: dict[str, str], tmp_path: Path, cache: Path
) -> None:
    config = config_of(folders["few"], name).replace(loss="contrastive")
    refused(config, tmp_path / "run", cache, f"--loss contrastive: {name} has its own loss")


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_chunks_of_a_trained_batch_norm(
    name: str, folders: dict[str, str], tmp_path: Path, cache: Path
) -> None:
    config = config_of(
        folders["many"], name, model={"batch_norm": "trained"}, training={"chunk_size": 4}
    )
    refused(config, tmp_path / "run", cache, "use batch_norm='frozen_statistics', or no chunks")


@pytest.mark.parametrize("kind", ["method", "loss"])
def test_a_batch_that_has_nothing_to_compare(
    kind: str, folders: dict[str, str], tmp_path: Path, cache: Path
) -> None:
    names = METHOD_NAMES if kind == "method" else list(LOSSES)
    small = 0
    for name in names:
        method = name if kind == "method" else None
        config = config_of(folders["few"], method, **({} if method else {"loss": {"name": name}}))
        maker = METHODS[name].load() if method else LOSSES[name]
        classes, samples = getattr(maker, "smallest_batch", (1, 1))
        if name == "sharing_dml":
            classes, samples = 3, 2
        for field, fewest in (("classes_per_batch", classes), ("samples_per_class", samples)):
            if fewest == 1 or (field == "classes_per_batch" and config.data.labels != "known"):
                continue
            small += 1
            wrong = config.replace(training={field: fewest - 1})
            refused(wrong, tmp_path / "run", cache, f"{field}={fewest - 1}: ")
    assert small > 20


@pytest.mark.filterwarnings("ignore:no two images of this batch share a label")
@pytest.mark.parametrize("name", LOSSES)
def test_the_smallest_batch_of_a_loss_teaches_and_a_smaller_one_does_not(name: str) -> None:
    chance = torch.Generator().manual_seed(3)
    classes, samples = LOSSES[name].smallest_batch  # type: ignore[attr-defined]

    def taught(labels: torch.Tensor) -> float:
        rows = torch.randn(len(labels), 16, generator=chance, requires_grad=True)
        rows.data += 2.0  # close enough for every margin
        build_loss(name, {}, classes=8, dim=16, seed=0)(rows, labels).backward()
        return 0.0 if rows.grad is None else float(rows.grad.abs().max())

    assert taught(torch.arange(4 * classes * samples) % (2 * classes)) > 1e-6
    if (classes, samples) == (2, 2) and not name.startswith(("binomial", "contrastive", "ranked")):
        # Those three also pull, or push, without a partner for it.
        for labels in (torch.arange(4), torch.zeros(4, dtype=torch.int64)):
            assert taught(labels) < (0.1 if name == "n_pair" else 1e-6)  # it shortens rows, too


def test_a_batch_that_a_memory_has_no_room_for(
    folders: dict[str, str], tmp_path: Path, cache: Path
) -> None:
    sizes = {"classes_per_batch": 2, "samples_per_class": 65}
    config = config_of(folders["few"], training=sizes).replace(loss="proxy_anchor_memvir")
    wanted = "remembers at most 128; use --set loss.batch_rows=130"
    refused(config, tmp_path / "run", cache, wanted)
    config = config_of(folders["many"]).replace(
        data={"labels": "none"},
        training={"samples_per_class": 4},
        loss={"name": "proxy_anchor_memvir", "parameters": "given"},
    )
    refused(config, tmp_path / "run", cache, "loss.batch_rows=200")


def test_a_score_that_validation_does_not_give(
    folders: dict[str, str], tmp_path: Path, cache: Path
) -> None:
    config = config_of(folders["few"], training={"choose_by": "recall@3"})
    refused(config, tmp_path / "run", cache, "choose_by=recall@3: no such score; use one of recall")


def test_processes_that_cannot_share_a_batch(
    folders: dict[str, str], tmp_path: Path, cache: Path
) -> None:
    distributed = Distributed()
    distributed.size = 3  # none of them is asked for anything
    config = config_of(folders["few"], training={"classes_per_batch": 2, "samples_per_class": 2})
    with pytest.raises(BadData, match="cannot be shared equally by 3 processes"):
        run(config, tmp_path / "run", distributed=distributed, callback=Callback())
    assert not cache.exists()


def test_fit_refuses_as_runs_do(tmp_path: Path) -> None:
    images = make_images(tmp_path)
    method = METHODS["mic"].load()(num_classes=6, num_images=42, embedding_size=8, clusters=50)
    model = Embedder("conv4", dim=8, heads=method.heads(8))
    with pytest.raises(BadData, match="50 clusters of 42 images"):
        fit(model, method, images, callback=Callback())
    assert os.listdir(tmp_path)  # the images alone
