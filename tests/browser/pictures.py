"""Makes the pictures of the README and the docs from any folder with `slides/`, `bags/` and `runs/`, as the demo's is:

python -m tests.browser.pictures demo-out docs/images

Needs Chromium and Playwright, as the browser tests do (`make browser-test` installs both).
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import uvicorn
from PIL import Image

from marble.cli.report import case_pictures
from marble.errors import UnavailableError
from marble.heatmaps.write import HeatmapSpec, write_heatmaps
from marble.prediction import Predictor
from marble.reports.collect import collect
from marble.reports.compare import compare
from marble.reports.page import CaseLooks, write_comparison
from marble.viewer.app import create_app
from marble.viewer.registry import Registry, RunEntry, SlideEntry, build_registry

MAX_BYTES = 300_000
WIDTH, HEIGHT = 1280, 800


def main(folder: Path, out: Path) -> None:
    """Write heatmap.png, viewer.png and report.png."""
    out.mkdir(parents=True, exist_ok=True)
    registry = build_registry(folder / "runs", folder / "slides", folder / "bags")
    slide, run = telling(registry)
    scratch = out / ".scratch"
    try:
        bag = registry.bag(slide, run).load()
        drawn = write_heatmaps(Predictor(run.folder), bag, slide.file, scratch, HeatmapSpec(size=1000, top=0))
        overlay = next(file for file in reversed(drawn.files) if file.suffix == ".png")
        shrink(overlay, out / "heatmap.png")
        experiment = registry.experiments[run.experiment].folder
        results = collect(experiment)
        looks = CaseLooks(case_pictures(results, folder / "slides", folder / "bags"))
        page = write_comparison(compare(results), scratch / "report", looks)
        photograph(registry, slide, run, page, out, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def telling(registry: Registry) -> tuple[SlideEntry, RunEntry]:
    """A slide that MARBLE, the one of most levels, was tested on and was right about; the surest of the last class."""
    found = [
        (*_rank(run), said.wrong, said.text == run.task.class_names[0], -said.number, slide.slide_id, slide, run)
        for run in registry.runs.values()
        for slide in registry.slides.values()
        if slide.file is not None and slide.bags and (said := run.stored.get(slide.slide_id)) and said.part == "test"
    ]
    *_, slide, run = min(found, key=lambda one: one[:-2])
    return slide, run


def _rank(run: RunEntry) -> tuple[bool, int]:
    model = run.record["model"]
    return model["name"] != "marble", -int(model["options"].get("levels", 0))


def photograph(
    registry: Registry, slide: SlideEntry, run: RunEntry, page: Path, out: Path, scratch: Path
) -> None:  # fmt: skip
    from playwright.sync_api import sync_playwright

    path = os.environ.get("MARBLE_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        raise UnavailableError("no Chromium here", hint="Install your system's package, or set MARBLE_CHROMIUM")
    server = uvicorn.Server(uvicorn.Config(create_app(registry), port=0, access_log=False, log_level="warning"))
    threading.Thread(target=server.run, daemon=True).start()
    while not server.started:
        time.sleep(0.05)
    address = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox", "--headless=new"])
        tab: Any = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        tab.set_default_timeout(120_000)
        tab.goto(f"{address}/slide/{slide.key}#{run.record['job']}")
        tab.wait_for_selector("#first[data-open][data-run]")
        tab.wait_for_timeout(2000)
        tab.screenshot(path=scratch / "viewer.png")
        tab.set_viewport_size({"width": WIDTH, "height": 1100})
        tab.goto(page.as_uri())
        tab.screenshot(path=scratch / "page.png")
        browser.close()
    server.should_exit = True
    shrink(scratch / "viewer.png", out / "viewer.png")
    shrink(scratch / "page.png", out / "report.png")


def shrink(source: Path, target: Path) -> None:
    """The picture in 256 colours, smaller step by step until it is small enough for a repository."""
    pixels = cv2.imread(str(source))
    assert pixels is not None
    while True:
        kept = io.BytesIO()
        picture = Image.fromarray(np.ascontiguousarray(pixels[:, :, ::-1]))
        few = picture.quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE)
        few.save(kept, "PNG", optimize=True)
        if kept.tell() <= MAX_BYTES:
            target.write_bytes(kept.getvalue())
            return
        pixels = cv2.resize(pixels, None, fx=0.9, fy=0.9, interpolation=cv2.INTER_AREA)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
