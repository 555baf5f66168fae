"""The largest bag of `marble bench model`: mapped, in a process of its own, left out only where memory is short."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch

from marble.benchmarks import million
from marble.models.ssm.ssd_stream import MOST_SEGMENTS, SEGMENT, keeps_rows, segments


def test_a_mapped_bag_is_a_bag_of_two_levels_in_random_order() -> None:
    bag = million.mapped_bag(100)
    assert [len(level) for level in bag.levels] == [7, 100]
    assert all(level.features.dtype == torch.float16 for level in bag.levels)
    parent = bag.finest.parent
    assert parent is not None
    assert not torch.equal(parent, parent.sort().values)
    assert torch.bincount(parent).max() == 16


@pytest.mark.parametrize("which", ["forward", "forward+backward"])
def test_a_pass_over_it_runs(which: str) -> None:
    assert million.prepare(40, which)() is None


def test_every_pass_has_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def once(*arguments: Any, threads: int) -> tuple[int, float]:
        asked.append(arguments)
        return 3 << 30, 1.5

    monkeypatch.setattr(million, "once", once)
    monkeypatch.setattr(million, "available_bytes", lambda: million.NEEDS_BYTES)
    left_out: list[str] = []
    rows = million.measured(("forward", "forward+backward"), left_out)
    assert [row["pass"] for row in rows] == ["forward", "forward+backward"]
    assert all(row["tokens"] == 2**20 and row["bytes"] == 3 << 30 for row in rows)
    assert [arguments[1:] for arguments in asked] == [(2**20, "forward"), (2**20, "forward+backward")]
    assert not left_out


def test_it_is_left_out_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(million, "available_bytes", lambda: million.NEEDS_BYTES - 1)
    left_out: list[str] = []
    assert million.measured(("forward",), left_out) == []
    assert left_out == ["marble: a million tokens want 7 GiB of free memory"]


@pytest.mark.parametrize("tokens", [1, SEGMENT, SEGMENT * MOST_SEGMENTS, SEGMENT * MOST_SEGMENTS + 1, million.TOKENS])
def test_states_are_kept_for_so_many_segments_and_no_more(tokens: int) -> None:
    parts = segments(tokens, "native")
    assert len(parts) <= MOST_SEGMENTS
    assert parts[0][0] == 0
    assert parts[-1][1] == tokens
    assert all(before[1] == after[0] for before, after in pairwise(parts))
    assert (parts[0][1] == SEGMENT) == (SEGMENT <= tokens <= SEGMENT * MOST_SEGMENTS)


def test_the_coarse_rows_of_a_million_tokens_are_not_kept() -> None:
    weight = torch.empty(4384, 1024, device="meta")
    assert not keeps_rows(million.TOKENS // 16, weight, last=False)
    assert keeps_rows(million.TOKENS // 16, weight)
