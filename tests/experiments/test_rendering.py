"""Means and intervals against numbers computed by hand; tables against what they must say."""

from pathlib import Path
from typing import Any

import pytest

from cbml.errors import BadData
from cbml.experiments import read_records
from cbml.experiments.document import DOCUMENTS, rendered
from cbml.experiments.rendering import as_markdown, estimate, table_blocks
from cbml.experiments.rows import published_scores
from cbml.experiments.tables import TABLES

ROOT = Path(__file__).parents[2]


def test_intervals_are_student_s() -> None:
    # By hand: s = 1, √3 = 1.7321, t(2) = 4.3027.
    three = estimate([1.0, 2.0, 3.0])
    assert (three.mean, three.count) == (2.0, 3)
    assert three.half_width == pytest.approx(4.3027 / 1.7321, abs=1e-3)
    # By hand: s = √2, s/√2 = 1, t(1) = 12.7062.
    assert estimate([0.0, 2.0]).half_width == pytest.approx(12.7062, abs=1e-3)
    assert estimate([5.0]).half_width is None
    assert str(estimate([5.0])) == "5.0"
    with pytest.raises(ValueError, match="at least one"):
        estimate([])


SETTINGS = {"learning_rate": 1e-4, "steps": 300, "backbone": "efficientnet_lite0"}


def record(row: str, seed: int, recall: float, **changes: Any) -> dict[str, Any]:
    return {
        "table": "loss-ablation",
        "row": row,
        "data": "emoji",
        "scale": "laptop",
        "model_selection": "validation",
        "seed": seed,
        "trial": False,
        "overrides": {},
        "settings": SETTINGS,
        "failed": None,
        "scores": {"test": {"recall@1": recall}},
    } | changes


def lines(records: list[dict[str, Any]], table: str = "loss-ablation") -> list[str]:
    return as_markdown(TABLES[table], table_blocks(TABLES[table], records)).splitlines()


def test_seeds_become_a_line_and_the_published_number_stands_apart() -> None:
    records = [record("MS", 0, 0.50), record("MS", 1, 0.54), record("CBML", 0, 0.4)]
    records += [record("MS", 2, 0.9, trial=True)]
    text = lines(records)
    # By hand: mean 52, s = 2.828, s/√2 = 2, t(1) = 12.706.
    assert "| MS | 2 | 0.0001 | 52.0 ± 25.4 | – | – | – |" in text
    assert "| MS | 65.3 | 75.7 | 84.4 | 90.4 |" in text
    assert "| CBML | 1 | 0.0001 | 40.0 | – | – | – |" in text
    assert "| CBML | 63.8 | 74.5 | 83.3 | 89.7 |" in text, "of other images: in a table of its own"
    order = [line.split(" | ")[0] for line in text if line.startswith(("| MS", "| CBML"))]
    assert order == ["| MS", "| CBML"] * 2, "as in the paper"
    assert (
        "**Laptop scale, emoji, model chosen on validation classes; efficientnet_lite0, 300 steps**"
        in text
    )
    assert any("compare the order within one network" in line for line in text)


def test_scales_model_selections_and_datasets_are_never_mixed() -> None:
    records = [
        record("MS", 0, 0.5),
        record("MS", 1, 0.6, model_selection="test"),
        record("MS", 1, 0.7, data="cub"),
        record("ResNet-50 MS, CUB", 1, 0.8, data="cub", scale="full"),
        record("MS", 1, 0.7, settings=SETTINGS | {"backbone": "resnet50"}),
        record("MS", 1, 0.7, settings=SETTINGS | {"steps": 600}),
    ]
    blocks = table_blocks(TABLES["loss-ablation"], records)
    assert len(blocks) == 6
    assert sum("; resnet50, " in block.title for block in blocks) == 1
    assert sum("600 steps" in block.title for block in blocks) == 1
    assert all(
        max(v.count for v in line.ours.values()) == 1 for b in blocks for line in b.lines[:1]
    )
    assert sum("optimistic" in block.title for block in blocks) == 1


def test_the_full_scale_shows_rows_of_others_as_published_only() -> None:
    full = record("ResNet-50 MS, CUB", 0, 0.6, data="cub", scale="full")
    (block,) = table_blocks(TABLES["loss-ablation"], [full])
    ours = [line for line in block.lines if line.ours]
    assert [line.label for line in ours] == ["ResNet-50 MS, CUB"]
    assert ours[0].published["R@1"] == 65.3
    missing = [line.label for line in block.lines if not line.ours]
    assert "ResNet-50 ProxyNCA, CUB" in missing
    assert len(block.lines) == 7, "as many as the paper has"


def test_seeds_of_other_settings_are_not_averaged() -> None:
    other = record("MS", 1, 0.6, settings=SETTINGS | {"learning_rate": 8e-4, "seed": 1})
    text = "\n".join(lines([record("MS", 0, 0.5), record("MS", 2, 0.5), other]))
    assert "| MS | 2 | 0.0001 | 50.0 ± 0.0 |" in text
    assert "| MS | 1 | 0.0008 | 60.0 |" in text


def test_a_seed_counts_once_though_several_files_hold_its_record() -> None:
    records = [record("MS", 0, 0.5), record("MS", 1, 0.6)]
    assert lines([*records, *records]) == lines(records)


def test_a_changed_run_at_the_full_scale_leaves_the_published_row_in_its_place() -> None:
    name = "ResNet-50 MS, CUB"
    full = record(name, 0, 0.6, data="cub", scale="full", overrides={"steps": 9})
    (block,) = table_blocks(TABLES["loss-ablation"], [full])
    assert not block.lines[0].published
    (published,) = [line for line in block.lines if line.label == name]
    assert (published.ours, published.published["R@1"]) == ({}, 65.3)


def test_lambda_at_the_full_scale_keeps_the_rows_that_are_not_run() -> None:
    full = {"table": "lambda", "data": "cub", "scale": "full"}
    (block,) = table_blocks(TABLES["lambda"], [record("ResNet-50 CBML λ=1.0, CUB", 0, 0.6, **full)])
    printed = {line.label.split()[2]: line.published for line in block.lines}
    assert set(printed) == {"λ=0.0,", "λ=0.1,", "λ=1.0,", "λ=2.0,"}
    assert printed["λ=2.0,"] == {"train R@1": 68.7, "R@1": 69.6}


def test_a_length_in_epochs_is_said() -> None:
    settings = SETTINGS | {"steps": None, "epochs": 3}
    text = lines([record("MS", 0, 0.5, settings=settings, overrides={"epochs": 3})])
    assert (
        "**Laptop scale, emoji, model chosen on validation classes; efficientnet_lite0, 3 epochs**"
        in text
    )


def test_published_numbers_of_the_laptop_are_of_its_images_and_say_their_network() -> None:
    changes = {"table": "cub-cars", "data": "cars"}
    ours = [record("MS", 0, 0.5, **changes), record("CircleLoss", 0, 0.4, **changes)]
    text = lines(ours, "cub-cars")
    own, line = [line for line in text if line.startswith("| MS |")]
    assert own.startswith("| MS | 1 | 0.0001 | 50.0 |")
    key = ("GoogLeNet", "MS", "512", "Cars")
    printed = published_scores()["cs1_cub_cars_512"][key]["R@1"]
    assert f"| GoogLeNet | {printed:.1f} |" in line, "of Cars, not of CUB"
    assert any(line.startswith("| CircleLoss |") and "| ResNet-50 |" in line for line in text)
    assert not any("HDC" in line for line in text), "it can run, and no record is here"
    text = lines([record("NCE", 0, 0.4, table="pseudo", data="cub")], "pseudo")
    assert any(line.startswith("Published only: ") and "PSLR" in line for line in text)


def test_overrides_failures_and_nothing_are_said() -> None:
    changed = record("MS", 0, 0.5, overrides={"steps": 600})
    broken = record("CBML", 0, 0.0, failed="step 3: the loss is nan", scores={})
    text = "\n".join(lines([changed, broken]))
    assert "| MS [steps=600] | 1 |" in text
    assert "CBML (1 of 1 broke off)" in text
    assert "published numbers; nothing of ours yet" in "\n".join(lines([])).lower()
    assert "| ResNet-50 MS, CUB | 65.3 |" in "\n".join(lines([]))
    assert "prints no numbers for this table" in "\n".join(lines([], "gamma"))


def test_lambda_has_a_column_for_the_training_classes() -> None:
    one = record("CBML λ=1.0", 0, 0.5, table="lambda")
    one["scores"]["train"] = {"recall@1": 0.9}
    text = lines([one], "lambda")
    assert any(line.startswith("| CBML λ=1.0 | 1 | 0.0001 | 90.0 | 50.0 |") for line in text)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_documents_show_the_records(name: str) -> None:
    text = (ROOT / "docs" / name).read_text()
    assert rendered(text, DOCUMENTS[name](read_records(ROOT / "results"))) == text, "make tables"


def test_a_document_without_marks_is_refused() -> None:
    with pytest.raises(BadData, match="no <!-- tables"):
        rendered("# Text", "tables")
