"""`extract_slide`: one slide to one bag. Skips what is done, and always leaves a record."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marble import files
from marble.bags import Bag, BagStore, Geometry, Level, Provenance, SlideIdentity
from marble.bags.store import BagRecord, file_stem
from marble.compute import describe, locks, tell
from marble.encoders import Encoder
from marble.errors import InputError, MarbleError, SlideError
from marble.extract.choosing import Chooser, chosen, folder_suffix
from marble.extract.pipeline import LevelTokens, encode_level, one_torch_thread
from marble.extract.source import Source
from marble.extract.spec import ExtractSpec, Machine, load_encoders
from marble.identifiers import slide_id_of
from marble.slides import quality
from marble.slides.lattice import NoTissueError, Pyramid, lay
from marble.slides.slide import Slide
from marble.slides.tissue import Tissue, segment
from marble.version import VERSION

SPEC_FILE = "extract.toml"


@dataclass(frozen=True)
class Progress:
    """How far a slide is."""

    slide_id: str
    done: int
    total: int
    seconds: float

    @property
    def tiles_per_s(self) -> float:
        return self.done / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float:
        return (self.total - self.done) / self.tiles_per_s if self.done else float("inf")


def store_for(store_root: str | Path, spec: ExtractSpec, chooser: Chooser | None = None) -> BagStore:
    """The store of bags made with exactly these settings, of branches chosen in exactly this way."""
    return BagStore(Path(store_root) / (spec.fingerprint() + folder_suffix(chooser)))


def extract_slide(
    path: str | Path,
    spec: ExtractSpec,
    store_root: str | Path,
    *,
    machine: Machine | None = None,
    mpp: float | None = None,
    outlines: str | Path | None = None,
    hash_source: bool = False,
    expect_sha256: str | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    slide_id: str | None = None,
    replace: bool = False,
    wait: bool = True,
    chooser: Chooser | None = None,
) -> BagRecord:
    """Segment, lay, read, encode and save one slide; return its record, whose status is ok, failed or excluded.

    A slide that is done, with the same settings and an unchanged file, is not touched. An encoder that cannot be
    loaded is not the slide's fault: that raises, and leaves no record. The slide is locked while it is worked on, so
    that several commands can fill one store. The bag of another slide is not replaced: that is a failure that leaves
    the store alone.

    Args:
        path: the slide file.
        spec: every choice that changes the bag.
        store_root: bags go to `store_root/<fingerprint of spec>/`.
        machine: device, threads, local weights.
        mpp: um per level-0 pixel, in place of what the file says.
        outlines: GeoJSON with tissue outlines, in place of segmentation.
        hash_source: put the file's SHA-256 into the record.
        expect_sha256: refuse the file, before anything is decoded, unless it has this hash.
        on_progress: called after every batch.
        slide_id: of the bag; by default made from the file's name.
        replace: the bag of another slide with the same id.
        wait: for another process that works on this very slide; else `BusyError`.
        chooser: says between levels which branches to go on with; tiles of the others are never read.
    """
    path, machine = Path(path), machine or Machine()
    slide_id = slide_id or slide_id_of(path)
    store = store_for(store_root, spec, chooser)
    drawn = None if outlines is None else Path(outlines)
    try:
        source = Source.of(path, hashed=hash_source, expect_sha256=expect_sha256, mpp=mpp, outlines=drawn)
    except MarbleError as error:
        if _kept(store, slide_id):
            return BagRecord(slide_id=slide_id, status="failed", stage="verify", reason=_said(error, path))
        return store.note(slide_id, "failed", "verify", _said(error, path))
    if (done := _done(store, slide_id, source, path)) is not None:
        return done
    encoders = load_encoders(spec, machine)
    lock = store.root / f".{file_stem(slide_id)}{locks.SUFFIX}"
    with locks.hold(lock, f"slide '{slide_id}'", wait=wait, on_wait=tell):
        if (done := _done(store, slide_id, source, path)) is not None:  # by whoever held the lock before us
            return done
        known = known_record(store, slide_id)
        if not replace and known is not None and known.status == "ok" and source.is_another_than(source_in(known)):
            raise OtherSlideError(
                f"the store already holds a bag of another slide under the id '{slide_id}'",
                where=path,
                hint="Make ids from paths with --id-from path, use another store, or replace the bag with --replace",
            )
        work = _Extraction(path, slide_id, spec, machine, encoders, source, drawn, on_progress, chooser)
        if not (store.root / SPEC_FILE).exists():
            files.publish(store.root / SPEC_FILE, spec.to_toml())
        try:
            bag, details = work.run()
            work.stage = "save"
            return store.save(bag, details)
        except _Excluded as reason:
            return store.note(slide_id, "excluded", work.stage, str(reason), source=source.record())
        except Exception as error:  # whatever a slide does, it ends in its own record
            if _kept(store, slide_id):
                return BagRecord(slide_id=slide_id, status="failed", stage=work.stage, reason=_said(error, path))
            return store.note(slide_id, "failed", work.stage, _said(error, path), source=source.record())


def _said(error: Exception, path: Path) -> str:
    """An error for the record, without the slide's folders: they may be named after patients."""
    return describe(error).replace(str(path), path.name).replace(str(path.parent) + "/", "")


class OtherSlideError(InputError):
    """Under a slide's id there is the bag of another slide."""


def known_record(store: BagStore, slide_id: str) -> BagRecord | None:
    """The slide's record, if there is one that can be read."""
    try:
        return store.record(slide_id) if store.record_path(slide_id).exists() else None
    except (MarbleError, OSError):
        return None  # a damaged record is made again


def _kept(store: BagStore, slide_id: str) -> bool:
    """Whether a whole bag is there already: it stays, whatever a later attempt meets."""
    known = known_record(store, slide_id)
    return known is not None and known.status == "ok" and _whole(store, known)


def _whole(store: BagStore, record: BagRecord) -> bool:
    try:
        store.check_hash(record)
    except (MarbleError, OSError):
        return False  # a damaged bag is made again
    return True


def source_in(record: BagRecord) -> Mapping[str, Any]:
    """What a record says of the file it was made from."""
    source = record.details.get("source", {})
    return source if isinstance(source, dict) else {}


def _done(store: BagStore, slide_id: str, source: Source, path: Path) -> BagRecord | None:
    """The slide's record if it needs no more work: same file, whole bag; or excluded, and still the same file."""
    record = known_record(store, slide_id)
    if record is None or record.status == "failed" or not source.is_that_of(source_in(record), path):
        return None
    return record if record.status != "ok" or _whole(store, record) else None


class _Excluded(Exception):  # noqa: N818  not an error: the slide was looked at and has nothing to give
    """There is no tissue on the slide."""


@dataclass
class _Extraction:
    """The work on one slide; `stage` is the step under way, for the record of a slide that fails in it."""

    path: Path
    slide_id: str
    spec: ExtractSpec
    machine: Machine
    encoders: list[Encoder]
    source: Source
    outlines: Path | None
    on_progress: Callable[[Progress], None] | None
    chooser: Chooser | None = None
    stage: str = "open"

    def run(self) -> tuple[Bag, dict[str, Any]]:
        """The bag, and what its record tells beyond it."""
        with Slide.open(self.path, mpp=self.source.mpp) as slide, one_torch_thread():
            self.stage = "segment"
            tissue = segment_or_take(slide, self.spec, self.outlines)
            self.stage = "lay"
            pyramid = _lay(slide, tissue, self.spec)
            self.stage = "encode"
            tokens = self._encode(slide, pyramid)
            self.stage = "assemble"
            bag = Bag(self.slide_id, _levels(pyramid, tokens), self._provenance(slide, pyramid))
        details = {
            "source": self.source.record(),
            "tissue": {
                "fraction": tissue.fraction,
                **tissue.measures,
                "in_tiles": pyramid.tissue_in_tiles,
                "beyond_tiles": pyramid.tissue_beyond,
            },
            "lattice": pyramid.record(),
            "missing_tiles": [int(level.missing.sum()) for level in tokens],
            "dropped_with_parent": [
                int((~level.encoded & ~level.missing & ~_rejected(level)).sum()) for level in tokens
            ],
            "quality": _quality(tokens[-1]),
        }
        if self.chooser is not None:
            details["route"] = self.chooser.identity()
        return bag, details

    def _encode(self, slide: Slide, pyramid: Pyramid) -> list[LevelTokens]:
        """Every level, coarsest first; a tile is encoded if its parent was.

        Beyond the limit of missing tiles nothing is encoded any more, and the rest is only read, so that the refusal
        names the exact number.
        """
        total = sum(len(cells) for cells in pyramid.cells)
        limit = self.spec.max_missing * total
        count = _Counter(self.slide_id, total, self.on_progress)
        threads = self.machine.thread_count
        levels: list[LevelTokens] = []
        missing = 0
        with ThreadPoolExecutor(threads) as pool:
            for level, encoder in enumerate(self.encoders):
                parent = pyramid.parents[level]
                keep = np.ones(len(pyramid.cells[level]), np.bool_) if parent is None else levels[-1].encoded[parent]
                # below a branch that was not chosen nothing is read, not even to learn what is missing
                only = None if self.chooser is None or not keep.any() else np.flatnonzero(keep)
                count.add(0 if only is None else len(keep) - len(only))
                done = encode_level(
                    slide, pyramid, level, encoder, pool, threads=threads, batch=self.spec.batch,
                    dtype=self.spec.dtype, keep=keep & (missing <= limit), only=only, on_tiles=count.add,
                    quality=self.spec.quality if level == pyramid.depth - 1 else None,
                )  # fmt: skip
                levels.append(done)
                missing += int(done.missing.sum())
                if self.chooser is not None and level + 1 < pyramid.depth and missing <= limit:
                    seen = _levels(pyramid, levels)
                    levels[-1] = chosen(self.chooser, self.slide_id, pyramid, seen, done, level)
        if missing > limit:
            raise SlideError(
                f"{missing} of {total} tiles lack pixels ({missing / total:.1%}; the limit is "
                f"{self.spec.max_missing:.1%})",
                where=slide.path.name,
                hint="Copy or export the file again",
            )
        if not levels[-1].encoded.any():
            raise _Excluded(
                f"none of {len(levels[-1].encoded)} finest tiles is good enough to look at, or has a parent"
            )
        return levels

    def _provenance(self, slide: Slide, pyramid: Pyramid) -> Provenance:
        width, height = slide.l0_size_px
        far = [encoder.far_from(mpp) for encoder, mpp in zip(self.encoders, pyramid.mpps, strict=True)]
        cautions = list(dict.fromkeys(sentence for sentence in far if sentence))
        for caution in cautions:
            warnings.warn(caution, stacklevel=2)
        identities = [encoder.identity() for encoder in self.encoders]
        return Provenance(
            source=f"marble {VERSION}",
            spec=self.spec.fingerprint(),
            slide=SlideIdentity(
                name=slide.name,
                l0_width_px=width,
                l0_height_px=height,
                mpp=slide.mpp,
                mpp_origin=slide.mpp_origin,
                sha256=self.source.sha256,
                verified=self.source.verified,
            ),
            l0_origin_px=pyramid.l0_origin_px,
            levels=tuple(
                Geometry(
                    magnification=pyramid.magnifications[k],
                    mpp=pyramid.mpps[k],
                    tile_px=pyramid.tile_px,
                    l0_extent_px=pyramid.l0_extents_px[k],
                )
                for k in range(pyramid.depth)
            ),
            encoders=tuple(identities[:1] if len(set(self.spec.encoder_of_level)) == 1 else identities),
            notes={
                "extract": self.spec.model_dump(mode="json"),
                "backends": [encoder.backend for encoder in self.encoders],
                "upsampled": pyramid.upsampled,
                "cautions": cautions,
            }
            | ({} if self.chooser is None else {"route": self.chooser.identity()}),
        )


def segment_or_take(slide: Slide, spec: ExtractSpec, outlines: Path | None) -> Tissue:
    """The tissue: found, or as drawn by the user."""
    if outlines is None:
        return segment(slide, spec.tissue)
    return Tissue.from_geojson(outlines, slide.l0_size_px, max(1, round(spec.tissue.working_mpp / slide.mpp)))


def _lay(slide: Slide, tissue: Tissue, spec: ExtractSpec) -> Pyramid:
    try:
        return lay(slide.l0_size_px, slide.mpp, tissue, spec.pyramid, name=slide.path.name)
    except NoTissueError as error:
        raise _Excluded(str(error)) from None


def _rejected(level: LevelTokens) -> NDArray[np.bool_]:
    return np.zeros(len(level.encoded), np.bool_) if level.rejected is None else level.rejected


def _quality(finest: LevelTokens) -> dict[str, Any]:
    """What the record says of how the bag's finest tiles look."""
    looks = np.zeros((0, len(quality.COLUMNS)), np.float32) if finest.looks is None else finest.looks[finest.encoded]
    return quality.to_record(looks, int(_rejected(finest).sum()))


class _Counter:
    def __init__(self, slide_id: str, total: int, tell: Callable[[Progress], None] | None) -> None:
        self.slide_id, self.total, self.tell = slide_id, total, tell
        self.done, self.began = 0, time.monotonic()

    def add(self, more: int) -> None:
        self.done += more
        if self.tell is not None:
            self.tell(Progress(self.slide_id, self.done, self.total, time.monotonic() - self.began))


def _levels(pyramid: Pyramid, tokens: list[LevelTokens]) -> list[Level]:
    """The encoded tiles, with parents counted among the encoded ones."""
    levels = []
    above: NDArray[np.int64] | None = None
    for k, level in enumerate(tokens):
        kept = level.encoded
        features: Any = level.features if kept.all() else level.features[kept]  # no copy in the usual case
        cells: Any = pyramid.cells[k][kept]
        parent = pyramid.parents[k]
        if parent is None or above is None:
            levels.append(Level(features, cells))
        else:
            of_kept: Any = above[parent[kept]]
            levels.append(Level(features, cells, of_kept, pyramid.ratios[k - 1]))
        above = np.cumsum(kept) - 1
    return levels
