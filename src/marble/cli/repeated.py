"""What may be said once and was said again: refused by name, since nobody can know which of the two was meant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from marble.errors import InputError


def refuse_repeated(order: Sequence[Any]) -> None:
    """Refuse a flag of one value that occurs again among the parser's parameters, `order` as they were given."""
    if any(given.is_eager for given in order):
        return  # --help answers, whatever stands beside it
    for given, times in Counter(order).items():
        if times > 1 and given.param_type_name == "option" and not given.multiple:
            flags = " / ".join([*given.opts, *given.secondary_opts])
            raise InputError(f"{flags} is given {_times(times)}", hint="Give it once")


def refuse_again(what: str, names: Sequence[str]) -> None:
    """Refuse the first of `names` that occurs again."""
    for name, times in Counter(names).items():
        if times > 1:
            raise InputError(f"{what} '{name}' is given {_times(times)}", hint="Give it once")


def _times(count: int) -> str:
    return "twice" if count == 2 else f"{count} times"
