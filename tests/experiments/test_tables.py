"""Every published row has a config or a reason, and every config can be built without images."""

import csv
from pathlib import Path

import pytest

import cbml
from cbml.errors import BadData
from cbml.experiments import Plan
from cbml.experiments.figures import FIGURES
from cbml.experiments.plans import table_rows
from cbml.experiments.rows import (
    LAPTOP_DATA,
    PUBLISHED_ONLY,
    Row,
    published_scores,
    row_config,
)
from cbml.experiments.sources import row_cost
from cbml.experiments.tables import TABLES, find_table
from cbml.models import BACKBONES
from cbml.runs import build_run_loss, check_names, check_options

ALL = TABLES | {name: figure.table for name, figure in FIGURES.items()}


def test_all_numbers_of_the_paper_are_there() -> None:
    path = Path(cbml.__file__).parent / "experiments" / "published.csv"
    with path.open(newline="", encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) == 1268
    tables = published_scores()
    assert sum(len(scores) for rows in tables.values() for scores in rows.values()) == 1268
    assert {table.published for table in TABLES.values()} - {None} == set(tables), "all 13"
    assert len(tables) == 13
    key = ("ResNet-50", "CBML+MVC+HardMining", "512", "CUB")
    assert tables["loss_ablation"][key] == {"R@1": 69.9, "R@2": 80.4, "R@4": 87.2, "R@8": 92.5}


def test_every_published_row_of_ours_has_a_config_and_every_other_a_reason() -> None:
    for table in TABLES.values():
        if table.published is None:
            continue
        keys = set(published_scores()[table.published])
        ours = {key for row in table.rows for key in (row.published, row.published_train) if key}
        assert ours <= keys, "a config names a row that the paper does not have"
        assert {key[1] for key in keys - ours} <= set(PUBLISHED_ONLY)
        assert not {key[1] for key in ours} & set(PUBLISHED_ONLY)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("scale", ["full", "laptop"])
def test_every_config_can_be_built(name: str, scale: str) -> None:
    plan = Plan(table=ALL[name], scale=scale, data="emoji" if scale == "laptop" else None)  # type: ignore[arg-type]
    rows = table_rows(plan)
    labels = [row.label(scale) for row in rows]
    assert len(set(labels)) == len(labels), "two rows of one name"
    for row in rows:
        config = row_config(row, scale)  # type: ignore[arg-type]
        assert config.model.backbone in BACKBONES
        build_run_loss(config, 3)
        cost = row_cost(row, scale)  # type: ignore[arg-type]
        assert cost.hours > 0
        assert "about 0" not in str(cost)
        steps = config.settings.steps or 0
        if config.settings.schedule == "step":
            assert 0.2 < config.settings.drop_at / steps < 0.7
        assert config.loss.options.get("warmup_steps", 0) < steps / 2
        if config.model.weights == "none":
            assert config.settings.learning_rate >= 1e-3


def test_the_paper_s_settings_are_the_full_scale() -> None:
    rows = {row.label("full"): row for row in TABLES["cub-cars"].rows}
    config = row_config(rows["GoogLeNet CBML, CUB"], "full")
    assert (config.model.backbone, config.model.dim, config.model.crop) == ("googlenet", 512, 227)
    assert (config.training.classes_per_batch, config.training.samples_per_class) == (15, 8)
    loop = config.settings
    assert (loop.steps, loop.learning_rate, loop.weight_decay) == (5000, 3e-5, 5e-4)
    assert (loop.schedule, loop.drop_at, loop.drop_factor) == ("step", 3000, 0.1)
    loss = build_run_loss(config, 1)
    assert str(loss) == str(cbml.CBMLLoss.paper("cub"))
    rows = {row.label("full"): row for row in TABLES["sop-inshop"].rows}
    config = row_config(rows["ResNet-50 CBML, SOP"], "full")
    assert config.training.classes_per_batch * config.training.samples_per_class == 100
    loss = build_run_loss(config, 1)
    assert str(loss) == str(cbml.CBMLLoss.paper("sop"))


def test_rows_of_the_loss_ablation_are_what_they_say() -> None:
    plan = Plan(table=TABLES["loss-ablation"], scale="laptop", data="emoji")
    rows = {row.method: row_config(row, "laptop") for row in table_rows(plan)}
    losses = {name: str(build_run_loss(r, 3)) for name, r in rows.items()}
    assert losses["CBML +MVC +mining"] == str(cbml.CBMLLoss.paper("cub"))
    assert losses["CBML +MVC"] == str(cbml.CBMLLoss.paper("cub", mining_margin=None))
    bare = cbml.CBMLLoss.paper("cub", mining_margin=None, variance_weight=0.0)
    assert losses["CBML"] == str(bare)
    assert losses["CBML +MVC +mining (products)"] == str(cbml.CBMLLoss.paper("sop"))
    assert str(cbml.CBMLLoss.authors("cub")) in losses["CBML +MVC +mining (authors)"]
    assert losses["MS +MVC"].startswith("WithVariance")
    assert rows["CBML (from data)"].loss.parameters == "from-data"


def test_near_misses_are_suggested() -> None:
    with pytest.raises(BadData, match="did you mean 'lambda'"):
        find_table("lamda")
    with pytest.raises(BadData, match="matches no row; the rows are 'CBML λ=0"):
        table_rows(Plan(table=find_table("lambda"), scale="laptop", data="emoji", only=("MS",)))
    with pytest.raises(BadData, match="has rows for cub"):
        table_rows(Plan(table=find_table("lambda"), scale="full", data="sop"))


def test_tables_from_random_weights_are_from_random_weights() -> None:
    for name in ("imagenet", "pseudo-scratch"):
        assert {row_config(row, "laptop").model.weights for row in _laptop(name)} == {"none"}


def _laptop(name: str) -> list[Row]:
    return TABLES[name].rows_for("laptop", "emoji")


def test_rows_have_the_constants_that_the_authors_chose_for_the_dataset() -> None:
    rows = [row for table in ("cub-cars", "sop-inshop") for row in TABLES[table].rows]
    options = {
        (row.method, row.data): row_config(row, "full").method.options
        for row in rows
        if "method" in row.changes
    }
    assert options["HDC", "cub"] == {"weights": [1.0, 1.0, 2.0]}
    assert options["HDC", "sop"] == {}  # all alike, as by default
    assert options["HDML", "cars"] == {"balance": 1e4, "norm_weight": 0.003}
    assert options["Divide-Conquer", "sop"] == {"clusters": 8}
    assert options["MIC+Margin", "inshop"] == {"clusters": 150, "adversary_weight": 250.0}
    assert options["PADS", "sop"]["recall_at"] == [1, 10, 100, 1000]
    assert options["Sharing-DML", "cars"] == {"shared_weight": 0.15, "decorrelation": 100.0}
    for row in rows:
        if "method" in row.changes:
            check_options(row_config(row, "full"))


@pytest.mark.parametrize("scale", ["full", "laptop"])
def test_rows_are_not_touched_by_the_default_recipe(scale: str) -> None:
    for table in TABLES.values():
        for row in table.rows:
            if scale == "full" or row.data in LAPTOP_DATA:
                config = row_config(row, scale)  # type: ignore[arg-type]
                assert config.model.test_crop is None, "trained and tested at one size"
                assert (config.optimizer.ema, config.proxy_weight) == (0.0, 0.0)


@pytest.mark.parametrize("scale", ["full", "laptop"])
def test_rows_of_methods_without_labels_are_those_of_their_authors(scale: str) -> None:
    rows = [row for name in ("pseudo", "pseudo-scratch") for row in TABLES[name].rows]
    methods = {row.method: row for row in rows if "method" in row.changes}
    assert methods.keys() == {
        *("Examplar", "NCE", "DeepCluster", "MOM", "AND", "ISIF", "sSUML", "CBSwR", "Ortho")
    }
    for row in rows:
        config = row_config(row, scale)  # type: ignore[arg-type]
        check_names(config)
        check_options(config)
        if row.method in ("CBML", "MOM", "sSUML"):
            continue
        assert config.augmentation.min_area == 0.79
        assert config.optimizer.name == "sgd"
    assert row_config(methods["MOM"], scale).model.dim == 64  # type: ignore[arg-type]
    assert row_config(methods["CBSwR"], scale).optimizer.momentum == 0  # type: ignore[arg-type]
    scratch = [row for row in TABLES["pseudo-scratch"].rows if row.method == "ISIF"]
    config = row_config(scratch[0], scale)  # type: ignore[arg-type]
    assert (config.model.weights, config.optimizer.learning_rate) == ("none", 0.03)
