"""Whether bags can be read by one model: by how many levels they have and how wide their tokens are, most decide."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from marble.bags.record import BagRecord
from marble.errors import BagError


def odd_ones_out(records: Iterable[BagRecord], store: Path) -> dict[str, BagError]:
    """The bags of another shape than most of them have, with what is odd; without a majority nobody can be blamed."""
    slides: dict[tuple[int, ...], list[str]] = {}  # by the width of every level
    for record in records:
        if record.status == "ok":
            slides.setdefault(tuple(level.dim for level in record.levels), []).append(record.slide_id)
    first, *others = sorted(slides, key=lambda widths: (-len(slides[widths]), widths)) or [()]
    if not others:
        return {}
    if len(slides[others[0]]) == len(slides[first]):
        shapes = " and ".join(
            f"{len(slides[one])} with {_shape(one)} (as '{slides[one][0]}')" for one in (first, others[0])
        )
        hint = "One model cannot read both: keep them in separate stores"
        raise BagError(f"bags of different shapes: {shapes}", where=store, hint=hint)
    usual = f"{_shape(first)} in {len(slides[first])} other bags"
    hint = "Make the bag again as the others were made, or keep it in a store of its own"
    return {
        slide: BagError(f"{_shape(widths)}, but {usual}", where=slide, hint=hint)
        for widths in others
        for slide in slides[widths]
    }


def _shape(widths: tuple[int, ...]) -> str:
    numbers = " and ".join(map(str, dict.fromkeys(widths)))
    return f"tokens {numbers} wide" if len(widths) == 1 else f"{len(widths)} levels of tokens {numbers} wide"
