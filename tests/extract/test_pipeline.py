"""The order of work: batches follow from the lattice alone, results come back in order, errors stop everything."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marble.compute.ahead import in_order
from marble.encoders import load_encoder
from marble.extract.pipeline import Threads, Wanted, batches, encode_level
from marble.slides.slide import Slide
from marble.threads import torch_threads
from tests.extract.making import lattice, spec_of, tile_by_tile


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 9), max_size=12), st.integers(1, 7))
def test_batches_keep_the_order_and_have_one_size(sizes: list[int], size: int) -> None:
    numbers = np.arange(sum(sizes))
    parts = np.split(numbers, np.cumsum(sizes)[:-1]) if sizes else []
    made = list(batches(((part, part.astype(np.uint8)[:, None, None, None]) for part in parts), size))
    assert [int(n) for tiles, _ in made for n in tiles] == numbers.tolist()
    assert all(len(tiles) == size for tiles, _ in made[:-1])
    assert all(0 < len(tiles) <= size for tiles, _ in made)
    assert all(np.array_equal(tiles, pixels[:, 0, 0, 0]) for tiles, pixels in made)


def test_in_order_whatever_ends_first_and_never_far_ahead() -> None:
    running, most = 0, 0
    lock = threading.Lock()

    def work(n: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.001 * (7 * n % 5))
        with lock:
            running -= 1
        return n

    taken = 0

    def items() -> object:
        nonlocal taken
        for n in range(40):
            taken = n + 1
            yield n

    with ThreadPoolExecutor(4) as pool:
        for i, n in enumerate(in_order(pool, work, items(), ahead=3)):  # type: ignore[arg-type]
            assert n == i
            assert taken - i <= 3
    assert most <= 3


def test_an_error_ends_all_work_before_it_is_raised() -> None:
    started: list[int] = []

    def work(n: int) -> int:
        started.append(n)
        if n == 2:
            raise ValueError("two")
        time.sleep(0.01)
        return n

    with ThreadPoolExecutor(2) as pool:
        with pytest.raises(ValueError, match="two"):
            list(in_order(pool, work, range(100), ahead=3))
        seen = len(started)
        time.sleep(0.05)
        assert len(started) == seen < 10


@pytest.mark.parametrize("threads", [1, 3])
def test_a_level_equals_tiles_encoded_one_by_one(slide_path: Path, threads: int) -> None:
    encoder = load_encoder("colour")
    with Slide.open(slide_path) as slide, ThreadPoolExecutor(threads) as pool:
        pyramid = lattice(slide, spec_of(5.0, 20.0))
        for level in range(2):
            told: list[int] = []
            done = encode_level(slide, pyramid, level, encoder, Threads(pool, threads), batch=7, on_tiles=told.append)
            assert done.encoded.all()
            assert not done.missing.any()
            assert np.array_equal(done.features, tile_by_tile(slide, pyramid, level, encoder))
            assert sum(told) == len(pyramid.cells[level])


def test_only_and_keep_choose_tiles(slide_path: Path) -> None:
    encoder = load_encoder("colour")
    with Slide.open(slide_path) as slide, ThreadPoolExecutor(2) as pool:
        pyramid = lattice(slide, spec_of(5.0, 20.0))
        whole = encode_level(slide, pyramid, 1, encoder, Threads(pool, 2), batch=16)
        only = np.array([5, 1, 40])
        keep = np.ones(len(whole.encoded), np.bool_)
        keep[40] = False
        some = encode_level(slide, pyramid, 1, encoder, Threads(pool, 2), Wanted(keep, only), batch=16)
        assert np.flatnonzero(some.encoded).tolist() == [1, 5]
        assert np.array_equal(some.features[[1, 5]], whole.features[[1, 5]])


def test_torch_gets_its_threads_back() -> None:
    before = torch.get_num_threads()
    with torch_threads(1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
