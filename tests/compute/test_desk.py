"""A desk answers one question after another; a question that kills or halts its worker costs only itself."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from marble.compute.desk import Desk, DeskError
from marble.compute.limits import Limits
from marble.errors import SlideError


def answer(question: str) -> object:
    if question == "pid":
        return os.getpid()
    if question == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
    if question == "hang":
        time.sleep(600)
    if question == "ours":
        raise SlideError("no pixel size", where="a.svs", hint="Give it")
    if question == "theirs":
        raise ZeroDivisionError("oops")
    if question == "memory":
        return len(bytearray(1 << 30))
    return question.upper()


def test_questions_are_answered_by_one_process_whoever_asks() -> None:
    with Desk(answer) as desk, ThreadPoolExecutor(4) as pool:
        assert list(pool.map(desk.ask, "abcdef")) == list("ABCDEF")
        assert len(set(pool.map(desk.ask, ["pid"] * 6))) == 1
        assert desk.ask("pid") != os.getpid()


def test_what_kills_or_halts_the_worker_is_an_error_and_the_next_question_is_answered() -> None:
    with Desk(answer, Limits(memory_bytes=256 << 20, timeout_s=10)) as desk:
        with pytest.raises(SlideError, match=r"a\.svs: no pixel size\. Give it"):
            desk.ask("ours")
        with pytest.raises(DeskError, match="ZeroDivisionError: oops"):
            desk.ask("theirs")
        with pytest.raises(DeskError, match="needs more memory than its worker may use"):
            desk.ask("memory")
        first = desk.ask("pid")  # none of these ended it
        with pytest.raises(DeskError, match=r"its worker died 2 times \(signal SIGSEGV\)"):
            desk.ask("segv")
        second = desk.ask("pid")
        with pytest.raises(DeskError, match="no answer within 10 s; its worker was stopped"):
            desk.ask("hang")
        assert desk.ask("a") == "A"
        assert len({first, second, desk.ask("pid")}) == 3


def test_a_closed_desk_has_no_process_and_can_be_asked_again() -> None:
    desk = Desk(answer, Limits(items=2))
    pids = [desk.ask("pid") for _ in range(3)]
    assert pids[0] == pids[1] != pids[2]
    desk.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int(str(pids[2])), 0)
    assert desk.ask("a") == "A"
    desk.close()
