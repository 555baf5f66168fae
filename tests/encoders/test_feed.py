"""Batches on an accelerator: the next one is copied while this one is computed, and nothing else changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from marble.encoders import load_encoder
from marble.encoders.feed import Feed
from marble.encoders.lanes import PlainLane
from marble.encoders.lite0 import folded, forward_torch, package_weights, read_state
from tests.encoders.virtual_device import COMPUTE, DOWNLOAD, FILL, UPLOAD, VirtualDevice

CPU = torch.device("cpu")


def sums(tiles: Tensor) -> Tensor:
    """Tokens of two numbers, which tell tiles apart."""
    flat = tiles.flatten(1).float()
    return torch.stack([flat.sum(1), flat[:, 0]], dim=1)


def batches(count: int, size: int = 3, px: int = 4) -> list[NDArray[np.uint8]]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (size, px, px, 3), dtype=np.uint8) for _ in range(count)]


def expected(tiles: NDArray[np.uint8]) -> NDArray[np.float32]:
    found: NDArray[np.float32] = sums(torch.from_numpy(tiles)).numpy()
    return found


def one_late(feed: Feed, parts: Iterable[NDArray[np.uint8]]) -> Iterator[NDArray[np.float32]]:
    """As the thread of a device does it: tokens are taken when the next batch is queued."""
    before = None
    for tiles in parts:
        take = feed.submit(tiles)
        if before is not None:
            yield before()
        before = take
    if before is not None:
        yield before()


def test_the_device_computes_without_a_gap() -> None:
    device = VirtualDevice()
    parts = batches(6)
    found = list(one_late(Feed(sums, device), parts))
    for tokens, tiles in zip(found, parts, strict=True):
        np.testing.assert_array_equal(tokens, expected(tiles))
    first = FILL + UPLOAD
    assert device.began == [first + k * (COMPUTE + DOWNLOAD) for k in range(6)]
    assert device.now == first + 6 * (COMPUTE + DOWNLOAD)  # nothing but the first copy is seen


def test_the_host_waits_once_a_batch_and_never_for_the_one_just_queued() -> None:
    device = VirtualDevice()
    feed = Feed(sums, device)
    takes = [feed.submit(tiles) for tiles in batches(2)]
    assert device.waits == []
    takes[0]()
    assert device.waits == [(2 * FILL, FILL + UPLOAD + COMPUTE + DOWNLOAD)]  # the first batch's end, not the second's
    takes[1]()
    assert len(device.waits) == 2


def test_a_batch_that_is_waited_for_leaves_the_device_idle() -> None:
    """What the clock would say of a feed that takes each batch's tokens at once: the gap is seen."""
    device = VirtualDevice()
    feed = Feed(sums, device)
    for tiles in batches(6):
        feed.run(tiles)
    assert device.now == 6 * (FILL + UPLOAD + COMPUTE + DOWNLOAD)


def test_buffers_are_made_once_and_a_larger_batch_gets_larger_ones() -> None:
    device = VirtualDevice()
    feed = Feed(sums, device)
    sizes = [4, 4, 4, 2, 1, 4]
    parts = [batches(1, size)[0] for size in sizes]
    found = list(one_late(feed, parts))
    assert [len(tokens) for tokens in found] == sizes
    assert sorted(device.buffers) == sorted(2 * [(4, 2), (4, 4, 4, 3), (4, 4, 4, 3)])
    larger = batches(2, 9)
    for tokens, tiles in zip(one_late(feed, larger), larger, strict=True):
        np.testing.assert_array_equal(tokens, expected(tiles))


def test_tokens_that_were_taken_stay() -> None:
    feed = Feed(sums, VirtualDevice())
    parts = batches(5)
    found = list(one_late(feed, parts))  # all five, through two buffers
    for tokens, tiles in zip(found, parts, strict=True):
        np.testing.assert_array_equal(tokens, expected(tiles))


def test_tokens_written_over_are_not_given_out() -> None:
    feed = Feed(sums, VirtualDevice())
    first, *_ = [feed.submit(tiles) for tiles in batches(3)]
    with pytest.raises(RuntimeError, match="written over"):
        first()


def test_after_an_error_the_next_batches_are_right() -> None:
    def fails(tiles: Tensor) -> Tensor:
        if int(tiles[0, 0, 0, 0]) == 77:
            raise ValueError("out of memory")
        return sums(tiles)

    feed = Feed(fails, VirtualDevice())
    parts = batches(4)
    bad = parts[0].copy()
    bad[0, 0, 0, 0] = 77
    feed.submit(parts[1])  # its tokens are never taken
    with pytest.raises(ValueError, match="out of memory"):
        feed.submit(bad)
    for tokens, tiles in zip(one_late(feed, parts), parts, strict=True):
        np.testing.assert_array_equal(tokens, expected(tiles))


def test_a_device_with_one_queue_gives_the_bits_of_the_plain_call() -> None:
    encoder = load_encoder("lite0", backend="torch")
    feed = Feed(forward_torch(folded(read_state(package_weights())), CPU), PlainLane(CPU))
    parts = batches(3, 2, encoder.input_px)
    for tokens, tiles in zip(one_late(feed, parts), parts, strict=True):
        np.testing.assert_array_equal(tokens, encoder.encode(tiles))


def test_on_a_cpu_every_thread_encodes() -> None:
    assert load_encoder("colour").feeds == ()
    assert load_encoder("lite0", backend="torch").feeds == ()
