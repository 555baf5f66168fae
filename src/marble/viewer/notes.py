"""Notes on slides: the only thing the viewer ever writes, and only where it was told to.

They live in one JSON file beside the runs, published whole: for each slide one note of each writer, by the name of the
token, which is empty where tokens have no names. Everybody reads all of them and writes only their own. A note is
written with the text its writer saw before; if it changed meanwhile, it is refused instead of lost. Viewers that share
the file write one after the other. A page elsewhere
cannot write one: a request must carry a header that no form can set, and where the browser names the page it comes
from, that page must be ours.
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
from marble.compute import locks
from marble.errors import IntegrityError, MarbleError
from marble.viewer.gate import Gate
from marble.viewer.registry import SlideEntry
from marble.viewer.security import USER

FILE = "notes.json"
MAX_CHARACTERS = 4000
MAX_BODY_BYTES = 32_768
BODY_S = 5.0
HEADER = "x-marble-note"
NOTHING = {"text": "", "at": ""}


class StaleError(MarbleError):
    """The note is not the one its writer saw."""


class Notes:
    """The notes of all slides, in one file: slide, writer, then text and time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._here = Lock()  # threads of one viewer need not ask the disk
        self._file = path.with_name(f".{path.name}{locks.SUFFIX}")

    def read(self, slide_id: str, writer: str = "") -> dict[str, Any]:
        """Text and time of the writer's own note on a slide, both empty if there is none; and the others'."""
        return _seen_by(writer, self._all().get(slide_id, {}))

    def write(self, slide_id: str, text: str, seen: str, writer: str = "") -> dict[str, Any]:
        """Put `text` in place of `seen` as the writer's own note; an empty one removes it."""
        with self._here, locks.hold(self._file, "the file of notes", wait=True):
            notes = self._all()
            here = notes.pop(slide_id, {})
            if here.pop(writer, NOTHING)["text"] != seen:
                raise StaleError("this note was changed meanwhile")
            if text:
                here[writer] = {"text": text, "at": datetime.now(UTC).isoformat(timespec="seconds")}
            files.publish_json(self.path, {**notes, slide_id: here} if here else notes)
            return _seen_by(writer, here)

    def _all(self) -> dict[str, dict[str, dict[str, str]]]:
        if not self.path.exists():
            return {}
        body = files.read_json(self.path)
        if not isinstance(body, dict) or not all(_are_notes(notes) for notes in body.values()):
            raise IntegrityError("not a file of notes", where=self.path, hint="Move it away, or mend it")
        return {slide: {"": notes} if _is_note(notes) else notes for slide, notes in body.items()}


def add_note_routes(app: FastAPI, notes: Notes, slide_at: Callable[[str], SlideEntry], gate: Gate) -> None:
    """Reading and writing the note of one slide."""

    @app.get("/api/slides/{slide}/note")
    async def read(request: Request, slide: str) -> Response:
        entry, writer = slide_at(slide), request.scope.get(USER, "")
        note = await gate.run(lambda: notes.read(entry.slide_id, writer))
        return JSONResponse(note, headers={"cache-control": "no-store"})

    @app.post("/api/slides/{slide}/note")
    async def write(request: Request, slide: str) -> Response:
        entry, writer = slide_at(slide), request.scope.get(USER, "")
        if not _is_ours(request):
            raise HTTPException(403)
        text, seen = _parsed(await _body(request))
        try:
            note = await gate.run(lambda: notes.write(entry.slide_id, text, seen, writer))
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


def _seen_by(writer: str, notes: dict[str, dict[str, str]]) -> dict[str, Any]:
    others = [{"by": name, **note} for name, note in sorted(notes.items()) if name != writer]
    return {**notes.get(writer, NOTHING), "by": writer, "others": others}


def _is_note(note: object) -> bool:
    return isinstance(note, dict) and set(note) == {"text", "at"} and all(isinstance(one, str) for one in note.values())


def _are_notes(notes: object) -> bool:
    """Notes by their writers; or one note, as it was written when there were no writers."""
    return _is_note(notes) or (isinstance(notes, dict) and all(_is_note(note) for note in notes.values()))
