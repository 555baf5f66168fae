"""Several runs asked together: their answers are averaged in logits, and how far they lie apart is told.

A slide counts as new only if it is new to every member. So the repeats of a cross-validation, asked about their own
cohort, are never independent: each slide was in the training of most of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marble.bags.bag import Bag
from marble.errors import InputError
from marble.prediction import Answer, Predictor
from marble.tasks.base import Decision
from marble.tasks.pooling import pool
from marble.training.membership import BY_DOUBT, NEW, Membership
from marble.training.results import find_runs, read_run
from marble.training.run_folder import RunFolder


@dataclass(frozen=True, eq=False)
class PooledAnswer:
    """What the members say about one slide together."""

    slide_id: str
    readout: dict[str, float]
    decision: Decision
    membership: Membership
    members: tuple[Answer, ...]
    member_sd: float  # of the headline number: the called class's probability, the risk or the value
    warnings: tuple[str, ...]

    def row(self) -> dict[str, Any]:
        """One flat row for a table."""
        body: dict[str, Any] = {"slide_id": self.slide_id, "part": self.membership.part}
        if self.decision.label is not None:
            body["predicted"] = self.decision.label
        spread = {
            "members": len(self.members),
            "member_sd": self.member_sd,
            "order_sd": max(answer.prediction.order_sd for answer in self.members),
        }
        fine_tiles = self.members[0].fine_tiles  # the same of all members
        routed = {} if fine_tiles is None else {"fine_tiles": fine_tiles}
        return body | self.readout | routed | spread | {"warnings": "; ".join(self.warnings)}


class Ensemble:
    """Runs of one task on bags made in one way, opened once and asked many times.

    All of them look at the same tiles: where the first is routed, at those that its router chooses.
    """

    def __init__(self, predictors: Sequence[Predictor]) -> None:
        if not predictors:
            raise InputError("an ensemble needs at least one run")
        first = predictors[0]
        for other in predictors[1:]:
            _require_alike(first.run, other.run)
        self.predictors = tuple(predictors)
        self.task, self.run = first.task, first.run

    def answer(self, bag: Bag) -> PooledAnswer:
        seen = self.predictors[0].looked_at(bag)
        answers = [predictor.answer(bag, seen) for predictor in self.predictors]
        pooled = pool(
            self.task,
            [answer.readout for answer in answers],
            [predictor.run.calibration for predictor in self.predictors],
        )
        membership = _worst([answer.membership for answer in answers])
        warnings = [text for answer in answers for text in answer.warnings if text != answer.membership.warning]
        if membership.warning is not None:
            warnings.append(membership.warning)
        return PooledAnswer(
            bag.slide_id,
            pooled.readout,
            pooled.decision,
            membership,
            tuple(answers),
            pooled.sd,
            tuple(dict.fromkeys(warnings)),
        )


def runs_together(folders: Iterable[str | Path]) -> list[Path]:
    """The runs at all of these folders; one that is given twice would count twice, and is refused."""
    found = [run for folder in folders for run in runs_at(folder)]
    seen: set[Path] = set()
    for run in found:
        if run.resolve() in seen:
            raise InputError("this run is given twice", where=run, hint="Name every run once")
        seen.add(run.resolve())
    return found


def runs_at(folder: str | Path) -> list[Path]:
    """The run at a folder, or the repeats of one model below it."""
    root = Path(folder)
    if (root / "run.json").exists():
        return [root]
    found = find_runs(root)
    if not found:
        raise InputError("no finished run here", where=root, hint="Give the folder of a run, or of a model's repeats")
    models = sorted({_model(read_run(path)) for path in found})
    if len(models) > 1:
        raise InputError(
            f"runs of several models are below: {', '.join(models)}", where=root, hint="Give one model's folder"
        )
    return found


def _model(record: dict[str, Any]) -> str:
    about = record["about"]
    return f"{about.get('model', record['model']['name'])} {about.get('variant', '')}".strip()


def _require_alike(first: RunFolder, other: RunFolder) -> None:
    ours_looked_for, theirs_looked_for = first.task.looked_for, other.task.looked_for
    for what, ours, theirs in (
        ("another task", first.task.name, other.task.name),
        ("other classes", ", ".join(first.task.class_names), ", ".join(other.task.class_names)),
        # a run without a threshold decides nothing about it
        ("another positive class", ours_looked_for or theirs_looked_for, theirs_looked_for or ours_looked_for),
        ("other stored columns", ", ".join(first.task.columns), ", ".join(other.task.columns)),
        ("another way of making bags", first.provenance.recipe(), other.provenance.recipe()),
    ):
        if ours != theirs:
            shown = "" if isinstance(ours, dict) else f": {theirs}, not {ours} as in {first.folder}"
            raise InputError(f"{what} than the other runs{shown}", where=other.folder, hint="Leave it out")


def _worst(memberships: Sequence[Membership]) -> Membership:
    """The most doubtful of the members' parts, and how many share it."""
    for part in BY_DOUBT:
        mine = [one for one in memberships if one.part == part]
        if mine:
            count = f", in {len(mine)} of {len(memberships)} members" if len(memberships) > 1 else ""
            return Membership(part, mine[0].why + count)
    return Membership(NEW)
