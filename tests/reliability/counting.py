"""A pytest plugin: how many cases each test tried and how it ended, a line of JSON each, as soon as it has ended.

A test is one case, unless it says otherwise: hypothesis draws examples, which are counted as they are run, and a test
that loops over its cases records their number with `record_property("cases", n)`.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.reliability import scale

#: names the file that the lines go to
REPORT = "MARBLE_GATES_REPORT"
_seconds: dict[str, float] = {}
_ended: dict[str, dict[str, Any]] = {}


def pytest_collection_finish(session: pytest.Session) -> None:
    _write({"collected": [item.nodeid for item in session.items]})


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Called after set-up, call and tear-down of a test; whichever fails, the test has failed."""
    name = report.nodeid
    _seconds[name] = _seconds.get(name, 0.0) + report.duration
    known = _ended.setdefault(name, {"test": name, "outcome": "passed", "why": ""})
    if report.skipped and known["outcome"] == "passed":
        known |= {"outcome": "skipped", "why": str(report.longrepr[2] if isinstance(report.longrepr, tuple) else "")}
    elif report.failed:
        known |= {"outcome": "failed"}
    if report.when == "teardown":
        cases = [int(str(value)) for key, value in report.user_properties if key == "cases"]
        reduced = any(key == "reduced" for key, _ in report.user_properties)
        _write({**known, "cases": sum(cases) if cases else 1, "reduced": reduced, "seconds": _seconds[name]})


def pytest_runtest_teardown(item: pytest.Item) -> None:
    if scale.was_reduced():
        item.user_properties.append(("reduced", 1))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    handle = getattr(getattr(item, "obj", None), "hypothesis", None)
    if handle is None:
        return (yield)
    test, tried = handle.inner_test, 0

    @functools.wraps(test)
    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal tried
        tried += 1
        return test(*args, **kwargs)

    handle.inner_test = counted
    try:
        return (yield)
    finally:
        handle.inner_test = test
        item.user_properties.append(("cases", tried))


def _write(line: dict[str, Any]) -> None:
    with Path(os.environ[REPORT]).open("a") as file:
        file.write(json.dumps(line) + "\n")
