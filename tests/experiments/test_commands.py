"""`cbml reproduce`, `cbml table` and the figures, from the words of the command line to files."""

import json
from pathlib import Path

import pytest
from PIL import Image

from cbml.experiments import FIGURE_TABLES, Job, find_entries, read_records, search
from cbml.experiments.plans import LEARNING_RATES as RATES
from tests.fixtures import run_program as run

SMALL = [
    *("--data", "emoji", "--set", "backbone=conv4", "--set", "crop=16", "--set", "dim=8"),
    *("--set", "classes_per_batch=3", "--set", "samples_per_class=3", "--set", "steps=2"),
    *("--set", "validate_every=2", "--set", "workers=0", "--set", "compile=false"),
]


def reproduce(table: str, root: Path, out: Path, *words: str) -> int:
    return run(["reproduce", table, "--root", str(root), "--out", str(out), *SMALL, *words])


def test_trials_then_the_table_then_its_print(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ["--only", "MS", "--only", "CBML (from data)"]
    assert reproduce("loss-ablation", root, tmp_path, "--trials", *rows, "--json") == 0
    assert json.loads(capsys.readouterr().out)["done"] == 2 * len(RATES["laptop"])
    assert reproduce("loss-ablation", root, tmp_path, "--seeds", "2", *rows, "--json") == 0
    assert json.loads(capsys.readouterr().out)["done"] == 4
    records = read_records(tmp_path / "loss-ablation-laptop" / "emoji.jsonl")
    assert {record["learning_rate_from"] for record in records} == {"trials on validation classes"}
    found = [record for record in records if record["row"] == "CBML (from data)"]
    assert all(record["parameters"] for record in found), "what was estimated is on record"
    assert run(["table", "loss-ablation", "--records", str(tmp_path)]) == 0
    assert "± " in capsys.readouterr().out
    assert run(["table", "loss-ablation", "--records", str(tmp_path), "--json"]) == 0
    (block,) = json.loads(capsys.readouterr().out)["blocks"]
    assert [line["ours"]["R@1"]["count"] for line in block["lines"]] == [2, 2]


def test_a_search_remembers_and_never_sees_the_test(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--only", "CBML", "--search", "learning_rate=1e-5:1e-2", "--json"]
    ranges = ["--search", "averaging=log,sqrt"]
    assert reproduce("loss-ablation", root, tmp_path, *words, *ranges, "--count", "2") == 0
    first = json.loads(capsys.readouterr().out)
    assert reproduce("loss-ablation", root, tmp_path, *words, *ranges, "--count", "3") == 0
    second = json.loads(capsys.readouterr().out)
    assert len(second) == 3
    assert all(line in second for line in first), "those done are not done again"
    assert second[0]["validation"] == max(line["validation"] for line in second)
    records = read_records(tmp_path)
    assert all("test" not in record["scores"] for record in records)
    assert reproduce("loss-ablation", root, tmp_path, "--search", "learning_rate=1e-5:1e-2") == 3
    assert "choose one row" in capsys.readouterr().err


def test_a_search_over_words_ends_when_all_are_tried(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--only", "CBML", "--search", "averaging=log,sqrt", "--json"]
    assert reproduce("loss-ablation", root, tmp_path, *words) == 0
    found = json.loads(capsys.readouterr().out)
    assert {line["overrides"]["averaging"] for line in found} == {"log", "sqrt"}


def test_a_search_of_other_ranges_counts_only_what_lies_in_them(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--only", "CBML", "--json", "--count", "2", "--search"]
    for ranges in ("averaging=log,sqrt", "averaging=const,sqrt", "learning_rate=1e-5:1e-2"):
        assert reproduce("loss-ablation", root, tmp_path, *words, ranges) == 0
        found = json.loads(capsys.readouterr().out)
        key, _, values = ranges.partition("=")
        assert len(found) == 2
        if key == "averaging":
            assert {line["overrides"][key] for line in found} == set(values.split(","))


def test_an_interrupted_search_takes_up_the_trial_that_it_had_begun(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--only", "CBML", "--search", "learning_rate=1e-5:1e-2", "--json", "--count", "2"]
    asked: list[object] = []

    def broken(jobs: list[Job], *others: object, **more: object) -> None:
        asked.append(dict(jobs[0].overrides))
        raise RuntimeError("power cut")

    with monkeypatch.context() as patch:
        patch.setattr(search, "run_jobs", broken)
        assert reproduce("loss-ablation", root, tmp_path, *words) == 1
    assert reproduce("loss-ablation", root, tmp_path, *words) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found) == 2
    assert asked[0] in [line["overrides"] for line in found]


@pytest.mark.parametrize("name", FIGURE_TABLES)
def test_a_figure_is_one_command(name: str, root: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    few = ["--set", "clusters=4", "--set", "batch_range=9"]
    assert reproduce(name, root, tmp_path, "--seeds", "1", *few) == 0
    with Image.open(tmp_path / "figures" / f"{name}-laptop-emoji.png") as image:
        assert image.width > 500


def test_a_figure_chosen_on_the_test_says_so(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    titles = []
    monkeypatch.setattr(Figure, "suptitle", lambda figure, text, **style: titles.append(text))
    only = ["--seeds", "1", "--only", "MS"]
    for selection in ("validation", "test"):
        assert reproduce("figure-gap", root, tmp_path, "--model-selection", selection, *only) == 0
    assert ["optimistic" in title for title in titles] == [False, True]
    names = sorted(path.name for path in (tmp_path / "figures").iterdir())
    assert names == ["figure-gap-laptop-emoji-test.png", "figure-gap-laptop-emoji.png"]
    assert "MS" in capsys.readouterr().err.split("optimistic: done")[0]


def test_curves_of_several_networks_are_drawn_apart(root: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    words = ["--seeds", "1", "--only", "*0.5", "--set", "backbone=conv4,resnet18"]
    random = ["--set", "weights=none"]
    assert reproduce("figure-gamma", root, tmp_path, *words, *random) == 0
    assert (tmp_path / "figures" / "figure-gamma-laptop-emoji.png").exists()


def test_a_list_tells_needs_and_costs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["reproduce", "--list", "--scale", "full", "--json"]) == 0
    tables = {entry["table"]: entry["rows"] for entry in json.loads(capsys.readouterr().out)}
    assert len(tables) == 15 + 5 + 1, "13 of the paper, two studies, five figures, leaderboard"
    (row,) = [row for row in tables["pseudo-scratch"] if row["row"].startswith("ResNet-18 CBML")]
    assert "images of SOP" in row["needs"]
    assert "no weights" in row["needs"]
    assert run(["reproduce", "--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(tables), "one line for each table"
    assert run(["reproduce", "--list", "--only", "CBML"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert {"loss-ablation", "leaderboard"} <= set(names)
    assert "averaging" not in names, "tables without such a row are left out"


def test_the_leaderboard_is_listed_with_its_entries(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["reproduce", "leaderboard", "--data", "emoji", "--list", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    rows = {row["row"]: row for row in found["rows"]}
    assert list(rows) == [entry.name for entry in find_entries()]
    assert run(["reproduce", "leaderboard", "--data", "cub", "--list", "--only", "cbml"]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.startswith("leaderboard          1 row, ")
    assert "images of CUB" in row
    assert rows["cbml"]["hours"] == rows["hdc"]["hours"] > 0
    assert run(["reproduce", "leaderboard", "--labels", "none", "--list", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert "without labels" in found["title"]
    unlabeled = find_entries(labels="none")
    assert [row["row"] for row in found["rows"]] == [entry.name for entry in unlabeled]
    assert run(["reproduce", "leaderboard", "--list", "--only", "CBML"]) == 0, "in any case"
    assert capsys.readouterr().out.splitlines()[1].split()[0] == "cbml"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([], 2, "name a TABLE"),
        (["leaderboard", "--set", "steps=9"], 2, "protocol is frozen"),
        (["leaderboard", "--only", "nothing"], 3, "matches no entry"),
        (["lambda", "--loss", "mine:Loss"], 3, "No module named 'mine'"),
        (["leaderboard", "--list", "--data", "cup"], 3, "did you mean 'cub'"),
        (["leaderbord"], 3, "did you mean 'leaderboard'"),
        (["loss-ablatio"], 3, "did you mean 'loss-ablation'"),
        (["figure-gab"], 3, "did you mean 'figure-gap'"),
        (["figure-gab", "--list"], 3, "did you mean 'figure-gap'"),
        (["figure-examples", "--only", "MS"], 3, "needs 2 rows whose runs"),
        (["figure-terms", "--set", "target_mix=0.1,0.9"], 3, "give each --set one value"),
        (["figure-examples", "--scale", "full"], 3, "choose it with --data cars or cub or inshop"),
        (["lambda", "--list", "--only", "nothing"], 3, "matches no row"),
        (["lambda", "--list", "--labels", "none"], 2, "is for the leaderboard"),
        (
            ["pseudo", "--only", "CBML*", "--search", "learning_rate=1e-5:1e-3"],
            3,
            "nothing to score trials with",
        ),
        (["lambda", "--data", "birds"], 3, "use one of emoji, cub"),
        (["lambda", "--weights", "nowhere.pt"], 3, "nowhere.pt: no such file"),
        (["pseudo", "--trials"], 3, "nothing to score trials with"),
        (["lambda", "--only", "*1.0", "--search", "seed=0,1"], 3, "use --seeds"),
        (
            ["lambda", "--only", "*1.0", "--search", "crop=1:2", "--set", "data=cub"],
            3,
            "use --data",
        ),
        (
            ["lambda", "--only", "*1.0", "--search", "crop=1:2", "--set", "steps=1,2"],
            3,
            "give one value beside --search",
        ),
    ],
)
def test_wrong_words_are_one_line(
    words: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["reproduce", *words]) == code
    assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_a_table_is_of_records_that_exist(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["table", "lambda", "--records", str(tmp_path / "nowhere")]) == 3
    assert "nowhere: no such file or folder" in " ".join(capsys.readouterr().err.split())
    torn = tmp_path / "runs" / "one" / "metrics.jsonl"
    torn.parent.mkdir(parents=True)
    torn.write_text('{"step": 1}\n{"ste')
    assert run(["table", "figure-gap", "--records", str(tmp_path)]) == 0, "a run at work"
    (tmp_path / "other.jsonl").write_text('{"table": "lambda", "row": 3}\n')
    assert run(["table", "lambda", "--records", str(tmp_path)]) == 0, "no record of ours"
    for broken in (b"{", b'{"table": "\xff"}'):
        (tmp_path / "broken.jsonl").write_bytes(broken)
        assert run(["table", "lambda", "--records", str(tmp_path)]) == 4
        told = " ".join(capsys.readouterr().err.split())
        assert "broken.jsonl: line 1" in told
        assert "delete the line" in told


def test_missing_images_say_what_to_provide(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "home"))
    words = ["reproduce", "lambda", "--data", "cub", "--out", str(tmp_path), "--seeds", "1"]
    assert run(words) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert "cbml data get cub" in line
    words = ["reproduce", "pseudo", "--scale", "full", "--only", "CBML", "--out", str(tmp_path)]
    assert run(words) == 3
    *lines, weights = capsys.readouterr().err.splitlines()
    assert len(lines) == 3, "one for each dataset, and none twice"
    assert all("--root" in line and "and 2 more" in line for line in lines)
    assert "weights of GoogLeNet" in weights
    assert "and 8 more" in weights


def test_images_and_weights_that_are_missing_get_a_line_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "home"))
    for table, fitting in (("lambda", ["--scale", "full"]), ("leaderboard", ["--only", "cbml"])):
        words = ["reproduce", table, "--data", "cub", "--out", str(tmp_path), *fitting]
        assert run(words) == 3
        images, *weights = capsys.readouterr().err.splitlines()
        assert "images of CUB not found" in images
        assert "--root" in images
        if table == "lambda":
            (line,) = weights
            assert "weights of ResNet-50 not here: they will be downloaded" in line
            assert "--weights" in line
        assert not (tmp_path / "home").exists(), "nothing is downloaded yet"
        assert run([*words, "--weights", "nowhere.pt"]) == 3
        images, weights_line = capsys.readouterr().err.splitlines()
        assert "images of CUB not found" in images
        assert "--weights nowhere.pt: no such file" in weights_line
        assert run([*words, "--weights", "nowhere.pt", "--root", "nothing"]) == 3
        root, weights_line = capsys.readouterr().err.splitlines()
        assert "--root nothing: no such folder or archive" in root
        assert "--weights nowhere.pt: no such file" in weights_line


def test_weights_that_are_here_are_not_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    kept = tmp_path / "hub" / "checkpoints" / "resnet50-0676ba61.pth"
    kept.parent.mkdir(parents=True)
    kept.touch()
    words = ["reproduce", "lambda", "--data", "cub", "--scale", "full", "--out", str(tmp_path)]
    assert run(words) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert "images of CUB not found" in line
