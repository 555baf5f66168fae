"""What every route answers with: bytes with the hash of their content, or an error that names no file."""

from __future__ import annotations

import hashlib
import re
from typing import TypeVar

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.responses import JSONResponse, Response

from marble.errors import IntegrityError, MarbleError, WriteError
from marble.viewer.gate import Busy
from marble.viewer.tiles import ChangedError, GoneError

T = TypeVar("T")
RETRY_AFTER_S = "2"
NUMBER = re.compile(r"[0-9]{1,7}")
HTML, JSON, GEOJSON = "text/html; charset=utf-8", "application/json", "application/geo+json"
JPEG, PNG = "image/jpeg", "image/png"


def explain_errors(app: FastAPI) -> None:
    """Every failure as a short JSON answer that names no file."""

    @app.exception_handler(Busy)
    async def busy(_: Request, __: Exception) -> Response:
        return error_reply(503, "busy: try again in a moment", {"retry-after": RETRY_AFTER_S})

    @app.exception_handler(StarletteHTTPException)
    async def http(_: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, StarletteHTTPException) else 500
        return error_reply(status, "no such thing here" if status == 404 else "not possible")

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, __: Exception) -> Response:
        return error_reply(422, "not a valid request")

    @app.exception_handler(MarbleError)
    async def ours(_: Request, error: Exception) -> Response:
        if isinstance(error, GoneError):
            return error_reply(404, error.what)
        if isinstance(error, WriteError):  # its sentence names the file
            return error_reply(507, "it cannot be written here: the disk is full, or read-only, or not ours")
        if isinstance(error, ChangedError | IntegrityError):
            return error_reply(409, "what this shows has changed on disk")
        return error_reply(422, error.what if isinstance(error, MarbleError) else "not possible")


def error_reply(status: int, text: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": text}, status, {"cache-control": "no-store", **(headers or {})})


def known(table: dict[str, T], key: str) -> T:
    """What a key names, or 404."""
    if key not in table:
        raise HTTPException(404)
    return table[key]


def there(data: bytes | None) -> bytes:
    """The bytes, or 404."""
    if data is None:
        raise HTTPException(404)
    return data


def number(text: str) -> int:
    """A plain number, or 404."""
    if not NUMBER.fullmatch(text):
        raise HTTPException(404)
    return int(text)


def page(request: Request, html: str) -> Response:
    return answer(request, html.encode(), HTML)


def answer(request: Request, data: bytes, media_type: str, etag: str | None = None) -> Response:
    """The bytes, or 304 if the client has them already; the ETag is the hash of the content, whatever made it."""
    etag = etag or f'"{hashlib.sha256(data).hexdigest()[:32]}"'
    headers = {"etag": etag, "cache-control": "private, no-cache"}
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    return Response(data, media_type=media_type, headers=headers)
