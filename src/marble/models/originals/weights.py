"""Checkpoints of the original repositories, turned into our models.

Every model says how its original names map to ours (`reference_names`, by prefix) and how to read its sizes from the
tensors (`reference_sizes`). Loading is strict: a tensor that has no place is an error, not a warning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from marble.errors import InputError
from marble.models.base import BagModel
from marble.models.registry import build, model_class


def load_reference(name: str, tensors: Mapping[str, Tensor], *, dim: int | None = None, **options: Any) -> BagModel:
    """Build model `name` from a state dict with the original repository's names.

    Args:
        name: a name in `MODELS`.
        tensors: the original state dict.
        dim: width of the tokens, where the tensors do not show it (DSMIL with `scales = "cat"` sees it doubled).
        options: the model's own options, where the checkpoint was trained with others than the defaults.
    """
    kind = model_class(name)
    wanted = {key: value for key, value in tensors.items() if not key.startswith(kind.reference_ignored)}
    try:
        width, outputs = kind.reference_sizes(wanted)
    except KeyError as error:
        raise InputError(
            f"not a checkpoint of '{name}': tensor {error} is missing; there are {_some(list(wanted))}"
        ) from None
    # In the checkpoint's own precision from the start: float64 weights must not pass through float32.
    model = build(name, dim or width, outputs, **options).to(next(iter(wanted.values())).dtype)
    faults = _misfits(model, wanted, kind.reference_names)
    if faults:
        raise InputError(
            f"checkpoint does not fit model '{name}': {'; '.join(faults)}",
            hint="Pass the options it was trained with",
        )
    model.load_state_dict(renamed(wanted, kind.reference_names), strict=True)
    return model


def _misfits(model: BagModel, tensors: Mapping[str, Tensor], names: Mapping[str, str]) -> list[str]:
    """Why these tensors are not exactly the model's: what is missing, what has no place, what has another shape."""
    own = model.state_dict()
    placed = {key: next(iter(renamed({key: tensor}, names))) for key, tensor in tensors.items()}
    missing = [key for key in own if key not in placed.values()]
    strangers = [key for key, place in placed.items() if place not in own]
    others = [
        f"{key} {tuple(tensors[key].shape)} instead of {tuple(own[place].shape)}"
        for key, place in placed.items()
        if place in own and own[place].shape != tensors[key].shape
    ]
    twice = [key for key, place in placed.items() if place in own and list(placed.values()).count(place) > 1]
    faults = {"missing": missing, "unexpected": strangers, "of another shape": others, "for one place": twice}
    return [f"{what}: {_some(found)}" for what, found in faults.items() if found]


def _some(names: list[str], most: int = 20) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def renamed(tensors: Mapping[str, Tensor], names: Mapping[str, str]) -> dict[str, Tensor]:
    """Replace in every key the longest prefix found in `names`; keys without one stay."""
    longest_first = sorted(names, key=len, reverse=True)
    found: dict[str, Tensor] = {}
    for key, tensor in tensors.items():
        prefix = next((p for p in longest_first if key.startswith(p)), None)
        found[key if prefix is None else names[prefix] + key.removeprefix(prefix)] = tensor
    return found
