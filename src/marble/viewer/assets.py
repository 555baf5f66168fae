"""The files a page needs, read once at the start: served by exact name, nothing else is."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

STATIC = Path(__file__).parent / "static"
LIBRARY = "openseadragon.min.js"
TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}


@dataclass(frozen=True)
class Asset:
    """One file, as it is sent."""

    data: bytes
    media_type: str
    etag: str


def load_assets() -> dict[str, Asset]:
    """{name: asset}; OpenSeadragon is among them if `make setup` has built it in."""
    found = {}
    for path in [*sorted(STATIC.iterdir()), STATIC / "vendor" / LIBRARY]:
        if path.suffix in TYPES and path.is_file():
            data = path.read_bytes()
            found[path.name] = Asset(data, TYPES[path.suffix], f'"{hashlib.sha256(data).hexdigest()[:32]}"')
    return found
