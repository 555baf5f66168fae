"""How many cases a gate tries: all of them, or a tenth where SMOKE is set."""

from __future__ import annotations

import os


def scaled(count: int) -> int:
    """`count`, or a tenth of it (at least one) in a smoke run."""
    return max(1, count // 10) if os.environ.get("SMOKE", "") not in ("", "0") else count
