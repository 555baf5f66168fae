"""Zarr stores: what would unpickle, overflow or read as zeros is refused before it is decoded; outlines are squares."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marble.errors import BagError, IntegrityError, MarbleError
from marble.interchange import import_levels
from marble.interchange.lazyslide import _square
from marble.interchange.tiles import Tiles
from marble.interchange.zarr_arrays import attributes, read_array

THIRD: dict[str, Any] = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [4, 2],
    "data_type": "float32",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 2]}},
    "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
}
SECOND: dict[str, Any] = {
    "zarr_format": 2, "shape": [4, 2], "chunks": [4, 2], "dtype": "<f4", "compressor": None, "filters": None,
    "order": "C", "fill_value": 0,
}  # fmt: skip
SHARDS = {"name": "sharding_indexed", "configuration": {"codecs": [{"name": "numcodecs.pickle"}]}}


#: what a file may say of an array that is refused, as changes to one that is read, and the reason
OF_THE_THIRD: list[tuple[dict[str, Any], str]] = [
    ({"codecs": [{"name": "numcodecs.pickle"}]}, "codec 'numcodecs.pickle' is not read"),
    ({"codecs": [SHARDS]}, "codec 'numcodecs.pickle' is not read"),
    ({"data_type": "string"}, "holds string, not numbers"),
    ({"data_type": {"name": "struct"}}, "not numbers"),
    ({"shape": [1 << 40, 64]}, "array of shape [1099511627776, 64]"),
    ({"shape": [-1, 2]}, "array of shape [-1, 2]"),
    ({"shape": [4.5, 2]}, "array of shape [4.5, 2]"),
    ({"chunk_grid": {"configuration": {"chunk_shape": [1 << 40, 2]}}}, "chunk of shape"),
    ({"codecs": "pickle"}, "codecs are not a list"),
]
OF_THE_SECOND: list[tuple[dict[str, Any], str]] = [
    ({"dtype": "|O", "filters": [{"id": "pickle"}]}, "holds |O, not numbers"),
    ({"filters": [{"id": "pickle"}]}, "codec 'pickle' is not read"),
    ({"compressor": {"id": "json2"}}, "codec 'json2' is not read"),
    ({"dtype": [["a", "<f4"]]}, "not numbers"),
    ({"chunks": [1 << 40, 2]}, "chunk of shape"),
]


@pytest.mark.parametrize(
    ("file", "claims", "said"),
    [
        *(("zarr.json", THIRD | changes, said) for changes, said in OF_THE_THIRD),
        *((".zarray", SECOND | changes, said) for changes, said in OF_THE_SECOND),
    ],
)
def test_both_versions_are_looked_at_before_they_are_decoded(
    tmp_path: Path, file: str, claims: dict[str, Any], said: str
) -> None:
    (tmp_path / "X").mkdir()
    (tmp_path / "X" / file).write_text(json.dumps(claims))
    with pytest.raises(MarbleError) as caught:
        read_array(tmp_path / "X")
    assert said in str(caught.value)


def test_attributes_are_read_without_the_package(tmp_path: Path) -> None:
    assert attributes(tmp_path) == {}
    (tmp_path / ".zattrs").write_text('{"region": "tiles"}')
    assert attributes(tmp_path) == {"region": "tiles"}
    (tmp_path / "zarr.json").write_text('{"attributes": {"region": "others"}}')
    assert attributes(tmp_path) == {"region": "others"}
    (tmp_path / "zarr.json").write_text('{"attributes": [1]}')
    with pytest.raises(IntegrityError, match="not a mapping"):
        attributes(tmp_path)


def _ring(*corners: tuple[float, float], order: str = "<") -> bytes:
    head = (b"\x01" if order == "<" else b"\x00") + struct.pack(f"{order}III", 3, 1, len(corners))
    return head + b"".join(struct.pack(f"{order}dd", *corner) for corner in corners)


def test_outlines_are_squares() -> None:
    for order in "<>":
        ring = _ring((300, 20), (300, 148), (172, 148), (172, 20), (300, 20), order=order)
        assert _square(ring) == (172, 20, 128)
    with pytest.raises(ValueError, match="no square"):
        _square(_ring((0, 0), (0, 128), (64, 128), (64, 0), (0, 0)))
    with pytest.raises(ValueError, match="no rectangle"):
        _square(_ring((0, 0), (0, 128), (64, 128), (0, 0)))
    with pytest.raises(struct.error):
        _square(b"\x01\x03")


def _store(folder: Path, *, second: bool = False, numbered: bool = True) -> dict[str, Any]:
    """A store as LazySlide lays it out: two coarse tiles and the eight fine ones in the upper half of each."""
    zarr, pyarrow = pytest.importorskip("zarr"), pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rng = np.random.default_rng(4)
    root = zarr.open_group(str(folder), mode="w", zarr_format=2 if second else 3)
    root.attrs["slide_properties"] = {"shape": [600, 1200], "mpp": 0.5}
    root.attrs["tile_spec"] = {"low": {"width": 128, "mpp": 2.0}, "high": {"width": 128, "mpp": 0.5}}
    places = {"low": [(0, 0), (512, 0)], "high": [(x, y) for x in range(0, 1024, 128) for y in (0, 128)]}
    made: dict[str, Any] = {}
    for region, extent in (("low", 512), ("high", 128)):
        count = len(places[region])
        order = rng.permutation(count)  # features need not stand in the order of the outlines
        features = rng.normal(size=(count, 5)).astype(np.float32)
        table = root.create_group(f"tables/net_{region}")
        table.attrs.update({"region": region, "region_key": "library_id", "instance_key": "tile_id"})
        table.create_array("X", data=features, chunks=(3, 5))
        table.create_group("obs").create_array("tile_id", data=order.astype(np.int64))
        rings = [_ring((x + extent, y), (x + extent, y + extent), (x, y + extent), (x, y), (x + extent, y))
                 for x, y in places[region]]  # fmt: skip
        columns = {"geometry": rings} | ({"tile_id": list(range(count))} if numbered else {})
        (folder / "shapes" / region).mkdir(parents=True)
        parquet.write_table(pyarrow.table(columns), folder / "shapes" / region / "shapes.parquet")
        made[region] = features, np.array(places[region])[order]
    return made


@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("numbered", [False, True])
def test_two_levels_of_one_store(tmp_path: Path, second: bool, numbered: bool) -> None:
    from marble.interchange.finding import read_level
    from marble.interchange.tiles import LevelHints

    made = _store(tmp_path / "in" / "S1.zarr", second=second, numbered=numbered)
    for magnification, region, extent in ((5, "low", 512), (20, "high", 128)):
        tiles: Tiles = read_level(tmp_path / "in" / "S1.zarr", LevelHints(magnification=magnification))
        np.testing.assert_array_equal(tiles.features, made[region][0])
        np.testing.assert_array_equal(tiles.xy, made[region][1])
        assert (tiles.extent, tiles.tile_px, tiles.encoder, tiles.tool) == (extent, 128, "net", "lazyslide")
        assert (tiles.slide_size_px, tiles.slide_mpp) == ((1200, 600), 0.5)
    result = import_levels([f"5:{tmp_path / 'in'}", f"20:{tmp_path / 'in'}"], tmp_path / "store")
    assert result.failed == []
    assert result.verdict().startswith("nested: of 16 fine tiles in 1 slides 100 % lie inside their parent")


def test_a_store_that_lacks_something_says_what(tmp_path: Path) -> None:
    from marble.interchange.finding import read_level
    from marble.interchange.tiles import LevelHints

    path = tmp_path / "S1.zarr"
    _store(path)
    with pytest.raises(BagError, match="no tiles at 10x, but at 20x, 5x"):
        read_level(path, LevelHints(magnification=10))
    shutil.copytree(path / "tables" / "net_high", path / "tables" / "other_high")
    with pytest.raises(BagError, match="holds features of net, other"):
        read_level(path, LevelHints(magnification=20))
    assert read_level(path, LevelHints(magnification=20, encoder="other")).encoder == "other"
    shutil.rmtree(path / "tables" / "net_high" / "X" / "c" / "1")
    with pytest.raises(IntegrityError, match="1 of 6 chunks are missing"):
        read_level(path, LevelHints(magnification=20, encoder="net"))
    (path / "shapes" / "low" / "shapes.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(IntegrityError, match="outlines cannot be read"):
        read_level(path, LevelHints(magnification=5))
    shutil.rmtree(path / "tables")
    with pytest.raises(BagError, match="no table of features"):
        read_level(path, LevelHints(magnification=5))
