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
#: counted in detail below; the others are counted together, which takes a minute
QUICK = ("marble", "abmil", "clam-sb", "csmil", "mambamil@16384")
PIECES = ("step", "resumed", "infer", "explain")
UPDATE = "run `python -m tests.fake_cuda.running`"

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux" or compiler() is None, reason="needs Linux and a C++ compiler"),
    pytest.mark.skipif(torch.version.cuda is not None, reason="needs a CPU build of torch"),
    pytest.mark.timeout(1200),
]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The counts of the quick models, of two with a deliberate mistake, and of an encoder."""
    return counted(tmp_path_factory, [*QUICK, *MISTAKES, "encoder"])


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


def test_nothing_of_any_model_is_on_two_devices_at_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    everything = counted(tmp_path_factory, [name for name in (*MODELS, *running.LONG) if name not in QUICK])
    errors = {
        (name, piece): of[piece]["error"] for name, of in everything.items() for piece in PIECES if "error" in of[piece]
    }
    assert errors == {}
    page = running.rows_of_page()
    made = running.rows(everything)
    assert made == {row: page.get(row) for row in made}, UPDATE
    assert {row.partition(" ")[0] for row in page} == set(MODELS)


def test_the_page_says_what_was_counted(found: dict[str, Any]) -> None:
    page = running.rows_of_page()
    made = running.rows({name: found[name] for name in QUICK})
    assert made == {row: page.get(row) for row in made}, UPDATE


@pytest.mark.parametrize("piece", ["step", "resumed"])
@pytest.mark.parametrize("name", ["marble", "mambamil@16384"])
def test_a_step_on_a_slide_never_waits_and_launches_little(found: dict[str, Any], name: str, piece: str) -> None:
    counts = found[name][piece]
    assert counts["syncs"] == {}
    assert counts["kernels"] <= 2000


@pytest.mark.parametrize("name", ["marble", "abmil"])
def test_a_prediction_waits_for_one_copy(found: dict[str, Any], name: str) -> None:
    assert list(found[name]["infer"]["waited_for"].values()) == [1]


def test_a_value_that_is_read_is_seen(found: dict[str, Any]) -> None:
    assert found["abmil"]["step"]["syncs"] == {}
    assert sum(found["abmil!item"]["step"]["syncs"].values()) == 1


def test_an_index_of_another_device_is_refused(found: dict[str, Any]) -> None:
    assert "cpu" in found["abmil!index"]["step"]["error"]


def test_a_feed_waits_once_a_batch_for_the_one_before(found: dict[str, Any]) -> None:
    fed = found["encoder"]
    assert "error" not in fed, fed.get("error")
    assert fed["counts"]["syncs"] == {}
    assert fed["counts"]["waited_for"] == {}  # every copy is queued
    queued = ["copying: mark", "computing: waits", "computing: mark"]
    fresh = ["copying: waits for computing"]  # once for each of the two buffers
    wait = ["host: waits for computing"]
    assert fed["log"] == [*fresh, *queued, *fresh, *queued, *wait, *queued, *wait, *queued, *wait, *wait]
    assert fed["marks"] == [1, 3, 5, 7]  # the end of each batch, in their order
