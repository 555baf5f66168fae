"""The routes of one slide: its lattice, its pixels, and what the runs say of it."""

from __future__ import annotations

from fastapi import FastAPI, HTTPException, Request
from starlette.responses import JSONResponse, Response

from marble.attribution import MODES
from marble.viewer.gate import Gate
from marble.viewer.insight import Insight
from marble.viewer.registry import Registry, RunEntry, SlideEntry, StoredBag
from marble.viewer.replies import GEOJSON, JPEG, JSON, answer, known, number, there
from marble.viewer.tiles import Pictures

CROP_PX = 160


def add_slide_routes(  # noqa: C901  one flat list of routes
    app: FastAPI, registry: Registry, insight: Insight, pictures: Pictures, *, pixels: Gate, thinking: Gate
) -> None:
    """Pictures go through one gate, models through another, so that neither waits for the other."""

    def slide_at(key: str) -> SlideEntry:
        return known(registry.slides, key)

    def run_at(key: str) -> RunEntry:
        return known(registry.runs, key)

    def bag_at(request: Request, slide: SlideEntry) -> StoredBag:
        """The bag the request names, or the slide's first."""
        asked = request.query_params.get("bag")
        return registry.bag(slide) if asked is None else known({bag.key: bag for bag in slide.bags}, asked)

    def question(request: Request, slide: str, run: str, mode: str) -> tuple[SlideEntry, RunEntry, str, str | None]:
        entry, asked = slide_at(slide), run_at(run)
        if mode not in MODES:
            raise HTTPException(404)
        target = request.query_params.get("target")
        if target is not None and target not in asked.record["task"]["classes"]:
            raise HTTPException(404)
        return entry, asked, mode, target

    @app.get("/api/slides/{slide}")
    async def lattice(request: Request, slide: str) -> Response:
        entry = slide_at(slide)
        bag = bag_at(request, entry)
        return answer(request, await pixels.run(lambda: insight.lattice(entry, bag)), JSON)

    @app.get("/api/slides/{slide}/tissue")
    async def tissue(request: Request, slide: str) -> Response:
        entry = slide_at(slide)
        bag = bag_at(request, entry)
        return answer(request, await pixels.run(lambda: insight.tissue(entry, bag)), JSON)

    @app.get("/api/slides/{slide}/pixels/{zoom}/{column}/{row}")
    async def tile(request: Request, slide: str, zoom: str, column: str, row: str) -> Response:
        entry, place = slide_at(slide), (number(zoom), number(column), number(row))
        bag = bag_at(request, entry)

        def cut() -> bytes | None:
            return pictures.tile(entry.file, bag, insight.size(entry, bag), *place)

        return answer(request, there(await pixels.run(cut)), JPEG)

    @app.get("/api/slides/{slide}/crops/{level}/{index}")
    async def crop(request: Request, slide: str, level: str, index: str) -> Response:
        entry, k, i = slide_at(slide), number(level), number(index)
        bag = bag_at(request, entry)

        def cut() -> bytes | None:
            boxes = insight.boxes(bag, k)
            return None if boxes is None else pictures.crop(entry.file, bag, boxes, i, CROP_PX)

        return answer(request, there(await pixels.run(cut)), JPEG)

    @app.get("/api/slides/{slide}/runs/{run}")
    async def prediction(request: Request, slide: str, run: str) -> Response:
        entry, asked = slide_at(slide), run_at(run)
        return answer(request, await thinking.run(lambda: insight.prediction(entry, asked)), JSON)

    @app.get("/api/slides/{slide}/runs/{run}/{mode}")
    async def maps(request: Request, slide: str, run: str, mode: str) -> Response:
        asked = question(request, slide, run, mode)
        return answer(request, await thinking.run(lambda: insight.maps(*asked)), JSON)

    @app.get("/api/slides/{slide}/runs/{run}/{mode}/progress")
    async def progress(request: Request, slide: str, run: str, mode: str) -> Response:
        found = insight.progress(*question(request, slide, run, mode))
        done, total = found or (0, 0)
        body = {"working": found is not None, "done": done, "total": total}
        return JSONResponse(body, headers={"cache-control": "no-store"})

    @app.get("/api/slides/{slide}/runs/{run}/{mode}/{level}/geojson")
    async def geojson(request: Request, slide: str, run: str, mode: str, level: str) -> Response:
        asked, k = question(request, slide, run, mode), number(level)
        return answer(request, there(await thinking.run(lambda: insight.geojson(*asked, k))), GEOJSON)
