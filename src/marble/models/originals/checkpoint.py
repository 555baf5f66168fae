"""Checkpoints of the original repositories: from torch's own format to safetensors, once.

A `.pt`, `.pth` or `.ckpt` file is a pickle, and a pickle can run code. It is read here and nowhere else, by torch's
weights-only loader, which builds tensors and plain containers and refuses everything else. What comes out is a
safetensors file with the original tensors under their original names, already proven to fit the model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from marble import files
from marble.bags.tensors import map_file, to_bytes
from marble.errors import InputError
from marble.models.base import BagModel
from marble.models.originals.weights import load_reference

#: keys under which training programs keep a model's state dict
WRAPPERS = ("state_dict", "model_state_dict", "model")
#: what wrappers put before every name: DataParallel, and Lightning modules that call their network `model`
PREFIXES = ("module.", "model.")


@dataclass(frozen=True)
class ImportedCheckpoint:
    """What an import wrote, and what it found."""

    path: Path
    model: BagModel
    tensors: int
    taken_off: tuple[str, ...]  # wrappers and prefixes, outermost first
    left_out: tuple[str, ...]  # entries beside the weights


def import_checkpoint(
    source: str | Path, name: str, out: str | Path, *, dim: int | None = None, **options: Any
) -> ImportedCheckpoint:
    """Turn a checkpoint of model `name` into the safetensors file `out`; see `load_reference` for `dim` and options."""
    tensors, taken_off, left_out = state_dict_of(read_weights(source), source)
    try:
        model = load_reference(name, tensors, dim=dim, **options)
    except InputError as error:
        raise InputError(error.what, where=source, hint=error.hint) from None
    about = {
        "model": name,
        "dim": model.dim,
        "outputs": model.outputs,
        "options": options,
        "source_sha256": files.sha256_file(source),
    }
    # Cloned: tensors of one storage are legal in a pickle, not in safetensors.
    path = files.publish(out, to_bytes({key: tensor.clone() for key, tensor in tensors.items()}, about))
    return ImportedCheckpoint(path, model, len(tensors), taken_off, left_out)


def load_imported(path: str | Path) -> BagModel:
    """The model of an imported checkpoint, in evaluation mode; model and options are read from the file."""
    tensors, about = map_file(path)
    if not isinstance(about, dict) or not {"model", "dim", "options"} <= about.keys():
        raise InputError("not an imported checkpoint", where=path, hint="Make one with `marble import-checkpoint`")
    return load_reference(about["model"], tensors, dim=about["dim"], **about["options"]).eval()


def read_weights(source: str | Path) -> object:
    """What torch's weights-only loader makes of a file. What it refuses is refused here, and nothing of it has run."""
    if not Path(source).is_file():
        raise InputError("no such file", where=source)
    try:
        return torch.load(source, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged or hostile file may raise anything
        wanted = re.search(r"GLOBAL (\S+)", str(error))
        what = f"it asks for {wanted[1]}" if wanted else f"it cannot be read as one ({type(error).__name__})"
        raise InputError(
            f"not a file of weights alone: {what}; nothing in it was run",
            where=source,
            hint="Where it was trained, save the weights alone, torch.save(model.state_dict(), 'weights.pt'), "
            "and import that file",
        ) from None


def state_dict_of(loaded: object, source: str | Path) -> tuple[dict[str, Tensor], tuple[str, ...], tuple[str, ...]]:
    """The tensors of a checkpoint by their original names, what was taken off them, and what else was in the file."""
    taken_off: list[str] = []
    left_out: list[str] = []
    while isinstance(loaded, Mapping) and (wrapper := _wrapper_in(loaded)) is not None:
        taken_off.append(wrapper)
        left_out += [str(key) for key in loaded if key != wrapper]
        loaded = loaded[wrapper]
    if not isinstance(loaded, Mapping):
        raise InputError(f"a checkpoint is a dict of tensors, this is a {type(loaded).__name__}", where=source)
    parts = {"": loaded} if not any(_is_state_dict(value) for value in loaded.values()) else loaded
    found: dict[str, Tensor] = {}
    for part, tensors in parts.items():  # several modules, each with a state dict of its own (DTFD), or the only one
        if part and not _is_state_dict(tensors):
            left_out.append(str(part))
            continue
        named = {str(key): value for key, value in tensors.items() if isinstance(value, Tensor)}
        left_out += [str(key) for key, value in tensors.items() if not isinstance(value, Tensor)]
        bare, prefixes = _without_prefixes(named)
        taken_off += [prefix for prefix in prefixes if prefix not in taken_off]
        found.update({f"{part}.{key}" if part else key: tensor for key, tensor in bare.items()})
    if not found:
        raise InputError(f"no tensors in this file; it has {', '.join(left_out) or 'nothing'}", where=source)
    return found, tuple(taken_off), tuple(left_out)


def _wrapper_in(loaded: Mapping[Any, Any]) -> str | None:
    return next((key for key in WRAPPERS if isinstance(loaded.get(key), Mapping)), None)


def _is_state_dict(value: object) -> bool:
    return isinstance(value, Mapping) and bool(value) and all(isinstance(item, Tensor) for item in value.values())


def _without_prefixes(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """Names without the prefixes that every one of them has."""
    taken: list[str] = []
    while tensors and (prefix := next((p for p in PREFIXES if all(key.startswith(p) for key in tensors)), None)):
        taken.append(prefix)
        tensors = {key.removeprefix(prefix): tensor for key, tensor in tensors.items()}
    return tensors, taken
