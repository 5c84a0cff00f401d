"""What holds for every method in the table."""

import functools
import inspect
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
import torch

from cbml.data import ImageDataset, TrainTransform
from cbml.losses import CBMLLoss
from cbml.methods import (
    BIER,
    DCML,
    HDC,
    HDML,
    LSCMGNN,
    METHODS,
    MIC,
    MOM,
    NCE,
    PADS,
    SSUML,
    AdversarialBIER,
    AnchorNeighborhoods,
    CBSwR,
    DeepCluster,
    DeML,
    DivideConquer,
    Exemplar,
    FusingNet,
    Horde,
    InstanceSpreading,
    LargerViews,
    MarginDRML,
    MaskedDivideConquer,
    Ortho,
    ProxyAnchorDIML,
    ProxyAnchorDRML,
    PseudoLabels,
    RankedLevels,
    Sharing,
    SmartMining,
)
from cbml.models import Embedder
from cbml.training import (
    Callback,
    Distributed,
    Method,
    Run,
    Settings,
    StepReport,
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
    "larger_views": lambda: LargerViews(num_images=COUNT, doubtful=5, pair_weight=0.3),
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
    "divide_conquer": lambda: DivideConquer(num_images=COUNT, clusters=2, seed=2),
    "d_and_c": lambda: MaskedDivideConquer(
        num_images=COUNT, embedding_size=DIM, clusters=2, every=1, rest_epochs=0, seed=2
    ),
    "mic": lambda: MIC(
        num_classes=CLASSES,
        num_images=COUNT,
        embedding_size=DIM,
        clusters=6,
        adversary_weight=10.0,
        hidden=8,
        every=1,
    ),
    "pads": lambda: PADS(num_classes=CLASSES, every=1),
    "smart_mining": SmartMining,
    "deml": lambda: DeML(hidden=8, streams=2, attentions=2),
    "lscm_gnn": lambda: LSCMGNN(neighbors=3, hidden=8, embedding_size=DIM),
    "fusing_net": lambda: FusingNet(width=16, num_classes=CLASSES, embedding_size=DIM),
    "hdml": lambda: HDML(
        num_classes=CLASSES, hidden=16, window=2, generator_rate=1e-4, classifier_rate=1e-4
    ),
    "drml_pa": lambda: ProxyAnchorDRML(num_classes=CLASSES, embedding_size=DIM, warmup_epochs=0),
    "drml_mdw": lambda: MarginDRML(num_classes=CLASSES, embedding_size=DIM, warmup_epochs=0),
    "dcml_mdw": lambda: DCML(num_classes=CLASSES, sub_embeddings=2, composites=2),
    "pa_diml": lambda: ProxyAnchorDIML(num_classes=CLASSES, embedding_size=DIM),
    "sharing_dml": lambda: Sharing(num_classes=CLASSES, decorrelation=10.0, hidden=16),
}
# Of parts without relations, or with one alone, whatever its score.
UNRELATED = ("head.whole.sources", "head.whole.targets", "head.whole.score")
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
    optimizer: Literal["adam", "sgd"] = "adam",
    distributed: Distributed | None = None,
    callback: Callback | None = None,
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
            steps=steps,
            checkpoint_every=1,
            optimizer=optimizer,
            learning_rate=1e-3 if optimizer == "adam" else 1e-4,
            chunk_size=chunk_size,
        ),
        run=Run(folder, resume=resume),
        distributed=distributed,
        callback=callback or Callback(),
    )
    return model.eval(), method


class Killed(Exception):
    pass


class Killer(Callback):
    """Ends a run within its third step, of which there is no checkpoint then."""

    def step(self, report: StepReport) -> None:
        if report.step == 3:
            raise Killed


Whole = Callable[[str], tuple[Embedder, Method, Path]]


@pytest.fixture(scope="module")
def whole(images: ImageDataset, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """A run of five steps with its folder, made once for all tests that look at it."""

    @functools.cache
    def made(name: str) -> tuple[Embedder, Method, Path]:
        folder = tmp_path_factory.mktemp(name)
        return *train(name, images, folder, 5), folder

    return made


@pytest.mark.parametrize("name", METHODS)
def test_it_trains_resumes_to_the_bit_and_its_saved_model_embeds_the_same(
    name: str, whole: Whole, images: ImageDataset, tmp_path: Path
) -> None:
    model, method, folder = whole(name)
    with pytest.raises(Killed):
        train(name, images, tmp_path / "part", 5, callback=Killer())
    again, resumed = train(name, images, tmp_path / "part", 5)
    for first, second in ((model, again), (method, resumed)):
        pairs = zip(first.state_dict().items(), second.state_dict().items(), strict=True)
        assert not [key for (key, a), (_, b) in pairs if not torch.equal(a, b)]
    pixels = torch.randn(4, 3, CROP, CROP, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = Embedder.load(folder / "model")(pixels)
        torch.testing.assert_close(found, model(pixels))  # folded batch norms round


@pytest.mark.parametrize("name", METHODS)
def test_its_losses_are_finite_and_it_moves_the_model(name: str, whole: Whole) -> None:
    model, method, folder = whole(name)
    losses = [line["loss"] for line in read_metrics(folder) if "loss" in line]
    assert len(losses) == 5
    assert all(math.isfinite(loss) for loss in losses)
    start = embedder(method).state_dict()
    still = [
        key
        for key, _ in model.named_parameters()
        if torch.equal(start[key], model.state_dict()[key]) and not key.startswith(UNRELATED)
    ]
    assert not still


def adam_parameters(method: Method) -> set[str]:
    """Parameters with an optimizer of their own: Adam takes whole steps by rounding alone."""
    groups = [group for one in method.optimizers().values() for group in one.param_groups]
    adam = {id(parameter) for group in groups for parameter in group["params"]}
    return {key for key, parameter in method.named_parameters() if id(parameter) in adam}


@pytest.mark.parametrize("name", METHODS)
def test_chunks_give_what_the_whole_batch_gives(
    name: str, images: ImageDataset, tmp_path: Path
) -> None:
    found = [
        train(
            name,
            images,
            tmp_path / str(size),
            2,
            batch_norm="frozen_statistics",
            chunk_size=size,
            optimizer="sgd",  # Adam makes a whole step of a gradient that is rounding alone
        )
        for size in (None, 7)
    ]
    (model, method), (again, other) = found
    start, second = embedder(CASES[name]()).state_dict(), again.state_dict()
    for key, value in model.named_parameters():
        moved = (value - start[key]).abs().max().item()
        difference = (value - second[key]).abs().max().item()
        assert difference <= 2e-3 * moved + 1e-6, key
    own = adam_parameters(method)
    for key, value in method.state_dict().items():
        second_value = other.state_dict()[key]
        if key in own:  # single numbers may be a whole step of Adam apart, most are not
            assert float((value - second_value).abs().mean()) < 5e-5
        else:
            torch.testing.assert_close(value, second_value, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", [name for name in METHODS if name != "pseudo_labels"])
def test_an_option_that_is_not_a_number_is_refused(name: str) -> None:
    kind = METHODS[name].load()
    known = inspect.signature(kind).parameters
    needed = {"num_images": 8, "num_classes": 4, "embedding_size": 32}
    given = {option: value for option, value in needed.items() if option in known}
    kind(**given)
    for option, parameter in known.items():
        if isinstance(parameter.default, float):
            with pytest.raises(ValueError, match="nan"):
                kind(**given, **{option: math.nan})
