"""Drawn slides with a focus: few regions matter, they are seen from afar, and the class is only in what they hold."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tifffile

from marble.synthetic import focal_slides
from marble.synthetic.focal_slides import plan_focal_slide, write_focal_slide
from marble.synthetic.slides import DOWNSAMPLE
from marble.synthetic.two_scales import MARGIN_PX, REGION_PX

SEEDS = range(20)


@pytest.mark.parametrize("seed", SEEDS)
def test_both_classes_have_the_same_things_in_the_same_numbers(seed: int) -> None:
    benign, tumour = plan_focal_slide(False, seed), plan_focal_slide(True, seed)
    assert benign.regions == tumour.regions
    assert benign.structures == tumour.structures
    rows, columns = focal_slides.REGIONS
    plain = rows * columns - focal_slides.GLANDS - focal_slides.NESTS
    assert Counter(benign.regions.values()) == {
        "glands": focal_slides.GLANDS,
        "nests": focal_slides.NESTS,
        "plain": plain,
    }
    strewn = []
    for plan, kind in ((benign, "nests"), (tumour, "glands")):
        assert "plain" not in {plan.regions[place.region] for place in plan.structures}
        assert len(set(plan.atypical)) == len(plan.atypical)
        held = Counter(plan.regions[place.region] for place in plan.atypical)
        assert held == {kind: focal_slides.STRUCTURES, "plain": focal_slides.STREWN_TILES}
        assert {p for p in plan.structures if plan.regions[p.region] == kind} <= set(plan.atypical)
        strewn.append([place for place in plan.atypical if plan.regions[place.region] == "plain"])
    assert strewn[0] == strewn[1]


def test_at_most_a_quarter_of_the_tissue_matters_and_it_may_be_anywhere() -> None:
    rows, columns = focal_slides.REGIONS
    assert rows * columns / 4 >= focal_slides.GLANDS + focal_slides.NESTS
    regions = [plan_focal_slide(True, seed).regions for seed in range(200)]
    for kind in ("glands", "nests"):
        assert {place for dealt in regions for place in dealt if dealt[place] == kind} == set(regions[0])


def test_regions_that_matter_are_seen_from_afar(tmp_path: Path) -> None:
    """In the plane of the coarse level, without a look at a tile: structures are darker or paler than stroma."""
    plan = write_focal_slide(tmp_path / "slide.tiff", tumour=True, seed=1)
    with tifffile.TiffFile(tmp_path / "slide.tiff") as tiff:
        coarse = tiff.pages[1].asarray().astype(float).mean(axis=2)  # (h, w) grey
    side = REGION_PX // DOWNSAMPLE
    spread: dict[str, list[float]] = {"glands": [], "nests": [], "plain": []}
    for (row, column), kind in plan.regions.items():
        y, x = (MARGIN_PX // DOWNSAMPLE + at * side for at in (row, column))
        cells = coarse[y : y + side, x : x + side].reshape(16, side // 16, 16, side // 16).mean(axis=(1, 3))
        spread[kind].append(float(np.std(cells)))
    assert min(*spread["glands"], *spread["nests"]) > 2 * max(spread["plain"])
