"""What a map's numbers mean, in words: the same beside a picture and in the viewer."""

from __future__ import annotations

from dataclasses import dataclass

from marble.attribution import Explanation, score_of
from marble.tasks.base import Task


@dataclass(frozen=True)
class Meaning:
    """The words of a colour bar.

    Args:
        unit: what a value is measured in.
        text: what a value says, as half a sentence.
        low: what the lower end stands for.
        high: what the upper end stands for.
    """

    unit: str
    text: str
    low: str
    high: str


def meaning(explanation: Explanation, task: Task, unit: str = "") -> Meaning:
    """The words for an explanation by a run of this task, whose targets are counted in `unit`."""
    if explanation.mode == "attention":
        return Meaning(
            "share of 1",
            "the model's attention to a tile; all tiles it reads sum to 1, a coarser one shows the highest below it",
            "none",
            "most",
        )
    explained = score_of(task, explanation.target)
    score = explained.name
    measured = f"{score} in {unit}" if unit and explained.in_unit else score
    named = explanation.target or score
    ends = (
        (f"against {named}", f"for {named}") if explanation.target else (f"lowers the {named}", f"raises the {named}")
    )
    if explanation.mode == "occlusion":
        return Meaning(measured, f"by how much the {score} falls when a tile goes with all below it", *ends)
    return Meaning(measured, f"what a tile adds to the {score}, to first order", *ends)
