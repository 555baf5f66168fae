"""Each thing the viewer offers, at a desk's and a phone's width, in light and dark; screenshots in test-artifacts/.

What it offers, and the test that looks at it (in this file where no other is named):

thumbnails, filters by outcome and confidence           test_the_list
search, sorting                                         test_browser: test_from_the_list_to_two_models_side_by_side
sorting of risks                                        test_risks_are_sorted_as_numbers
marks on slides that were trained or validated on       test_the_list, test_repeats: test_the_list_marks_...
what repeats say together                               test_repeats: test_the_list_says_what_repeats_say_together
runs in groups, colour bar, magnification, comparison   test_the_slide
levels by zoom, children of a tile, linked panes        test_browser: test_from_the_list_to_two_models_side_by_side
facts of a slide, survival curve                        test_repeats: test_the_panel_lists_the_facts_of_a_slide
runs that learned from the slide                        test_repeats: test_the_menu_of_runs_says_...
the map's place                                         test_browser: test_the_layer_peaks_on_the_tile_...
clean edges                                             test_nothing_is_painted_outside_the_slide
threshold, opacity by value                             test_threshold_and_opacity_by_value
view as PNG, map as GeoJSON                             test_view_and_map_can_be_saved
previous and next                                       test_previous_and_next_follow_the_list
notes                                                   test_a_note_is_kept
progress, nothing stale                                 test_while_something_is_computed_nothing_stale_is_shown
keyboard                                                test_browser: test_it_works_by_keyboard_and_in_the_dark
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from marble.viewer.pages import Pages
from marble.viewer.registry import build_registry, key_of
from tests.browser.test_browser import open_slide, until
from tests.viewer.world import World, make_survival_world

pytestmark = pytest.mark.browser


def fits(tab: Any) -> None:
    """Nothing hangs over the window's or the panel's edge."""
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert tab.evaluate(
        "[...document.querySelectorAll('.panel, .card')].every((one) => one.scrollWidth <= one.clientWidth + 1)"
    )


def serious(tab: Any, axe: str) -> list[str]:
    """What axe-core finds that is serious or worse."""
    tab.evaluate(f"() => {{ {axe} }}")  # the page's policy forbids a script element
    found = tab.evaluate("() => axe.run(document, { resultTypes: ['violations'] })")
    return [f"{one['id']}: {one['nodes'][0]['html']} {one['nodes'][0].get('failureSummary', '')}"
            for one in found["violations"] if one["impact"] in ("serious", "critical")]  # fmt: skip


def test_the_list(screen: tuple[Any, str], address: str, axe: str, pictures: Path) -> None:
    tab, name = screen
    tab.goto(address)
    until(
        tab, "() => [...document.querySelectorAll('.thumb img')].every((one) => one.naturalWidth > 0 || !one.complete)"
    )
    assert tab.locator(".thumb img").count() == 6
    fits(tab)
    marks = {f"S{n}": "in training" if n < 2 else "validation" if n < 4 else None for n in range(6)}
    for slide, mark in marks.items():
        row = tab.locator(f'#cases tr[data-key="{key_of("slide", slide)}"]')
        assert row.locator(".part").all_inner_texts() == ([] if mark is None else [mark] * 3), slide
    rows = tab.locator("#cases tbody tr:visible")
    wrong = tab.locator('#cases tbody tr[data-wrong="1"]').count()
    tab.select_option("#outcome", "1")
    assert rows.count() == wrong
    tab.select_option("#outcome", "0")
    tab.select_option("#confidence", "0 0.6")
    sure = tab.evaluate(
        "() => [...document.querySelectorAll('#cases tbody tr')].filter((row) => !row.hidden)"
        ".map((row) => Math.min(...[...row.cells].slice(4, -1).map((c) => Number(c.dataset.sure || 1))))"
    )
    assert all(value <= 0.6 for value in sure)
    tab.select_option("#confidence", "")
    tab.select_option("#outcome", "")
    assert rows.count() == 6
    assert serious(tab, axe) == []
    tab.screenshot(path=pictures / f"list-{name}.png")


def test_the_slide(screen: tuple[Any, str], address: str, axe: str, pictures: Path) -> None:
    tab, name = screen
    open_slide(tab, address, "S5")
    assert "in training" not in tab.locator("#run option").first.inner_text()
    assert tab.locator("#run optgroup").count() == 3
    assert tab.locator("#run optgroup").first.get_attribute("label") == "tiny: marble"
    legend = tab.locator("#first-legend")
    assert "attention (share of 1)" in legend.inner_text()
    assert "sum to 1" in legend.get_attribute("aria-label")
    assert tab.locator("#first-magnification").inner_text().split()[0].endswith("x,")
    fits(tab)
    tab.wait_for_timeout(600)
    assert serious(tab, axe) == []
    tab.screenshot(path=pictures / f"slide-{name}.png", full_page=True)
    # a click on a tile fills the list of its children; nothing overflows then
    tab.locator("#tiles button").first.click()
    tab.wait_for_selector("#branches[data-children]:not([data-children=''])")
    fits(tab)
    tab.select_option("#mode", "occlusion")
    tab.wait_for_selector("#first[data-run]")
    tab.locator("#first-legend", has_text="logit of").wait_for()
    text = legend.inner_text()
    assert "against" in text
    assert "+" in text
    other = tab.locator("#compare optgroup").nth(1).locator("option").first.get_attribute("value")
    tab.select_option("#compare", other)
    tab.wait_for_selector(f'#second[data-open][data-run="{other}"]')
    assert tab.locator("#second-legend").is_visible()
    limits = [tab.locator(f"#{pane}-legend .ends b").last.inner_text() for pane in ("first", "second")]
    assert limits[0] != limits[1]  # each pane has a scale of its own
    fits(tab)
    tab.wait_for_timeout(600)
    assert serious(tab, axe) == []
    tab.screenshot(path=pictures / f"compare-{name}.png", full_page=True)


def painted(tab: Any) -> int:
    """How many pixels of the layer are not transparent."""
    count: int = tab.evaluate(
        """() => {
        const canvas = document.querySelector("#first .layer");
        const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
        let count = 0;
        for (let i = 3; i < data.length; i += 4) count += data[i] > 0;
        return count;
        }"""
    )
    return count


def test_threshold_and_opacity_by_value(screen: tuple[Any, str], address: str) -> None:
    tab, _ = screen
    open_slide(tab, address)
    run = tab.locator("#run option", has_text="max").first.get_attribute("value")  # its map has a peak
    tab.select_option("#run", run)
    tab.wait_for_selector(f'#first[data-run="{run}"]')
    all_of_it = painted(tab)
    tab.fill("#threshold", "50")
    half = painted(tab)
    tab.fill("#threshold", "100")
    assert all_of_it > half >= painted(tab) > 0  # the peak itself is always shown
    assert tab.locator("#threshold-value").inner_text() == "100 %"
    tab.fill("#threshold", "0")
    alphas = {}
    for on in (True, False):
        tab.set_checked("#by-value", on)
        alphas[on] = tab.evaluate(
            """() => {
            const canvas = document.querySelector("#first .layer");
            const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
            const seen = new Set();
            for (let i = 3; i < data.length; i += 4) if (data[i]) seen.add(data[i]);
            return [...seen];
            }"""
        )
    assert len(alphas[True]) > 1
    assert len(alphas[False]) == 1
    assert min(alphas[True]) < 0.2 * max(alphas[True])  # where there is little attention the tissue is seen


def test_nothing_is_painted_outside_the_slide(screen: tuple[Any, str], address: str) -> None:
    tab, _ = screen
    open_slide(tab, address)
    tab.select_option("#level", "0")
    tab.set_checked("#show-lattice", True)
    tab.locator('#first [data-zoom="out"]').click()
    tab.wait_for_timeout(900)
    place = json.loads(tab.locator("#first").get_attribute("data-place"))
    left, top, right, bottom = tab.evaluate(
        """() => {
        const canvas = document.querySelector("#first .layer");
        const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
        let [left, top, right, bottom] = [Infinity, Infinity, -1, -1];
        for (let i = 3; i < data.length; i += 4) {
          if (!data[i]) continue;
          const x = ((i - 3) / 4) % canvas.width, y = Math.floor((i - 3) / 4 / canvas.width);
          [left, top] = [Math.min(left, x), Math.min(top, y)];
          [right, bottom] = [Math.max(right, x + 1), Math.max(bottom, y + 1)];
        }
        return [left, top, right, bottom];
        }"""
    )
    assert left >= place["x"] - 2
    assert top >= place["y"] - 2
    assert right <= place["x"] + 1536 * place["scale"] + 2
    assert bottom <= place["y"] + 1024 * place["scale"] + 2


def test_view_and_map_can_be_saved(screen: tuple[Any, str], address: str, world: World) -> None:
    tab, _ = screen
    open_slide(tab, address)
    tab.wait_for_timeout(800)
    with tab.expect_download() as saved:
        tab.click("#save-view")
    assert saved.value.suggested_filename == "S1.png"
    picture = np.asarray(Image.open(io.BytesIO(Path(saved.value.path()).read_bytes())).convert("RGB"))
    pane = tab.locator("#first").bounding_box()
    assert picture.shape[1] == pytest.approx(pane["width"], abs=2)
    assert picture.shape[0] > pane["height"]
    assert picture.reshape(-1, 3).std(axis=0).min() > 5
    with tab.expect_download() as saved:
        tab.click("#save-map")
    body = json.loads(Path(saved.value.path()).read_text())
    level = int(tab.locator("#first").get_attribute("data-level"))
    assert saved.value.suggested_filename == f"S1-attention-level{level}.geojson"
    assert len(body["features"]) == len(world.store.load("S1").levels[level])


def test_previous_and_next_follow_the_list(screen: tuple[Any, str], address: str) -> None:
    tab, _ = screen
    open_slide(tab, address, "S1")
    tab.click("#following")
    tab.wait_for_url(f"**/slide/{key_of('slide', 'S2')}")
    tab.goto(address)
    tab.get_by_role("button", name="Slide").click()  # now from the last to the first
    tab.get_by_role("link", name="S1", exact=True).click()
    tab.wait_for_selector("#first[data-open][data-run]")
    assert tab.locator("#place").inner_text() == "5 of 6"
    tab.click("#following")
    tab.wait_for_url(f"**/slide/{key_of('slide', 'S0')}")
    assert tab.locator("#following").get_attribute("aria-disabled") == "true"


def test_a_note_is_kept(screen: tuple[Any, str], address: str, world: World) -> None:
    tab, name = screen
    open_slide(tab, address, "S4")
    until(tab, "() => !document.getElementById('note-text').disabled")
    tab.fill("#note-text", f"seen at {name}")
    tab.get_by_role("button", name="Save note").click()
    tab.locator("#note-said", has_text="saved").wait_for()
    kept = json.loads((world.root / "kept" / "notes.json").read_text())
    assert kept["S4"][""]["text"] == f"seen at {name}"
    tab.reload()
    until(tab, f"() => document.getElementById('note-text').value === 'seen at {name}'")


def test_while_something_is_computed_nothing_stale_is_shown(screen: tuple[Any, str], address: str) -> None:
    tab, _ = screen
    open_slide(tab, address)
    held: list[Any] = []

    def hold(route: Any) -> None:
        held.append(route)

    tab.route("**/runs/*/gradient", hold)
    tab.select_option("#mode", "gradient")
    tab.locator("#first-prediction progress").wait_for()
    assert painted(tab) == 0
    assert tab.locator("#first-legend").is_hidden()
    assert tab.locator("#tiles li").count() == 0
    assert tab.locator("#save-map").get_attribute("aria-disabled") == "true"
    assert tab.locator("#first").get_attribute("data-run") is None
    tab.locator("#first-prediction", has_text="1 s").wait_for()  # longer than a second: it says how long already
    tab.select_option("#mode", "attention")  # the late answer to the first question must not be shown
    tab.wait_for_selector("#first[data-run]")
    for route in held:
        route.continue_()
    tab.wait_for_timeout(800)
    assert "attention" in tab.locator("#first-status").inner_text()
    assert "attention" in tab.locator("#first-legend").inner_text()


def test_risks_are_sorted_as_numbers(chromium: Any, tmp_path: Path) -> None:
    """Negative ones too."""
    make_survival_world(tmp_path)
    html = Pages(build_registry(tmp_path), has_library=True).cases
    script = (Path(__file__).parents[2] / "src/marble/viewer/static/cases.js").read_text()
    context = chromium.new_context()
    tab = context.new_page()
    tab.route("http://list.test/", lambda route: route.fulfill(body=html, content_type="text/html"))
    tab.route("**/static/*.js", lambda route: route.fulfill(body=script, content_type="text/javascript"))
    tab.route("**/*.css", lambda route: route.fulfill(body="", content_type="text/css"))
    tab.goto("http://list.test/")
    risks = [-3.5, 2.25, -0.5, 0.0, 10.0, -12.0]
    tab.evaluate(
        """(risks) => [...document.querySelectorAll('td[data-number]:not(.number, .truth)')].forEach((cell, n) => {
        cell.dataset.number = String(risks[n % risks.length] + n / 1000);
        })""",
        risks,
    )
    for sign in (1, -1):
        tab.get_by_role("button", name="mean").click()
        found = tab.evaluate(
            "() => [...document.querySelectorAll('#cases tbody td[data-number]:not(.number, .truth)')]"
            ".map((cell) => Number(cell.dataset.number))"
        )
        assert len(found) > 6
        assert found == sorted(found, key=lambda value: sign * value)
    context.close()
