"""Damaged copies of a good slide."""

from __future__ import annotations

from pathlib import Path

import numpy as np

KINDS = ("truncate", "header", "directory", "data", "block")


def mutated(good: Path, folder: Path, count: int, seed: int) -> list[Path]:
    """`count` copies, damaged in five ways by turns; the same seed gives the same damage."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    whole = good.read_bytes()
    paths = []
    for i in range(count):
        kind = KINDS[i % len(KINDS)]
        path = folder / f"bad-{i:03d}-{kind}{good.suffix}"
        path.write_bytes(_damage(whole, kind, rng))
        paths.append(path)
    return paths


def _damage(whole: bytes, kind: str, rng: np.random.Generator) -> bytes:
    data = bytearray(whole)
    if kind == "truncate":
        return bytes(data[: int(rng.integers(1, len(data)))])
    if kind == "block":
        at = int(rng.integers(0, max(1, len(data) - 4096)))
        data[at : at + 4096] = bytes(min(4096, len(data) - at))
        return bytes(data)
    # The first directory starts right behind the header of the files that the tests write.
    low, high = {"header": (0, 16), "directory": (8, 700), "data": (700, len(data))}[kind]
    for at in rng.integers(low, min(high, len(data)), size=int(rng.integers(1, 9))):
        data[int(at)] ^= int(rng.integers(1, 256))
    return bytes(data)
