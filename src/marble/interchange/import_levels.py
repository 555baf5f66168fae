"""Other tools' features -> bags with parents, and an audit of how their grids fit together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from marble.bags.store import BagStore
from marble.compute import Done, Executor, Inline
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


@dataclass
class ImportResult:
    """What an import did: an audit row per slide and level, and (slide, reason) for every slide without a bag."""

    store: Path
    audit_path: Path
    rows: list[AuditRow] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)

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
    for outcome in (executor or Inline()).map(import_slide, jobs):
        slide_id = outcome.item.slide_id
        if isinstance(outcome, Done):
            result.rows.extend(outcome.result)
            places = "" if all(row.places for row in outcome.result) else " without places (no coordinates)"
            tell(f"{slide_id}: {' + '.join(str(row.kept) for row in outcome.result)} tiles{places}")
        else:
            BagStore(store).note(slide_id, "failed", "import", outcome.reason)
            result.failed.append((slide_id, outcome.reason))
            tell(f"{slide_id}: failed")
    result.rows.sort(key=lambda row: (row.slide_id, row.level))
    result.failed.sort()
    publish_table(result.audit_path, result.rows, result.failed)
    return result


def import_slide(job: SlideJob) -> list[AuditRow]:
    """Read one slide, build its bag, save it."""
    if job.doubt is not None:
        raise BagError(job.doubt)
    levels = _read_together(job) if job.together else _read_separately(job)
    bag, rows = nested_bag(job.slide_id, levels, job.hints, job.policy)
    BagStore(job.store).save(bag, {"audit": [asdict(row) for row in rows], "policy": job.policy}, stage="import")
    return rows


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
