"""Other tools' features -> bags with parents, and an audit of how their grids fit together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeAlias

from marble import storage
from marble.bags.provenance import DIFFERS
from marble.bags.shapes import odd_ones_out
from marble.bags.store import BagStore
from marble.bags.survey import survey
from marble.compute import Done, Executor, Failed, Inline
from marble.errors import BagError, InputError, MarbleError
from marble.interchange.audit import AuditRow, publish_table, verdict
from marble.interchange.building import nested_bag
from marble.interchange.finding import (
    HDF5_SUFFIXES,
    Found,
    check_readers,
    find_features,
    parse_levels,
    read_level,
)
from marble.interchange.grids import Policy
from marble.interchange.hdf5 import open_foreign
from marble.interchange.lazyslide import SUFFIX
from marble.interchange.multilevel import level_groups, read_multilevel
from marble.interchange.spec import ImportSpec
from marble.interchange.tiles import LevelHints, Tiles, checked
from marble.interchange.zoommil import is_zoommil

AUDIT_NAME = "audit.csv"


@dataclass(frozen=True)
class SlideJob:
    """All that is needed to import one slide, wherever that runs."""

    slide_id: str
    paths: tuple[Path | None, ...]
    hints: tuple[LevelHints, ...]
    together: bool
    policy: Policy
    store: Path
    doubt: str | None = None  # why no file can be taken


Ended: TypeAlias = Done[SlideJob, list[AuditRow]] | Failed[SlideJob]


@dataclass
class ImportResult:
    """What an import did: an audit row per slide and level, and (slide, reason) for every slide without a bag.

    `odd` are the store's bags that cannot be used beside the others, each with the reason.
    """

    store: Path
    audit_path: Path
    rows: list[AuditRow] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)
    odd: list[tuple[str, str]] = field(default_factory=list)

    def verdict(self) -> str:
        """One line: nested, nearly nested or NOT nested, with the figures."""
        if not self.rows:
            return f"nothing imported: all {len(self.failed)} slides failed"
        line = verdict(self.rows)
        return f"{line}; {len(self.failed)} slides failed" if self.failed else line


def import_levels(
    levels: Sequence[str],
    store: Path,
    spec: ImportSpec | None = None,
    *,
    audit_path: Path | None = None,
    tell: Callable[[str], None] = lambda _: None,
    executor: Executor | None = None,
) -> ImportResult:
    """Import `MAGNIFICATION:FOLDER` levels; one slide at a time, a failing one is noted and the rest goes on.

    Args:
        levels: one per level; the same folder for all if its files hold all levels.
        store: where the bags go.
        spec: what to do, and what is known about files that do not say it.
        audit_path: where the audit goes; by default into the store.
        tell: called once per slide with a line to show.
        executor: where slides are read; `Processes(1, timeout_s=...)` survives files on which the HDF5 library itself
            crashes or never returns. By default this process.
    """
    spec = spec or ImportSpec()
    given = parse_levels(levels)
    hints = sorted(spec.hints([magnification for magnification, _ in given]), key=lambda one: one.magnification)
    folders = [folder for _, folder in sorted(given, key=lambda level: level[0])]
    by_level = [find_features(folder, spec.encoder) for folder in folders]
    check_readers(by_level)
    shared = len(folders) > 1 and len({folder.resolve() for folder in folders}) == 1
    together = shared and _holds_groups(list(by_level[0].files.values()))
    jobs = _jobs(by_level, hints, together, spec, store)
    result = ImportResult(store, audit_path or store / AUDIT_NAME)
    work, empty = executor or Inline(), not (store / "store.json").exists() and storage.address(store) is None
    ended = _import(jobs, store, work, tell)
    if empty and (again := _most_first(ended)):
        (store / "store.json").unlink()
        for slide_id, outcome in ended.items():
            if isinstance(outcome, Done):  # it may be refused now, and nothing of it shall lie there then
                BagStore(store).bag_path(slide_id).unlink(missing_ok=True)
        tell(f"most slides were made in another way than {again[-1].slide_id}: they go first")
        ended = _import(again, store, work, tell)
    for slide_id, outcome in ended.items():
        if isinstance(outcome, Done):
            result.rows.extend(outcome.result)
        else:
            result.failed.append((slide_id, outcome.reason))
    result.rows.sort(key=lambda row: (row.slide_id, row.level))
    result.failed.sort()
    publish_table(result.audit_path, result.rows, result.failed)
    result.odd = _odd(BagStore(store))
    return result


def _import(jobs: Sequence[SlideJob], store: Path, executor: Executor, tell: Callable[[str], None]) -> dict[str, Ended]:
    """How every slide ended, by its id; one that failed and has no bag yet gets a record that says so."""
    bags = BagStore(store)
    ended: dict[str, Ended] = {}
    for outcome in executor.map(import_slide, jobs):
        slide_id = outcome.item.slide_id
        ended[slide_id] = outcome
        if isinstance(outcome, Done):
            places = "" if all(row.places for row in outcome.result) else " without places (no coordinates)"
            tell(f"{slide_id}: {' + '.join(str(row.kept) for row in outcome.result)} tiles{places}")
        elif bags.holds(slide_id):
            tell(f"{slide_id}: failed; the bag that is here already stays")
        else:
            bags.note(slide_id, "failed", "import", outcome.reason)
            tell(f"{slide_id}: failed")
    return ended


def _most_first(ended: Mapping[str, Ended]) -> list[SlideJob]:
    """All slides in another order, if those that a store would rather hold were refused by what the first one set."""
    alike: dict[str, list[SlideJob]] = {}  # refused in the same words: made in the same way
    for outcome in ended.values():
        if isinstance(outcome, Failed) and DIFFERS in outcome.reason:
            alike.setdefault(outcome.reason.partition(" in bag ")[0], []).append(outcome.item)
    most = max(alike.values(), key=len, default=[])
    taken = [outcome.item for outcome in ended.values() if isinstance(outcome, Done)]
    if len(most) <= len(taken):
        return []
    others = [outcome.item for outcome in ended.values() if outcome.item not in most and outcome.item not in taken]
    return [*most, *others, *taken]


def import_slide(job: SlideJob) -> list[AuditRow]:
    """Read one slide, build its bag, save it."""
    if job.doubt is not None:
        raise BagError(job.doubt)
    levels = _read_together(job) if job.together else _read_separately(job)
    bag, rows = nested_bag(job.slide_id, levels, job.hints, job.policy)
    BagStore(job.store).save(bag, {"audit": [asdict(row) for row in rows], "policy": job.policy}, stage="import")
    return rows


def _odd(store: BagStore) -> list[tuple[str, str]]:
    """The store's bags of another shape than most, whenever they were imported."""
    whole = (store.record(slide) for slide, error in survey(store) if error is None)
    try:
        return [(slide, str(error)) for slide, error in odd_ones_out(whole, store.root).items()]
    except BagError as error:  # as many of one shape as of the other
        return [(str(store.root), str(error))]


def _jobs(
    by_level: Sequence[Found], hints: Sequence[LevelHints], together: bool, spec: ImportSpec, store: Path
) -> list[SlideJob]:
    return [
        SlideJob(
            slide,
            tuple(found.files.get(slide) for found in by_level),
            tuple(hints),
            together,
            spec.policy,
            store,
            next((found.doubts[slide] for found in by_level if slide in found.doubts), None),
        )
        for slide in sorted({slide for found in by_level for slide in found.files})
    ]


def _read_separately(job: SlideJob) -> list[Tiles]:
    levels = []
    for path, one in zip(job.paths, job.hints, strict=True):
        if path is None:
            raise BagError(f"no features at {one.magnification:g}x", hint="Every slide needs a file at every level")
        levels.append(read_level(path, one))
    return levels


def _read_together(job: SlideJob) -> list[Tiles]:
    path = job.paths[0]
    assert path is not None
    return [checked(tiles, one, path) for tiles, one in zip(read_multilevel(path, job.hints), job.hints, strict=True)]


def _holds_groups(paths: Sequence[Path]) -> bool:
    """Of a folder given for all levels: whether its files hold them in groups, or each by itself.

    ZoomMIL names its levels, and a zarr store's tables say what they are of: these are read level by level.
    """
    for path in paths:
        if path.suffix == SUFFIX:
            return False
        if path.suffix not in HDF5_SUFFIXES:
            continue
        try:
            with open_foreign(path) as file:
                if len(level_groups(file)) > 1:
                    return True
                if is_zoommil(file):
                    return False
        except MarbleError:
            continue  # a damaged file gets its reason when its turn comes
    raise InputError(
        "one folder was given for all levels, but its files hold one level each",
        where=paths[0].parent,
        hint="Give every level its own folder",
    )
