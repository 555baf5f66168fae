"""`extract_slide`: one slide to one bag. Skips what is done, and always leaves a record."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from marble import files, storage
from marble.bags import BagStore
from marble.bags.record import BagRecord, file_stem
from marble.compute import describe, locks, tell
from marble.errors import InputError, MarbleError
from marble.extract.choosing import Chooser, folder_suffix
from marble.extract.extraction import Extraction, NothingToExtract, Progress
from marble.extract.source import SlideFacts, Source
from marble.extract.spec import ExtractSpec, Machine, load_encoders
from marble.identifiers import slide_id_of
from marble.pseudonyms import nameless

SPEC_FILE = "extract.toml"


def store_for(store_root: str | Path, spec: ExtractSpec, chooser: Chooser | None = None) -> BagStore:
    """The store of bags made with exactly these settings, of branches chosen in exactly this way."""
    return BagStore(storage.location(store_root) / (spec.fingerprint() + folder_suffix(chooser)))


def extract_slide(
    path: str | Path,
    spec: ExtractSpec,
    store_root: str | Path,
    *,
    facts: SlideFacts | None = None,
    machine: Machine | None = None,
    on_progress: Callable[[Progress], None] | None = None,
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
        facts: what is known of the slide from outside its file: its id, pixel size, tissue outlines, hash.
        machine: device, threads, local weights.
        on_progress: called after every batch.
        replace: the bag of another slide with the same id.
        wait: for another process that works on this very slide; else `BusyError`.
        chooser: says between levels which branches to go on with; tiles of the others are never read.
    """
    path, machine, facts = Path(path), machine or Machine(), facts or SlideFacts()
    slide_id = facts.slide_id or slide_id_of(path)
    said = partial(_said, path=path, pseudonym=slide_id if facts.private else None)
    store = store_for(store_root, spec, chooser)
    try:
        source = Source.of(path, facts)
    except MarbleError as error:
        if store.holds(slide_id):
            return BagRecord(slide_id=slide_id, status="failed", stage="verify", reason=said(describe(error)))
        return store.note(slide_id, "failed", "verify", said(describe(error)))
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
        work = Extraction(
            path, slide_id, spec, machine, encoders, source, facts.outlines, on_progress, chooser, facts.private
        )
        storage.fetch(store.root / SPEC_FILE)
        if not (store.root / SPEC_FILE).exists():
            files.publish(store.root / SPEC_FILE, spec.to_toml())
        try:
            bag, details = work.run()
            work.stage = "save"
            return store.save(bag, details)
        except NothingToExtract as reason:
            return store.note(slide_id, "excluded", work.stage, said(str(reason)), source=source.record())
        except Exception as error:  # whatever a slide does, it ends in its own record
            if store.holds(slide_id):
                return BagRecord(slide_id=slide_id, status="failed", stage=work.stage, reason=said(describe(error)))
            return store.note(slide_id, "failed", work.stage, said(describe(error)), source=source.record())


def _said(reason: str, *, path: Path, pseudonym: str | None) -> str:
    """A reason for the record, without the slide's folders: they may be named after patients, as the file may be."""
    if pseudonym is not None:
        return nameless(reason, path, pseudonym)
    folder = rf"(?<!\w){re.escape(str(path.parent))}/"  # the end of a word is none: slides in `m/` have `um/px`
    return re.sub(folder, "", reason.replace(str(path), path.name))


class OtherSlideError(InputError):
    """Under a slide's id there is the bag of another slide."""


def known_record(store: BagStore, slide_id: str) -> BagRecord | None:
    """The slide's record, if there is one that can be read."""
    try:
        return store.record(slide_id) if store.has_record(slide_id) else None
    except (MarbleError, OSError):
        return None  # a damaged record is made again


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
