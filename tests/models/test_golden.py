"""Every golden case under --golden equals what the original authors' code computed; an unknown system fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.golden_case import GoldenCase, find_cases
from tests.models.golden_systems import all_checks


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        cases = find_cases(Path(metafunc.config.getoption("--golden")))
        metafunc.parametrize("case", cases, ids=[case.id for case in cases])


def test_equals_the_original(case: GoldenCase) -> None:
    checks = all_checks()
    assert case.system in checks, f"no check for golden system '{case.system}'; known: {sorted(checks)}"
    checks[case.system](case)


def test_there_are_cases(request: pytest.FixtureRequest) -> None:
    folder = Path(request.config.getoption("--golden"))
    assert find_cases(folder), f"no golden case under {folder}"
