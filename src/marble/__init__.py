"""MARBLE: multi-scale multiple-instance learning for whole-slide images, in linear time.

Importing this package imports no torch; each public name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from marble.version import VERSION

if TYPE_CHECKING:
    from marble.attribution import explain
    from marble.bags.bag import Bag, Level
    from marble.bags.store import BagStore
    from marble.cohorts import Cohort, Split, TableSpec, read_cohort
    from marble.door import Run, fit
    from marble.encoders import load_encoder
    from marble.errors import MarbleError
    from marble.estimators import MarbleClassifier, MarbleRegressor, MarbleSurvival
    from marble.experiment import Experiment
    from marble.extract import SlideFacts, extract_slide
    from marble.models import MODELS, BagModel, Output, build, list_models
    from marble.models.inference import Prediction
    from marble.prediction import Answer, Predictor, predict
    from marble.slides.slide import Slide
    from marble.targets import SurvivalTime

__version__ = VERSION

_HOME = {
    "MODELS": "marble.models",
    "Answer": "marble.prediction",
    "Bag": "marble.bags.bag",
    "BagModel": "marble.models",
    "BagStore": "marble.bags.store",
    "Cohort": "marble.cohorts",
    "Experiment": "marble.experiment",
    "Level": "marble.bags.bag",
    "MarbleClassifier": "marble.estimators",
    "MarbleError": "marble.errors",
    "MarbleRegressor": "marble.estimators",
    "MarbleSurvival": "marble.estimators",
    "Output": "marble.models",
    "Prediction": "marble.models.inference",
    "Predictor": "marble.prediction",
    "Run": "marble.door",
    "Slide": "marble.slides.slide",
    "SlideFacts": "marble.extract",
    "Split": "marble.cohorts",
    "SurvivalTime": "marble.targets",
    "TableSpec": "marble.cohorts",
    "build": "marble.models",
    "explain": "marble.attribution",
    "extract_slide": "marble.extract",
    "fit": "marble.door",
    "list_models": "marble.models",
    "load_encoder": "marble.encoders",
    "predict": "marble.prediction",
    "read_cohort": "marble.cohorts",
}

__all__ = [
    "MODELS",
    "Answer",
    "Bag",
    "BagModel",
    "BagStore",
    "Cohort",
    "Experiment",
    "Level",
    "MarbleClassifier",
    "MarbleError",
    "MarbleRegressor",
    "MarbleSurvival",
    "Output",
    "Prediction",
    "Predictor",
    "Run",
    "Slide",
    "SlideFacts",
    "Split",
    "SurvivalTime",
    "TableSpec",
    "__version__",
    "build",
    "explain",
    "extract_slide",
    "fit",
    "list_models",
    "load_encoder",
    "predict",
    "read_cohort",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'marble' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
