"""Checkpoints: directories published by rename, each with the hashes of its files; the newest that verifies wins."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from marble import files
from marble.bags.tensors import map_file, to_bytes
from marble.errors import IntegrityError, MarbleError
from marble.specs import canonical_json

_NAME = re.compile(r"epoch-(\d{4,})$")  # four digits, and more from epoch 10000 on
KEEP = 2


@dataclass(frozen=True)
class Checkpoint:
    """One verified checkpoint on disk."""

    folder: Path
    epoch: int
    state: dict[str, Any]

    def tensors(self, part: str) -> dict[str, Tensor]:
        """The tensors of `part` (model, optimizer, criterion), as copies that outlive the file."""
        found, _ = map_file(self.folder / f"{part}.safetensors")
        return {name: tensor.clone() for name, tensor in found.items()}


def save_checkpoint(root: Path, epoch: int, parts: Mapping[str, Mapping[str, Tensor]], state: dict[str, Any]) -> Path:
    """Publish `root/epoch-NNNN` whole: the tensors of every part, then the state with their hashes."""

    def fill(folder: Path) -> None:
        hashes = {}
        for name, tensors in parts.items():
            data = to_bytes({key: tensor.cpu() for key, tensor in tensors.items()}, {"part": name, "epoch": epoch})
            (folder / f"{name}.safetensors").write_bytes(data)
            hashes[name] = files.sha256_bytes(data)
        body = {"epoch": epoch, "state": state, "sha256": hashes}
        (folder / "state.json").write_bytes(canonical_json(body))

    target = root / f"epoch-{epoch:04d}"
    if target.exists():  # a damaged one that was passed over when resuming
        files.remove_folder(target)
    return files.publish_directory(target, fill)


def load_checkpoint(folder: Path) -> Checkpoint:
    """Open one checkpoint, comparing every file with its hash."""
    body = files.read_json(folder / "state.json")
    try:
        for name, recorded in body["sha256"].items():
            if files.sha256_file(folder / f"{name}.safetensors") != recorded:
                raise IntegrityError(f"{name}.safetensors changed since it was written", where=folder)
        return Checkpoint(folder, int(body["epoch"]), body["state"])
    except (KeyError, TypeError, FileNotFoundError) as error:
        raise IntegrityError(f"incomplete checkpoint: {error}", where=folder) from None


def newest(root: Path) -> Checkpoint | None:
    """The newest checkpoint that verifies; damaged ones are passed over."""
    for epoch in sorted(_epochs(root), reverse=True):
        try:
            return load_checkpoint(root / f"epoch-{epoch:04d}")
        except MarbleError:
            continue
    return None


def prune(root: Path, best: int) -> None:
    """Remove all but the newest `KEEP` checkpoints and the best one."""
    epochs = sorted(_epochs(root))
    for epoch in epochs[:-KEEP]:
        if epoch != best:
            files.remove_folder(root / f"epoch-{epoch:04d}")


def _epochs(root: Path) -> list[int]:
    names = (_NAME.match(path.name) for path in root.iterdir()) if root.is_dir() else ()
    return [int(match[1]) for match in names if match]
