"""Splits that divide the patients as an earlier one does: of such only the training can differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


def drawn_again(divisions: Sequence[Mapping[str, Iterable[str]]]) -> dict[int, int]:
    """Place of each division (names by part) that was there before, and the place where it was.

    A draw by site has few outcomes where sites are few: three of them fill three parts in six ways.
    """
    first: dict[tuple[tuple[str, frozenset[str]], ...], int] = {}
    again = {}
    for place, division in enumerate(divisions):
        key = tuple(sorted(((part, frozenset(names)) for part, names in division.items()), key=lambda pair: pair[0]))
        if first.setdefault(key, place) != place:
            again[place] = first[key]
    return again
