"""What is compared with what, on which patients: one TOML file in, a list of runs out."""

from marble.experiment.experiment import Experiment
from marble.experiment.spec import ExperimentSpec, ModelSpec
from marble.experiment.stores import find_store

__all__ = ["Experiment", "ExperimentSpec", "ModelSpec", "find_store"]
