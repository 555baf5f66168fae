"""Composed cohorts: parts never share a tile, the label is where it is said to be and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from marble.bags.bag import Bag, Level
from marble.bags.store import BagStore
from marble.cohorts.split_files import read_splits
from marble.cohorts.tables import read_cohort
from marble.errors import InputError
from marble.synthetic.composed import EFFECT, PARTS, SIGNALS, Signal, TissueTiles, compose, take_apart, write_composed

#: a tile says what it is: (patient, marked) at each level
DIM = 2


def tissue(folder: Path, patients: int = 12) -> tuple[BagStore, dict[str, tuple[str, bool]]]:
    """One slide of either kind from each patient, 8 coarse tiles with 4 fine ones each."""
    store, labels = BagStore(folder / "tissue"), {}
    for patient in range(patients):
        for marked in (False, True):
            name = f"p{patient}-{int(marked)}"
            says = torch.tensor([float(patient), float(marked)])
            cells = torch.stack([torch.arange(8), torch.zeros(8, dtype=torch.int64)], dim=1)
            parent = torch.arange(8).repeat_interleave(4)
            inside = torch.stack([torch.arange(4) // 2, torch.arange(4) % 2], dim=1).repeat(8, 1)
            fine = Level(says.repeat(32, 1), cells[parent] * 2 + inside, parent, 2)
            store.save(Bag(name, [Level(says.repeat(8, 1), cells), fine]))
            labels[name] = (f"p{patient}", marked)
    return store, labels


def shares(bag: Bag) -> tuple[float, float, float]:
    """Of a composed bag: share of marked coarse tiles, of marked fine tiles, and of these inside marked coarse ones."""
    coarse, fine = bag.levels[0].features[:, 1].bool(), bag.levels[1].features[:, 1].bool()
    parent = bag.levels[1].parent
    assert parent is not None
    return float(coarse.float().mean()), float(fine.float().mean()), float(coarse[parent][fine].float().mean())


def test_no_patient_gives_tiles_to_two_parts(tmp_path: Path) -> None:
    parts = take_apart(*tissue(tmp_path), seed=3)
    patients = [{int(p) for kind in (*tiles.coarse, *tiles.fine) for p in kind[:, 0]} for tiles in parts.values()]
    assert sum(map(len, patients)) == len(set.union(*patients)) == 12
    for tiles in parts.values():
        for level in (tiles.coarse, tiles.fine):
            assert not level[0][:, 1].any()
            assert level[1][:, 1].all()


def test_too_few_patients_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="2 patients cannot be dealt"):
        take_apart(*tissue(tmp_path, patients=2), seed=0)


@pytest.mark.parametrize("signal", SIGNALS)
def test_the_label_moves_what_it_should_and_nothing_else(signal: Signal) -> None:
    kinds = (torch.zeros(5, DIM), torch.ones(5, DIM))
    tiles = TissueTiles(kinds, kinds)
    means = []
    spreads = []
    for severity in (0.0, 1.0):
        bags = [compose(f"s{i}", signal, severity, EFFECT[signal]["middle"], tiles, seed=0) for i in range(200)]
        found = torch.tensor([shares(bag) for bag in bags])
        means.append(found.mean(dim=0))
        spreads.append(found.std(dim=0))
    moved = (means[1] - means[0]).tolist()
    expected = {
        "cross-scale": (0, 0, 0.8),
        "survival": (0, 0, 0.8),
        "fine-only": (0, 0.16, 0),
        "coarse-only": (0.4, 0, 0.4),  # more of the tissue is marked, so more of the fine tiles lie in it
        "neighbourhood": (0, 0, 0),
    }[signal]
    assert moved == pytest.approx(expected, abs=0.05)
    if signal == "neighbourhood":  # the same mean, but of mixed bags in one class and of one-sided ones in the other
        assert spreads[0][1] > 4 * spreads[1][1]


def test_a_cohort_is_written_whole_and_once(tmp_path: Path) -> None:
    store, labels = tissue(tmp_path)
    home = write_composed(tmp_path / "c", store, labels, "cross-scale", "strong", seed=7)
    cohort = read_cohort(home / "cohort.csv", task="classification")
    (split,) = read_splits(home / "splits" / "composed", cohort)
    assert split.repeat == 7
    assert {part: len(names) for part, names in split.parts()} == PARTS
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    write_composed(tmp_path / "c", store, labels, "cross-scale", "strong", seed=7)
    assert {path: path.read_bytes() for path in home.rglob("*") if path.is_file()} == before
    for name in (*split.train[:6], *split.test[:6]):
        inside = shares(BagStore(home / "bags").load(name))[2]
        assert inside == (1.0 if int(name[-3:]) % 2 else 0.0)


def test_bags_of_other_tissue_are_made_again(tmp_path: Path) -> None:
    store, labels = tissue(tmp_path)
    home = write_composed(tmp_path / "c", store, labels, "cross-scale", "strong", seed=7)
    other = {name: (patient, not marked) for name, (patient, marked) in labels.items()}
    write_composed(tmp_path / "c", store, other, "cross-scale", "strong", seed=7)
    fresh = write_composed(tmp_path / "fresh", store, other, "cross-scale", "strong", seed=7)
    for name in ("train-000", "val-001", "test-002"):
        bags = [(folder / "bags" / f"{name}.safetensors").read_bytes() for folder in (home, fresh)]
        assert bags[0] == bags[1]
