"""Real feature files, as other tools wrote them."""

from __future__ import annotations

import shutil
from pathlib import Path

import h5py
import numpy as np

from marble.bags.store import BagStore
from marble.interchange import ImportSpec, import_levels


def test_files_of_another_tool(tmp_path: Path, shared_data: Path) -> None:
    """One holds features and coordinates; the other names its tiles in strings and has no coordinates."""
    result = import_levels([f"20:{shared_data / 'features'}"], tmp_path / "store", ImportSpec(tile_px=256))
    assert [slide for slide, _ in result.failed] == ["TCGA-3X-AAVA-01Z-00-DX1"]
    assert "no coordinates: none of coords, coordinates among features, metadata" in result.failed[0][1]
    bag = BagStore(tmp_path / "store").load("TCGA-AD-6964-01Z-00-DX1")
    assert bag.finest.features.shape == (777, 512)
    assert bag.provenance.levels[0].l0_extent_px == 512
    with h5py.File(shared_data / "features" / "TCGA-AD-6964-01Z-00-DX1.h5") as file:
        coords, features = file["coords"][:], file["feats"][:]
    order = np.lexsort((coords[:, 0], coords[:, 1]))
    np.testing.assert_array_equal(bag.finest.features.numpy(), features[order])
    origin = np.array(bag.provenance.l0_origin_px)
    np.testing.assert_array_equal(bag.finest.cells.numpy()[:, ::-1] * 512 + origin, coords[order])


def test_bags_of_real_slides(tmp_path: Path, shared_data: Path) -> None:
    for name, magnifications, ratio in (("atlas", (2.5, 10), 4), ("glas", (10, 20), 2)):
        folder = tmp_path / name
        folder.mkdir()
        sources = sorted((shared_data / "bags" / name / "features").glob("*.h5"))[:4]
        for source in sources:
            shutil.copyfile(source, folder / source.name)
        result = import_levels([f"{one}:{folder}" for one in magnifications], tmp_path / f"{name}-store")
        assert result.failed == []
        assert result.verdict().startswith("nested: ")
        store = BagStore(tmp_path / f"{name}-store")
        for source in sources:
            bag = store.load(source.stem)
            fine = bag.levels[1]
            assert fine.ratio == ratio
            assert fine.parent is not None
            with h5py.File(source) as file:
                groups = [{key: file[f"level{k}/{key}"][:] for key in file[f"level{k}"]} for k in (0, 1)]
            orders = [np.lexsort((group["coords"][:, 0], group["coords"][:, 1])) for group in groups]
            for level, group, order in zip(bag.levels, groups, orders, strict=True):
                np.testing.assert_array_equal(level.features.numpy(), group["features"][order])
            wanted = groups[1]["parent"][orders[1]]
            np.testing.assert_array_equal(orders[0][fine.parent.numpy()], wanted)
