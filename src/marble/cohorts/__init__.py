"""Tables, patients, splits and leakage; no torch."""

from marble.cohorts.audit import Audit, Finding, SplitAudit, audit
from marble.cohorts.cohort import Case, Cohort, Excluded, Unit
from marble.cohorts.sites import SiteReport, site_report
from marble.cohorts.spec import TableSpec
from marble.cohorts.split_files import read_splits, write_splits
from marble.cohorts.splits import Split, holdout, kfold
from marble.cohorts.tables import read_cohort
from marble.tabular import safe_cell
from marble.targets import SurvivalTime, Target

__all__ = [
    "Audit",
    "Case",
    "Cohort",
    "Excluded",
    "Finding",
    "SiteReport",
    "Split",
    "SplitAudit",
    "SurvivalTime",
    "TableSpec",
    "Target",
    "Unit",
    "audit",
    "holdout",
    "kfold",
    "read_cohort",
    "read_splits",
    "safe_cell",
    "site_report",
    "write_splits",
]
