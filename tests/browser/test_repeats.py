"""Several repeats in the viewer, at a desk's and a phone's width, in light and dark: what they say together of a slide
that all held out, what each says of its own, and which of them learned from the slide."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marble.viewer.registry import key_of
from tests.browser.test_screens import fits, serious

pytestmark = pytest.mark.browser

TRUE_SIZES = {"S0": 0.0, "S1": 11.0, "S4": 4.0, "S5": 15.0}
COLUMNS = {"calls": 4, "sizes": 5, "times": 6}  # of the list


def stored(repeats: Path, experiment: str, slide: str, column: str) -> list[float]:
    """What each repeat wrote of a slide it held out."""
    found = []
    for repeat in ("0", "1"):
        with (repeats / experiment / repeat / "predictions.csv").open() as file:
            rows = {row["slide_ids"]: row for row in csv.DictReader(file)}
        assert rows[slide]["part"] == "test"
        found.append(float(rows[slide][column]))
    return found


def cell_of(tab: Any, slide: str, experiment: str) -> Any:
    return tab.locator(f'#cases tr[data-key="{key_of("slide", slide)}"] td').nth(COLUMNS[experiment])


def words(cell: Any) -> str:
    return " ".join(cell.inner_text().split())


def open_slide(tab: Any, address: str, slide: str) -> None:
    tab.goto(f"{address}/slide/{key_of('slide', slide)}")
    tab.wait_for_selector("#first[data-open][data-run]")


def choose(tab: Any, experiment: str, place: int = 0) -> Any:
    """Show the run at that place of an experiment's group; its entry in the menu."""
    option = tab.locator(f'#run optgroup[label^="{experiment}:"] option').nth(place)
    run = option.get_attribute("value")
    tab.select_option("#run", run)
    tab.wait_for_selector(f'#first[data-run="{run}"]')
    return option


def test_the_list_says_what_repeats_say_together(
    screen: tuple[Any, str], repeats_address: str, repeats: Path, axe: str, pictures: Path
) -> None:
    tab, name = screen
    tab.goto(repeats_address)
    for slide in ("S4", "S5"):
        lesion = np.array(stored(repeats, "calls", slide, "p_lesion"))
        logits = np.log(lesion / (1 - lesion))
        together = 1 / (1 + np.exp(-logits.mean()))
        called, chance = ("lesion", together) if together > 0.5 else ("none", 1 - together)
        cell = cell_of(tab, slide, "calls")
        assert words(cell).startswith(f"{called} {chance:.3f} ± {lesion.std(ddof=1):.2g} (2 repeats)")
        assert ("error" in words(cell)) == (called != {"S4": "none", "S5": "lesion"}[slide])

        sizes = np.array(stored(repeats, "sizes", slide, "value"))
        miss = sizes.mean() - TRUE_SIZES[slide]
        expected = f"{sizes.mean():.4g} ± {sizes.std(ddof=1):.2g} (2 repeats) error {miss:+.3g}"
        assert words(cell_of(tab, slide, "sizes")) == expected

        risks = np.array(stored(repeats, "times", slide, "risk"))
        assert f"± {risks.std(ddof=1):.2g} (2 repeats)" in words(cell_of(tab, slide, "times"))
    fits(tab)
    assert serious(tab, axe) == []
    cell_of(tab, "S4", "sizes").scroll_into_view_if_needed()  # on a phone the table is wider than the screen
    tab.screenshot(path=pictures / f"repeats-list-{name}.png")


def test_the_list_marks_what_was_learned_from(screen: tuple[Any, str], repeats_address: str) -> None:
    tab, _ = screen
    tab.goto(repeats_address)
    for slide, mark in {"S0": "in training", "S1": "validation", "S4": None}.items():
        for experiment in COLUMNS:
            marks = cell_of(tab, slide, experiment).locator(".part").all_inner_texts()
            assert marks == ([] if mark is None else [mark]), (slide, experiment)
    for experiment in ("calls", "sizes"):  # their runs store no prediction of what they learned from
        assert words(cell_of(tab, "S0", experiment)) == "in training"
    assert "repeats" not in words(cell_of(tab, "S1", "sizes"))  # one validated on it, the other learned from it
    assert tab.locator(f'#cases tr[data-key="{key_of("slide", "S0")}"] td').nth(2).inner_text() == "P0"
    tab.select_option("#outcome", "0")  # a slide of which nothing was said is neither right nor wrong
    assert tab.locator(f'#cases tr[data-key="{key_of("slide", "S0")}"]').is_hidden()


def test_the_panel_lists_the_facts_of_a_slide(
    screen: tuple[Any, str], repeats_address: str, repeats: Path, axe: str, pictures: Path
) -> None:
    tab, name = screen
    open_slide(tab, repeats_address, "S4")
    facts = tab.locator("#first-prediction .facts")
    choose(tab, "calls")
    assert facts.count() == 0  # classes have bars
    assert tab.locator("#first-prediction .chance").count() == 2
    for place, value in enumerate(stored(repeats, "sizes", "S4", "value")):
        choose(tab, "sizes", place)
        assert facts.locator("dt").all_inner_texts() == ["predicted value", "true value", "error"]
        assert facts.locator("dd").all_inner_texts() == [
            f"{value:.4g} mm", "4 mm", f"{value - TRUE_SIZES['S4']:+.4g} mm"
        ]  # fmt: skip
    fits(tab)
    assert serious(tab, axe) == []
    facts.scroll_into_view_if_needed()
    tab.screenshot(path=pictures / f"facts-{name}.png")
    choose(tab, "times")
    said = dict(zip(facts.locator("dt").all_inner_texts(), facts.locator("dd").all_inner_texts(), strict=True))
    assert said["risk"] == f"{stored(repeats, 'times', 'S4', 'risk')[0]:.4g}"
    assert "8 months" in said[next(key for key in said if key != "risk")]
    assert "survival at" in tab.locator("#first-prediction .curve").get_attribute("aria-label")


def test_the_menu_of_runs_says_which_learned_from_the_slide(
    screen: tuple[Any, str], repeats_address: str, axe: str, pictures: Path
) -> None:
    tab, name = screen
    parts = {"S0": ["in training"] * 2, "S1": ["validation", "in training"], "S4": ["test"] * 2}
    for slide, expected in parts.items():
        open_slide(tab, repeats_address, slide)
        for menu in ("#run", "#compare"):
            for experiment in COLUMNS:
                entries = tab.locator(f'{menu} optgroup[label^="{experiment}:"] option').all_inner_texts()
                assert [entry.split("(")[1].rstrip(")") for entry in entries] == expected, (slide, menu)
        for place, part in enumerate(expected):
            choose(tab, "sizes", place)
            mark = tab.locator("#first-prediction h3 .mark")
            assert mark.all_inner_texts() == (["training slide"] if part == "in training" else [])
            assert all(one.evaluate("node => node.getClientRects().length") == 1 for one in mark.all())  # never torn
            warned = " ".join(tab.locator("#first-prediction .warning").all_inner_texts())
            assert ("in the training part of this run" in warned) == (part == "in training")
            assert ("in the validation part of this run" in warned) == (part == "validation")
        if slide == "S0":
            fits(tab)
            assert serious(tab, axe) == []
            tab.locator("#first-prediction h3").scroll_into_view_if_needed()
            tab.screenshot(path=pictures / f"training-{name}.png")
        assert json.loads(tab.locator("#first-prediction").get_attribute("data-readout")).keys() == {"value"}
