"""How well other tools' grids nest: a row per slide and level, a table, and one line that sums it up."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from marble import files

_NEARLY = 0.05


@dataclass(frozen=True)
class AuditRow:
    """What became of one level's tiles: `tiles` = duplicates + exact + partial + orphans.

    Args:
        exact: tiles whose whole box lies inside their parent's.
        partial: tiles whose centre lies in their parent, but which stick out of it.
        orphans: tiles whose centre lies in no tile of the level above.
        collided: tiles left out because another one has their cell.
        places: whether it is known where the tiles lie.
        childless: tiles of this level, in the bag, that no tile of the next level has as parent.
    """

    slide_id: str
    level: int
    magnification: float
    source: str
    tiles: int
    duplicates: int
    exact: int | None
    partial: int | None
    orphans: int | None
    collided: int
    kept: int
    childless: int | None
    places: bool = True  # False: the files hold no coordinates

    def percentages(self) -> dict[str, float | None]:
        """Shares of the level's distinct tiles; childless of those in the bag."""
        distinct = self.tiles - self.duplicates
        return {
            "exact_pct": _percent(self.exact, distinct),
            "partial_pct": _percent(self.partial, distinct),
            "orphan_pct": _percent(self.orphans, distinct),
            "childless_pct": _percent(self.childless, self.kept),
        }


def verdict(rows: Sequence[AuditRow]) -> str:
    """One line on all slides together.

    Nested: no fine tile sticks out of its parent and no two share a cell. Nearly: at most one in twenty does.
    The tiles of one level overlap where more than that share cells.
    """
    fine = [row for row in rows if row.exact is not None]
    slides = len({row.slide_id for row in rows})
    twice = sum(row.duplicates for row in rows)
    again = f", {twice:,} for the place of another" if twice else ""
    if not fine:
        kept, collided = (sum(getattr(row, name) for row in rows) for name in ("kept", "collided"))
        placeless = len({row.slide_id for row in rows if not row.places})
        said = f"; {placeless} of them without coordinates, so without heatmaps" if placeless else ""
        word = "one level" if collided <= _NEARLY * (kept + collided) else "one level, whose tiles OVERLAP"
        return f"{word}: {kept:,} tiles of {slides} slides{said}; {collided:,} left out for a shared cell{again}"
    exact, partial, orphans = (sum(getattr(row, name) for row in fine) for name in ("exact", "partial", "orphans"))
    collided = sum(row.collided for row in rows)
    total = exact + partial + orphans
    figures = (
        f"of {total:,} fine tiles in {slides} slides {_share(exact, total)} lie inside their parent, "
        f"{_share(partial, total)} partly, {_share(orphans, total)} in none; "
        f"{collided:,} left out for a shared cell{again}"
    )
    astray = (partial + collided) / max(1, total)
    word = "nested" if astray == 0 else "nearly nested" if astray <= _NEARLY else "NOT nested"
    return f"{word}: {figures}"


def publish_table(path: Path, rows: Sequence[AuditRow], failed: Sequence[tuple[str, str]]) -> Path:
    """Write the audit as CSV; failed slides have a row with their reason."""
    names = [*(field.name for field in fields(AuditRow)), "exact_pct", "partial_pct", "orphan_pct", "childless_pct"]
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow([*names, "failed"])
    for row in rows:
        values = {**asdict(row), **row.percentages()}
        table.writerow([*(_cell(values[name]) for name in names), ""])
    for slide_id, reason in failed:
        table.writerow([_cell(slide_id), *[""] * (len(names) - 1), _cell(reason)])
    return files.publish(path, text.getvalue())


def _cell(value: object) -> str:
    """Text that no spreadsheet takes for a formula."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    shown = str(value)
    return f"'{shown}" if shown[:1] in ("=", "+", "-", "@", "\t", "\r") else shown


def _percent(count: int | None, total: int) -> float | None:
    return None if count is None or total == 0 else 100 * count / total


def _share(count: int, total: int) -> str:
    """A percentage that says 100 or 0 only when that is exact."""
    if total == 0 or count in (0, total):
        return "0 %" if count == 0 else "100 %"
    return f"{min(99.99, max(0.01, 100 * count / total)):.2f} %"
