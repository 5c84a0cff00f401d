"""Models on the hub: the real client against a small hub of our own, on this machine."""

import base64
import hashlib
import http.server
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest
import safetensors.torch
import timm
from PIL import Image

import cbml
from cbml.training import update_record
from tests.program import run as run_code

COMMIT = "c" * 40


class Hub(http.server.BaseHTTPRequestHandler):
    """Just enough of the hub's protocol to publish small files and to fetch them."""

    files: dict[str, bytes]
    requests: list[str]

    def log_message(self, *arguments: object) -> None:
        pass

    def answer(self, code: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def address(self) -> str:
        return f"http://{self.headers['Host']}"

    def answer_json(self, value: object) -> None:
        self.answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = urlsplit(self.path).path
        self.requests.append(f"POST {path}")
        if path == "/api/repos/create":
            self.answer_json({"url": f"{self.address()}/somebody/birds"})
        elif path.endswith("/preupload/main"):
            names = [entry["path"] for entry in json.loads(body)["files"]]
            files = [{"path": n, "uploadMode": "regular", "shouldIgnore": False} for n in names]
            self.answer_json({"files": files})
        elif path.endswith("/commit/main"):
            for line in body.splitlines():
                entry = json.loads(line)
                if entry["key"] == "file":
                    content = base64.b64decode(entry["value"]["content"])
                    self.files[entry["value"]["path"]] = content
                elif entry["key"] == "deletedFile":
                    del self.files[entry["value"]["path"]]
            url = f"{self.address()}/somebody/birds/commit/{COMMIT}"
            self.answer_json({"commitUrl": url, "commitOid": COMMIT})
        else:
            self.answer_json({})

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.requests.append(f"{self.command} {path}")
        if "/resolve/" in path:
            name = path.partition("/resolve/")[2].partition("/")[2]
            content = self.files[name]
            etag = f'"{hashlib.sha256(content).hexdigest()}"'
            self.answer(200, content, {"ETag": etag, "X-Repo-Commit": COMMIT})
        elif "/tree/" in path:
            names = sorted(self.files)
            self.answer_json(
                [{"type": "file", "path": n, "size": len(self.files[n]), "oid": "0"} for n in names]
            )
        elif path.startswith("/api/models/somebody/birds"):
            siblings = [{"rfilename": name} for name in sorted(self.files)]
            self.answer_json({"id": "somebody/birds", "sha": COMMIT, "siblings": siblings})
        else:
            self.answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})


@pytest.fixture
def hub() -> Iterator[tuple[type[Hub], str]]:
    handler = type("OneHub", (Hub,), {"files": {}, "requests": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield handler, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def run(program: str, address: str, home: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    environment = {
        **os.environ,
        "HF_ENDPOINT": address,
        "HF_HOME": str(home),
        "HF_TOKEN": "hf_test",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    return run_code(*words, code=program, env=environment)


PUSH_AND_FETCH = """
import cbml, torch
model = cbml.Embedder("conv4", dim=4, seed=7)
print(cbml.push_to_hub(model, "somebody/birds"))
other = cbml.from_hub("somebody/birds")
assert other.describe() == model.describe()
assert torch.equal(other.head.weight, model.head.weight)
"""
FAIL = """
import cbml
for name in ("somebody/birds", "some/thing", "a b/c/d"):
    try:
        cbml.from_hub(name)
    except (OSError, ValueError) as error:
        print(type(error).__name__, error)
"""


def test_a_model_goes_to_the_hub_and_comes_back(hub: tuple[type[Hub], str], tmp_path: Path) -> None:
    handler, address = hub
    pushed = run(PUSH_AND_FETCH, address, tmp_path / "one")
    assert pushed.returncode == 0, pushed.stderr
    assert pushed.stdout == f"{address}/somebody/birds/commit/{COMMIT}\n"
    kinds = sorted(Path(name).suffix for name in handler.files)
    assert kinds == [".json", ".json", ".md", ".safetensors"]
    card = handler.files["README.md"].decode()
    assert 'cbml.from_hub("somebody/birds")' in card
    assert "| backbone | conv4 |" in card
    assert "None" not in card
    for name in ("a.jpg", "b.jpg"):
        Image.new("RGB", (40, 30), (90, 120, 30)).save(tmp_path / name)
    lines = [line[4:] for line in card.splitlines() if line.startswith("    ")]
    shown = ["import cbml, os", f"os.chdir({str(tmp_path)!r})", *lines, "print(similarity)"]
    tried = run("\n".join(shown), address, tmp_path / "three")
    assert float(tried.stdout) == pytest.approx(1.0), tried.stderr

    weights = next(name for name in handler.files if name.endswith(".safetensors"))
    content = handler.files[weights]
    handler.files[weights] = content[:-1] + bytes([content[-1] ^ 1])
    damaged, unknown, wrong = run(FAIL, address, tmp_path / "two").stdout.splitlines()
    assert damaged.startswith("DamagedFile ")
    assert unknown.startswith("ConnectionError some/thing: cannot be fetched on the hub")
    assert wrong.startswith("BadData a b/c/d: cannot be fetched on the hub")


PUSH_RUN = """
import sys
import cbml
print(cbml.push_to_hub(sys.argv[1], "somebody/birds"))
"""


def test_the_card_of_a_run_has_its_scores(hub: tuple[type[Hub], str], tmp_path: Path) -> None:
    handler, address = hub
    folder = tmp_path / "runs" / "birds"
    cbml.Embedder("conv4", dim=4).save(folder / "model")
    counts = {"train": {"images": 1200, "classes": 30}, "validation": {"images": 90, "classes": 9}}
    counts["test"] = {"images": 80, "classes": 20}
    record = {
        "data": {"dataset": "folder", "root": "/home/somebody/photos", "counts": counts},
        "best_step": 50,
        "test_evaluations": 1,
        "test_start": {"recall@1": 0.25},
        "test": {"recall@1": 0.5},
        "test_reliability": {"ece": 0.0625},
    }
    update_record(folder, record)
    lines = [{"step": step, "validation": {"recall@1": step / 80}} for step in (0, 50)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    random = np.random.default_rng(0)
    centers, noise = random.normal(size=(10, 4)), random.normal(size=(40, 4))
    vectors = (centers[np.arange(40) // 4] + 0.3 * noise).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    found = cbml.QueryGallery.of(vectors, np.arange(40) // 4)
    cbml.MatchProbability.fit(found).save(folder / "calibration.json")
    pushed = run(PUSH_RUN, address, tmp_path / "home", str(folder))
    assert pushed.returncode == 0, pushed.stderr
    card = handler.files["README.md"].decode()
    assert "Trained on photos, 1,200 images of 30 classes." in card
    assert "somebody/photos" not in card, "where the images lay is nobody's business"
    assert "|  | held-out, before | held-out, after | test, before | test, after |" in card
    assert "| Recall@1 | 0.0 | 62.5 | 25.0 | 50.0 |" in card
    assert "on halves of the held-out classes, each fitted to the other, and 0.062 on the" in card
    assert "| backbone | conv4 |" in card


TIMM = """
import cbml, timm, torch
name = "test_resnet.r160_in1k"
model = cbml.Embedder("timm:" + name, dim=4)
print(model.provenance)
expected = timm.create_model(name, pretrained=True, num_classes=0).state_dict()
assert all(torch.equal(model.backbone.network.state_dict()[k], v) for k, v in expected.items())

from huggingface_hub import hf_hub_download
from pathlib import Path
blob = Path(hf_hub_download("timm/" + name, "model.safetensors")).resolve()
content = bytearray(blob.read_bytes())
content[-1] ^= 1
blob.write_bytes(content)
try:
    cbml.Embedder("timm:" + name, dim=4)
except ValueError as error:
    print(type(error).__name__, error)
"""


def test_timms_weights_are_downloaded_and_their_hash_is_checked(
    hub: tuple[type[Hub], str], tmp_path: Path
) -> None:
    handler, address = hub
    network = timm.create_model("test_resnet")
    handler.files["model.safetensors"] = safetensors.torch.save(network.state_dict())
    digest = hashlib.sha256(handler.files["model.safetensors"]).hexdigest()
    done = run(TIMM, address, tmp_path)
    assert done.returncode == 0, done.stderr
    provenance, damaged = done.stdout.splitlines()
    assert provenance == (
        f"imagenet: timm/test_resnet.r160_in1k, sha256 {digest[:16]}, "
        "into timm:test_resnet.r160_in1k"
    )
    assert damaged.startswith("DamagedFile ")
    assert "not what the hub announced" in damaged


def test_without_a_network_publishing_ends_in_one_line(tmp_path: Path) -> None:
    attempt = """
import cbml
model = cbml.Embedder("conv4", dim=8, weights="none")
try:
    cbml.push_to_hub(model, "somebody/model")
except ConnectionError as error:
    print(error)
"""
    environment = {
        "HF_ENDPOINT": "http://127.0.0.1:9",  # nothing listens there
        "HF_HOME": str(tmp_path),
        "HF_TOKEN": "hf_none",
        "no_proxy": "127.0.0.1",
    }
    done = run_code(code=attempt, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("somebody/model: cannot be written on the hub (")
    assert "check name, network and `hf auth login`" in done.stdout
