"""One slide to one bag: every number against the slow way, every ending in a record."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from marble.encoders import load_encoder
from marble.errors import InputError, SpecError, UnavailableError
from marble.extract import ExtractSpec, Machine, Progress, SlideFacts, extract_slide, load_encoders, store_for
from marble.extract.slide import _said
from marble.files import sha256_file
from marble.slides.slide import Box, Slide
from marble.synthetic.slides import write_slide
from tests.extract.making import lattice, spec_of, tile_by_tile, tree


@pytest.mark.parametrize("magnifications", [(5.0, 20.0), (1.25, 5.0, 20.0), (10.0,)])
def test_a_bag_holds_what_reading_tile_by_tile_gives(
    slide_path: Path, tmp_path: Path, magnifications: tuple[float, ...]
) -> None:
    spec = spec_of(*magnifications, dtype="float32", batch=5)
    record = extract_slide(slide_path, spec, tmp_path, machine=Machine(threads=2))
    assert record.status == "ok", record.reason
    bag = store_for(tmp_path, spec).load("one")
    with Slide.open(slide_path) as slide:
        pyramid = lattice(slide, spec)
        for k, level in enumerate(bag.levels):
            assert np.array_equal(level.features.numpy(), tile_by_tile(slide, pyramid, k, load_encoder("colour")))
            assert np.array_equal(level.cells.numpy(), pyramid.cells[k])
            cells = level.cells.tolist()
            assert cells == sorted(cells)  # row-major
            if k:
                assert level.parent is not None
                above = bag.levels[k - 1].cells[level.parent]
                assert torch.equal(above, level.cells // pyramid.ratios[k - 1])
        provenance = bag.provenance
        assert provenance.spec == spec.fingerprint()
        assert [g.l0_extent_px for g in provenance.levels] == list(pyramid.l0_extents_px)
        assert [g.mpp for g in provenance.levels] == list(pyramid.mpps)
        assert provenance.slide is not None
        assert (provenance.slide.l0_width_px, provenance.slide.l0_height_px) == slide.l0_size_px
        assert not provenance.slide.verified
    assert ExtractSpec.parse(provenance.notes["extract"]) == spec
    assert ExtractSpec.from_toml(store_for(tmp_path, spec).root / "extract.toml") == spec


def test_the_default_encoder_end_to_end(tmp_path: Path) -> None:
    path = write_slide(tmp_path / "tiny.tiff", (1024, 512), mpp=1.0, pieces=1)
    spec = spec_of(5.0, 10.0, tile_px=128, encoders=("lite0",))
    bag_bytes = []
    for threads in (1, 2):
        record = extract_slide(path, spec, tmp_path / str(threads), machine=Machine(threads=threads))
        assert record.status == "ok", record.reason
        bag_bytes.append(store_for(tmp_path / str(threads), spec).bag_path("tiny").read_bytes())
    assert bag_bytes[0] == bag_bytes[1]
    bag = store_for(tmp_path / "1", spec).load("tiny")
    assert bag.finest.features.dtype == torch.float16
    with Slide.open(path) as slide:
        slow = tile_by_tile(slide, lattice(slide, spec), 1, load_encoder("lite0"))
    assert np.array_equal(bag.finest.features.numpy(), slow.astype(np.float16))


def test_the_same_bytes_whatever_the_number_of_threads(slide_path: Path, tmp_path: Path) -> None:
    spec = spec_of(5.0, 20.0, batch=16)
    stores = []
    for threads in (1, 2, 5):
        extract_slide(slide_path, spec, tmp_path / str(threads), machine=Machine(threads=threads))
        stores.append(tree(tmp_path / str(threads)))
    assert stores[0] == stores[1] == stores[2]
    assert len(stores[0]) == 4  # bag, record, store.json, extract.toml


def test_each_level_may_have_its_own_encoder(slide_path: Path, tmp_path: Path) -> None:
    spec = spec_of(2.5, 5.0, tile_px=128, encoders=("lite0", "colour"))
    assert extract_slide(slide_path, spec, tmp_path).status == "ok"
    bag = store_for(tmp_path, spec).load("one")
    assert [level.dim for level in bag.levels] == [1280, 24]
    assert [encoder.name for encoder in bag.provenance.encoders] == ["lite0", "colour"]


def test_a_finished_slide_is_left_alone_until_something_changes(slide_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "one.tiff"
    shutil.copyfile(slide_path, path)
    spec = spec_of()
    store = store_for(tmp_path / "bags", spec)

    def run(spec: ExtractSpec = spec, hash_source: bool = False) -> int:
        batches: list[Progress] = []
        facts = SlideFacts(hash_source=hash_source)
        assert extract_slide(path, spec, tmp_path / "bags", facts=facts, on_progress=batches.append).status == "ok"
        return len(batches)

    assert run() > 0
    before = tree(tmp_path / "bags")
    assert run() == 0
    assert tree(tmp_path / "bags") == before
    assert run(hash_source=True) > 0  # the record did not tell the hash
    os.utime(path, ns=(1, 1))
    assert run() == 0  # known by its hash
    shutil.copyfile(slide_path, path)
    with open(store.bag_path("one"), "r+b") as bag:
        bag.seek(-1, 2)
        bag.write(b"\xff")
    assert run(hash_source=True) > 0  # a damaged bag is made again
    store.record_path("one").write_text("{")
    assert run() > 0  # so is one whose record is damaged
    assert run(spec_of(batch=4)) > 0
    assert len(list((tmp_path / "bags").iterdir())) == 2  # other settings, another folder


def test_progress_counts_every_tile(slide_path: Path, tmp_path: Path) -> None:
    seen: list[Progress] = []
    record = extract_slide(slide_path, spec_of(), tmp_path, on_progress=seen.append)
    total = sum(level.tokens for level in record.levels)
    assert [p.done for p in seen] == sorted(p.done for p in seen)
    assert (seen[-1].done, seen[-1].total) == (total, total)
    assert seen[-1].seconds_left == 0
    assert seen[-1].tiles_per_s > 0


def test_a_slide_without_tissue_is_excluded(tmp_path: Path) -> None:
    path = write_slide(tmp_path / "empty.tiff", (1024, 1024), mpp=0.5, pieces=0)
    for _ in range(2):  # the second time from its record
        record = extract_slide(path, spec_of(), tmp_path / "bags")
        assert (record.status, record.stage) == ("excluded", "lay")
        assert "tissue" in str(record.reason)


def test_failures_name_their_stage_and_are_tried_again(slide_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.tiff"
    path.write_bytes(slide_path.read_bytes()[:1000])
    record = extract_slide(path, spec_of(), tmp_path / "bags")
    assert (record.status, record.stage) == ("failed", "open")
    assert "bad.tiff" in str(record.reason)
    shutil.copyfile(slide_path, path)
    assert extract_slide(path, spec_of(), tmp_path / "bags").status == "ok"
    assert extract_slide(path, spec_of(5.0, 80.0), tmp_path / "bags").stage == "lay"
    assert extract_slide(tmp_path / "gone.tiff", spec_of(), tmp_path / "bags").stage == "verify"


def test_a_wrong_hash_is_refused_before_decoding(
    slide_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = sha256_file(slide_path)
    record = extract_slide(slide_path, spec_of(), tmp_path, facts=SlideFacts(expect_sha256=good))
    assert record.provenance is not None
    assert record.provenance.slide is not None
    assert (record.provenance.slide.verified, record.provenance.slide.sha256) == (True, good)
    monkeypatch.setattr(Slide, "open", lambda *_: pytest.fail("opened"))
    record = extract_slide(slide_path, spec_of(), tmp_path / "other", facts=SlideFacts(expect_sha256="0" * 64))
    assert (record.status, record.stage) == ("failed", "verify")


def test_drawn_outlines_replace_segmentation(slide_path: Path, tmp_path: Path) -> None:
    ring = [[256, 256], [768, 256], [768, 512], [256, 512], [256, 256]]
    outlines = tmp_path / "one.geojson"
    outlines.write_text(
        json.dumps({"type": "Feature", "properties": {}, "geometry": {"type": "Polygon", "coordinates": [ring]}})
    )
    spec = spec_of(20.0, pyramid={"coverage": (0.9,)})
    extract_slide(slide_path, spec, tmp_path / "bags", facts=SlideFacts(outlines=outlines))
    cells = store_for(tmp_path / "bags", spec).load("one").finest.cells.tolist()
    assert cells == [[row, column] for row in range(4, 8) for column in range(4, 12)]
    record = extract_slide(slide_path, spec, tmp_path / "bags")
    assert record.levels[0].tokens != len(cells)  # without them it is another bag, and is made again


def test_pixel_sizes_given_from_outside_are_used_and_recorded(slide_path: Path, tmp_path: Path) -> None:
    spec = spec_of(5.0, 20.0)
    record = extract_slide(slide_path, spec, tmp_path, facts=SlideFacts(mpp=0.25))
    assert record.provenance is not None
    assert record.provenance.slide is not None
    assert record.provenance.slide.mpp == 0.25
    assert record.provenance.levels[-1].l0_extent_px == 128


def test_an_encoder_far_from_its_pixel_size_is_said_and_recorded(
    slide_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from marble.encoders import catalogue

    row = catalogue.CATALOGUE["colour"]
    monkeypatch.setitem(catalogue.CATALOGUE, "colour", type(row)(**{**vars(row), "recommended_mpp": (0.5,)}))
    from marble.extract.spec import _loaded

    _loaded.cache_clear()
    spec = spec_of(5.0, 20.0)
    assert spec.cautions() == ["encoder 'colour' was trained at 0.5 um/px and runs here at 2 um/px"]
    with pytest.warns(UserWarning, match="trained at 0.5"):
        record = extract_slide(slide_path, spec, tmp_path)
    _loaded.cache_clear()
    assert record.provenance is not None
    assert record.provenance.notes["cautions"] == spec.cautions()


def test_an_encoder_that_cannot_be_loaded_is_not_the_slides_fault(
    slide_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    with pytest.raises(UnavailableError, match="hf auth login"):
        extract_slide(slide_path, spec_of(encoders=("uni_v1",)), tmp_path / "bags")
    assert not (tmp_path / "bags").exists()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"encoders": ("lite1",)}, "unknown encoder 'lite1'; did you mean 'lite0'"),
        ({"encoders": ("colour",) * 3}, "3 encoders for 2 levels"),
        ({"weights_sha256": {"uni_v1": "0" * 64}}, "not among the encoders"),
        ({"dtype": "float64"}, "dtype"),
        ({"batches": 3}, "unknown key 'batches'; did you mean 'batch'"),
    ],
)
def test_settings_are_checked(fields: dict[str, object], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        ExtractSpec.parse({"pyramid": {"magnifications": [5, 20]}, **fields})


def missing_by_hand(path: Path, spec: ExtractSpec) -> tuple[list[int], list[int], list[list[list[int]]]]:
    """Counts of tiles that lack pixels, of tiles that go with their parent, and the cells that stay; tile by tile."""
    missing, orphaned, kept_cells = [], [], []
    with Slide.open(path) as slide:
        pyramid = lattice(slide, spec)
        kept_above: list[bool] = []
        for k in range(pyramid.depth):
            lacking = []
            for box in pyramid.boxes(k).tolist():
                region = slide.read(Box(*box), (pyramid.tile_px, pyramid.tile_px))
                lacking.append(region.missing is not None and bool(region.missing.any()))
            parent = pyramid.parents[k]
            fine = [True] * len(lacking) if parent is None else [kept_above[p] for p in parent.tolist()]
            kept_above = [ok and not bad for ok, bad in zip(fine, lacking, strict=True)]
            missing.append(sum(lacking))
            orphaned.append(sum(not ok and not bad for ok, bad in zip(fine, lacking, strict=True)))
            kept_cells.append([c for c, ok in zip(pyramid.cells[k].tolist(), kept_above, strict=True) if ok])
    return missing, orphaned, kept_cells


@pytest.mark.parametrize(("plane", "absent"), [(0, []), (0, [19]), (1, [0]), (0, [19, 20]), (0, list(range(1, 48)))])
def test_tiles_that_lack_pixels_are_counted_and_never_encoded(
    slide_path: Path,
    tmp_path: Path,
    without_tiles: Callable[[Path, int, list[int]], Path],
    plane: int,
    absent: list[int],
) -> None:
    path = without_tiles(slide_path, plane, absent)
    everywhere = {"coverage": (0.0, 0.0)}
    lenient, strict = (spec_of(pyramid=everywhere, max_missing=limit) for limit in (0.5, 0.01))
    missing, orphaned, kept = missing_by_hand(path, lenient)
    total = sum(missing) + sum(orphaned) + sum(len(cells) for cells in kept)
    # A tile of the file is 256 px: 16 tiles of 64 px at its own plane, and nothing else, unless parents go.
    assert missing == ([16 * len(absent), 0] if plane else [0, 16 * len(absent)])
    assert orphaned == [0, 16 * 16 * len(absent) if plane else 0]
    for spec, limit in ((lenient, 0.5), (strict, 0.01)):
        record = extract_slide(path, spec, tmp_path / "bags")
        if sum(missing) <= limit * total:
            assert record.status == "ok", record.reason
            assert record.details["missing_tiles"] == missing
            assert record.details["dropped_with_parent"] == orphaned
            bag = store_for(tmp_path / "bags", spec).load(path.stem)
            assert [level.cells.tolist() for level in bag.levels] == kept
        else:
            assert (record.status, record.stage) == ("failed", "encode")
            assert f"{sum(missing)} of {total} tiles lack pixels" in str(record.reason)
            assert path.stem not in store_for(tmp_path / "bags", spec)


def test_weights_of_an_encoder_that_is_not_asked_are_refused(tmp_path: Path) -> None:
    machine = Machine(weights={"colours": tmp_path / "a.safetensors"})
    with pytest.raises(InputError, match="weights of 'colours' were given, but the tiles are encoded by colour"):
        load_encoders(spec_of(10), machine)


def test_a_folder_is_taken_out_of_a_reason_and_nothing_else() -> None:
    reason = "m/a.svs: the scan has 0.5 um/px, and m/b.svs none"
    assert _said(reason, path=Path("m/a.svs"), pseudonym=None) == "a.svs: the scan has 0.5 um/px, and b.svs none"
