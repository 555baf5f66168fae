"""A pytest plugin: how many cases each test tried, into the XML report.

A test is one case, unless it says otherwise: hypothesis draws examples, which are counted as they are run, and a test
that loops over its cases records their number with `record_property("cases", n)`.
"""

from __future__ import annotations

import functools
from collections.abc import Generator
from typing import Any

import pytest

from tests.reliability import scale


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
