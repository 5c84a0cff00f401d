"""`cbml index`, `cbml search` and `cbml embed` as people run them."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from cbml.cli import main
from cbml.gallery import Gallery
from tests.gallery import small

TOTAL = small.CLASSES * small.EACH + 1


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    output = capsys.readouterr()
    return int(end.value.code or 0), output.out, output.err


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.images(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    small.model().save(folder / "model")
    return folder


@pytest.fixture(scope="module")
def gallery(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("galleries") / "g"
    small.built(files, target)
    return target


def test_index(
    capsys: pytest.CaptureFixture[str], saved: Path, files: Path, tmp_path: Path
) -> None:
    code, out, _ = run(capsys, "index", saved, files, "--out", tmp_path / "g", "--json")
    done = json.loads(out)
    assert (code, done["images"], done["embedded"], len(done["bad"])) == (0, TOTAL, TOTAL, 1)
    code, out, _ = run(capsys, "index", saved / "model", files, "--out", tmp_path / "g")
    assert code == 0
    assert f"0 embedded, {TOTAL} kept" in out
    assert "bad_images.csv" in out
    assert f"cbml serve {tmp_path / 'g'}" in out


def test_a_gallery_is_no_run(
    capsys: pytest.CaptureFixture[str], gallery: Path, files: Path, tmp_path: Path
) -> None:
    code, _, error = run(capsys, "index", gallery, files, "--out", tmp_path / "g")
    assert (code, "a gallery, not a run" in error) == (3, True)
    code, _, error = run(capsys, "index", files, files, "--out", tmp_path / "g")
    assert (code, "neither a run nor a saved model" in error) == (3, True)


def test_index_with_a_recall(
    capsys: pytest.CaptureFixture[str], saved: Path, files: Path, tmp_path: Path
) -> None:
    words = ("index", saved, files, "--out", tmp_path / "g", "--recall")
    for wrong in (("0.9",), ("1.5", "--kind", "pq4")):
        code, _, errors = run(capsys, *words, *wrong)
        assert code == 2
        assert "between 0 and 1, for --kind pq4" in " ".join(errors.replace("│", " ").split())
    code, out, _ = run(capsys, *words, "0.9", "--kind", "pq4")
    assert code == 0
    assert "searches exactly: a recall of 0.9 would be no less work" in out


def test_search_table(capsys: pytest.CaptureFixture[str], gallery: Path, files: Path) -> None:
    query = files / "class 1" / "0.png"
    code, out, _ = run(capsys, "search", gallery, query, query, "--k", 3)
    assert code == 0
    assert out.count("class 1/0.png") >= 2
    assert "probability" not in out
    assert "label" in out
    _, out, _ = run(capsys, "search", gallery, query, "--text", "alone")
    assert "alone.png" in out
    assert "label" not in out, "no column of nothing"


def test_names_are_whole_in_a_file(
    capsys: pytest.CaptureFixture[str], saved: Path, tmp_path: Path, files: Path
) -> None:
    long = tmp_path / "p" / "a long name of a class" / ("x" * 90)
    shutil.copytree(files / "class 1", long)
    assert run(capsys, "index", saved, tmp_path / "p", "--out", tmp_path / "g")[0] == 0
    _, out, _ = run(capsys, "search", tmp_path / "g", long / "0.png", "--k", 2)
    assert f"{'x' * 90}/0.png" in out
    assert "…" not in out


def test_search_json_is_the_library(capsys: pytest.CaptureFixture[str], gallery: Path) -> None:
    code, out, _ = run(
        capsys, "search", gallery, "--id", 4, "--k", 5, "--label", "class 2", "--json"
    )
    answer = json.loads(out)[0]
    assert code == 0
    assert {row["label"] for row in answer["results"]} == {"class 2"}
    assert answer["query"]["id"] == 4


def test_a_search_that_finds_nothing_says_so(
    capsys: pytest.CaptureFixture[str], gallery: Path
) -> None:
    code, out, _ = run(capsys, "search", gallery, "--id", 4, "--text", "no such name")
    assert code == 0
    assert "nothing found" in out


def test_search_html_is_one_safe_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    name = "<img src=x onerror=alert(1)>.png"
    for number in range(4):
        small.save(tmp_path / "p" / "<b>bold" / (name if number == 0 else f"{number}.png"), number)
    small.built(tmp_path / "p", tmp_path / "g")
    page = tmp_path / "page.html"
    code, _, _ = run(
        capsys, "search", tmp_path / "g", tmp_path / "p" / "<b>bold" / name, "--html", page
    )
    text = page.read_text(encoding="utf-8")
    assert code == 0
    assert "<img src=x" not in text
    assert "<b>bold" not in text
    assert text.count("data:image/jpeg;base64,") == 5
    assert "http" not in text.replace("http-equiv", "")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["nowhere", "--id", "0"], 3, "no such gallery"),
        (["{gallery}"], 2, "give an image"),
        (["{gallery}", "--id", "99999"], 3, "image 99999: not in this gallery"),
        (["{gallery}", "missing.png"], 3, "missing.png: cannot be opened"),
        (["{gallery}", "--id", "0", "--k", "0"], 3, "k must be from 1"),
        (["{gallery}", "--id", "0", "--min-probability", "0.5"], 3, "from a run that has one"),
    ],
)
def test_search_says_what_is_wrong(
    capsys: pytest.CaptureFixture[str], gallery: Path, words: list[str], code: int, message: str
) -> None:
    result = run(capsys, "search", *(word.format(gallery=gallery) for word in words))
    assert result[0] == code
    assert message in " ".join(result[2].replace("│", " ").split())


def test_embed(
    capsys: pytest.CaptureFixture[str], saved: Path, files: Path, tmp_path: Path
) -> None:
    code, out, _ = run(capsys, "embed", saved, files, "--out", tmp_path / "v.npz", "--json")
    assert (code, json.loads(out)["images"]) == (0, TOTAL)
    with np.load(tmp_path / "v.npz") as arrays:
        vectors, names, labels = arrays["vectors"], arrays["names"], arrays["labels"]
        assert set(arrays) == {"vectors", "paths", "names", "labels"}
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert labels[names.tolist().index("alone.png")] == ""
    assert "broken.jpg" in (tmp_path / "bad_images.csv").read_text()
    code, _, errors = run(capsys, "embed", saved, files, "--out", tmp_path / "v.pickle")
    assert code == 3
    assert ".npz or .parquet" in errors


def test_embed_parquet(
    capsys: pytest.CaptureFixture[str], saved: Path, files: Path, tmp_path: Path
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    code, _, _ = run(capsys, "embed", saved, files, "--out", tmp_path / "v.parquet")
    assert code == 0
    rows = parquet.read_table(tmp_path / "v.parquet").to_pylist()
    assert len(rows) == TOTAL
    assert len(rows[0]["vector"]) == 8


def test_a_gallery_in_milvus_lite_is_the_same(
    capsys: pytest.CaptureFixture[str], saved: Path, files: Path, gallery: Path, tmp_path: Path
) -> None:
    pytest.importorskip("milvus_lite")
    store = f"milvus:{tmp_path / 'vectors.db'}"
    words = ("index", saved, files, "--out", tmp_path / "g", "--store", store, "--json")
    code, out, _ = run(capsys, *words)
    assert (code, json.loads(out)["embedded"]) == (0, TOTAL)
    code, out, _ = run(capsys, *words)
    assert (code, json.loads(out)["embedded"], json.loads(out)["kept"]) == (0, 0, TOTAL)
    assert not list((tmp_path / "g").glob("index-*"))
    with Gallery(gallery) as here, Gallery(tmp_path / "g") as there:
        for number in (0, 9, 30):
            answers = [one.search(one.image_query(number)) for one in (here, there)]
            ids = [[result.id for result in answer.results] for answer in answers]
            assert ids[0] == ids[1]
    code, _, errors = run(capsys, "index", saved, files, "--out", gallery, "--store", store)
    assert code == 3
    assert "its vectors live in 'faiss'" in errors
