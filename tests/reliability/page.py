"""The page `docs/reliability.md`, made from the registry of gates and the results that were kept."""

from __future__ import annotations

from collections.abc import Iterable

from tests.docs.pages import ROOT
from tests.reliability.gates import GATES, ROOMS, Gate
from tests.reliability.results import Result, load

PAGE = ROOT / "docs" / "reliability.md"
HEADER = ("Gate", "What it shows", "Outcome", "Tried", "Survived", "Lost", "Minutes", "Date", "Commit", "Tests")

ABOUT = """# Reliability

<!-- Made by `make reliability`; do not edit. -->

What is tried to break MARBLE, how often, and how often it broke. `make reliability` runs every gate with all its cases
and writes this page; `make reliability SMOKE=1` tries a tenth of the cases where there are many; `GATES=A1` runs some.
A gate that held is not run again until the package, its tests or a library change, so a run that was stopped goes on.

A test that fails loses all the cases it tried. With no failure in N cases, the rate of failure is below 3/N with 95 %
confidence. A + after the commit means that sources or tests had changes that were not committed.
Stopped means that a gate took longer than it may, whether it hung or the machine was busy.
"""


def text() -> str:
    """The whole page."""
    found = load()
    rows = {gate.id: found.get((gate.id, "full")) or found.get((gate.id, "smoke")) for gate in GATES}
    parts = [ABOUT, summary(rows), _machine(row for row in rows.values() if row)]
    for letter, title in ROOMS.items():
        gates = [gate for gate in GATES if gate.id.startswith(letter)]
        parts += [f"## {letter}. {title}\n", _table([line(gate, rows[gate.id]) for gate in gates if not gate.without])]
        parts += [f"**{gate.id} does not apply**: {gate.shows}. {gate.without}\n" for gate in gates if gate.without]
        weaker = [f"- {gate.id}: {gate.lacks}" for gate in gates if gate.lacks]
        parts += ["Weaker than the gate asks for:\n\n" + "\n".join(weaker) + "\n"] if weaker else []
    return "\n".join(parts)


def summary(rows: dict[str, Result | None]) -> str:
    tested = [gate for gate in GATES if gate.tests]
    run = [row for gate in tested if (row := rows[gate.id])]
    held = [row for row in run if row.outcome == "held"]
    whole = {row.gate for row in held if not row.reduced}
    strong = [gate for gate in tested if gate.id in whole and not gate.lacks and _enough(gate, rows[gate.id])]
    failed = [row for row in run if row.outcome == "failed"]
    text = (
        f"**{len(GATES)} gates, {len(tested)} with tests.** {len(held)} held: {len(whole)} with all their cases "
        f"({len(strong)} of these as strong as the gate asks), {len(held) - len(whole)} with a tenth of them. "
        f"{len(failed)} failed, {len(run) - len(held) - len(failed)} were skipped or stopped, "
        f"{len(tested) - len(run)} were not run.\n"
    )
    if failed:
        names = [f"{row.gate} ({', '.join(row.failed) or 'no test could run'})" for row in failed]
        text += "\nFailed: " + "; ".join(names) + ".\n"
    return text


def _enough(gate: Gate, row: Result | None) -> bool:
    return row is not None and (gate.asked is None or row.tried >= gate.asked)


def line(gate: Gate, row: Result | None) -> tuple[str, ...]:
    tests = "<br>".join(f"`{test.removeprefix('tests/')}`" for test in gate.tests)
    if row is None:
        return (gate.id, gate.shows, "**not run**" if gate.tests else "**no test yet**", "", "", "", "", "", "", tests)
    outcome = row.outcome if row.outcome == "held" else f"**{row.outcome}**"
    if row.reduced:
        outcome += ", a tenth of its cases"
    elif not _enough(gate, row):
        outcome += f", fewer cases than the {gate.asked} asked for"
    outcome += "".join(f"; skipped: {reason}" for reason in row.skipped)
    numbers = (f"{row.tried:,}", f"{row.survived:,}", f"{row.lost:,}", f"{row.minutes:g}")
    return (gate.id, gate.shows, outcome, *numbers, row.date, row.commit, tests)


def _table(lines: list[tuple[str, ...]]) -> str:
    rows = [HEADER, ("---",) * len(HEADER), *lines]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows) + "\n"


def _machine(rows: Iterable[Result]) -> str:
    """The versions behind the rows, with the gates of each set."""
    sets: dict[str, list[str]] = {}
    for row in rows:
        told = ", ".join(f"{name} {version}" for name, version in row.versions.items())
        sets.setdefault(told, []).append(row.gate)
    return "".join(f"Versions: {told} ({len(gates)} gates).\n" for told, gates in sets.items())
