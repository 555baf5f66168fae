"""A cohort: patients, their slides, and what is to be predicted for each."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from marble.errors import TableError
from marble.files import sha256_bytes
from marble.specs import canonical_json
from marble.targets import SurvivalTime, Target, TargetKind

ScoredBy = Literal["case", "slide"]


@dataclass(frozen=True)
class Case:
    """One patient.

    In a cohort scored by slide, slides of one patient may have targets of their own (`slide_targets`); `target` is
    then the commonest of them; of numbers, the median.
    """

    case_id: str
    slides: tuple[str, ...]
    target: Target
    site: str | None = None
    slide_targets: Mapping[str, Target] = field(default_factory=dict, hash=False)

    def target_of(self, slide_id: str) -> Target:
        return self.slide_targets.get(slide_id, self.target)


@dataclass(frozen=True)
class Unit:
    """What gets one prediction and one score: a patient, or a slide in a cohort scored by slide."""

    unit_id: str
    case_id: str
    slides: tuple[str, ...]
    target: Target


@dataclass(frozen=True)
class Excluded:
    """A row of the table that is not used, and why."""

    name: str
    reason: str
    row: int | None = None  # of the table
    slides: int = 1  # that are left out with it


@dataclass(frozen=True)
class Cohort:
    """Patients with slides and targets, checked: ids are unique text, every slide has one patient and one target."""

    name: str
    task: TargetKind
    cases: tuple[Case, ...]
    classes: tuple[str, ...] = ()
    scored_by: ScoredBy = "case"
    source: str = ""
    notes: tuple[str, ...] = ()
    excluded: tuple[Excluded, ...] = ()

    def __post_init__(self) -> None:
        if not self.cases:
            raise self._fault("the cohort has no case", "Check what was excluded from the table")
        for case in self.cases:
            self._check_case(case)
        self._check_unique("case", Counter(case.case_id for case in self.cases))
        self._check_unique("slide", Counter(self.slides()))

    def slides(self) -> tuple[str, ...]:
        """Every slide, in the order of the cases."""
        return tuple(slide for case in self.cases for slide in case.slides)

    def case_of(self, slide_id: str) -> Case:
        """The patient a slide belongs to."""
        if slide_id not in self._by_slide:
            raise self._fault(f"slide '{slide_id}' is not in the cohort", "Check the slide's name in the table")
        return self._by_slide[slide_id]

    def case(self, case_id: str) -> Case:
        """The patient of this id."""
        if case_id not in self._by_id:
            raise self._fault(f"case '{case_id}' is not in the cohort", "Check the case's id in the table")
        return self._by_id[case_id]

    def __contains__(self, case_id: str) -> bool:
        return case_id in self._by_id

    def has_slide(self, slide_id: str) -> bool:
        return slide_id in self._by_slide

    def units(self) -> tuple[Unit, ...]:
        """What is scored: one per case, or one per slide."""
        if self.scored_by == "case":
            return tuple(Unit(case.case_id, case.case_id, case.slides, case.target) for case in self.cases)
        return tuple(
            Unit(slide, case.case_id, (slide,), case.target_of(slide)) for case in self.cases for slide in case.slides
        )

    def fingerprint(self) -> str:
        """16 hex digits over all patients, slides, targets and the unit of scoring, whatever the order of rows."""
        rows = sorted(
            [case.case_id, slide, case.site, _plain(case.target), _plain(case.target_of(slide))]
            for case in self.cases
            for slide in case.slides
        )
        content = {"task": self.task, "classes": self.classes, "scored_by": self.scored_by, "rows": rows}
        return sha256_bytes(canonical_json(content))[:16]

    def summary(self) -> str:
        """A few lines for the terminal: sizes, targets, exclusions, and what the reader noticed."""
        lines = [f"{self.name}: {self.task}, {len(self.cases)} cases, {len(self.slides())} slides"]
        lines.append(f"scored by {self.scored_by}, split by case")
        lines += {
            "classification": self._class_lines, "survival": self._survival_lines, "regression": self._number_lines
        }[self.task]()  # fmt: skip
        sites = {case.site for case in self.cases if case.site is not None}
        if sites:
            lines.append(f"sites: {len(sites)}")
        reasons: dict[str, list[Excluded]] = {}
        for item in self.excluded:
            reasons.setdefault(item.reason, []).append(item)
        lines += [f"excluded: {len(items)} ({reason}){_rows(items)}" for reason, items in sorted(reasons.items())]
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)

    @cached_property
    def _by_slide(self) -> dict[str, Case]:
        return {slide: case for case in self.cases for slide in case.slides}

    @cached_property
    def _by_id(self) -> dict[str, Case]:
        return {case.case_id: case for case in self.cases}

    def _survival_lines(self) -> list[str]:
        outcomes = [unit.target for unit in self.units() if isinstance(unit.target, SurvivalTime)]
        events = sum(outcome.event for outcome in outcomes)
        follow_up = median_follow_up(outcomes)
        share = 100 * events / len(outcomes)
        return [
            f"events: {events}, censored: {len(outcomes) - events}, event rate: {share:.1f} %",
            f"median follow-up: {'not reached' if follow_up is None else f'{follow_up:g}'} (reverse Kaplan-Meier)",
        ]

    def _class_lines(self) -> list[str]:
        counts = Counter(unit.target for unit in self.units())
        return [f"class {name}: {counts[name]}" for name in self.classes]

    def _number_lines(self) -> list[str]:
        values = sorted(unit.target for unit in self.units() if isinstance(unit.target, float))
        quartiles = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
        points = (values[0], *quartiles, values[-1])
        return ["values: min, quartiles, max: " + ", ".join(f"{value:g}" for value in points)]

    def _check_case(self, case: Case) -> None:
        if not case.case_id or not case.slides:
            what = f"case '{case.case_id}' has no slide" if case.case_id else "a case without an id"
            raise self._fault(what, "Give every case an id and at least one slide")
        strangers = set(case.slide_targets) - set(case.slides)
        if strangers:
            raise self._fault(f"case '{case.case_id}' has a target for '{min(strangers)}', not its slide", "Remove it")
        for target in (case.target, *case.slide_targets.values()):
            self._check_target(case.case_id, target)
        if self.scored_by == "case" and any(target != case.target for target in case.slide_targets.values()):
            what = f"slides of case '{case.case_id}' have different targets"
            raise self._fault(what, "Give the patient one target, or score by slide")

    def _check_target(self, case_id: str, target: Target) -> None:
        kind, wanted = _KINDS[self.task]
        if not isinstance(target, kind) or (isinstance(target, float) and not math.isfinite(target)):
            raise self._fault(f"case '{case_id}' needs {wanted}, not {target!r}", "Check the task of the cohort")
        if isinstance(target, str) and target not in self.classes:
            what = f"case '{case_id}' has class '{target}', not one of {', '.join(self.classes)}"
            raise self._fault(what, "Add it to the classes")

    def _check_unique(self, kind: str, counts: Counter[str]) -> None:
        twice = sorted(name for name, count in counts.items() if count > 1)
        if twice:
            raise self._fault(f"{kind} '{twice[0]}' appears twice", f"Give every {kind} one entry")

    def _fault(self, what: str, hint: str) -> TableError:
        return TableError(what, where=self.source or self.name, hint=hint)


#: the type of each kind of target, and the words for it
_KINDS: dict[TargetKind, tuple[type, str]] = {
    "classification": (str, "a class"),
    "survival": (SurvivalTime, "a time and an event"),
    "regression": (float, "a finite number"),
}


def _rows(items: Sequence[Excluded], limit: int = 20) -> str:
    rows = [str(item.row) for item in items if item.row is not None]
    more = f" and {len(rows) - limit} more" if len(rows) > limit else ""
    return f": row{'' if len(rows) == 1 else 's'} {', '.join(rows[:limit])}{more}" if rows else ""


def median_follow_up(outcomes: Sequence[SurvivalTime]) -> float | None:
    """The median of the time to censoring (Kaplan-Meier with the roles of event and censoring swapped)."""
    staying = 1.0
    for time in sorted({outcome.time for outcome in outcomes}):
        censored = sum(outcome.time == time and not outcome.event for outcome in outcomes)
        at_risk = sum(outcome.time >= time for outcome in outcomes)
        staying *= 1 - censored / at_risk
        if staying <= 0.5:
            return time
    return None


def _plain(target: Target) -> object:
    return [target.time, target.event] if isinstance(target, SurvivalTime) else target
