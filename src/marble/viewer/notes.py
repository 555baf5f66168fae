"""Notes on slides: the only thing the viewer ever writes, and only where it was told to.

They live in one JSON file beside the runs, published whole. A note is written with the text its writer saw before; if
somebody else wrote meanwhile, it is refused instead of lost. A page elsewhere cannot write one: a request must carry a
header that no form can set, and where the browser names the page it comes from, that page must be ours.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI, HTTPException, Request
from starlette.responses import JSONResponse, Response

from marble import files
from marble.errors import IntegrityError, MarbleError
from marble.viewer.gate import Gate
from marble.viewer.registry import SlideEntry

FILE = "notes.json"
MAX_CHARACTERS = 4000
MAX_BODY_BYTES = 32_768
BODY_S = 5.0
HEADER = "x-marble-note"


class StaleError(MarbleError):
    """The note is not the one its writer saw."""


class Notes:
    """The notes of all slides, in one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = Lock()

    def read(self, slide_id: str) -> dict[str, str]:
        """Text and time of a slide's note; both empty if there is none."""
        found: dict[str, str] = self._all().get(slide_id, {"text": "", "at": ""})
        return found

    def write(self, slide_id: str, text: str, seen: str) -> dict[str, str]:
        """Put `text` in place of `seen`; an empty one removes the note."""
        with self._lock:
            notes = self._all()
            if notes.get(slide_id, {"text": ""})["text"] != seen:
                raise StaleError("somebody else wrote a note meanwhile")
            note = {"text": text, "at": datetime.now(UTC).isoformat(timespec="seconds")}
            files.publish_json(self.path, {**notes, slide_id: note} if text else _without(notes, slide_id))
            return note if text else {"text": "", "at": ""}

    def _all(self) -> dict[str, dict[str, str]]:
        if not self.path.exists():
            return {}
        body = files.read_json(self.path)
        if not isinstance(body, dict) or not all(_is_note(note) for note in body.values()):
            raise IntegrityError("not a file of notes", where=self.path, hint="Move it away, or mend it")
        return body


def add_note_routes(app: FastAPI, notes: Notes, slide_at: Callable[[str], SlideEntry], gate: Gate) -> None:
    """Reading and writing the note of one slide."""

    @app.get("/api/slides/{slide}/note")
    async def read(slide: str) -> Response:
        entry = slide_at(slide)
        note = await gate.run(lambda: notes.read(entry.slide_id))
        return JSONResponse(note, headers={"cache-control": "no-store"})

    @app.post("/api/slides/{slide}/note")
    async def write(request: Request, slide: str) -> Response:
        entry = slide_at(slide)
        if not _is_ours(request):
            raise HTTPException(403)
        text, seen = _parsed(await _body(request))
        try:
            note = await gate.run(lambda: notes.write(entry.slide_id, text, seen))
        except StaleError as error:
            return JSONResponse({"error": error.what}, 409, {"cache-control": "no-store"})
        return JSONResponse(note, headers={"cache-control": "no-store"})


def _is_ours(request: Request) -> bool:
    """Whether the request comes from our own page, or from no browser at all."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" or request.headers.get(HEADER) != "1":
        return False
    if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return False
    origin = request.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == request.headers.get("host", "")


async def _body(request: Request) -> bytes:
    """The request's body, if it is small and comes soon."""
    body = b""
    try:
        async with asyncio.timeout(BODY_S):
            async for piece in request.stream():
                body += piece
                if len(body) > MAX_BODY_BYTES:
                    raise HTTPException(413)
    except TimeoutError:
        raise HTTPException(408) from None
    return body


def _parsed(body: bytes) -> tuple[str, str]:
    try:
        value: Any = json.loads(body)
    except (ValueError, RecursionError):
        raise HTTPException(422) from None
    if not isinstance(value, dict) or set(value) != {"text", "seen"}:
        raise HTTPException(422)
    text, seen = value["text"], value["seen"]
    if not isinstance(text, str) or not isinstance(seen, str) or len(text) > MAX_CHARACTERS:
        raise HTTPException(422)
    if any(not (one.isprintable() or one in "\n\t") for one in text):
        raise HTTPException(422)
    return text.strip(), seen


def _is_note(note: object) -> bool:
    return isinstance(note, dict) and set(note) == {"text", "at"} and all(isinstance(one, str) for one in note.values())


def _without(notes: dict[str, dict[str, str]], slide_id: str) -> dict[str, dict[str, str]]:
    return {key: note for key, note in notes.items() if key != slide_id}
