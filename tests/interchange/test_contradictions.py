"""Files whose attributes contradict each other are refused, and not read by one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from marble.interchange import ImportSpec, import_levels
from tests.interchange.making import truth, write_trident

MADE = truth()


def _import(folder: Path, spec: ImportSpec | None = None, **attributes: Any) -> str:
    """Why the slide has no bag, or nothing."""
    write_trident(folder / "c" / "s.h5", MADE.coarse, MADE.coarse_xy, 1024, 10)
    write_trident(folder / "f" / "s.h5", MADE.fine, MADE.fine_xy, 256, 40, **attributes)
    levels = [f"10:{folder / 'c'}", f"40:{folder / 'f'}"]
    return " ".join(reason for _, reason in import_levels(levels, folder / "bags", spec or ImportSpec()).failed)


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        (
            {"level0_magnification": 20, "patch_size_level0": 256},
            "side is 256 pixels of the scan, but 256 pixels at 40x of a 20x scan are 128. Say the side with --extents",
        ),
        ({"patch_size_level0": 512}, "side is 512 pixels of the scan, but 256 pixels at 40x of a 40x scan are 256"),
        ({"patch_size": 512}, "side is 256 pixels of the scan, but 512 pixels at 40x of a 40x scan are 512"),
    ],
)
def test_what_contradicts_itself_is_refused(tmp_path: Path, attributes: dict[str, Any], said: str) -> None:
    assert said in _import(tmp_path, **attributes)


def test_a_scan_whose_pixels_are_not_quite_those_of_its_objective_is_read(tmp_path: Path) -> None:
    assert not _import(tmp_path, level0_magnification=34)


def test_who_says_the_side_knows_better(tmp_path: Path) -> None:
    assert not _import(tmp_path, ImportSpec(extents=(1024, 256)), patch_size_level0=512)
