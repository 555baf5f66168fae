"""Made-up cohorts: what lies in the folder already is kept only if it is what the table says."""

from __future__ import annotations

from pathlib import Path

import pytest

from marble.synthetic.bags import BagRecipe
from marble.synthetic.cohort import Kind, write_cohort


def _bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.suffix in (".csv", ".safetensors")}


def test_what_is_there_is_kept(tmp_path: Path) -> None:
    write_cohort(tmp_path, "burden", 6)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "bags").iterdir()}
    write_cohort(tmp_path, "burden", 6)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "bags").iterdir()} == before


@pytest.mark.parametrize(
    ("kind", "patients", "recipe", "seed"),
    [
        ("survival", 12, BagRecipe(), 0),  # patients are spread over the hazards in other steps
        ("burden", 6, BagRecipe(), 0),
        ("survival", 6, BagRecipe(strength=1.0), 0),
        ("survival", 6, BagRecipe(), 1),
    ],
)
def test_bags_of_another_cohort_are_made_again(
    tmp_path: Path, kind: Kind, patients: int, recipe: BagRecipe, seed: int
) -> None:
    write_cohort(tmp_path / "used", "survival", 6, two_slides=0.0)
    write_cohort(tmp_path / "used", kind, patients, recipe, seed, two_slides=0.0)
    write_cohort(tmp_path / "fresh", kind, patients, recipe, seed, two_slides=0.0)
    assert _bytes(tmp_path / "used") == _bytes(tmp_path / "fresh")
