"""How many cases a gate tries: all of them, or a tenth where SMOKE is set."""

from __future__ import annotations

import os

_reduced: set[int] = set()


def scaled(count: int) -> int:
    """`count`, or a tenth of it (at least one) in a smoke run."""
    if os.environ.get("SMOKE", "") in ("", "0"):
        return count
    _reduced.add(count)
    return max(1, count // 10)


def was_reduced() -> bool:
    """Whether anything in this process tried fewer cases than there are."""
    return bool(_reduced)
