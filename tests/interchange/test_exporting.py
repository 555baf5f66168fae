"""What we export, read by plain h5py and by our own importer, is what was in the store."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from marble.bags.augment import canonical
from marble.bags.bag import Bag
from marble.bags.provenance import EncoderIdentity, Geometry, Provenance, SlideIdentity
from marble.bags.record import id_of_stem
from marble.bags.store import BagStore
from marble.errors import BagError, InputError
from marble.interchange import export_store, import_levels
from tests.bags.making import random_bag

ENCODER = EncoderIdentity(name="uni_v1", dim=8, input_px=224)


def stored(root: Path, ids: tuple[str, ...] = ("a", "b"), ratios: tuple[int, ...] = (4,)) -> BagStore:
    store = BagStore(root)
    magnifications = (2.5, 10.0, 40.0)[: len(ratios) + 1]
    extents = [256 * int(np.prod(ratios[k:], dtype=int)) for k in range(len(ratios) + 1)]
    for slide in ids:
        bag = random_bag(slide, ratios=ratios)
        provenance = Provenance(
            source="marble",
            slide=SlideIdentity(name=slide, l0_width_px=9000, l0_height_px=8000, mpp=1.0, mpp_origin="test"),
            l0_origin_px=(3, 5),
            levels=tuple(
                Geometry(magnification=m, mpp=10 / m, tile_px=256, l0_extent_px=extent)
                for m, extent in zip(magnifications, extents, strict=True)
            ),
            encoders=(ENCODER,),
        )
        store.save(Bag(slide, bag.levels, provenance))
    return store


def test_names_shapes_and_attributes(tmp_path: Path) -> None:
    store = stored(tmp_path / "store")
    written = list(export_store(store.root, tmp_path / "out"))
    fine = tmp_path / "out" / "10x_256px_0px_overlap" / "features_uni_v1" / "a.h5"
    coarse = tmp_path / "out" / "2.5x_256px_0px_overlap" / "features_uni_v1" / "a.h5"
    assert {fine, coarse, tmp_path / "out" / "multilevel" / "a.h5"} <= set(written)
    assert len(written) == 6
    bag = store.load("a")
    for path, level, extent, magnification in ((coarse, bag.levels[0], 1024, 2.5), (fine, bag.levels[1], 256, 10)):
        with h5py.File(path) as file:
            assert sorted(file) == ["coords", "features"]
            features, coords = file["features"], file["coords"]
            assert (features.dtype, features.shape) == (np.float32, (len(level), 8))
            assert (coords.dtype, coords.shape) == (np.int64, (len(level), 2))
            assert features.chunks[0] > 1
            np.testing.assert_array_equal(features[:], level.features.numpy())
            places = [[3 + col * extent, 5 + row * extent] for row, col in level.cells.tolist()]
            assert coords[:].tolist() == places
            assert dict(coords.attrs) == {
                "patch_size": 256,
                "patch_size_level0": extent,
                "level0_magnification": 10,
                "target_magnification": magnification,
                "overlap": 0,
                "name": "a",
                "savetodir": "",
                "level0_width": 9000,
                "level0_height": 8000,
            }
            assert dict(features.attrs) == {"encoder": "uni_v1", "name": "a", "savetodir": ""}
    with h5py.File(tmp_path / "out" / "multilevel" / "a.h5") as file:
        assert sorted(file["levels/1"]) == ["coords", "features", "parent"]
        assert bag.finest.parent is not None
        assert file["levels/1/parent"][:].tolist() == bag.finest.parent.tolist()
        assert "parent" not in file["levels/0"]


@pytest.mark.parametrize("ratios", [(4,), (2, 4)])
@pytest.mark.parametrize("together", [True, False])
def test_round_trip(tmp_path: Path, ratios: tuple[int, ...], together: bool) -> None:
    store = stored(tmp_path / "store", ratios=ratios)
    out = tmp_path / "out"
    list(export_store(store.root, out))
    magnifications = (2.5, 10.0, 40.0)[: len(ratios) + 1]
    if together:
        result = import_levels([f"{one:g}:{out / 'multilevel'}" for one in magnifications], tmp_path / "back")
    else:
        levels = [f"{m:g}:{out / f'{m:g}x_256px_0px_overlap'}" for m in magnifications]
        result = import_levels(levels, tmp_path / "back")
    assert result.failed == []
    assert result.verdict().startswith("nested: ")
    for slide in ("a", "b"):
        before, after = canonical(store.load(slide)), BagStore(tmp_path / "back").load(slide)
        shift = [int(after.levels[0].cells[0, i] - before.levels[0].cells[0, i]) for i in (0, 1)]
        for k, (one, other) in enumerate(zip(before.levels, after.levels, strict=True)):
            assert torch.equal(one.features, other.features)
            assert one.ratio == other.ratio
            scale = int(np.prod(ratios[:k], dtype=int))
            assert torch.equal(one.cells + torch.tensor(shift, dtype=torch.int32) * scale, other.cells)
            if one.parent is not None:
                assert other.parent is not None
                assert torch.equal(one.parent, other.parent)
        assert [g.l0_extent_px for g in after.provenance.levels] == [g.l0_extent_px for g in before.provenance.levels]
        assert {e.name for e in after.provenance.encoders} == {"uni_v1"}


def test_the_same_store_gives_the_same_bytes(tmp_path: Path) -> None:
    store = stored(tmp_path / "store")
    first = {path.relative_to(tmp_path / "x"): path.read_bytes() for path in export_store(store.root, tmp_path / "x")}
    again = {path.relative_to(tmp_path / "y"): path.read_bytes() for path in export_store(store.root, tmp_path / "y")}
    assert first == again


def test_ids_come_back_as_they_were(tmp_path: Path) -> None:
    ids = ("with space ü", "100%", "-minus", "a/b", "%C3", "Ä.1", "Store", "l" + "ong" * 80, "ü" * 60)
    list(export_store(stored(tmp_path / "store", ids=ids).root, tmp_path / "out"))
    result = import_levels(
        [f"{m:g}:{tmp_path / 'out' / f'{m:g}x_256px_0px_overlap'}" for m in (2.5, 10)], tmp_path / "back"
    )
    assert result.failed == []
    assert set(BagStore(tmp_path / "back").slide_ids()) == set(ids)


def test_names_of_other_tools_are_ids_as_they_are() -> None:
    for name in ("a%20b", "50%", "%zz", "x%C3%28"):
        assert id_of_stem(name) == name


def test_names_cannot_leave_the_folder(tmp_path: Path) -> None:
    store = stored(tmp_path / "store", ids=("../../evil",))
    for path in export_store(store.root, tmp_path / "out"):
        assert path.resolve().is_relative_to((tmp_path / "out").resolve())


def test_what_cannot_be_exported_says_why(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no bags here"):
        list(export_store(tmp_path, tmp_path / "out"))
    BagStore(tmp_path / "plain").save(random_bag("a"))
    with pytest.raises(BagError, match="does not know its tiles' size"):
        list(export_store(tmp_path / "plain", tmp_path / "out"))
