"""Model, loss and batches -> trained model: the loop, checkpoints, many processes."""

from cbml.training.guards import BadNumbers
from cbml.training.interrupts import Interrupted
from cbml.training.labels import NewLabels, Relabel
from cbml.training.loop import Fitted, fit
from cbml.training.progress import Listener, Shown, StepReport
from cbml.training.recipe import Recipe, recipe_for, recipe_of, with_overrides
from cbml.training.runs import Run, read_metrics, read_record
from cbml.training.scoring import evaluate_split, note_test_look, score_conditions, score_split
from cbml.training.session import Outcome, train_run
from cbml.training.settings import Settings
from cbml.training.team import Team, joined_team
from cbml.training.tools import Tools

__all__ = [
    "BadNumbers",
    "Fitted",
    "Interrupted",
    "Listener",
    "NewLabels",
    "Outcome",
    "Recipe",
    "Relabel",
    "Run",
    "Settings",
    "Shown",
    "StepReport",
    "Team",
    "Tools",
    "evaluate_split",
    "fit",
    "joined_team",
    "note_test_look",
    "read_metrics",
    "read_record",
    "recipe_for",
    "recipe_of",
    "score_conditions",
    "score_split",
    "train_run",
    "with_overrides",
]
