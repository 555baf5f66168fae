"""`marble bench extract`: what extraction costs beyond the encoder's own arithmetic.

    reading     tiles per second by region, against one read per tile as CLAM and TRIDENT do it
    extraction  a whole slide to a saved bag, against the encoder alone on tiles already in memory
    planning    what `marble plan` says such a slide takes, against the time it took
    loading     a bag, against a numpy memory map of the same bytes; both touch every byte

All in one process, interleaved, medians. Ratios are what counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marble import files
from marble.bags import Bag, BagStore, Level
from marble.compute.ahead import in_order
from marble.encoders import Encoder
from marble.extract import Estimate, ExtractSpec, Machine, extract_slide, load_encoders, plan
from marble.extract.pipeline import batches
from marble.extract.regions import blocks, read_block
from marble.slides.lattice import Pyramid, PyramidSpec, lay
from marble.slides.slide import Slide
from marble.slides.tissue import segment
from marble.synthetic.slides import write_slide
from marble.threads import torch_threads

SYNTHETIC_PX, QUICK_PX, EXTRACTED_PX = 20_000, 4_096, 6_144
REPEATS, QUICK_REPEATS = 5, 3
TOKENS = 20_000
READING, EXTRACTION, PLANNING, LOADING = 2.0, 1.10, 1.25, 1.2  # targets


@dataclass(frozen=True)
class PeerRow:
    """One comparison: medians in seconds, and the ratio that the target is about."""

    what: str
    tiles: int
    ours_s: float
    theirs_s: float
    ratio: float
    target: str
    met: bool

    @classmethod
    def at_least(cls, what: str, tiles: int, ours_s: float, theirs_s: float, ratio: float, target: float) -> PeerRow:
        return cls(what, tiles, ours_s, theirs_s, ratio, f">= {target:g}", ratio >= target)

    @classmethod
    def at_most(cls, what: str, tiles: int, ours_s: float, theirs_s: float, ratio: float, target: float) -> PeerRow:
        return cls(what, tiles, ours_s, theirs_s, ratio, f"<= {target:g}", ratio <= target)


def run(*, json_path: str | Path | None = None, quick: bool = False, slide: str | Path | None = None) -> dict[str, Any]:
    """Measure, print a table, and write JSON if asked."""
    repeats = QUICK_REPEATS if quick else REPEATS
    with TemporaryDirectory(prefix="marble-bench-") as scratch:
        folder = Path(scratch)
        side = QUICK_PX if quick else SYNTHETIC_PX
        large = write_slide(folder / "large.tiff", (side, side), mpp=0.5)
        small = large if quick else write_slide(folder / "small.tiff", (EXTRACTED_PX, EXTRACTED_PX), mpp=0.5)
        read_from = {f"synthetic {side:,} x {side:,}": large} | ({Path(slide).name: Path(slide)} if slide else {})
        rows = [reading(path, name, repeats) for name, path in read_from.items()]
        chosen = Path(slide) if slide else small
        rows.append(extraction(chosen, chosen.name, folder / "bags", repeats))
        rows.append(planning(chosen, chosen.name, folder / "planned", repeats))
        rows.append(loading(folder / "load", TOKENS, repeats))
    _print(rows)
    report = {"benchmark": "extract", "quick": quick, "rows": [asdict(row) for row in rows]}
    if json_path is not None:
        files.publish_json(json_path, report)
    return report


def reading(path: Path, name: str, repeats: int) -> PeerRow:
    """Every tile of both levels as RGB: by region, and one by one with the peers' call."""
    spec = _spec(path)
    with Slide.open(path) as opened:
        pyramid = lay(opened.l0_size_px, opened.mpp, segment(opened, spec.tissue), spec.pyramid)
    tiles = sum(len(cells) for cells in pyramid.cells)

    def by_region() -> None:
        px = pyramid.tile_px
        with Slide.open(path) as slide:
            reads = [block for level in range(pyramid.depth) for block in blocks(slide, pyramid, level)]
            cuts = (read_block(slide, block, px, px, lambda tile: tile, allow_upsample=False) for block in reads)
            assert sum(len(cut.tiles) for cut in cuts) == tiles

    def one_by_one() -> None:
        assert sum(1 for _ in _tile_reads(path, pyramid)) == tiles

    ours, theirs = _interleaved({"ours": by_region, "theirs": one_by_one}, repeats)
    what = f"reading {name}: tiles/s by region / one by one"
    return PeerRow.at_least(what, tiles, ours, theirs, theirs / ours, READING)


def extraction(path: Path, name: str, folder: Path, repeats: int) -> PeerRow:
    """A slide from file to saved bag, against its tiles through the encoder."""
    spec, machine = _spec(path), Machine()
    (encoder, *_) = load_encoders(spec, machine)
    tiles = _tiles_in_memory(path, spec, encoder)
    count = 0

    def whole() -> None:
        nonlocal count
        count += 1
        record = extract_slide(path, spec, folder / str(count), machine=machine)
        assert record.status == "ok", record.reason

    def encoder_alone() -> None:
        threads = machine.thread_count
        parts = ((np.arange(len(part)), part) for part in tiles)
        with torch_threads(1), ThreadPoolExecutor(threads) as pool:
            for _ in in_order(
                pool, lambda part: encoder.encode(part[1]), batches(parts, spec.batch), ahead=threads + 1
            ):
                pass

    ours, theirs = _interleaved({"ours": whole, "theirs": encoder_alone}, repeats)
    what = f"extraction {name}: whole / encoder alone ({encoder.name}, {encoder.backend})"
    return PeerRow.at_most(what, sum(len(part) for part in tiles), ours, theirs, ours / theirs, EXTRACTION)


def planning(path: Path, name: str, folder: Path, repeats: int) -> PeerRow:
    """The time that is foretold for a slide, against the time it takes; the ratio is of the longer to the shorter."""
    spec, machine = _spec(path), Machine()
    foretold: list[Estimate] = []

    def foretell() -> None:
        foretold.append(plan([path], spec, machine=machine))

    def extract() -> None:
        record = extract_slide(path, spec, folder / str(len(foretold)), machine=machine)
        assert record.status == "ok", record.reason

    _, took = _interleaved({"plan": foretell, "extract": extract}, repeats)
    said = median(one.seconds for one in foretold[1:])
    what = f"planning {name}: foretold / measured, the longer by the shorter"
    return PeerRow.at_most(what, sum(foretold[0].tiles), said, took, max(said / took, took / said), PLANNING)


def loading(folder: Path, tokens: int, repeats: int) -> PeerRow:
    """A bag that was loaded before, against a memory map of its file."""
    rng = np.random.default_rng(0)
    side = int(np.ceil(tokens**0.5 / 4)) * 4
    fine = np.indices((side, side)).reshape(2, -1).T[:tokens]
    coarse, parent = np.unique(fine // 4, axis=0, return_inverse=True)
    features = [rng.standard_normal((len(cells), 1024), np.float32).astype(np.float16) for cells in (coarse, fine)]
    levels = [Level(features[0], coarse), Level(features[1], fine, parent.reshape(-1))]  # type: ignore[arg-type]
    store = BagStore(folder)
    store.save(Bag("bag", levels))
    store.load("bag")  # hashed and checked once per process

    def load() -> None:
        for level in store.load("bag").levels:
            for tensor in (level.features, level.cells, level.parent):
                if tensor is not None:
                    _touch(tensor.numpy())

    def memory_map() -> None:
        _touch(np.memmap(store.bag_path("bag"), np.uint8, "r"))

    ours, theirs = _interleaved({"ours": load, "theirs": memory_map}, 5 * repeats)
    return PeerRow.at_most("loading a bag / numpy memmap of its bytes", tokens, ours, theirs, ours / theirs, LOADING)


def _spec(path: Path) -> ExtractSpec:
    """Two levels a factor of four apart, the finer at the scan's own pixel size."""
    with Slide.open(path) as slide:
        return ExtractSpec(pyramid=PyramidSpec(mpps=(4 * slide.mpp, slide.mpp)))


def _tile_reads(path: Path, pyramid: Pyramid) -> Iterator[NDArray[np.uint8]]:
    """What CLAM and TRIDENT do: for each tile one `read_region` at the best plane, to RGB, resized if it must be."""
    import openslide

    with openslide.OpenSlide(path) as handle:
        for level in range(pyramid.depth):
            extent, side = pyramid.l0_extents_px[level], pyramid.tile_px
            plane = handle.get_best_level_for_downsample(extent / side * 1.005)
            width = round(extent / handle.level_downsamples[plane])
            for x, y, _, _ in pyramid.boxes(level).tolist():
                picture = handle.read_region((x, y), plane, (width, width)).convert("RGB")
                yield np.asarray(picture if width == side else picture.resize((side, side)))


def _tiles_in_memory(path: Path, spec: ExtractSpec, encoder: Encoder) -> list[NDArray[np.uint8]]:
    with Slide.open(path) as slide:
        pyramid = lay(slide.l0_size_px, slide.mpp, segment(slide, spec.tissue), spec.pyramid)
        return [
            read_block(slide, block, pyramid.tile_px, encoder.input_px, encoder.fit, allow_upsample=False).pixels
            for level in range(pyramid.depth)
            for block in blocks(slide, pyramid, level)
        ]


def _touch(values: NDArray[Any]) -> int:
    whole = values.reshape(-1).view(np.uint8)
    return int(np.bitwise_xor.reduce(whole[: len(whole) // 8 * 8].view(np.uint64)))


def _interleaved(functions: Mapping[str, Callable[[], None]], repeats: int) -> list[float]:
    """Median seconds of each function; they take turns, after one unmeasured turn."""
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(repeats + 1):
        for name, function in functions.items():
            began = time.perf_counter()
            function()
            if turn:
                seconds[name].append(time.perf_counter() - began)
    return [median(times) for times in seconds.values()]


def _print(rows: list[PeerRow]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("what", "tiles", "ours, s", "other, s", "ratio", "target", "met")
    for row in rows:
        cells = [row.what, f"{row.tiles:,}", f"{row.ours_s:.4g}", f"{row.theirs_s:.4g}", f"{row.ratio:.2f}", row.target]
        table.add_row(*cells, "yes" if row.met else "no")
    Console().print(table)
