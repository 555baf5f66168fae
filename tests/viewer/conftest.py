"""One world for all viewer tests."""

from __future__ import annotations

import pytest

from tests.viewer.seeing import teach
from tests.viewer.world import World, make_world


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Slides, bags and runs; the run of `max` was told to look for tiles whose blue varies."""
    made = make_world(tmp_path_factory.mktemp("world"))
    teach(made.run("max"))
    return made
