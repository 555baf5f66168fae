"""HDF5 files made to read elsewhere, to run something, to fill the memory, or simply broken: refused by name."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from marble.bags.store import BagStore
from marble.errors import BagError, MarbleError
from marble.interchange import import_levels
from marble.interchange.hdf5 import open_foreign
from tests.interchange.making import truth, write_trident

FEATURES = np.arange(12, dtype=np.float32).reshape(4, 3)
COORDS = np.array([[0, 0], [256, 0], [0, 256], [256, 256]])
SECRET = b"0123456789abcdef" * 8


def external_link(file: Any, outside: Path) -> None:
    file["features"] = h5py.ExternalLink(str(outside / "other.h5"), "/features")


def soft_link(file: Any, outside: Path) -> None:
    file["real"] = FEATURES
    file["features"] = h5py.SoftLink("/real")


def link_deep_inside(file: Any, outside: Path) -> None:
    file["features"] = FEATURES
    file.create_group("a/b/c")["features"] = h5py.ExternalLink(str(outside / "other.h5"), "/features")


def loop(file: Any, outside: Path) -> None:
    file["features"] = FEATURES
    file["a"] = file["/"]


def virtual(file: Any, outside: Path) -> None:
    layout = h5py.VirtualLayout((4, 3), np.float32)
    layout[:] = h5py.VirtualSource(str(outside / "other.h5"), "features", (4, 3))
    file.create_virtual_dataset("features", layout)


def external_storage(file: Any, outside: Path) -> None:
    file.create_dataset("features", (4, 3), np.float32, external=[(str(outside / "secret.bin"), 0, 48)])


def external_storage_elsewhere(file: Any, outside: Path) -> None:
    file["features"] = FEATURES
    file.create_dataset("harmless", (4, 3), np.float32, external=[(str(outside / "secret.bin"), 0, 48)])


def objects(file: Any, outside: Path) -> None:
    file.create_dataset("features", data=["a", "b", "c", "d"], dtype=h5py.string_dtype())


def references(file: Any, outside: Path) -> None:
    file.create_dataset("features", (4, 3), h5py.ref_dtype)


def ragged(file: Any, outside: Path) -> None:
    file.create_dataset("features", (4,), h5py.vlen_dtype(np.float32))


def records(file: Any, outside: Path) -> None:
    file["features"] = np.zeros(4, [("a", "f4"), ("b", "f4")])


def strings(file: Any, outside: Path) -> None:
    file["features"] = np.full((4, 3), b"7")


def never_written(file: Any, outside: Path) -> None:
    file.create_dataset("features", (1000, 100), np.float32, chunks=(10, 100))


def half_written(file: Any, outside: Path) -> None:
    file.create_dataset("features", (4, 3), np.float32, chunks=(1, 3))[:3] = FEATURES[:3]


def enormous(file: Any, outside: Path) -> None:
    file.create_dataset("features", (10**9, 1024), np.float32, chunks=(1024, 1024))


def gzip_bomb(file: Any, outside: Path) -> None:
    file.create_dataset("features", data=np.zeros((20_000, 512), np.float32), compression=9, chunks=(5000, 512))


def strange_filter(file: Any, outside: Path) -> None:
    file.create_dataset("features", data=FEATURES.astype(np.int32), scaleoffset=4, chunks=(4, 3))


def not_a_number(file: Any, outside: Path) -> None:
    file["features"] = np.where(FEATURES == 7, np.nan, FEATURES)


def infinite(file: Any, outside: Path) -> None:
    file["features"] = np.where(FEATURES == 7, np.inf, FEATURES).astype(np.float16)


def overflow(file: Any, outside: Path) -> None:
    file["features"] = np.where(FEATURES == 7, 1e300, FEATURES.astype(np.float64))


def no_tiles(file: Any, outside: Path) -> None:
    file["features"] = FEATURES[:0]


def one_short(file: Any, outside: Path) -> None:
    file["features"] = FEATURES[:3]


def whole_numbers(file: Any, outside: Path) -> None:
    file["features"] = FEATURES.astype(np.int64)


def no_features(file: Any, outside: Path) -> None:
    file["imgs"] = np.zeros((4, 2, 2, 3), np.uint8)


def slide_vector(file: Any, outside: Path) -> None:
    file["features"] = FEATURES[0]


def features_only(file: Any, outside: Path) -> None:
    file["features"] = FEATURES
    del file["coords"]


def with_coords(values: Any) -> Callable[[Any, Path], None]:
    def make(file: Any, outside: Path) -> None:
        file["features"] = FEATURES
        del file["coords"]
        file["coords"] = values

    return make


CASES: list[tuple[Callable[[Any, Path], None], str]] = [
    (external_link, "'features' is an external link"),
    (soft_link, "'features' is a soft link"),
    (link_deep_inside, "'a/b/c/features' is an external link"),
    (loop, "'a' is reached in two ways"),
    (virtual, "'features' is a virtual dataset"),
    (external_storage, "'features' has external storage"),
    (external_storage_elsewhere, "'harmless' has external storage"),
    (objects, "'features' holds variable-length"),
    (references, "'features' holds variable-length values or references"),
    (ragged, "'features' holds variable-length"),
    (records, "'features' holds records"),
    (strings, "features must be (N, D) floats"),
    (never_written, "'features' was declared but never written"),
    (half_written, "'features' was not written to its end: 1 of its chunks are missing"),
    (enormous, "'features' declares 4,096,000,000,000 bytes"),
    (gzip_bomb, "'features' declares 40,960,000 bytes in a file of"),
    (strange_filter, "'features' uses HDF5 filter 6"),
    (not_a_number, "'features' holds NaN or infinity in row 2"),
    (infinite, "'features' holds NaN or infinity in row 2"),
    (overflow, "overflow float32"),
    (no_tiles, "no tiles"),
    (one_short, "3 features but 4 coordinates"),
    (whole_numbers, "features must be (N, D) floats"),
    (no_features, "no features: none of features, feats, patch_embeddings, embeddings among coords, imgs"),
    (slide_vector, "features must be (N, D) floats, got (3,)"),
    (features_only, "no coordinates"),
    (with_coords(COORDS - 1), "coordinates [-1.0, -1.0] of row 0 are negative"),
    (with_coords(COORDS + 2**40), "beyond any slide"),
    (with_coords(np.where(COORDS == 0, np.nan, COORDS)), "'coords' holds NaN or infinity in row 0"),
    (with_coords(COORDS[:, :1]), "coordinates must be (N, 2)"),
    (with_coords(COORDS.astype("S")), "coordinates must be (N, 2) numbers"),
]


@pytest.mark.parametrize(("make", "reason"), CASES, ids=[f"{i}-{case[0].__name__}" for i, case in enumerate(CASES)])
def test_refused(tmp_path: Path, make: Callable[[Any, Path], None], reason: str) -> None:
    folder, outside = tmp_path / "in", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    (outside / "secret.bin").write_bytes(SECRET)
    with h5py.File(outside / "other.h5", "w") as file:
        file["features"] = FEATURES
    with h5py.File(folder / "bad.h5", "w") as file:
        file["coords"] = COORDS
        make(file, outside)
    made = truth()
    write_trident(folder / "good.h5", made.coarse, made.coarse_xy, 1024, 10)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = import_levels([f"10:{folder}"], tmp_path / "store")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB
    (slide, why) = result.failed[0]
    assert (slide, len(result.failed)) == ("bad", 1)
    assert "bad.h5: " in why
    assert reason in why
    store = BagStore(tmp_path / "store")
    assert store.slide_ids() == ["good"]
    assert store.record("bad").reason == why


@pytest.fixture(scope="module")
def good_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    made = truth()
    path = tmp_path_factory.mktemp("good") / "good.h5"
    write_trident(path, made.fine, made.fine_xy, 256, 40)
    return path.read_bytes()


@pytest.mark.parametrize("tenth", range(10))
def test_truncated(tmp_path: Path, good_bytes: bytes, tenth: int) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "cut.h5").write_bytes(good_bytes[: len(good_bytes) * tenth // 10])
    (slide, reason) = import_levels([f"40:{folder}"], tmp_path / "store").failed[0]
    assert slide == "cut"
    assert "cut.h5" in reason
    assert "cannot be read" in reason or "not an HDF5 file" in reason


def test_flipped_bytes_are_refused_or_harmless(tmp_path: Path, good_bytes: bytes) -> None:
    """Whatever a byte does, only our own errors come out, and what is read has the shape it claims."""
    rng = np.random.default_rng(0)
    for number in range(150):
        damaged = bytearray(good_bytes)
        damaged[int(rng.integers(0, min(len(damaged), 6000)))] ^= 1 << int(rng.integers(8))
        path = tmp_path / f"{number}.h5"
        path.write_bytes(damaged)
        try:
            with open_foreign(path) as file:
                for name in file.datasets:
                    file.attributes(name)
                    assert file.numbers(name).shape == file.shape(name)
        except MarbleError as error:
            assert path.name in str(error)  # noqa: PT017


def test_a_heap_that_would_be_walked_for_ever(tmp_path: Path, good_bytes: bytes) -> None:
    """Free space that claims no size: asked for a string of this heap, the HDF5 library never returns."""
    heap = good_bytes.index(b"GCOL")
    size = int.from_bytes(good_bytes[heap + 8 : heap + 16], "little")
    last = next(at for at in range(heap + size - 16, heap, -8) if good_bytes[at : at + 8] == bytes(8)
                and int.from_bytes(good_bytes[at + 8 : at + 16], "little") == heap + size - at)  # fmt: skip
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "stuck.h5").write_bytes(good_bytes[: last + 8] + bytes(8) + good_bytes[last + 16 :])
    reason = import_levels([f"40:{folder}"], tmp_path / "store").failed[0][1]
    assert "stuck.h5: attributes of 'coords' cannot be read: a heap of strings in the file is damaged" in reason


def test_a_limit_may_be_set(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["features"] = FEATURES
    with open_foreign(tmp_path / "a.h5", max_bytes=47) as opened, pytest.raises(BagError, match="the limit is 47"):
        opened.numbers("features")
    with open_foreign(tmp_path / "a.h5", max_bytes=48) as opened:
        np.testing.assert_array_equal(opened.numbers("features"), FEATURES)


@pytest.mark.parametrize(
    "options", [{"compression": "gzip"}, {"compression": "lzf"}, {"shuffle": True}, {"fletcher32": True}]
)
def test_usual_filters_are_read(tmp_path: Path, options: dict[str, Any]) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("features", data=FEATURES, chunks=(2, 3), **options)
    with open_foreign(tmp_path / "a.h5") as opened:
        np.testing.assert_array_equal(opened.numbers("features"), FEATURES)
