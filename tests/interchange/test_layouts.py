"""Every tool's layout, written from one truth, gives that truth back: features, cells and parents."""

from __future__ import annotations

import csv
import json
import pickle
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from marble.bags.bag import Bag
from marble.bags.store import BagStore
from marble.compute import Processes
from marble.errors import InputError
from marble.interchange import ImportResult, ImportSpec, import_levels
from tests.interchange.making import Truth, truth, write_clam, write_plain, write_stamp, write_trident

SLIDE = "TCGA-05-4244-01Z"


def imported(tmp: Path, coarse: Path, fine: Path, **options: Any) -> tuple[Bag, ImportResult]:
    store = tmp / "store"
    result = import_levels([f"40x:{fine}", f"10:{coarse}"], store, ImportSpec(**options))
    assert result.failed == []
    return BagStore(store).load(SLIDE), result


def assert_is(bag: Bag, made: Truth, tolerance: float = 0) -> None:
    """By features, which are all different: the right cell and the right parent."""
    coarse, fine = bag.levels
    assert fine.parent is not None
    assert (len(coarse), len(fine)) == (len(made.coarse), len(made.fine))
    top = [int(np.abs(made.coarse - row).sum(1).argmin()) for row in coarse.features.float().numpy()]
    low = [int(np.abs(made.fine - row).sum(1).argmin()) for row in fine.features.float().numpy()]
    np.testing.assert_allclose(coarse.features.float().numpy(), made.coarse[top], atol=tolerance, rtol=tolerance)
    np.testing.assert_allclose(fine.features.float().numpy(), made.fine[low], atol=tolerance, rtol=tolerance)
    assert [top[p] for p in fine.parent.tolist()] == made.parent[low].tolist()
    cells = made.fine_xy[low][:, ::-1] // made.extents[1]
    np.testing.assert_array_equal(cells - cells[0], fine.cells.numpy() - fine.cells.numpy()[0])


def test_trident(tmp_path: Path) -> None:
    made = truth()
    write_trident(tmp_path / "10x" / "features_uni_v1" / f"{SLIDE}.h5", made.coarse, made.coarse_xy, 1024, 10)
    write_trident(tmp_path / "40x" / "features_uni_v1" / f"{SLIDE}.h5", made.fine, made.fine_xy, 256, 40)
    bag, result = imported(tmp_path, tmp_path / "10x", tmp_path / "40x" / "features_uni_v1")
    assert_is(bag, made)
    assert result.verdict().startswith("nested: ")
    origin = bag.provenance
    assert (origin.source, origin.l0_origin_px) == ("trident", (0, 0))
    assert [(g.magnification, g.tile_px, g.l0_extent_px) for g in origin.levels] == [(10, 256, 1024), (40, 256, 256)]
    assert [(e.name, e.dim) for e in origin.encoders] == [("uni_v1", 6)] * 2
    assert origin.slide is not None
    assert (origin.slide.l0_width_px, origin.slide.mpp) == (50_000, 0.25)
    assert "nominal" in origin.notes["mpp"]


def test_trident_of_another_magnification_is_refused(tmp_path: Path) -> None:
    made = truth()
    write_trident(tmp_path / "a" / f"{SLIDE}.h5", made.coarse, made.coarse_xy, 1024, 20)
    result = import_levels([f"10:{tmp_path / 'a'}"], tmp_path / "store")
    assert "says 20x, the level was given as 10x" in result.failed[0][1]


@pytest.mark.parametrize("patches", [True, False])
def test_clam(tmp_path: Path, patches: bool) -> None:
    made = truth(tiles=20)
    again = np.r_[np.arange(len(made.fine)), [0, 3]]  # overlapping contours give a tile twice
    write_clam(tmp_path / "10x", SLIDE, made.coarse, made.coarse_xy, 1024, patches=patches)
    write_clam(tmp_path / "40x", SLIDE, made.fine[again], made.fine_xy[again], 256, patches=patches)
    bag, result = imported(tmp_path, tmp_path / "10x", tmp_path / "40x")
    assert_is(bag, made)
    assert (result.rows[1].tiles, result.rows[1].duplicates) == (len(made.fine) + 2, 2)
    assert bag.provenance.source == "clam"
    assert [level.l0_extent_px for level in bag.provenance.levels] == ([1024, 256] if patches else [])


def test_clam_coordinates_of_another_run_are_refused(tmp_path: Path) -> None:
    made = truth()
    write_clam(tmp_path, SLIDE, made.coarse, made.coarse_xy, 1024)
    write_plain(tmp_path / "h5_files" / f"{SLIDE}.h5", features=made.coarse, coords=made.coarse_xy + 5)
    result = import_levels([f"10:{tmp_path}"], tmp_path / "store")
    assert "coordinates differ from those in" in result.failed[0][1]


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    (tmp_path / "pt_files").mkdir()
    hostile = f"cos\nsystem\n(S'touch {canary}'\ntR.".encode()
    (tmp_path / "pt_files" / "a.pt").write_bytes(hostile)
    (tmp_path / "pt_files" / "b.h5").write_bytes(hostile)
    (tmp_path / "pt_files" / "c.npy").write_bytes(hostile)
    np.save(tmp_path / "pt_files" / "d.npy", np.array([{"a": 1}], dtype=object))
    (tmp_path / "pt_files" / "e.safetensors").write_bytes(hostile)
    for name in "cde":
        np.savez(tmp_path / "pt_files" / f"{name}.index.npz", np.zeros((1, 2), int))
    (tmp_path / "pt_files" / "f.npy").write_bytes(hostile)
    (tmp_path / "pt_files" / "f.index.npz").write_bytes(pickle.dumps({"arr_0": 1}))
    reasons = dict(import_levels([f"10:{tmp_path / 'pt_files'}"], tmp_path / "store").failed)
    assert sorted(reasons) == list("abcdef")
    assert "not a file of tensors alone: it asks for os.system; nothing in it was run" in reasons["a"]
    assert "give HDF5 files" in reasons["a"]
    assert "not an HDF5 file" in reasons["b"]
    assert "pickled objects are never read" in reasons["d"]
    assert all(f"{slide}." in reason for slide, reason in reasons.items())
    assert not canary.exists()


@pytest.mark.parametrize("version", ["2.3.0", "2.0"])
@pytest.mark.parametrize("slide_mpp", [None, 0.25])
def test_stamp(tmp_path: Path, version: str, slide_mpp: float | None) -> None:
    made = truth()
    for name, features, xy, side in (("c", made.coarse, made.coarse_xy, 256.0), ("f", made.fine, made.fine_xy, 64.0)):
        write_stamp(tmp_path / name / "cohort" / f"{SLIDE}.h5", features, xy * 0.25, side, version=version)
    bag, result = imported(tmp_path, tmp_path / "c", tmp_path / "f", slide_mpp=slide_mpp, tile_px=224)
    assert_is(bag, made, tolerance=2e-3)
    assert bag.levels[0].features.dtype == torch.float16
    assert result.verdict().startswith("nested: ")
    assert [level.mpp for level in bag.provenance.levels] == pytest.approx([256 / 224, 64 / 224])
    wanted = [1024, 256] if slide_mpp else [896, 224]  # without a pixel size: in pixels of the finest tiles
    assert [level.l0_extent_px for level in bag.provenance.levels] == wanted


def test_the_first_stamp_is_known_by_its_stride(tmp_path: Path) -> None:
    made = truth(tiles=20)
    write_stamp(tmp_path / "c" / f"{SLIDE}.h5", made.coarse, made.coarse_xy * 0.25, 256.0, version="1")
    store = BagStore(tmp_path / "store")
    assert import_levels([f"10:{tmp_path / 'c'}"], store.root).failed == []
    bag = store.load(SLIDE)
    assert bag.provenance.source == "stamp 1"
    assert bag.provenance.levels[0].mpp == pytest.approx(256 / 224)
    wanted = sorted((made.coarse_xy[:, ::-1] // 1024).tolist())
    assert bag.levels[0].cells.tolist() == wanted


def test_stamp_grids_that_do_not_nest_are_said_not_to(tmp_path: Path) -> None:
    """At 0.2525 um/px STAMP's 256 um are 1014 px and its 64 um 254 px; four of those are 1016."""
    mpp = 0.2525
    grid = np.stack(np.meshgrid(np.arange(8), np.arange(8)), -1).reshape(-1, 2)
    fine = np.stack(np.meshgrid(np.arange(30), np.arange(30)), -1).reshape(-1, 2)
    rng = np.random.default_rng(0)
    for name, cells, px, um in (("c", grid, 1014, 256.0), ("f", fine, 254, 64.0)):
        features = rng.normal(size=(len(cells), 4))
        write_stamp(tmp_path / name / f"{SLIDE}.h5", features, cells * px * mpp, um, version="2.3.0")
    bag, result = imported(tmp_path, tmp_path / "c", tmp_path / "f", slide_mpp=mpp)
    row = result.rows[1]
    corner = fine * 254
    parent = (corner + 127) // 1014
    inside = ((corner >= parent * 1014) & (corner + 254 <= (parent + 1) * 1014 + 0.254)).all(1)
    assert (row.exact, row.partial, row.orphans) == (inside.sum(), (~inside).sum(), 0)
    assert (~inside).sum() > 100
    assert result.verdict().startswith("NOT nested: ")
    assert [level.l0_extent_px for level in bag.provenance.levels] == [1014, 254]


@pytest.mark.parametrize("suffix", [".npy", ".safetensors", ".h5"])
def test_slideflow(tmp_path: Path, suffix: str) -> None:
    made = truth(tiles=20)
    for name, features, xy, side in (("c", made.coarse, made.coarse_xy, 1024), ("f", made.fine, made.fine_xy, 256)):
        folder = tmp_path / name
        folder.mkdir()
        np.savez(folder / f"{SLIDE}.index.npz", xy + side // 2)
        config = {"extractor": {"class": "ctranspath"}, "tile_px": 256, "tile_um": side // 4, "num_features": 6}
        (folder / "bags_config.json").write_text(json.dumps(config))
        if suffix == ".npy":
            np.save(folder / f"{SLIDE}.npy", features)
        elif suffix == ".safetensors":
            save_file({"features": features}, folder / f"{SLIDE}.safetensors")
        else:
            write_plain(folder / f"{SLIDE}.h5", features=features)
    bag, _ = imported(tmp_path, tmp_path / "c", tmp_path / "f", slide_mpp=0.25)
    assert_is(bag, made)
    assert bag.provenance.source == "slideflow"
    assert [encoder.name for encoder in bag.provenance.encoders] == ["ctranspath"] * 2
    assert [level.mpp for level in bag.provenance.levels] == [1.0, 0.25]


def test_atlaspatch_with_two_encoders(tmp_path: Path) -> None:
    made = truth()
    for name, features, xy, side in (("c", made.coarse, made.coarse_xy, 1024), ("f", made.fine, made.fine_xy, 256)):
        wide = np.c_[xy, np.full((len(xy), 2), 256), np.zeros(len(xy))].astype(np.int32)
        path = write_plain(tmp_path / name / "patches" / f"{SLIDE}.h5", coords=wide, features__uni_v1=features)
        with h5py.File(path, "a") as file:
            file["features/other"] = features * 2
            file.attrs.update({"patch_size": 256, "patch_size_level0": side, "level0_magnification": 40})
    levels = [f"10:{tmp_path / 'c'}", f"40:{tmp_path / 'f'}"]
    result = import_levels(levels, tmp_path / "refused")
    assert "holds features of other, uni_v1" in result.failed[0][1]
    bag, _ = imported(tmp_path, tmp_path / "c", tmp_path / "f", encoder="uni_v1")
    assert_is(bag, made)
    assert bag.provenance.source == "atlaspatch"


@pytest.mark.parametrize("names", [True, False])
def test_zoommil(tmp_path: Path, names: bool) -> None:
    made = truth()
    cells = [made.coarse_xy[:, ::-1] // 1024, made.fine_xy[:, ::-1] // 256]
    stored = [np.array([f"{r}_{c}_x".encode() for r, c in one]) if names else one for one in cells]
    folder = tmp_path / "both"
    datasets = {"10x_patches": made.coarse, "10x_coords": stored[0], "40x_patches": made.fine, "40x_coords": stored[1]}
    write_plain(folder / f"{SLIDE}.h5", **datasets)
    bag, _ = imported(tmp_path, folder, folder)
    assert_is(bag, made)


@pytest.mark.parametrize("anchor", ["top-left", "centre"])
@pytest.mark.parametrize(
    ("key", "dtype"), [("features", np.float64), ("feats", np.float32), ("patch_embeddings", "f2")]
)
def test_generic_hdf5(tmp_path: Path, key: str, dtype: Any, anchor: str) -> None:
    made = truth(tiles=20)
    for name, features, xy, side in (("c", made.coarse, made.coarse_xy, 1024), ("f", made.fine, made.fine_xy, 256)):
        shift = side // 2 if anchor == "centre" else 0
        values = features[None].astype(dtype)  # (1, N, D)
        write_plain(tmp_path / name / f"{SLIDE}.h5", **{key: values}, coords=(xy + shift).astype(np.float32))
    bag, _ = imported(tmp_path, tmp_path / "c", tmp_path / "f", anchor=anchor, tile_px=256)
    assert_is(bag, made, tolerance=0 if dtype != "f2" else 2e-3)
    assert bag.provenance.source == "hdf5"


def test_the_leading_axis_of_a_batch_is_taken_from_features_and_coordinates(tmp_path: Path) -> None:
    made = truth(tiles=20)
    for name, features, xy in (("c", made.coarse, made.coarse_xy), ("f", made.fine, made.fine_xy)):
        write_plain(tmp_path / name / f"{SLIDE}.h5", features=features[None], coords=xy[None])
    bag, _ = imported(tmp_path, tmp_path / "c", tmp_path / "f", tile_px=256)
    assert_is(bag, made)
    both = {"features": torch.from_numpy(made.coarse)[None], "coords": torch.from_numpy(made.coarse_xy)[None]}
    (tmp_path / "pt").mkdir()
    torch.save(both, tmp_path / "pt" / f"{SLIDE}.pt")
    assert import_levels([f"10:{tmp_path / 'pt'}"], tmp_path / "of-pt").failed == []


def test_an_unknown_tile_size_is_asked_for(tmp_path: Path) -> None:
    xy = np.array([[0, 0], [1000, 300]])
    write_plain(tmp_path / "a" / "s.h5", features=np.ones((2, 3), np.float32), coords=xy)
    result = import_levels([f"10:{tmp_path / 'a'}"], tmp_path / "store")
    assert "with --extents" in result.failed[0][1]
    assert import_levels([f"10:{tmp_path / 'a'}"], tmp_path / "store", ImportSpec(extents=[256])).failed == []
    assert BagStore(tmp_path / "store").load("s").levels[0].cells.tolist() == [[0, 0], [1, 4]]


def test_groups_in_own_grids(tmp_path: Path) -> None:
    made = truth()
    path = write_plain(
        tmp_path / "both" / f"{SLIDE}.h5",
        level0__features=made.coarse,
        level0__coords=made.coarse_xy // 4,
        level1__features=made.fine,
        level1__coords=made.fine_xy,
        level1__parent=made.parent,
    )
    with h5py.File(path, "a") as file:
        file.attrs.update({"tile": 256, "encoder": "lite0", "mpp": [1.01, 0.2525]})
    bag, _ = imported(tmp_path, path.parent, path.parent)
    assert_is(bag, made)
    assert [level.mpp for level in bag.provenance.levels] == pytest.approx([1.01, 0.2525])
    with h5py.File(path, "a") as file:
        file["level1/parent"][0] = (made.parent[0] + 1) % len(made.coarse)
    reason = import_levels([f"10:{path.parent}", f"40:{path.parent}"], tmp_path / "store2").failed[0][1]
    assert f"row 0 names parent {(made.parent[0] + 1) % len(made.coarse)}" in reason


def test_failures_have_a_reason_and_the_rest_goes_on(tmp_path: Path) -> None:
    made = truth()
    for slide in ("good", "fine-only"):
        write_trident(tmp_path / "f" / f"{slide}.h5", made.fine, made.fine_xy, 256, 40)
    for slide in ("good", "=coarse-only"):
        write_trident(tmp_path / "c" / f"{slide}.h5", made.coarse, made.coarse_xy, 1024, 10)
    lines: list[str] = []
    audit = tmp_path / "deep" / "audit.csv"
    levels = [f"10:{tmp_path / 'c'}", f"40:{tmp_path / 'f'}"]
    result = import_levels(levels, tmp_path / "store", audit_path=audit, tell=lines.append)
    assert dict(result.failed).keys() == {"=coarse-only", "fine-only"}
    assert "no features at 40x" in dict(result.failed)["=coarse-only"]
    assert BagStore(tmp_path / "store").record("fine-only").status == "failed"
    assert BagStore(tmp_path / "store").slide_ids() == ["good"]
    assert len(lines) == 3
    table = list(csv.DictReader(audit.open()))
    assert [row["slide_id"] for row in table] == ["good", "good", "'=coarse-only", "fine-only"]
    assert table[0]["childless"] == "1"
    assert float(table[0]["childless_pct"]) == pytest.approx(100 / 7, rel=1e-5)
    assert (table[1]["exact_pct"], table[1]["orphan_pct"]) == ("100", "0")
    assert "no features at 10x" in table[3]["failed"]
    assert result.verdict().endswith("; 2 slides failed")


def test_processes_give_the_same_store(tmp_path: Path) -> None:
    made = truth()
    for slide in ("a", "b", "c"):
        write_trident(tmp_path / "c" / f"{slide}.h5", made.coarse, made.coarse_xy, 1024, 10)
    (tmp_path / "c" / "bad.h5").write_bytes(b"bad")
    here = import_levels([f"10:{tmp_path / 'c'}"], tmp_path / "here")
    there = import_levels([f"10:{tmp_path / 'c'}"], tmp_path / "there", executor=Processes(1, timeout_s=120))
    assert (here.rows, here.failed) == (there.rows, there.failed)
    written = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("here", "there")]
    assert written[0] == written[1]
    assert len(written[0]) == 9


@pytest.mark.parametrize("policy", ["drop", "nearest"])
def test_orphans(tmp_path: Path, policy: str) -> None:
    made = truth()
    beyond = made.coarse_xy.max(axis=0) + np.array([[1024, 0], [1024, 256], [1280, 0]])
    xy = np.r_[made.fine_xy, beyond]
    features = np.r_[made.fine, np.full((3, 6), 9.0, np.float32)]
    write_trident(tmp_path / "c" / f"{SLIDE}.h5", made.coarse, made.coarse_xy, 1024, 10)
    write_trident(tmp_path / "f" / f"{SLIDE}.h5", features, xy, 256, 40)
    bag, result = imported(tmp_path, tmp_path / "c", tmp_path / "f", policy=policy)
    row = result.rows[1]
    assert (row.exact, row.partial, row.orphans) == (len(made.fine), 0, 3)
    added = int((bag.finest.features == 9).all(dim=1).sum())
    assert added + row.collided == (3 if policy == "nearest" else 0)
    assert row.kept == len(made.fine) + 3 - (3 if policy == "drop" else row.collided)


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        (["ten:{}"], "is not MAGNIFICATION:FOLDER"),
        (["{}"], "is not MAGNIFICATION:FOLDER"),
        (["10:{}/missing"], "no such folder"),
        (["10:{}", "10x:{}"], "a magnification of its own"),
        (["10:{}", "40:{}"], "hold one level each"),
        ([], "a magnification of its own"),
    ],
)
def test_levels_that_make_no_sense(tmp_path: Path, levels: list[str], message: str) -> None:
    made = truth()
    write_trident(tmp_path / "s.h5", made.coarse, made.coarse_xy, 1024, 10)
    with pytest.raises(InputError, match=message):
        import_levels([level.format(tmp_path) for level in levels], tmp_path / "store")
    with pytest.raises(InputError, match="neither drop nor nearest"):
        ImportSpec(policy="guess")  # type: ignore[arg-type]


def test_a_bag_outlives_an_import_that_fails(tmp_path: Path) -> None:
    made, levels, store = truth(), [f"10:{tmp_path / 'c'}"], BagStore(tmp_path / "store")
    for slide in ("a", "b"):
        write_trident(tmp_path / "c" / f"{slide}.h5", made.coarse, made.coarse_xy, 1024, 10)
    import_levels(levels, store.root)
    before = {path.name: path.read_bytes() for path in store.root.iterdir() if path.name != "audit.csv"}

    (tmp_path / "c" / "a.h5").write_bytes(b"bad")  # damaged since
    lines: list[str] = []
    assert [slide for slide, _ in import_levels(levels, store.root, tell=lines.append).failed] == ["a"]
    assert lines[0] == "a: failed; the bag that is here already stays"
    for slide in ("a", "b"):  # features of another encoder, given the same store by mistake
        write_trident(tmp_path / "other" / f"{slide}.h5", made.coarse[:, :4], made.coarse_xy, 1024, 10)
    found = import_levels([f"10:{tmp_path / 'other'}"], store.root, ImportSpec(encoder="another"))
    assert [slide for slide, _ in found.failed] == ["a", "b"]
    assert {path.name: path.read_bytes() for path in store.root.iterdir() if path.name != "audit.csv"} == before
    store.bag_path("a").write_bytes(b"cut off")  # of a bag that is not whole nothing is kept
    import_levels([f"10:{tmp_path / 'other'}"], store.root, ImportSpec(encoder="another"))
    assert (store.record("a").status, store.record("b").status) == ("failed", "ok")
