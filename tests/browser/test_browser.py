"""A pathologist's way through the viewer, in a real browser; screenshots stay in test-artifacts/."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.browser
Complaints = list[str]


@pytest.fixture
def page(chromium: Any, address: str) -> Iterator[tuple[Any, Complaints]]:
    """A page that writes down every complaint of the browser, and may go nowhere but to the viewer."""
    context = chromium.new_context(viewport={"width": 1000, "height": 760})
    page = context.new_page()
    complaints: Complaints = []
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda asked: None if asked.url.startswith((address, "data:", "blob:"))
            else complaints.append(f"left for {asked.url}"))  # fmt: skip
    page.set_default_timeout(60_000)
    yield page, complaints
    context.close()


def open_slide(page: Any, address: str, name: str = "S1") -> None:
    page.goto(address)
    page.get_by_role("link", name=name, exact=True).click()
    page.wait_for_selector("#first[data-open][data-run]")


def level(page: Any, pane: str = "first") -> str:
    return str(page.locator(f"#{pane}").get_attribute("data-level"))


def until(page: Any, question: str) -> None:
    """Ask until the page says yes; Playwright's own waiting evaluates strings, which the page's policy forbids."""
    for _ in range(200):
        if page.evaluate(question):
            return
        page.wait_for_timeout(100)
    pytest.fail(f"never true: {question}")


def test_from_the_list_to_two_models_side_by_side(page: tuple[Any, Complaints], address: str, pictures: Path) -> None:
    tab, complaints = page
    tab.goto(address)
    tab.screenshot(path=pictures / "1-list.png")
    tab.fill("#search", "S1")
    assert tab.locator("#cases tbody tr:visible").count() == 1
    tab.fill("#search", "")
    tab.get_by_role("button", name="Slide").click()
    assert tab.locator("#cases tbody tr").first.locator("a").inner_text() == "S5"

    open_slide(tab, address)
    assert level(tab) == "0"
    tab.wait_for_timeout(800)
    tab.screenshot(path=pictures / "2-slide.png")

    tab.locator('#first [data-zoom="in"]').click()
    tab.wait_for_selector('#first[data-level="1"]')
    assert "level 1 (20x)" in tab.locator("#first-status").inner_text()
    tab.wait_for_timeout(800)
    tab.screenshot(path=pictures / "3-finer-level.png")

    box = tab.locator("#first-screen").bounding_box()
    tab.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    tab.wait_for_selector("#branches[data-children]:not([data-children=''])")
    children = int(tab.locator("#branches").get_attribute("data-children"))
    assert 0 < children <= 16
    weights = [float(text) for text in tab.locator("#tiles li span b:last-child").all_inner_texts()]
    assert len(weights) == children
    assert weights == sorted(weights, reverse=True)
    until(tab, "() => [...document.querySelectorAll('#tiles img')].every((one) => one.naturalWidth > 0)")
    tab.screenshot(path=pictures / "4-children.png")

    other = tab.locator("#compare option").nth(2).get_attribute("value")
    tab.select_option("#compare", other)
    tab.wait_for_selector(f'#second[data-open][data-run="{other}"]')
    tab.wait_for_timeout(1000)
    assert tab.locator("#second-prediction .chance").count() == 2
    for how in ("in", "out"):
        tab.locator(f'#first [data-zoom="{how}"]').click()
        tab.wait_for_timeout(1500)
        places = [json.loads(tab.locator(f"#{name}").get_attribute("data-place")) for name in ("first", "second")]
        assert places[0]["scale"] == pytest.approx(places[1]["scale"], rel=1e-3)
        assert places[0]["x"] == pytest.approx(places[1]["x"], abs=2)
    tab.screenshot(path=pictures / "5-two-models.png")

    for mode in ("gradient", "occlusion"):
        tab.select_option("#mode", mode)
        tab.locator("#first-status", has_text=mode).wait_for()
    tab.screenshot(path=pictures / "6-occlusion.png")
    assert complaints == []


def test_the_layer_peaks_on_the_tile_the_model_points_at(
    page: tuple[Any, Complaints], address: str, pictures: Path
) -> None:
    tab, complaints = page
    open_slide(tab, address)
    key = tab.locator("#slide").get_attribute("data-slide")
    run = tab.locator("#run option", has_text="max").get_attribute("value")
    tab.select_option("#run", run)
    tab.wait_for_selector(f'#first[data-run="{run}"]')
    tab.fill("#opacity", "100")
    lattice = tab.request.get(f"{address}/api/slides/{key}").json()
    maps = tab.request.get(f"{address}/api/slides/{key}/runs/{run}/attention").json()["maps"]
    for k in (0, 1):
        tab.select_option("#level", str(k))
        tab.wait_for_selector(f'#first[data-level="{k}"]')
        tab.wait_for_timeout(700)
        place = json.loads(tab.locator("#first").get_attribute("data-place"))
        tiles, peak = lattice["levels"][k], int(np.argmax(maps[k]["values"]))
        row, column = tiles["cells"][2 * peak : 2 * peak + 2]
        corner = [tiles["origin"][0] + column * tiles["extent"], tiles["origin"][1] + row * tiles["extent"]]
        left, top = (place[axis] + place["scale"] * at for axis, at in zip("xy", corner, strict=True))
        side = place["scale"] * tiles["extent"]
        assert strongest(tab) == pytest.approx([left, top, left + side, top + side], abs=1.5)
        tab.screenshot(path=pictures / f"7-peak-level{k}.png")
    assert complaints == []


def strongest(tab: Any) -> list[float]:
    """Left, top, right and bottom of the layer's most opaque pixels."""
    found: list[float] = tab.evaluate(
        """() => {
        const canvas = document.querySelector("#first .layer");
        const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
        let best = 0;
        for (let i = 3; i < data.length; i += 4) best = Math.max(best, data[i]);
        let [left, top, right, bottom] = [Infinity, Infinity, -1, -1];
        for (let i = 3; i < data.length; i += 4) {
          if (data[i] < best) continue;
          const x = ((i - 3) / 4) % canvas.width, y = Math.floor((i - 3) / 4 / canvas.width);
          [left, top] = [Math.min(left, x), Math.min(top, y)];
          [right, bottom] = [Math.max(right, x + 1), Math.max(bottom, y + 1)];
        }
        return [left, top, right, bottom];
        }"""
    )
    return found


def test_it_works_by_keyboard_and_in_the_dark(chromium: Any, address: str, pictures: Path) -> None:
    context = chromium.new_context(viewport={"width": 1280, "height": 800}, color_scheme="dark")
    tab = context.new_page()
    tab.set_default_timeout(60_000)
    open_slide(tab, address)
    colour = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert max(int(part) for part in colour.removeprefix("rgb(").rstrip(")").split(",")) < 60
    reached = set()
    for _ in range(40):
        tab.keyboard.press("Tab")
        reached.add(tab.evaluate("document.activeElement.id || document.activeElement.className"))
    assert {"run", "compare", "mode", "level", "opacity", "threshold", "show-map", "by-value", "zoom"} <= reached
    assert {"previous", "following", "save-view", "save-map", "note-text"} & reached >= {"save-view", "save-map"}
    tab.locator("#tiles button").first.focus()
    tab.keyboard.press("Enter")
    tab.wait_for_selector("#branches[data-children]:not([data-children=''])")
    unnamed = tab.evaluate(
        "[...document.querySelectorAll('button, select, input')].filter((one) => "
        "!(one.textContent.trim() || one.labels?.length || one.getAttribute('aria-label'))).length"
    )
    assert unnamed == 0
    tab.wait_for_timeout(800)
    tab.screenshot(path=pictures / "8-dark.png")
    context.close()
