"""Slides that show the same tissue are found, whatever was done to the file; different tissue is not taken for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from marble.bags import Bag, Level, lookalikes
from marble.bags.lookalikes import FEWEST, NEIGHBOURS, THRESHOLD, Look, Lookalikes, agreement, alike

DIM = 24


def drawn(seed: int, side: int = 12) -> Look:
    """A slide whose tiles differ from place to place as tissue does: neighbours are alike, and all are of one kind."""
    rng = np.random.default_rng(seed)
    waves = rng.normal(size=(4, DIM))
    rows, cols = np.divmod(np.arange(side * side), side)
    phases = rng.uniform(0, 2 * np.pi, size=(4, 1))
    pace = rng.uniform(0.2, 0.6, size=(4, 2))
    height = np.sin(pace[:, :1] * rows + pace[:, 1:] * cols + phases)  # (4, T)
    tokens = height.T @ waves + 0.3 * rng.normal(size=(side * side, DIM)) + 2
    return Look(f"s{seed:04}", tokens.astype(np.float32), np.stack([rows, cols], axis=1))


def scanned_again(look: Look, seed: int, noise: float = 0.2, shift: tuple[int, int] = (0, 0)) -> Look:
    """With other noise, another stain, the lattice elsewhere, tiles missing, and in another order."""
    rng = np.random.default_rng(seed)
    kept = rng.permutation(len(look.cells))[: int(0.8 * len(look.cells))]
    tokens = look.tokens + noise * rng.normal(size=look.tokens.shape) + rng.normal(size=DIM)
    return Look(f"{look.slide_id} again", tokens[kept].astype(np.float32), look.cells[kept] + np.array(shift))


def among(looks: Sequence[Look]) -> list[Lookalikes]:
    return alike([look.slide_id for look in looks], {look.slide_id: look for look in looks}.get)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("shift", [(0, 0), (3, -2)])
def test_a_slide_scanned_again_is_found_and_no_other(seed: int, shift: tuple[int, int]) -> None:
    looks = [drawn(number) for number in range(100 * seed, 100 * seed + 30)]
    again = scanned_again(looks[seed], seed, shift=shift)
    (found,) = among([*looks, again])
    assert {found.one, found.other} == {looks[seed].slide_id, again.slide_id}
    assert found.share > THRESHOLD


def test_slides_that_are_nothing_but_alike_everywhere_are_not_taken_for_one() -> None:
    plain = [replace(drawn(number), tokens=np.ones((144, DIM), np.float32)) for number in range(5)]
    assert among(plain) == []
    assert among(plain[:1]) == among([]) == []


def test_few_tiles_tell_nothing() -> None:
    def bag(tiles: int) -> Bag:
        cells = np.stack(np.divmod(np.arange(tiles), 4), axis=1)
        return Bag("s", [Level(torch.rand(tiles, 3), torch.from_numpy(cells))])

    assert Look.of(bag(FEWEST - 1)) is None
    assert Look.of(bag(FEWEST)) is not None


def test_a_thousand_slides_are_few_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[str, str]] = []

    def count(one: Look, other: Look) -> float:
        compared.append((one.slide_id, other.slide_id))
        return 0.0

    monkeypatch.setattr(lookalikes, "agreement", count)
    assert among([drawn(number, side=4) for number in range(1000)]) == []
    assert len(set(compared)) == len(compared) <= 2 * 1000 * NEIGHBOURS


@pytest.mark.parametrize("name", ["atlas", "glas"])
def test_no_two_real_slides_are_taken_for_one(shared_data: Path, name: str) -> None:
    """Every pair of the real bags, not only neighbours; the most alike is far below the threshold."""
    looks = [look for path in sorted((shared_data / "bags" / name / "features").glob("*.h5")) if (look := real(path))]
    worst = max(agreement(one, other) for one, other in combinations(looks, 2))
    assert worst < THRESHOLD - 0.1
    again = [scanned_real(look, number) for number, look in enumerate(looks[:20])]
    assert min(agreement(one, other) for one, other in zip(looks, again, strict=False)) > THRESHOLD


def real(path: Path) -> Look | None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path) as file:
        groups = [file["level0"], file["level1"]]
        group = groups[0] if len(groups[0]["features"]) >= lookalikes.ENOUGH else groups[1]
        tokens: NDArray[np.float32] = group["features"][:].astype(np.float32)
        corners = group["coords"][:].astype(np.int64)
    steps = np.unique(corners[:, 0])
    cells = corners // int(np.diff(steps).min()) if len(steps) > 1 else corners
    return Look(path.stem, tokens, cells) if len(tokens) >= FEWEST else None


def scanned_real(look: Look, seed: int) -> Look:
    """With noise a third as large as what sets the slide's tiles apart."""
    rng = np.random.default_rng(seed)
    noise = look.tokens.std(axis=0) * rng.normal(size=look.tokens.shape) / 3
    return replace(look, tokens=(look.tokens + noise).astype(np.float32), cells=look.cells + 5)
