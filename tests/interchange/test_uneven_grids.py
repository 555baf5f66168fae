"""Grids whose sides have no whole ratio (4 tiles of 256 in one of 1004): parents and places, over a whole slide."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from marble.bags.store import BagStore
from tests.cli.commands import marble

WIDTH = 200_000


def write(folder: Path, extent: int, magnification: int) -> np.ndarray:
    """A band of tiles across a wide slide; a token names its tile."""
    folder.mkdir(parents=True)
    x, y = np.meshgrid(np.arange(0, WIDTH - extent, extent), np.arange(0, 2048, extent))
    xy = np.stack([x.ravel(), y.ravel()], axis=1)
    with h5py.File(folder / "s.h5", "w") as file:
        file["features"] = np.stack([np.arange(len(xy)) // 1000, np.arange(len(xy)) % 1000], 1).astype(np.float32)
        coords = file.create_dataset("coords", data=xy)
        about = {"patch_size": 256, "patch_size_level0": extent, "target_magnification": magnification, "overlap": 0}
        coords.attrs.update({**about, "level0_magnification": 40, "level0_width": WIDTH, "level0_height": 2048})
    return xy


def rows(features: np.ndarray) -> np.ndarray:
    """Of the file, from the tokens."""
    return np.asarray(features[:, 0] * 1000 + features[:, 1], np.int64)


@pytest.mark.parametrize(("coarse", "fine"), [(1024, 256), (1014, 254), (1004, 256), (1040, 256)])
def test_a_fine_tile_lies_where_it_lay_and_in_its_parent(tmp_path: Path, coarse: int, fine: int) -> None:
    xy = [write(tmp_path / "10x", coarse, 10), write(tmp_path / "40x", fine, 40)]
    words = ("--level", f"10:{tmp_path / '10x'}", "--level", f"40:{tmp_path / '40x'}", "--store", tmp_path / "bags")
    assert marble("import", *words, "--encoder", "x").code == 0
    bag = BagStore(tmp_path / "bags").load("s")
    of = [rows(level.features.numpy()) for level in bag.levels]
    assert bag.finest.parent is not None
    corner = xy[0][of[0]][bag.finest.parent.numpy()]
    centre = xy[1][of[1]] + fine / 2
    assert ((centre >= corner) & (centre < corner + coarse)).all()

    for k, extent in enumerate((coarse, fine)):  # heatmaps and the viewer draw these
        off = np.abs(bag.boxes(k)[:, :2] - xy[k][of[k]]).max()
        assert off <= (0 if k == 0 or coarse == 4 * fine else extent / 2 + 1)
        assert (bag.boxes(k)[:, 2:] == extent).all()

    assert marble("export", tmp_path / "bags", "--out", tmp_path / "out").code == 0
    with h5py.File(next((tmp_path / "out").glob("40x*/*/s.h5"))) as file:
        assert np.abs(file["coords"][:] - xy[1][rows(file["features"][:])]).max() <= fine / 2 + 1
