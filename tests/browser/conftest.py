"""A running viewer and a browser to look at it with."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from marble.viewer.app import create_app
from marble.viewer.notes import Notes
from marble.viewer.registry import Registry, build_registry
from marble.viewer.wire import Wire
from tests.viewer.seeing import teach
from tests.viewer.world import World, make_repeats, make_world


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    made = make_world(tmp_path_factory.mktemp("world"))
    teach(made.run("max"))
    return made


@contextmanager
def served(registry: Registry, notes: Notes | None = None) -> Iterator[str]:
    """The address of a viewer that runs meanwhile."""
    app = create_app(registry, notes=notes)
    server = uvicorn.Server(uvicorn.Config(app, port=0, http=Wire, ws="none", access_log=False, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(10)


@pytest.fixture(scope="session")
def address(world: World) -> Iterator[str]:
    registry = build_registry(world.runs, world.slides, world.store.root)
    with served(registry, Notes(world.root / "kept" / "notes.json")) as found:
        yield found


@pytest.fixture(scope="session")
def repeats(world: World) -> Path:
    """Two repeats per task on the world's slides."""
    return make_repeats(world)


@pytest.fixture(scope="session")
def repeats_address(world: World, repeats: Path) -> Iterator[str]:
    with served(build_registry(repeats, world.slides, world.store.root)) as found:
        yield found


@pytest.fixture(scope="session")
def pictures() -> Path:
    """Where screenshots are kept."""
    folder = Path(__file__).parents[2] / "test-artifacts"
    folder.mkdir(exist_ok=True)
    return folder


#: a desk and a phone, in light and in the dark
SCREENS = [(width, scheme) for width in (1440, 390) for scheme in ("light", "dark")]


@pytest.fixture(params=SCREENS, ids=[f"{width}px-{scheme}" for width, scheme in SCREENS])
def screen(request: pytest.FixtureRequest, chromium: Any, address: str) -> Iterator[tuple[Any, str]]:
    """A page of one size and colour scheme that writes down every complaint, and a name for its pictures."""
    width, scheme = request.param
    size = {"width": width, "height": 900 if width > 800 else 844}
    context = chromium.new_context(viewport=size, color_scheme=scheme, accept_downloads=True)
    page = context.new_page()
    page.set_default_timeout(60_000)
    complaints: list[str] = []
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    yield page, f"{width}-{scheme}"
    context.close()
    assert complaints == []


@pytest.fixture(scope="session")
def axe() -> str:
    """The accessibility checker, as `npm ci --prefix web` puts it there."""
    path = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
    if not path.exists():
        pytest.skip("needs axe-core: npm ci --prefix web")
    return path.read_text()
