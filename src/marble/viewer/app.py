"""The routes. Keys come from the registry, numbers are checked, and nothing else is accepted.

All of them read but one: a note on a slide can be written, if the viewer was started with a file for notes.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from marble.heatmaps.colours import DIVERGING, SEQUENTIAL, colour_table
from marble.viewer.assets import LIBRARY, load_assets
from marble.viewer.gate import Gate
from marble.viewer.insight import Insight, encoded
from marble.viewer.notes import Notes, add_note_routes
from marble.viewer.pages import Pages
from marble.viewer.registry import ExperimentEntry, Registry, SlideEntry
from marble.viewer.replies import JSON, PNG, answer, explain_errors, known, page, there
from marble.viewer.security import Guard
from marble.viewer.slide_routes import add_slide_routes
from marble.viewer.tiles import Pictures
from marble.viewer.tokens import Tokens

QUEUE = 96


def create_app(
    registry: Registry,
    tokens: Tokens | None = None,
    *,
    secure: bool = False,
    workers: int | None = None,
    queue: int = QUEUE,
    notes: Notes | None = None,
    device: str = "cpu",
    readers: int = 0,
) -> ASGIApp:
    """The viewer as an ASGI application: `workers` requests are worked on, `queue` wait, the rest is answered 503.

    With `tokens` every request is asked for one; `secure` says that browsers come by TLS. `notes` is where notes on
    slides are kept; without it nothing can be written. Models compute on `device`.
    Slides are read by so many `readers`: processes that a file may crash or halt without harm; 0: by this one.
    """
    routes = _routes(registry, workers or 2 * (os.cpu_count() or 1), queue, notes, device, readers)
    return Guard(routes, tokens, secure=secure)


def _routes(
    registry: Registry, workers: int, queue: int, notes: Notes | None = None, device: str = "cpu", readers: int = 0
) -> FastAPI:
    pictures = Pictures(readers=readers)
    insight = Insight(registry, pictures, device)
    assets = load_assets()
    pages = Pages(registry, has_library=LIBRARY in assets, has_notes=notes is not None)
    pixels, thinking = Gate(workers, queue), Gate(1, queue)  # models think one at a time, and never before pictures

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        pictures.close()

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan, redirect_slashes=False)
    explain_errors(app)

    def slide_at(key: str) -> SlideEntry:
        return known(registry.slides, key)

    def experiment_at(key: str) -> ExperimentEntry:
        return known(registry.experiments, key)

    @app.get("/healthz")
    async def health() -> Response:
        return JSONResponse({"status": "ok"}, headers={"cache-control": "no-store"})

    @app.get("/static/{name}")
    async def static(request: Request, name: str) -> Response:
        asset = known(assets, name)
        return answer(request, asset.data, asset.media_type, asset.etag)

    @app.get("/")
    async def cases(request: Request) -> Response:
        return page(request, await pixels.run(lambda: pages.cases))

    @app.get("/slide/{slide}")
    async def slide_page(request: Request, slide: str) -> Response:
        entry = slide_at(slide)
        return page(request, await pixels.run(lambda: pages.slide(entry)))

    @app.get("/results/{experiment}")
    async def results_page(request: Request, experiment: str) -> Response:
        entry = experiment_at(experiment)
        return page(request, await thinking.run(lambda: pages.results(entry)))

    @app.get("/results/{experiment}/{figure}")
    async def figure(request: Request, experiment: str, figure: str) -> Response:
        entry = experiment_at(experiment)
        return answer(request, there(await thinking.run(lambda: pages.figure(entry, figure))), PNG)

    @app.get("/api/colours")
    async def colours(request: Request) -> Response:
        tables = {name: colour_table(name).flatten().tolist() for name in (*SEQUENTIAL, *DIVERGING)}
        return answer(request, encoded(tables), JSON)

    add_slide_routes(app, registry, insight, pictures, pixels=pixels, thinking=thinking)
    if notes is not None:
        add_note_routes(app, notes, slide_at, pixels)
    return app
