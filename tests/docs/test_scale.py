"""The page on scale shows what the cost model computes."""

from __future__ import annotations

from tests.docs.scale import BEGIN, PAGE, page


def test_the_tables_are_those_of_the_cost_model() -> None:
    text = PAGE.read_text()
    assert BEGIN in text
    assert page(text) == text, "run `python -m tests.docs.scale`"
