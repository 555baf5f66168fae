"""Two hundred random folders through the command line: no traceback, a status for every item, good bags as alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compute.forked import forked_workers
from tests.extract.test_any_folder import check_folder, stock
from tests.reliability.scale import scaled

__all__ = ["forked_workers", "stock"]  # fixtures


@pytest.mark.reliability
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize("seed", range(1000, 1000 + scaled(200)))
def test_a_random_folder_ends_with_a_status_for_every_item(
    seed: int,
    stock: tuple[list[Path], Path],
    tmp_path: Path,
) -> None:
    check_folder(seed, stock, tmp_path)
