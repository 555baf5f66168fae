"""Starting the viewer: check where it listens, look once at what there is, serve until interrupted."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING

from marble.errors import InputError, UnavailableError
from marble.floors import installed, refuse_older
from marble.viewer.assets import LIBRARY, STATIC
from marble.viewer.listening import Listening, is_loopback

if TYPE_CHECKING:
    from marble.viewer.registry import Places

MAX_HEADER_BYTES = 16_384
KEEP_ALIVE_S = 10
READERS = 2  # processes that read slides


def serve(
    places: Places, listening: Listening, *, tell: Callable[[str], object], notes: bool = False, device: str = "cpu",
) -> None:  # fmt: skip
    """Serve until interrupted. `tell` shows a line to the user; with `notes`, notes on slides can be written."""
    listening.check()
    if notes and not os.access(places.source, os.W_OK):
        hint = "Leave out --notes, or change the permissions"
        raise InputError("notes cannot be written here", where=places.source, hint=hint)
    tokens, invitation = listening.admission()
    tls = listening.tls()
    missing = [name for name in ("fastapi", "uvicorn") if find_spec(name) is None]
    if missing:
        raise UnavailableError(f"{', '.join(missing)} not installed", hint="pip install 'marble-wsi[viewer]'")
    refuse_older("starlette", installed("starlette"))
    import uvicorn

    from marble.devices import choose, describe
    from marble.identifiers import printable
    from marble.viewer.app import create_app
    from marble.viewer.notes import FILE, Notes
    from marble.viewer.wire import Server, Wire, open_sockets

    there = choose(device)
    registry = places.registry()
    if there.type != "cpu":
        tell(f"models compute on {describe(there)}")
    found = sum(1 for entry in registry.slides.values() if entry.file is not None)
    tell(f"{len(registry.slides)} slides ({found} with their file), {len(registry.runs)} runs")
    for line in registry.left_out:
        tell(f"left out: {printable(line)}")
    if not (STATIC / "vendor" / LIBRARY).exists():
        tell("OpenSeadragon is not built in, so slides cannot be shown: install Node.js (npm) and run `make setup`")
    kept = Notes(places.source / FILE) if notes else None
    if kept is not None:
        tell(f"notes on slides are kept in {kept.path}")
    logging.basicConfig(format="%(asctime)s %(message)s")
    logging.getLogger("marble.viewer").setLevel(logging.INFO)
    sockets = open_sockets(listening.host, listening.port)
    tell(invitation)
    if not is_loopback(listening.host):
        tell("others can reach this address: every request is asked for a token")
    app = create_app(registry, tokens, secure=listening.is_secure, notes=kept, device=str(there), readers=READERS)
    config = uvicorn.Config(
        app, http=Wire, ws="none", loop="asyncio", access_log=False, log_level="warning", server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S, h11_max_incomplete_event_size=MAX_HEADER_BYTES,
    )  # fmt: skip
    with suppress(KeyboardInterrupt):  # it is how a server ends
        Server(config, tls).run(sockets)
