"""The report's page in a real browser: nothing cut, nothing loaded from anywhere, no serious fault for axe-core."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import SCREENS
from tests.browser.test_screens import serious
from tests.cli.running import marble
from tests.viewer.world import World

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def report(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report")
    done = marble("report", world.runs, "--out", out, "--slides", world.slides, "--store", world.store.root)
    assert done.code == 0, done.output
    return out / "index.html"


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_the_page_is_whole_and_accessible(
    chromium: Any, report: Path, axe: str, pictures: Path, width: int, scheme: str
) -> None:
    context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    tab = context.new_page()
    left: list[str] = []
    tab.on(
        "request", lambda asked: None if asked.url.startswith(("data:", report.as_uri())) else left.append(asked.url)
    )
    tab.goto(report.as_uri())
    tab.screenshot(path=pictures / f"report-{width}-{scheme}.png", full_page=True)
    colour = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    brightest = max(int(part) for part in colour.removeprefix("rgb(").rstrip(")").split(","))
    assert (brightest < 60) == (scheme == "dark")
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert tab.evaluate("[...document.images].every((one) => one.naturalWidth > 0 && one.alt)")
    assert tab.locator("article.case img").count() > 0
    assert serious(tab, axe) == []
    assert {url for url in left if not url.startswith("data:")} <= {report.as_uri()}
    context.close()


def test_it_prints_dark_on_white_within_the_paper(chromium: Any, report: Path, pictures: Path) -> None:
    context = chromium.new_context(viewport={"width": 718, "height": 1000}, color_scheme="dark")  # A4 less its margins
    tab = context.new_page()
    tab.goto(report.as_uri())
    tab.emulate_media(media="print")
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    ink = tab.evaluate("getComputedStyle(document.body).color").removeprefix("rgb(").rstrip(")").split(",")
    assert max(map(int, ink)) < 90
    tab.screenshot(path=pictures / "report-print.png", full_page=True)
    tab.pdf(path=pictures / "report.pdf", format="A4")
    context.close()
