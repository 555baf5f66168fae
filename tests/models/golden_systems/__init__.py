"""How each system's golden cases are checked: every module here holds `CHECKS: dict[system name, Check]`."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from tests.models.golden_case import Check


def all_checks() -> dict[str, Check]:
    checks: dict[str, Check] = {}
    for module in iter_modules(__path__):
        checks.update(import_module(f"{__name__}.{module.name}").CHECKS)
    return checks
