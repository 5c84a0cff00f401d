"""The paper's tables and figures as runs, records, tables and plots."""

from cbml.experiments.plans import Plan, plan_trials, plan_units
from cbml.experiments.records import read_records
from cbml.experiments.running import Progress, run_units
from cbml.experiments.sources import Sources
from cbml.experiments.units import Unit

__all__ = [
    "Plan",
    "Progress",
    "Sources",
    "Unit",
    "plan_trials",
    "plan_units",
    "read_records",
    "run_units",
]
