"""Workers that start in a moment, for tests that start hundreds of them."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from marble.compute import spawned


@pytest.fixture(scope="module")
def forked_workers() -> Iterator[None]:
    """Each worker is still a process of its own with its own limits, but forked from one that has imported everything.

    That one reads no slide and computes nothing, so a fork of it is as good as a fresh start.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["marble.extract", "marble.interchange.import_levels"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spawned, "multiprocessing", SimpleNamespace(get_context=lambda _: context))
        yield
