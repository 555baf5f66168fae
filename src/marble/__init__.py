"""MARBLE: multi-scale multiple-instance learning for whole-slide images, in linear time.

Importing this package imports no torch; each public name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from marble.version import VERSION

if TYPE_CHECKING:
    from marble.bags.bag import Bag, Level
    from marble.bags.store import BagStore
    from marble.errors import MarbleError
    from marble.experiment import Experiment
    from marble.models import MODELS, BagModel, Output, build
    from marble.models.inference import Prediction
    from marble.prediction import Predictor, predict
    from marble.slides.slide import Slide

__version__ = VERSION

_HOME = {
    "MODELS": "marble.models",
    "Bag": "marble.bags.bag",
    "BagModel": "marble.models",
    "BagStore": "marble.bags.store",
    "Experiment": "marble.experiment",
    "Level": "marble.bags.bag",
    "MarbleError": "marble.errors",
    "Output": "marble.models",
    "Prediction": "marble.models.inference",
    "Predictor": "marble.prediction",
    "Slide": "marble.slides.slide",
    "build": "marble.models",
    "predict": "marble.prediction",
}

__all__ = [
    "MODELS",
    "Bag",
    "BagModel",
    "BagStore",
    "Experiment",
    "Level",
    "MarbleError",
    "Output",
    "Prediction",
    "Predictor",
    "Slide",
    "__version__",
    "build",
    "predict",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'marble' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
