"""Which lines of the package the tests reach: a pytest plugin, `-p tests.counted_lines`, for `make test COVERAGE=1`.

Each process that runs tests counts its own lines. Counting costs half of a test's time again, so whole studies, pages
and benchmarks, which walk lines that tests of single rooms walk too, run uncounted; so do programs that tests start.
"""

from __future__ import annotations

from pathlib import Path

import coverage
import pytest

UNCOUNTED = {"end_to_end", "docs", "benchmarks", "reliability", "browser"}
HERE = Path(__file__).parent

_counter = coverage.Coverage(data_suffix=True)
_counter.start()  # at import, before the package's own lines run


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> object:
    room = item.path.relative_to(HERE).parts[0]
    if room not in UNCOUNTED:
        return (yield)
    _counter.stop()
    try:
        return (yield)
    finally:
        _counter.start()


def pytest_unconfigure() -> None:
    _counter.stop()
    _counter.save()
