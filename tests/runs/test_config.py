"""RunConfig: typed sections, changes that know every field, records that are read back."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from cbml.errors import BadData
from cbml.runs import FLAT_KEYS, SECTIONS, RunConfig, parse_overrides
from cbml.training import Settings


def test_overrides_change_a_config() -> None:
    changes = parse_overrides(
        [
            *("learning_rate=3e-5", "dim=64", "loss.variance_weight=0.5", "epochs=3"),
            *("clip_norm=none", "optimizer.schedule=cosine", "compile=true", "validation=0"),
            *("loss=triplet", "data=y", "augmentation.min_area=0.25", "optimizer=adamw"),
        ],
    )
    config = RunConfig("x").replace(**changes)
    assert config.optimizer.learning_rate == config.settings.learning_rate == 3e-5
    assert config.model.dim == 64
    assert (config.loss.name, config.loss.options) == ("triplet", {"variance_weight": 0.5})
    assert (config.settings.steps, config.settings.epochs) == (None, 3)
    assert config.settings.optimizer == "adamw"
    assert config.settings.schedule == "cosine"
    assert config.model.compile is True
    assert (config.data.source, config.data.validation) == ("y", 0.0)
    assert config.augmentation.min_area == 0.25
    assert RunConfig.from_dict(json.loads(json.dumps(config.as_dict()))) == config


def test_the_last_of_steps_and_epochs_counts() -> None:
    assert RunConfig("x", training={"epochs": 2}).training.steps is None
    assert parse_overrides(["epochs=2", "steps=3"]) == {"training": {"steps": 3}}
    assert RunConfig("x").replace(training={"epochs": 2}).training.steps is None


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("learning_rat=1", "did you mean 'learning_rate'"),
        ("optimizer.learning_rat=1", "did you mean 'learning_rate'"),
        ("dimm=1", "did you mean 'dim'"),
        ("dim", "key=value"),
        ("dim=many", "dim must be int"),
        ("dim=1.5", "dim must be int"),
        ("steps=0", "steps must be at least 1"),
        ("minutes=0", "minutes must be above zero"),
        ("crop=-1", "crop must be at least 1"),
        ("schedule=linear", "must be one of"),
        ("compile=maybe", "compile must be bool"),
        ("flip=2", r"in \[0, 1\]"),
    ],
)
def test_wrong_overrides_are_named(override: str, message: str) -> None:
    with pytest.raises(BadData, match=message):
        RunConfig("x").replace(**parse_overrides([override]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"dimm": 3}}, "model.dimm: no such setting; did you mean 'dim'"),
        ({"model": {"dim": "3"}}, "model.dim must be int, got '3'"),
        ({"model": {"dim": True}}, "model.dim must be int"),
        ({"model": {"precision": "float8"}}, "model.precision must be one of"),
        ({"optimizer": "adam"}, "give a mapping"),
        ({"data": {"validation": float("nan")}}, "data.validation must be float"),
        ({"loss": {"options": 3}}, "loss.options must be"),
    ],
)
def test_wrong_fields_are_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(BadData, match=message):
        RunConfig("x").replace(**changes)  # type: ignore[arg-type]


def test_every_choice_of_the_loop_is_in_one_section_with_the_same_default() -> None:
    defaults = RunConfig("x", optimizer={"ema": 0.0}).settings
    assert defaults == Settings()
    for option in dataclasses.fields(Settings):
        section, field = FLAT_KEYS[option.name]
        default = getattr(SECTIONS[section](), field)
        # These two are open until a run starts.
        usual = None if field in ("steps", "choose_by") else getattr(defaults, option.name)
        assert default == usual


def test_the_recipe_with_labels_is_not_the_papers() -> None:
    ours, unlabeled = RunConfig("x"), RunConfig({"source": "x", "labels": "none"})
    assert (ours.augmentation.min_area, ours.optimizer.ema) == (0.5, 0.15)
    assert (unlabeled.augmentation.min_area, unlabeled.optimizer.ema) == (0.16, 0.0)
    assert RunConfig("x", optimizer={"ema": 0.0}).optimizer.ema == 0.0, "what is given wins"
    assert ours.proxy_weight == 0.5
    assert unlabeled.proxy_weight == 0.0
    assert ours.replace(loss="margin").proxy_weight == 0.0, "it has parameters of its own"
    assert ours.replace(method="hdc").proxy_weight == 0.0
    assert RunConfig("x", loss={"proxy_weight": 0.0}).proxy_weight == 0.0


def test_no_flat_key_means_two_fields() -> None:
    fields = [
        (section, field.name)
        for section, kind in SECTIONS.items()
        for field in dataclasses.fields(kind)
        if field.name != "options"
    ]
    assert sorted(FLAT_KEYS.values()) == sorted(fields)


def test_data_have_defaults_of_their_own_and_what_is_given_wins() -> None:
    assert (RunConfig("emoji").model.crop, RunConfig("x").model.crop) == (96, 0)
    assert RunConfig("emoji", model={"crop": 64}).model.crop == 64
    assert RunConfig("emoji").training.steps == 100
    assert RunConfig("emoji", training={"epochs": 1}).training.steps is None


def test_a_loss_option_is_set_and_the_others_stay() -> None:
    config = RunConfig("x", loss={"averaging": "log", "variance_weight": 1.0})
    changed = config.replace(loss={"averaging": "linear"})
    assert changed.loss.options == {"averaging": "linear", "variance_weight": 1.0}
    assert changed.replace(loss={"options": {}}).loss.options == {}


def test_a_file_never_chooses_code() -> None:
    config = RunConfig("x", loss="some.module:Loss")
    with pytest.raises(BadData, match=r"repeat it: --loss some\.module:Loss"):
        RunConfig.from_dict(config.as_dict())
    assert RunConfig.from_dict(config.as_dict(), allow_code=True) == config


def test_old_recipes_of_the_records_are_read() -> None:
    path = Path(__file__).parents[2] / "results" / "pseudo" / "emoji.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    recipes = [record["recipe"] for record in records if "recipe" in record]
    assert "pictures_per_class" in recipes[0]
    for recipe in recipes:
        config = RunConfig.from_dict(recipe)
        assert config.training.samples_per_class == recipe["pictures_per_class"]
        assert config.optimizer.name == recipe["settings"]["optimiser"]
        assert config.loss.options == recipe["loss_options"]
        assert config.data.labels == recipe["labels"]
    with pytest.raises(BadData, match="not the config of a run of this version"):
        RunConfig.from_dict({**recipes[0], "flavor": "sweet"})
    with pytest.raises(BadData, match="not the config of a run of this version"):
        RunConfig.from_dict({})


def test_a_config_is_made_without_torch() -> None:
    code = (
        "import sys; from cbml.runs import RunConfig, check_names, parse_overrides\n"
        "check_names(RunConfig('emoji', **parse_overrides(['steps=3', 'loss=margin'])))\n"
        "assert 'torch' not in sys.modules, 'torch'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_misspelled_name_costs_no_import_of_torch() -> None:
    for option in ("--loss", "--backbone", "--method"):
        code = (
            "import sys; from cbml.cli import main\n"
            f"try: main(['train', 'emoji', '{option}', 'marginn'])\n"
            "except SystemExit as end: assert end.code == 2\n"
            "assert 'torch' not in sys.modules, 'torch'"
        )
        subprocess.run([sys.executable, "-c", code], check=True, stderr=subprocess.DEVNULL)
