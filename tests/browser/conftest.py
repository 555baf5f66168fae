"""A running viewer and a browser to look at it with."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from marble.viewer.app import create_app
from marble.viewer.registry import build_registry
from tests.viewer.seeing import teach
from tests.viewer.world import World, make_world


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    made = make_world(tmp_path_factory.mktemp("world"))
    teach(made.run("max"))
    return made


@pytest.fixture(scope="session")
def address(world: World) -> Iterator[str]:
    app = create_app(build_registry(world.runs, world.slides, world.store.root))
    server = uvicorn.Server(uvicorn.Config(app, port=0, access_log=False, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(10)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """The system's Chromium; `MARBLE_CHROMIUM` names another."""
    playwright = pytest.importorskip("playwright.sync_api")
    path = os.environ.get("MARBLE_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("needs Chromium: install your system's package, or set MARBLE_CHROMIUM")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox", "--headless=new"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def pictures() -> Path:
    """Where screenshots are kept."""
    folder = Path(__file__).parents[2] / "test-artifacts"
    folder.mkdir(exist_ok=True)
    return folder
