"""One door to every model: `build(name, dim, outputs, **options)`.

Adding a model is one file and one line in `MODELS`; the contract test then covers it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from torch import Tensor

from marble.errors import InputError
from marble.models.base import COMMON, BagModel, Output, Recipe, Side
from marble.specs import unknown_choice

#: name -> "module:class"; imported only when built
MODELS: dict[str, str] = {
    "marble": "marble.models.marble:Marble",
    "mean": "marble.models.pooling:MeanMIL",
    "max": "marble.models.pooling:MaxMIL",
    "abmil": "marble.models.abmil:ABMIL",
    "clam-sb": "marble.models.clam:CLAMSB",
    "clam-mb": "marble.models.clam:CLAMMB",
    "dsmil": "marble.models.dsmil:DSMIL",
    "transmil": "marble.models.transmil:TransMIL",
    "s4mil": "marble.models.s4mil:S4MIL",
    "dtfd": "marble.models.dtfd:DTFD",
    "mambamil": "marble.models.mambamil:MambaMIL",
    "srmambamil": "marble.models.mambamil:SRMambaMIL",
    "2dmambamil": "marble.models.mamba2d:Mamba2DMIL",
    "hipt": "marble.models.hipt:HIPT",
    "hagmil": "marble.models.hagmil:HAGMIL",
    "csmil": "marble.models.csmil:CSMIL",
    "zoommil": "marble.models.zoommil:ZoomMIL",
}


def model_class(name: str) -> type[BagModel]:
    """The class behind a name, or an error with the valid names."""
    if name not in MODELS:
        raise InputError(unknown_choice("model", name, list(MODELS)))
    module, _, attribute = MODELS[name].partition(":")
    found: type[BagModel] = getattr(import_module(module), attribute)
    return found


def model_options(name: str) -> dict[str, Any]:
    """A model's options and their defaults: the keyword arguments of its `__init__`."""
    signature = inspect.signature(model_class(name).__init__)
    return {
        key: parameter.default
        for key, parameter in signature.parameters.items()
        if key not in ("self", "dim", "outputs")
    }


def build(name: str, dim: int, outputs: int, **options: Any) -> BagModel:
    """Build a model; an option it does not have is refused by name, with those it has."""
    valid = model_options(name)
    for key in options:
        if key not in valid:
            raise InputError(unknown_choice(f"option of model '{name}'", key, sorted(valid)))
    return model_class(name)(dim, outputs, **options)


def load_reference(name: str, tensors: Mapping[str, Tensor], *, dim: int | None = None, **options: Any) -> BagModel:
    """Turn a state dict with the original repository's names into our model (see `marble.models.reference`)."""
    from marble.models import reference  # it needs `build`, so it cannot be imported above

    return reference.load_reference(name, tensors, dim=dim, **options)


__all__ = [
    "COMMON",
    "MODELS",
    "BagModel",
    "Output",
    "Recipe",
    "Side",
    "build",
    "load_reference",
    "model_class",
    "model_options",
]
