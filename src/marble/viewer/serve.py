"""Starting the viewer: check where it listens, look once at what there is, serve until interrupted."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

from marble.errors import UnavailableError
from marble.floors import installed, refuse_older
from marble.viewer.assets import LIBRARY, STATIC
from marble.viewer.security import check_bind, is_loopback

if TYPE_CHECKING:
    from marble.viewer.registry import Places

MAX_HEADER_BYTES = 16_384
KEEP_ALIVE_S = 10
READERS = 2  # processes that read slides


def serve(
    places: Places, *, host: str, port: int, token: str | None, tell: Callable[[str], object], notes: bool = False,
    device: str = "cpu",
) -> None:  # fmt: skip
    """Serve until interrupted. `tell` shows a line to the user; with `notes`, notes on slides can be written."""
    check_bind(host, token)
    missing = [name for name in ("fastapi", "uvicorn") if find_spec(name) is None]
    if missing:
        raise UnavailableError(f"{', '.join(missing)} not installed", hint="pip install 'marble-wsi[viewer]'")
    refuse_older("starlette", installed("starlette"))
    import uvicorn

    from marble.devices import choose, describe
    from marble.identifiers import printable
    from marble.viewer.app import create_app
    from marble.viewer.notes import FILE, Notes
    from marble.viewer.wire import Wire

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
    where = f"[{host}]" if ":" in host else host
    tell(f"http://{where}:{port}/{'' if token is None else '?token=...'}  (Ctrl-C ends it)")
    if not is_loopback(host):
        tell("others can reach this address: every request is asked for the token; put TLS before it")
    kept = Notes(places.source / FILE) if notes else None
    if kept is not None:
        tell(f"notes on slides are kept in {kept.path}")
    logging.basicConfig(format="%(asctime)s %(message)s")
    logging.getLogger("marble.viewer").setLevel(logging.INFO)
    uvicorn.run(
        create_app(registry, token, notes=kept, device=str(there), readers=READERS),
        host=host, port=port, http=Wire, ws="none", access_log=False,
        log_level="warning", server_header=False, timeout_keep_alive=KEEP_ALIVE_S,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
    )  # fmt: skip
