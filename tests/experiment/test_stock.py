"""The account of a cohort's slides says how many came from files that no manifest vouched for."""

from __future__ import annotations

from pathlib import Path

import pytest

from marble.bags.bag import Bag
from marble.bags.provenance import Provenance, SlideIdentity
from marble.bags.store import BagStore
from marble.cohorts.cohort import Case, Cohort
from marble.experiment.stock import Stock
from tests.bags.making import random_bag

HASH = "0" * 64


def _slide(*, sha256: str | None, verified: bool) -> SlideIdentity:
    return SlideIdentity(
        name="s.svs", l0_width_px=1, l0_height_px=1, mpp=0.5, mpp_origin="file", sha256=sha256, verified=verified
    )


CHECKED = Provenance(source="marble 1.2", slide=_slide(sha256=HASH, verified=True))
HASHED = Provenance(source="marble 1.2", slide=_slide(sha256=HASH, verified=False))
UNKNOWN = Provenance(source="marble 1.2", slide=_slide(sha256=None, verified=False))


@pytest.mark.parametrize(
    ("origins", "unverified"),
    [
        ([CHECKED, HASHED, UNKNOWN, UNKNOWN], 3),
        ([CHECKED, CHECKED], None),
        ([Provenance(source="clam", slide=_slide(sha256=None, verified=False))], None),  # features: no file of ours
        ([Provenance(source="synthetic")], None),
    ],
)
def test_slides_without_a_manifest_are_counted(tmp_path: Path, origins: list[Provenance], unverified: int) -> None:
    store = BagStore(tmp_path)
    names = [f"s{number}" for number in range(len(origins))]
    for name, origin in zip(names, origins, strict=True):
        store.save(Bag(name, random_bag(name).levels, origin))
    store.note("failed", "failed", "decode", "no slide")
    cases = tuple(Case(name, (name,), "a") for name in (*names, "failed", "without a bag"))
    counts = Stock.of(Cohort("cohort", "classification", cases, ("a",)), store).counts
    assert (counts["used"], counts.get("unverified")) == (len(origins), unverified)
