"""The file of a bag: one safetensors file, its tensors named by level, and who it is in the header."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from marble.bags.bag import Bag, Level
from marble.bags.provenance import Provenance
from marble.bags.record import LevelCount
from marble.bags.tensors import map_file, to_bytes
from marble.errors import BagError, IntegrityError

FORMAT = 1
SHOWN = 300  # characters of what a damaged file says, in an error


def bag_bytes(bag: Bag) -> bytes:
    """The file's content."""
    header = {
        "format": FORMAT,
        "slide_id": bag.slide_id,
        "ratios": [level.ratio for level in bag.levels],
        "provenance": bag.provenance.model_dump(mode="json"),
    }
    return to_bytes(_named_tensors(bag), header)


def counts_of(bag: Bag) -> tuple[LevelCount, ...]:
    """What a record says of the levels."""
    return tuple(
        LevelCount.model_validate(
            {
                "tokens": len(level),
                "dim": level.dim,
                "dtype": str(level.features.dtype).removeprefix("torch."),
                "ratio": level.ratio,
            }
        )
        for level in bag.levels
    )


def read_bag(path: Path, slide_id: str, checked: Provenance | None = None) -> Bag:
    """The bag, mapped into memory. `checked` is its provenance if this very file was read and checked before."""
    tensors, metadata = map_file(path)
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise IntegrityError(f"not a MARBLE bag of format {FORMAT}", where=path)
    if metadata.get("slide_id") != slide_id:
        raise IntegrityError(f"holds slide '{str(metadata.get('slide_id'))[:SHOWN]}', not '{slide_id}'", where=path)
    provenance = checked or Provenance.parse(metadata.get("provenance", {}), where=path)
    ratios = metadata.get("ratios") or []
    if not isinstance(ratios, list):
        raise IntegrityError("'ratios' in its metadata is not a list", where=path)
    wanted = {f"level{k}.{name}" for k in range(len(ratios)) for name in ("features", "cells", "parent")}
    wanted.discard("level0.parent")
    if set(tensors) != wanted:
        others = str(sorted(set(tensors) ^ wanted))
        shown = others if len(others) <= SHOWN else f"{others[:SHOWN]}..."
        raise BagError(f"tensors {shown} are missing or unexpected", where=path)
    levels = []
    for k, ratio in enumerate(ratios):
        features, cells = tensors[f"level{k}.features"], tensors[f"level{k}.cells"]
        parent = tensors.get(f"level{k}.parent")
        _check_dtypes(path, k, features, cells, parent)
        levels.append(Level(features, cells, parent, ratio))
    try:
        return Bag(slide_id, levels, provenance, checked=checked is not None)
    except BagError as error:
        raise BagError(f"{error.where}: {error.what}", where=path, hint=error.hint) from None


def _named_tensors(bag: Bag) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for k, level in enumerate(bag.levels):
        if level.features.dtype == torch.float64:
            raise BagError("a store holds float16 or float32 features", where=f"{bag.slide_id}, level {k}",
                           hint="Convert with `bag.to(dtype=torch.float32)`")  # fmt: skip
        tensors[f"level{k}.features"] = level.features
        tensors[f"level{k}.cells"] = level.cells
        if level.parent is not None:
            tensors[f"level{k}.parent"] = level.parent
    return tensors


def _check_dtypes(path: Path, k: int, features: Tensor, cells: Tensor, parent: Tensor | None) -> None:
    if features.dtype not in (torch.float16, torch.float32):
        raise BagError(f"level{k}.features must be float16 or float32, not {features.dtype}", where=path)
    if cells.dtype != torch.int32:
        raise BagError(f"level{k}.cells must be int32, not {cells.dtype}", where=path)
    if parent is not None and parent.dtype != torch.int64:
        raise BagError(f"level{k}.parent must be int64, not {parent.dtype}", where=path)
