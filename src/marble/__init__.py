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
    from marble.models import MODELS, build

__version__ = VERSION

_HOME = {
    "MODELS": "marble.models",
    "Bag": "marble.bags.bag",
    "BagStore": "marble.bags.store",
    "Level": "marble.bags.bag",
    "MarbleError": "marble.errors",
    "build": "marble.models",
}

__all__ = ["MODELS", "Bag", "BagStore", "Level", "MarbleError", "__version__", "build"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'marble' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
