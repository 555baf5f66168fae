"""What every model would ask of a GPU: nothing on two devices at once, and MARBLE neither waits nor launches much."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from marble.models import MODELS
from marble.native.build import compiler
from tests.fake_cuda import running

MISTAKES = ("abmil!item", "abmil!index")
#: run with the default suite; the others take a minute together
QUICK = ("marble", "abmil", "clam-sb", "csmil")
PIECES = ("step", "resumed", "infer", "explain")
UPDATE = "run `python -m tests.fake_cuda.running`"

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux" or compiler() is None, reason="needs Linux and a C++ compiler"),
    pytest.mark.skipif(torch.version.cuda is not None, reason="needs a CPU build of torch"),
    pytest.mark.timeout(1200),
]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The counts of the quick models, and of two with a deliberate mistake."""
    return counted(tmp_path_factory, [*QUICK, *MISTAKES])


def counted(tmp_path_factory: pytest.TempPathFactory, models: list[str]) -> dict[str, Any]:
    """What models ask of the device, from a process of its own with the device that does nothing."""
    try:
        return running.counted(models, tmp_path_factory.mktemp("fakecuda"))
    except running.DoesNotBuildError as error:
        pytest.skip(f"this torch's headers do not fit: {error}")


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("name", QUICK)
def test_nothing_is_on_two_devices_at_once(found: dict[str, Any], name: str, piece: str) -> None:
    assert "error" not in found[name][piece], found[name][piece].get("error")


@pytest.mark.slow
def test_nothing_of_any_model_is_on_two_devices_at_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    everything = counted(tmp_path_factory, [name for name in MODELS if name not in QUICK])
    errors = {
        (name, piece): of[piece]["error"] for name, of in everything.items() for piece in PIECES if "error" in of[piece]
    }
    assert errors == {}
    page = running.rows_of_page()
    assert running.rows(everything) == {name: page.get(name) for name in everything}, UPDATE
    assert set(page) == set(MODELS)


def test_the_page_says_what_was_counted(found: dict[str, Any]) -> None:
    page = running.rows_of_page()
    quick = {name: found[name] for name in QUICK}
    assert running.rows(quick) == {name: page.get(name) for name in QUICK}, UPDATE


@pytest.mark.parametrize("piece", ["step", "resumed"])
def test_a_step_of_marble_never_waits_and_launches_little(found: dict[str, Any], piece: str) -> None:
    counts = found["marble"][piece]
    assert counts["syncs"] == {}
    assert counts["kernels"] <= 2000


def test_a_value_that_is_read_is_seen(found: dict[str, Any]) -> None:
    assert found["abmil"]["step"]["syncs"] == {}
    assert sum(found["abmil!item"]["step"]["syncs"].values()) == 1


def test_an_index_of_another_device_is_refused(found: dict[str, Any]) -> None:
    assert "cpu" in found["abmil!index"]["step"]["error"]
