"""One door to every model: `build(name, dim, outputs, **options)`.

Adding a model is one file and one line in `MODELS`; the contract test then covers it.
"""

from __future__ import annotations

import inspect
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
from pydantic import TypeAdapter, ValidationError

from marble.errors import InputError
from marble.models.base import BagModel
from marble.pointers import pointed_at
from marble.specs import unknown_choice

#: name -> "module:class"; imported only when built
MODELS: dict[str, str] = {
    "marble": "marble.models.zoo.marble:Marble",
    "probe": "marble.models.zoo.probe:Probe",
    "tiles": "marble.models.zoo.probe:TileCount",
    "mean": "marble.models.zoo.pooling:MeanMIL",
    "max": "marble.models.zoo.pooling:MaxMIL",
    "abmil": "marble.models.zoo.abmil:ABMIL",
    "clam-sb": "marble.models.zoo.clam:CLAMSB",
    "clam-mb": "marble.models.zoo.clam:CLAMMB",
    "dsmil": "marble.models.zoo.dsmil:DSMIL",
    "transmil": "marble.models.zoo.transmil:TransMIL",
    "s4mil": "marble.models.zoo.s4mil:S4MIL",
    "dtfd": "marble.models.zoo.dtfd:DTFD",
    "mambamil": "marble.models.zoo.mambamil:MambaMIL",
    "srmambamil": "marble.models.zoo.mambamil:SRMambaMIL",
    "2dmambamil": "marble.models.zoo.mamba2d:Mamba2DMIL",
    "hipt": "marble.models.zoo.hipt:HIPT",
    "hagmil": "marble.models.zoo.hagmil:HAGMIL",
    "csmil": "marble.models.zoo.csmil:CSMIL",
    "zoommil": "marble.models.zoo.zoommil:ZoomMIL",
}


def list_models() -> list[str]:
    """Every name that `build` and `fit` take."""
    return list(MODELS)


def model_class(name: str) -> type[BagModel]:
    """The class behind a name, or an error with the valid names."""
    if not isinstance(name, str):
        hint = "Give one of `list_models()`; a model's options are given beside its name"
        raise InputError(f"a model is called by its name, got {type(name).__name__}", hint=hint)
    if name not in MODELS:
        raise InputError(unknown_choice("model", name, list(MODELS)))
    found: type[BagModel] = pointed_at(MODELS[name])
    return found


def model_options(name: str) -> dict[str, Any]:
    """A model's options and their defaults: the keyword arguments of its `__init__`."""
    signature = inspect.signature(model_class(name).__init__)
    return {
        key: parameter.default
        for key, parameter in signature.parameters.items()
        if key not in ("self", "dim", "outputs")
    }


def check_option(name: str, key: str, value: Any, where: object = None) -> None:
    """Refuse an option that the model does not have, or a value of another type or range than its `__init__` says."""
    valid = sorted(model_options(name))
    if key not in valid:
        raise InputError(unknown_choice(f"option of model '{name}'", key, valid), where=where)
    hint = get_type_hints(model_class(name).__init__, include_extras=True)[key]
    # TOML has no tuples, torch's sizes are some, and notebooks have numpy's numbers
    given = tuple(value) if isinstance(value, list | tuple) else value
    given = given.item() if isinstance(given, np.generic) else given
    try:
        TypeAdapter(hint).validate_python(given, strict=True)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False)
        if get_origin(hint) is Literal:
            what = f"model '{name}': {unknown_choice(key, str(value), list(get_args(hint)))}"
        else:
            what = f"option '{key}' of model '{name}': {faults[0]['msg']} (got {value!r})"
        raise InputError(what, where=where) from None


def build(name: str, dim: int, outputs: int, **options: Any) -> BagModel:
    """Build a model; an option it does not have, or of another type, is refused by name."""
    for key, value in options.items():
        check_option(name, key, value)
    return model_class(name)(dim, outputs, **options)
