"""What is given in place of something else is refused in one line that says what to give."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

import marble
from marble.errors import MarbleError
from tests.door.making import two_classes

BAGS, LABELS = two_classes(16)
TOKENS: Any = np.ones((3, 6), np.float32)
PLACED: Any = marble.Level(TOKENS, np.arange(6).reshape(3, 2))  # type: ignore[arg-type]  # numpy's are taken too
NUMBERS = {"benign": 0, "tumour": 1}


@pytest.fixture(scope="module")
def run() -> Any:
    return marble.fit(BAGS, [NUMBERS[label] for label in LABELS], "mean", recipe="common", epochs=1, warmup=0)


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda run: marble.predict(run, BAGS[0]), "a model predicts, got Run. Ask a run by its `predict`"),
        (lambda run: marble.predict(run.predictor.model, BAGS[0], orders="3"), "orders must be at least 1, got '3'"),  # type: ignore[arg-type]
        (lambda _: marble.Bag("x", PLACED), "x: the levels of a bag are a list of `Level`"),
        (lambda _: marble.Bag("x", [TOKENS]), "x: the levels of a bag are a list of `Level`"),
        (lambda run: marble.BagStore(run.folder / "new").save(TOKENS), "bags are saved, got ndarray"),
        (lambda _: marble.Experiment.load(Path(__file__).parent), f"{Path(__file__).parent}: a folder, where a file"),
        (
            lambda run: run.explain(BAGS[0], "occlusion", level="0"),
            "a level is a whole number, 0 the coarsest",
        ),
        (lambda run: run.plot(BAGS[0], max_px=0), "max_px is a whole number from 64 to 8192, got 0"),
        (lambda _: marble.read_cohort(pandas.DataFrame()), "a table is read from a file, got DataFrame"),
    ],
)
def test_what_is_of_another_kind_is_refused_in_one_line(run: Any, ask: Callable[[Any], Any], said: str) -> None:
    with pytest.raises(MarbleError) as refused:
        ask(run)
    assert str(refused.value).startswith(said)


def test_classes_that_are_numbers_are_explained_by_number(run: Any) -> None:
    assert run.explain(BAGS[0], "gradient", 1).target == "1"
    assert run.explain(BAGS[0], "gradient", np.int64(0)).target == "0"


def test_a_predictor_answers_about_tokens(run: Any) -> None:
    tokens = BAGS[0].finest.features
    found = marble.Predictor(run.folder).answer(tokens)
    assert found.readout == run.predict(tokens).readout
