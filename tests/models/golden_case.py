"""One golden case: inputs, weights and outputs of the original authors' code (see tests/data/golden/README.md)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from marble.bags.tensors import map_file

FLOAT64_TOLERANCE = 1e-10
FLOAT32_TOLERANCE = 2e-5
#: a parameter whose true gradient is zero has a norm of rounding noise, which no ratio can compare
NOISE = 1e-9


@dataclass(frozen=True)
class GoldenCase:
    folder: Path
    name: str

    @property
    def system(self) -> str:
        return self.folder.name

    @property
    def id(self) -> str:
        return f"{self.system}/{self.name}"

    @cached_property
    def info(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / f"{self.name}.json").read_text())
        return found

    @property
    def ctor(self) -> dict[str, Any]:
        found: dict[str, Any] = self.info["ctor"]
        return found

    @cached_property
    def _tensors(self) -> dict[str, Tensor]:
        tensors, _ = map_file(self.folder / f"{self.name}.safetensors")
        for key, entry in self.info.get("recipe", {}).items():
            tensors[key] = recipe_tensor(key, tuple(entry["shape"]), entry["offset"], entry["scale"])
        return tensors

    def group(self, prefix: str, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
        """All tensors below `prefix/`, names without it; floating ones cast to `dtype`."""
        return {
            key.removeprefix(f"{prefix}/"): _cast(tensor, dtype)
            for key, tensor in self._tensors.items()
            if key.startswith(f"{prefix}/")
        }

    def weights(self, dtype: torch.dtype) -> dict[str, Tensor]:
        return self.group("weight", dtype)

    def input(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        return _cast(self._tensors[f"input/{name}"], dtype).clone()

    def has(self, key: str) -> bool:
        return key in self._tensors

    def expected(self, name: str, dtype: torch.dtype) -> Tensor | None:
        """The original's `name`, from its float64 run or its float32 run; None where the case does not hold it."""
        return self._tensors.get(f"output64/{name}" if dtype == torch.float64 else f"output/{name}")

    def compare(self, name: str, ours: Tensor, dtype: torch.dtype) -> None:
        """Assert that `ours` equals the stored output (batch axes of 1 are ignored); no-op where none is stored."""
        theirs = self.expected(name, dtype)
        if theirs is None:
            return
        tolerance = FLOAT64_TOLERANCE if dtype == torch.float64 else FLOAT32_TOLERANCE
        error = relative_error(ours.detach(), theirs)
        assert error < tolerance, f"{self.id} {name} {dtype}: relative error {error:.2e} >= {tolerance:.0e}"

    def compare_parameter_gradients(self, parameters: Mapping[str, Tensor | None], floor: float = NOISE) -> None:
        """Compare the norm of every parameter's gradient (`{original name: gradient}`) with the float64 run's."""
        stored: dict[str, float | None] = self.info.get("param_grad_norms_f64") or {}
        norms = {name: norm or 0.0 for name, norm in stored.items()}  # null: the original's gradient was None
        largest = max(norms.values(), default=0.0)
        for name, norm in norms.items():
            assert name in parameters, f"{self.id}: no gradient for parameter {name}"
            gradient = parameters[name]
            ours = 0.0 if gradient is None else float(gradient.double().norm())
            limit = FLOAT64_TOLERANCE * max(norm, floor * max(largest, 1.0))
            assert abs(ours - norm) <= max(limit, 1e-14), f"{self.id} grad of {name}: norm {ours} vs {norm}"


Check = Callable[[GoldenCase], None]


def find_cases(folder: Path) -> list[GoldenCase]:
    """Every case below `folder`, one per JSON file."""
    return [GoldenCase(path.parent, path.stem) for path in sorted(folder.glob("*/*.json"))]


def relative_error(ours: Tensor, theirs: Tensor) -> float:
    assert ours.numel() == theirs.numel(), f"shape {tuple(ours.shape)} vs {tuple(theirs.shape)}"
    a, b = ours.double().reshape(-1), theirs.double().reshape(-1)
    assert torch.isfinite(a).all(), "not finite"
    scale = float(b.abs().max())
    difference = float((a - b).abs().max())
    return difference / scale if scale > 0 else difference


def recipe_tensor(key: str, shape: tuple[int, ...], offset: float, scale: float) -> Tensor:
    """Weights made from their name by a counter-based generator, so paper-size cases need no weight file."""
    with np.errstate(over="ignore"):
        z = np.arange(prod(shape), dtype=np.uint64)
        z += np.uint64(crc32(key.encode()) << 32)
        z += np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    unit = (z >> np.uint64(40)).astype(np.float64) / 2**23 - 1
    return torch.from_numpy((offset + scale * unit).astype(np.float32).reshape(shape))


def _cast(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    return tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor
