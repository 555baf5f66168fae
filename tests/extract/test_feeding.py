"""One thread for each accelerator: the same tokens in the same order, and errors where they happened."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from marble.encoders import Encoder, load_encoder
from marble.encoders.feed import Feed, Forward
from marble.errors import NonFiniteError
from marble.extract.feeding import fed
from marble.extract.pipeline import Threads, encode_level
from marble.slides.slide import Slide
from tests.encoders.virtual_device import VirtualDevice
from tests.extract.making import lattice, spec_of

BATCHES = 20


def colours(tiles: Tensor) -> Tensor:
    """The encoder `colour`, as if it ran on the device."""
    return torch.from_numpy(load_encoder("colour").run(tiles.numpy()))


def on(forwards: list[Forward]) -> Encoder:
    """The encoder `colour` on as many devices."""
    return replace(load_encoder("colour"), feeds=tuple(Feed(forward, VirtualDevice()) for forward in forwards))


def batch(number: int) -> NDArray[np.uint8]:
    px = load_encoder("colour").input_px
    return np.full((2, px, px, 3), number, np.uint8)


def numbered(count: int = BATCHES) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    return ((k, batch(k)) for k in range(count))


@pytest.mark.parametrize("devices", [1, 2])
def test_feeders_of_accelerators_give_the_same_tokens(slide_path: Path, devices: int) -> None:
    callers: set[str] = set()

    def watched(tiles: Tensor) -> Tensor:
        callers.add(threading.current_thread().name)
        return colours(tiles)

    encoder = load_encoder("colour")
    with Slide.open(slide_path) as slide, ThreadPoolExecutor(2) as pool:
        pyramid = lattice(slide, spec_of(5.0, 20.0))
        whole = encode_level(slide, pyramid, 1, encoder, Threads(pool, 2), batch=7)
        same = encode_level(slide, pyramid, 1, on([watched] * devices), Threads(pool, 2), batch=7)
    np.testing.assert_array_equal(same.features, whole.features)
    assert all(name.startswith("marble-feeder") for name in callers)
    assert len(callers) <= devices


def test_every_device_works_and_batches_keep_their_order() -> None:
    both_at_work = threading.Barrier(2, timeout=240)
    seen: list[tuple[int, int]] = []

    def device(number: int) -> Forward:
        def forward(tiles: Tensor) -> Tensor:
            both_at_work.wait()  # passes only if the other device works at the same time
            seen.append((number, int(tiles[0, 0, 0, 0])))
            return colours(tiles)

        return forward

    encoder = on([device(0), device(1)])
    found = list(fed(encoder, numbered()))
    assert [name for name, _ in found] == list(range(BATCHES))
    for name, tokens in found:
        np.testing.assert_array_equal(tokens, load_encoder("colour").encode(batch(name)))
    assert sorted(number for _, number in seen) == list(range(BATCHES))
    assert {number for number, _ in seen} == {0, 1}


def test_little_is_held_at_a_time() -> None:
    asked = 0

    def counted() -> Iterator[tuple[int, NDArray[np.uint8]]]:
        nonlocal asked
        for part in numbered():
            asked += 1
            yield part

    for taken, _ in enumerate(fed(on([colours, colours]), counted())):
        assert asked - taken <= 5  # two on each device and one that is waiting


def test_one_batch_at_a_time_is_enough() -> None:
    """A reader that is slower than the device: nothing waits for a batch that is not there yet."""
    assert [name for name, _ in fed(on([colours]), numbered(1))] == [0]
    assert list(fed(on([colours]), numbered(0))) == []


@pytest.mark.parametrize("devices", [1, 2])
def test_an_error_is_raised_in_its_batch_and_costs_no_other_slide(devices: int) -> None:
    def spoiled(tiles: Tensor) -> Tensor:
        tokens = colours(tiles)
        return tokens / 0 if int(tiles[0, 0, 0, 0]) == 7 else tokens

    encoder = on([spoiled] * devices)
    tokens_of = fed(encoder, numbered())
    assert [next(tokens_of)[0] for _ in range(7)] == list(range(7))
    with pytest.raises(NonFiniteError, match="gave NaN or infinity"):
        next(tokens_of)
    for name, tokens in fed(encoder, numbered(7)):
        np.testing.assert_array_equal(tokens, load_encoder("colour").encode(batch(name)))


def test_a_reader_that_fails_ends_the_threads() -> None:
    def reads() -> Iterator[tuple[int, NDArray[np.uint8]]]:
        yield from numbered(4)
        raise OSError("unreadable")

    with pytest.raises(OSError, match="unreadable"):
        list(fed(on([colours, colours]), reads()))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("marble-feeder")]


def test_two_slides_at_once_take_turns_on_a_device() -> None:
    encoder = on([colours])

    def slide(first: int) -> bool:
        parts = [(k, batch(k)) for k in range(first, first + 40)]
        return all(
            np.array_equal(tokens, load_encoder("colour").encode(batch(name))) for name, tokens in fed(encoder, parts)
        )

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(slide, [0, 100])) == [True, True]
