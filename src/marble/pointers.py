"""Rows of registries that point at code as `module:name`, imported only when they are asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def pointed_at(place: str) -> Any:
    """What stands at `module:name`."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
