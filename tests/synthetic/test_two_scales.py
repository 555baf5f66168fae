"""The demo's slides: neither scale alone can tell the classes apart."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from marble.synthetic import two_scales
from marble.synthetic.slides import DOWNSAMPLE
from marble.synthetic.two_scales import REGION_PX, TILE_PX, Plan, plan_slide

SEEDS = range(20)


def _reduced(pixels: np.ndarray) -> np.ndarray:
    n = TILE_PX // DOWNSAMPLE
    return np.asarray(pixels.astype(float).reshape(n, DOWNSAMPLE, n, DOWNSAMPLE, 3).mean(axis=(1, 3)))


@pytest.mark.parametrize("seed", SEEDS)
def test_both_classes_have_the_same_things_in_the_same_numbers(seed: int) -> None:
    benign, tumour = plan_slide(False, seed), plan_slide(True, seed)
    for plan in (benign, tumour):
        assert Counter(plan.regions.values()) == {"glands": 3, "nests": 3}
        assert Counter(place.region for place in plan.structures) == dict.fromkeys(plan.regions, two_scales.STRUCTURES)
        assert len(plan.atypical) == two_scales.ATYPICAL_REGIONS * two_scales.ATYPICAL_TILES
        assert not set(plan.structures) & set(plan.atypical)
    assert {benign.regions[place.region] for place in benign.atypical} == {"nests"}
    assert {tumour.regions[place.region] for place in tumour.atypical} == {"glands"}


def test_speckles_are_seen_close_up_and_not_from_afar() -> None:
    plan = plan_slide(True, 7)
    plain = two_scales._Field(Plan(plan.regions, plan.structures, ()), 7)
    speckled = two_scales._Field(plan, 7)
    for place in plan.atypical:
        with_them, without = speckled.part(*place.l0_box), plain.part(*place.l0_box)
        assert np.abs(_reduced(with_them) - _reduced(without)).max() < 1  # of 255: rounding
        assert np.abs(with_them.astype(int) - without).max() > 30


def test_a_structure_and_its_region_share_a_tile_of_the_lattice() -> None:
    for place in plan_slide(True, 3).structures:
        x, y, *_ = place.l0_box
        assert x % TILE_PX == y % TILE_PX == 0
        assert (y // REGION_PX - 1, x // REGION_PX - 1) == place.region
