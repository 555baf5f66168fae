"""Executors: one outcome per item, whatever happens to it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from marble.compute import Done, Executor, Failed, Inline, Processes
from marble.errors import InputError, SlideError

# Top-level functions, because they travel to other processes.


def square_or_fail(x: int) -> int:
    if x == 3:
        raise SlideError("no pixel size", where="slide-3.svs", hint="Give it with --mpp-csv")
    if x == 4:
        raise ZeroDivisionError("oops")
    return x * x


def misbehave(task: tuple[str, str]) -> str:
    kind, counter = task
    with open(counter, "a") as file:
        file.write("x")
    if kind == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "hang":
        time.sleep(600)
    if kind == "exit":
        os._exit(3)
    return kind


@pytest.mark.parametrize("executor", [Inline(), Processes(2)], ids=["inline", "processes"])
def test_a_failure_belongs_to_its_item(executor: Executor) -> None:
    outcomes = {o.item: o for o in executor.map(square_or_fail, range(8))}
    assert sorted(outcomes) == list(range(8))
    assert {x: o.result for x, o in outcomes.items() if isinstance(o, Done)} == {x: x * x for x in (0, 1, 2, 5, 6, 7)}
    three, four = outcomes[3], outcomes[4]
    assert isinstance(three, Failed)
    assert isinstance(four, Failed)
    assert three.reason == "slide-3.svs: no pixel size. Give it with --mpp-csv"
    assert four.reason == "ZeroDivisionError: oops"
    assert "square_or_fail" in four.trace


def test_dying_and_hanging_workers_cost_only_their_item(tmp_path: Path) -> None:
    kinds = ["good-1", "segv", "good-2", "kill", "hang", "exit", "good-3"]
    tasks = [(kind, str(tmp_path / kind)) for kind in kinds]
    outcomes = {o.item[0]: o for o in Processes(2, timeout_s=8).map(misbehave, tasks)}
    assert sorted(outcomes) == sorted(kinds)
    assert all(isinstance(outcomes[k], Done) for k in kinds if k.startswith("good"))
    reasons = {k: o.reason for k, o in outcomes.items() if isinstance(o, Failed)}
    assert reasons["segv"] == "its worker died 2 times (signal SIGSEGV)"
    assert reasons["kill"] == "its worker died 2 times (signal SIGKILL)"
    assert reasons["exit"] == "its worker died 2 times (exit code 3)"
    assert reasons["hang"].startswith("no answer within 8 s")
    tries = {kind: len((tmp_path / kind).read_text()) for kind in kinds}
    assert tries == {k: 2 if k in ("segv", "kill", "exit") else 1 for k in kinds}


def test_stopping_early_ends_the_workers() -> None:
    results = Processes(2).map(square_or_fail, range(100))
    assert isinstance(next(results), Done)
    results.close()  # type: ignore[attr-defined]


def test_no_workers_is_refused() -> None:
    with pytest.raises(InputError, match="workers must be at least 1, got 0"):
        Processes(0)
