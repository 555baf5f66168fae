"""The routes. All of them read; keys come from the registry, numbers are checked, and nothing else is accepted."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from marble.attribution import MODES
from marble.errors import IntegrityError, MarbleError
from marble.heatmaps.colours import DIVERGING, SEQUENTIAL, colour_table
from marble.viewer.assets import LIBRARY, load_assets
from marble.viewer.gate import Busy, Gate
from marble.viewer.insight import Insight, encoded
from marble.viewer.pages import Pages
from marble.viewer.registry import Experiment, Registry, RunEntry, SlideEntry
from marble.viewer.security import Guard
from marble.viewer.tiles import ChangedError, GoneError, Pictures

T = TypeVar("T")
QUEUE = 96
RETRY_AFTER_S = "2"
CROP_PX = 160
_NUMBER = re.compile(r"[0-9]{1,7}")
_HTML, _JSON, _JPEG, _PNG = "text/html; charset=utf-8", "application/json", "image/jpeg", "image/png"


def create_app(
    registry: Registry, token: str | None = None, *, workers: int | None = None, queue: int = QUEUE
) -> ASGIApp:
    """The viewer as an ASGI application: `workers` requests are worked on, `queue` wait, the rest is answered 503."""
    return Guard(_routes(registry, workers or 2 * (os.cpu_count() or 1), queue), token)


def _routes(registry: Registry, workers: int, queue: int) -> FastAPI:  # noqa: C901  one flat list of routes
    pictures = Pictures()
    insight = Insight(registry, pictures)
    assets = load_assets()
    pages = Pages(registry, has_library=LIBRARY in assets)
    pixels, thinking = Gate(workers, queue), Gate(1, queue)  # models think one at a time, and never before pictures

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        pictures.close()

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan, redirect_slashes=False)
    _explain_errors(app)

    def slide_at(key: str) -> SlideEntry:
        return _known(registry.slides, key)

    def run_at(key: str) -> RunEntry:
        return _known(registry.runs, key)

    def experiment_at(key: str) -> Experiment:
        return _known(registry.experiments, key)

    @app.get("/healthz")
    async def health() -> Response:
        return JSONResponse({"status": "ok"}, headers={"cache-control": "no-store"})

    @app.get("/static/{name}")
    async def static(request: Request, name: str) -> Response:
        asset = _known(assets, name)
        return _answer(request, asset.data, asset.media_type, asset.etag)

    @app.get("/")
    async def cases(request: Request) -> Response:
        return _page(request, await pixels.run(lambda: pages.cases))

    @app.get("/slide/{slide}")
    async def slide_page(request: Request, slide: str) -> Response:
        entry = slide_at(slide)
        return _page(request, await pixels.run(lambda: pages.slide(entry)))

    @app.get("/results/{experiment}")
    async def results_page(request: Request, experiment: str) -> Response:
        entry = experiment_at(experiment)
        return _page(request, await thinking.run(lambda: pages.results(entry)))

    @app.get("/results/{experiment}/{figure}")
    async def figure(request: Request, experiment: str, figure: str) -> Response:
        entry = experiment_at(experiment)
        return _answer(request, _there(await thinking.run(lambda: pages.figure(entry, figure))), _PNG)

    @app.get("/api/colours")
    async def colours(request: Request) -> Response:
        tables = {name: colour_table(name).flatten().tolist() for name in (*SEQUENTIAL, *DIVERGING)}
        return _answer(request, encoded(tables), _JSON)

    @app.get("/api/slides/{slide}")
    async def lattice(request: Request, slide: str) -> Response:
        entry = slide_at(slide)
        return _answer(request, await pixels.run(lambda: insight.lattice(entry)), _JSON)

    @app.get("/api/slides/{slide}/tissue")
    async def tissue(request: Request, slide: str) -> Response:
        entry = slide_at(slide)
        return _answer(request, await pixels.run(lambda: insight.tissue(entry)), _JSON)

    @app.get("/api/slides/{slide}/pixels/{zoom}/{column}/{row}")
    async def tile(request: Request, slide: str, zoom: str, column: str, row: str) -> Response:
        entry, place = slide_at(slide), (_number(zoom), _number(column), _number(row))

        def tag() -> str:
            return _tag("tile", entry.key, pictures.source(entry), *place)

        def cut() -> bytes | None:
            return pictures.tile(entry, insight.size(entry), *place)

        return await _picture(request, pixels, tag, cut)

    @app.get("/api/slides/{slide}/crops/{level}/{index}")
    async def crop(request: Request, slide: str, level: str, index: str) -> Response:
        entry, k, i = slide_at(slide), _number(level), _number(index)

        def tag() -> str:
            return _tag("crop", entry.key, pictures.source(entry), k, i)

        def cut() -> bytes | None:
            boxes = insight.boxes(entry, k)
            return None if boxes is None else pictures.crop(entry, boxes, i, CROP_PX)

        return await _picture(request, pixels, tag, cut)

    @app.get("/api/slides/{slide}/runs/{run}")
    async def prediction(request: Request, slide: str, run: str) -> Response:
        entry, asked = slide_at(slide), run_at(run)
        return _answer(request, await thinking.run(lambda: insight.prediction(entry, asked)), _JSON)

    @app.get("/api/slides/{slide}/runs/{run}/{mode}")
    async def maps(request: Request, slide: str, run: str, mode: str) -> Response:
        entry, asked = slide_at(slide), run_at(run)
        if mode not in MODES:
            raise HTTPException(404)
        target = request.query_params.get("target")
        if target is not None and target not in asked.record["task"]["classes"]:
            raise HTTPException(404)
        return _answer(request, await thinking.run(lambda: insight.maps(entry, asked, mode, target)), _JSON)

    return app


def _explain_errors(app: FastAPI) -> None:
    """Every failure as a short JSON answer that names no file."""

    @app.exception_handler(Busy)
    async def busy(_: Request, __: Exception) -> Response:
        return _error(503, "busy: try again in a moment", {"retry-after": RETRY_AFTER_S})

    @app.exception_handler(StarletteHTTPException)
    async def http(_: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, StarletteHTTPException) else 500
        return _error(status, "no such thing here" if status == 404 else "not possible")

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, __: Exception) -> Response:
        return _error(422, "not a valid request")

    @app.exception_handler(MarbleError)
    async def ours(_: Request, error: Exception) -> Response:
        if isinstance(error, GoneError):
            return _error(404, error.what)
        if isinstance(error, ChangedError | IntegrityError):
            return _error(409, "what this shows has changed on disk")
        return _error(422, error.what if isinstance(error, MarbleError) else "not possible")


def _error(status: int, text: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": text}, status, {"cache-control": "no-store", **(headers or {})})


def _known(table: dict[str, T], key: str) -> T:
    if key not in table:
        raise HTTPException(404)
    return table[key]


def _there(data: bytes | None) -> bytes:
    if data is None:
        raise HTTPException(404)
    return data


def _number(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise HTTPException(404)
    return int(text)


def _tag(*parts: object) -> str:
    return '"' + hashlib.sha256("\x1f".join(map(str, parts)).encode()).hexdigest()[:32] + '"'


def _page(request: Request, html: str) -> Response:
    return _answer(request, html.encode(), _HTML)


def _answer(request: Request, data: bytes, media_type: str, etag: str | None = None) -> Response:
    """The bytes, or 304 if the client has them already."""
    etag = etag or f'"{hashlib.sha256(data).hexdigest()[:32]}"'
    headers = {"etag": etag, "cache-control": "private, no-cache"}
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    return Response(data, media_type=media_type, headers=headers)


async def _picture(request: Request, gate: Gate, tag: Callable[[], str], cut: Callable[[], bytes | None]) -> Response:
    """A JPEG whose ETag follows from its source and parameters, so that a known one is not cut again."""
    known = request.headers.get("if-none-match")

    def work() -> tuple[str, bytes | None]:
        etag = tag()
        return etag, b"" if known == etag else _there(cut())

    etag, data = await gate.run(work)
    return _answer(request, _there(data), _JPEG, etag)
