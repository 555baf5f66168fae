"""Cells in level-0 pixels, and running ahead in order."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from marble.cells import cell_boxes
from marble.compute.ahead import in_order


def test_boxes_are_extent_times_cell() -> None:
    cells = np.array([[0, 0], [2, 1], [3, 7]], np.int32)  # row, column
    assert cell_boxes(cells, 100, (5, 9)).tolist() == [[5, 9, 100, 100], [105, 209, 100, 100], [705, 309, 100, 100]]
    assert cell_boxes(np.array([[40_000, 40_000]], np.int32), 100_000, (0, 0))[0, 0] == 4_000_000_000  # no overflow


def test_the_order_is_that_of_the_items_and_no_more_is_begun_than_asked() -> None:
    begun: list[int] = []
    lock = threading.Lock()

    def work(item: int) -> int:
        with lock:
            begun.append(item)
        return item * item

    with ThreadPoolExecutor(4) as pool:
        given = in_order(pool, work, range(20), ahead=3)
        assert next(given) == 0
        assert set(begun) <= {0, 1, 2}
        assert list(given) == [item * item for item in range(1, 20)]


def test_an_error_ends_what_was_begun() -> None:
    def work(item: int) -> int:
        if item == 2:
            raise ValueError("two")
        return item

    with ThreadPoolExecutor(2) as pool, pytest.raises(ValueError, match="two"):
        list(in_order(pool, work, range(100), ahead=5))
