"""Model, loss and batches -> trained model: the loop, checkpoints, many processes."""

from cbml.training.guards import BadNumbers
from cbml.training.interrupts import Interrupted
from cbml.training.loop import Fitted, fit
from cbml.training.progress import Bar, Lines, Listener, Silence, StepReport, best_listener
from cbml.training.runs import Run, read_metrics, read_record
from cbml.training.settings import Settings
from cbml.training.team import Team, joined_team

__all__ = [
    "BadNumbers",
    "Bar",
    "Fitted",
    "Interrupted",
    "Lines",
    "Listener",
    "Run",
    "Settings",
    "Silence",
    "StepReport",
    "Team",
    "best_listener",
    "fit",
    "joined_team",
    "read_metrics",
    "read_record",
]
