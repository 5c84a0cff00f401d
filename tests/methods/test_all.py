"""What holds for every method in the table."""

import inspect
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cbml.data import ImageDataset, TrainTransform
from cbml.losses import CBMLLoss
from cbml.methods import (
    BIER,
    HDC,
    HDML,
    LSCMGNN,
    METHODS,
    MOM,
    NCE,
    SSUML,
    AdversarialBIER,
    AnchorNeighborhoods,
    CBSwR,
    DeepCluster,
    DeML,
    Exemplar,
    FusingNet,
    Horde,
    InstanceSpreading,
    LargerViews,
    Ortho,
    PseudoLabels,
    RankedLevels,
)
from cbml.models import Embedder
from cbml.training import (
    Callback,
    Distributed,
    Method,
    Run,
    Settings,
    build_batches,
    fit,
    read_metrics,
)
from tests.training.small import CLASSES, CROP, IMAGES

DIM, COUNT = 8, CLASSES * IMAGES
# Each method of the table as a run on tiny images makes it.
CASES: dict[str, Callable[[], Method]] = {
    "pseudo_labels": lambda: PseudoLabels(
        CBMLLoss(mining_margin=None), clusters=6, cluster_by="features", head_start="whitened"
    ),
    "larger_views": lambda: LargerViews(num_images=COUNT, doubtful=5),
    "nce": lambda: NCE(num_images=COUNT, embedding_size=DIM, head_start="whitened"),
    "deep_cluster": lambda: DeepCluster(num_classes=6, embedding_size=DIM, seed=2),
    "exemplar": lambda: Exemplar(num_images=COUNT, embedding_size=DIM),
    "mom": lambda: MOM(num_images=COUNT, neighbors=5, positive_list=5, negative_list=12),
    "and": lambda: AnchorNeighborhoods(num_images=COUNT, embedding_size=DIM, round_steps=1),
    "isif": lambda: InstanceSpreading(neighbor_probability=0.5),
    "ssuml": lambda: SSUML(triplets=40),
    "cbswr": lambda: CBSwR(embedding_size=DIM, batch_clusters=4),
    "ortho": lambda: Ortho(neighbors=3),
    "hdc": lambda: HDC(hidden=16),
    "rll_lmh": RankedLevels,
    "bier": lambda: BIER(independence=0.01),
    "a_bier": lambda: AdversarialBIER(hidden=8),
    "horde": lambda: Horde(width=16, embedding_size=DIM),
    "deml": lambda: DeML(hidden=8),
    "lscm_gnn": lambda: LSCMGNN(neighbors=3, hidden=8, embedding_size=DIM),
    "fusing_net": lambda: FusingNet(width=16, num_classes=CLASSES, embedding_size=DIM),
    "hdml": lambda: HDML(
        num_classes=CLASSES, hidden=16, window=2, generator_rate=1e-4, classifier_rate=1e-4
    ),
}
UNLABELED = {name for name, entry in METHODS.items() if entry.labels != "known"}


def test_every_method_has_a_case() -> None:
    assert CASES.keys() == METHODS.keys()


@pytest.mark.parametrize("name", METHODS)
def test_the_table_tells_the_truth(name: str) -> None:
    entry, kind = METHODS[name], METHODS[name].load()
    assert isinstance(CASES[name](), kind)
    assert issubclass(kind, Method)
    assert entry.has_loss == ("loss" in inspect.signature(kind).parameters)
    assert entry.title
    assert not entry.title.endswith(".")


def test_names_are_known_without_torch() -> None:
    code = "import sys, cbml.methods as m; assert m.METHODS; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def embedder(method: Method, batch_norm: str = "trained") -> Embedder:
    model = Embedder(
        "conv4",
        dim=DIM,
        heads=method.heads(DIM),
        head=method.head,
        reranker=method.reranker,
        batch_norm=batch_norm,
        seed=1,
    )
    model.preprocessing = model.preprocessing.with_crop(CROP)
    return model


def train(
    name: str,
    images: ImageDataset,
    folder: Path,
    steps: int,
    *,
    batch_norm: str = "trained",
    chunk_size: int | None = None,
    samples_per_class: int = 3,
    distributed: Distributed | None = None,
) -> tuple[Embedder, Method]:
    method = CASES[name]()
    model = embedder(method, batch_norm)
    known = ImageDataset(images.paths) if name in UNLABELED else images
    resume = (folder / "run.json").exists()
    fit(
        model,
        method,
        build_batches(
            known,
            transform=TrainTransform(crop=CROP),
            distributed=distributed,
            samples_per_class=samples_per_class,
            seed=3,
            workers=0,
        ),
        settings=Settings(
            steps=steps, checkpoint_every=1, learning_rate=1e-3, chunk_size=chunk_size
        ),
        run=Run(folder, resume=resume),
        distributed=distributed,
        callback=Callback(),
    )
    return model.eval(), method


@pytest.mark.parametrize("name", METHODS)
def test_it_trains_resumes_to_the_bit_and_its_saved_model_embeds_the_same(
    name: str, images: ImageDataset, tmp_path: Path
) -> None:
    model, method = train(name, images, tmp_path / "whole", 5)
    train(name, images, tmp_path / "part", 2)
    again, resumed = train(name, images, tmp_path / "part", 5)
    for first, second in ((model, again), (method, resumed)):
        pairs = zip(first.state_dict().items(), second.state_dict().items(), strict=True)
        assert not [key for (key, a), (_, b) in pairs if not torch.equal(a, b)]
    pixels = torch.randn(4, 3, CROP, CROP, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = Embedder.load(tmp_path / "whole" / "model")(pixels)
        torch.testing.assert_close(found, model(pixels))  # folded batch norms round


@pytest.mark.parametrize("name", METHODS)
def test_its_losses_are_finite_and_it_moves_the_model(
    name: str, images: ImageDataset, tmp_path: Path
) -> None:
    model, method = train(name, images, tmp_path, 3)
    losses = [line["loss"] for line in read_metrics(tmp_path) if "loss" in line]
    assert len(losses) == 3
    assert all(math.isfinite(loss) for loss in losses)
    start = embedder(method).state_dict()
    still = [
        key
        for key, _ in model.named_parameters()
        if torch.equal(start[key], model.state_dict()[key])
    ]
    assert not still


@pytest.mark.parametrize("name", METHODS)
def test_chunks_give_what_the_whole_batch_gives(
    name: str, images: ImageDataset, tmp_path: Path
) -> None:
    found = [
        train(
            name, images, tmp_path / str(size), 2, batch_norm="frozen_statistics", chunk_size=size
        )
        for size in (None, 7)
    ]
    for first, second in zip(*found, strict=True):
        pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
        for one, other in pairs:
            # Adam makes a whole step of a gradient whose sign is a matter of rounding.
            assert float((one.double() - other.double()).abs().mean()) < 5e-5
