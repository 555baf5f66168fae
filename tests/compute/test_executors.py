"""Executors: one outcome per item, whatever happens to it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from marble.compute import Cluster, Done, Executor, Failed, Inline, Limits, Processes, tell
from marble.errors import InputError, SlideError
from marble.extract import Machine

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


class DiesUnpickled:
    """Ends the worker while it is being unpickled: before it can read its first item."""

    def __init__(self, counter: Path) -> None:
        self.counter = counter

    def __reduce__(self) -> tuple[object, ...]:
        return _die_in_a_worker, (str(self.counter),)

    def __call__(self, x: int) -> int:
        raise AssertionError(x)


def _die_in_a_worker(counter: str) -> object:
    with open(counter, "a") as file:
        file.write("x")
    os.kill(os.getpid(), signal.SIGKILL)
    return None


def test_a_worker_killed_while_it_starts_costs_only_its_item(tmp_path: Path) -> None:
    counter = tmp_path / "starts"
    # A large item: the pipe is full before the dead worker's end is seen, so sending it breaks.
    items = [bytes(1 << 20), bytes(2 << 20)]
    outcomes = list(Processes(2).map(DiesUnpickled(counter), items))  # type: ignore[arg-type]
    assert [o.reason for o in outcomes if isinstance(o, Failed)] == ["its worker died 2 times (signal SIGKILL)"] * 2
    assert counter.read_text() == "xxxx"


def take(task: tuple[str, int]) -> int:
    kind, amount = task
    if kind == "memory":
        return len(bytearray(amount))
    if kind == "cpu":
        while True:
            amount += 1
    if kind == "silence":
        time.sleep(600)
    if kind == "news":
        for step in range(amount):
            tell(step)
            time.sleep(0.05)
    return os.getpid()


def test_memory_processor_time_and_silence_are_limited() -> None:
    limits = Limits(memory_bytes=256 << 20, cpu_s=1)
    tasks = [("memory", 1 << 30), ("memory", 1 << 20), ("cpu", 0)]
    outcomes = {o.item: o for o in Processes(2, limits=limits).map(take, tasks)}
    reasons = {task: o.reason for task, o in outcomes.items() if isinstance(o, Failed)}
    assert reasons[tasks[0]].startswith("needs more memory than its worker may use")
    assert isinstance(outcomes[tasks[1]], Done)
    assert reasons[tasks[2]] == "took more than 1 s of processor time; its worker was ended"
    (silent,) = Processes(1, limits=Limits(stall_s=3)).map(take, [("silence", 0)])
    assert isinstance(silent, Failed)
    assert silent.reason == "nothing moved for 3 s; its worker was stopped"


def sleep_as_weights_are_loaded() -> None:
    time.sleep(6)


def test_an_item_is_not_timed_while_its_worker_starts() -> None:
    executor = Processes(1, limits=Limits(timeout_s=5, stall_s=5), prepare=sleep_as_weights_are_loaded)
    (outcome,) = executor.map(square_or_fail, [2])
    assert isinstance(outcome, Done)


def test_news_reach_the_parent_in_order() -> None:
    heard: list[tuple[object, object]] = []
    executor = Processes(1, on_news=lambda item, news: heard.append((item, news)))
    assert isinstance(next(iter(executor.map(take, [("news", 5)]))), Done)
    assert heard == [(("news", 5), step) for step in range(5)]


def test_workers_are_replaced_after_so_many_items() -> None:
    outcomes = list(Processes(1, limits=Limits(items=2)).map(take, [("pid", i) for i in range(5)]))
    pids = [o.result for o in outcomes if isinstance(o, Done)]
    assert len(pids) == 5
    assert pids[0] == pids[1] != pids[2] == pids[3] != pids[4]


def unpicklable(x: int) -> object:
    return lambda: x


def test_a_result_that_cannot_travel_fails_its_item() -> None:
    outcomes = list(Processes(1).map(unpicklable, [1, 2]))
    assert all(isinstance(o, Failed) and "pickle" in o.reason.lower() for o in outcomes)
    assert len(outcomes) == 2


def test_items_side_by_side_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that nobody asked for are those of an item's share; a number that somebody gave stays."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    executors = (Inline(), Processes(1), Processes(3), Processes(20), Cluster(cpus=4), Cluster(cpus=0.5))
    assert [executor.cores_each for executor in executors] == [8, 8, 2, 1, 4, 1]
    assert [Machine().shared_by(executor).thread_count for executor in executors] == [8, 8, 2, 1, 4, 1]
    assert Machine(threads=3).shared_by(Processes(8)).thread_count == 3
