"""Random folders of bags, features and runs through the command line: `extract` has its own in `test_folders`.

Whatever is damaged is named, the rest is answered as if it were alone, and the exit code says which it was.
"""

from __future__ import annotations

import csv
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from marble.bags.store import BagStore
from marble.experiment import Experiment
from marble.synthetic.cohort import write_cohort
from marble.training.run import execute
from tests.cli.running import Ended, marble
from tests.compute.forked import forked_workers
from tests.extract.making import tree
from tests.interchange.making import truth, write_trident
from tests.reliability.scale import scaled

__all__ = ["forked_workers"]  # a fixture
pytestmark = [pytest.mark.reliability, pytest.mark.timeout(600)]
seeds = pytest.mark.parametrize("seed", range(2000, 2000 + scaled(200)))
EXPERIMENT = """
cohort = "cohort.csv"
task = "classification"
bags = { store = "bags" }
split = { scheme = "kfold", folds = 3, repeats = 1 }
train = { recipe = "common", epochs = 1, warmup = 0, lr = 2e-3, orders = 1, val_orders = 1 }
models = [{ name = "mean", hidden = 8, label = "mean" }]
baselines = []
"""


@dataclass(frozen=True)
class Clean:
    """What an undamaged folder gives."""

    root: Path
    runs: Path
    answers: dict[str, dict[str, str]]

    @property
    def store(self) -> BagStore:
        return BagStore(self.root / "bags")


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Clean:
    root = tmp_path_factory.mktemp("clean")
    write_cohort(root, "burden", 12, two_slides=0.0)
    (root / "tiny.toml").write_text(EXPERIMENT)
    for planned in Experiment.load(root / "tiny.toml").plan(root / "out", threads=1):
        execute(planned)
    runs = root / "out" / "tiny"
    said = marble("predict", runs / "mean" / "0", root / "bags", "--allow-training-slides", "--out", root / "a.csv")
    assert said.code == 0, said.output
    return Clean(root, runs, rows(root / "a.csv"))


def rows(path: Path) -> dict[str, dict[str, str]]:
    return {row["slide_id"]: row for row in csv.DictReader(path.open())}


def _cut(path: Path, rng: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: rng.randrange(len(data))])


def _flip(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(bytes(data))


def _noise(path: Path, rng: random.Random) -> None:
    path.write_bytes(rng.randbytes(rng.randrange(1, 3000)))


def _empty(path: Path, _: random.Random) -> None:
    path.write_bytes(b"")


def _gone(path: Path, _: random.Random) -> None:
    path.unlink()


Damage = Callable[[Path, random.Random], None]
DAMAGES: tuple[Damage, ...] = (_cut, _flip, _noise, _empty, _gone)


def damaged(store: BagStore, rng: random.Random) -> Iterator[tuple[str, str, Damage]]:
    """Harm up to four slides of a store, each in its bag or in its record."""
    for slide in rng.sample(store.slide_ids(), rng.randrange(5)):
        what, damage = rng.choice(("bag", "record")), rng.choice(DAMAGES)
        damage(store.bag_path(slide) if what == "bag" else store.record_path(slide), rng)
        yield slide, what, damage


def _no_traceback(ended: Ended) -> None:
    assert "Traceback" not in ended.output
    assert "bug in MARBLE" not in ended.output


@seeds
def test_verify_and_predict_name_what_is_damaged_and_answer_the_rest(seed: int, clean: Clean, tmp_path: Path) -> None:
    rng = random.Random(seed)
    shutil.copytree(clean.root / "bags", tmp_path / "bags")
    harmed = {slide for slide, _, _ in damaged(BagStore(tmp_path / "bags"), rng)}
    checked = marble("verify", tmp_path / "bags")
    _no_traceback(checked)
    faults = [line for line in checked.output.splitlines() if line.startswith("fault: ")]
    assert checked.code == (1 if harmed else 0), checked.output
    assert len(faults) == len(harmed)
    assert all(any(slide in line for line in faults) for slide in harmed)
    out = tmp_path / "answers.csv"
    run = clean.runs / "mean" / "0"
    said = marble("predict", run, tmp_path / "bags", "--allow-training-slides", "--out", out)
    _no_traceback(said)
    assert said.code == (1 if harmed else 0), said.output
    assert sorted(line.split(":")[0].rpartition("/")[2].split(".")[0] for line in said.failed) == sorted(harmed)
    assert rows(out) == {slide: row for slide, row in clean.answers.items() if slide not in harmed}


@seeds
@pytest.mark.usefixtures("forked_workers")
def test_import_names_what_is_damaged_and_imports_the_rest(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    good, bad = [f"g{n}" for n in range(rng.randrange(1, 4))], [f"b{n}" for n in range(rng.randrange(4))]
    for folder, names in (("mixed", [*good, *bad]), ("alone", good)):
        for name in names:
            made = truth(seed=int(name[1:]), tiles=6)
            path = tmp_path / folder / f"{name}.h5"
            write_trident(path, made.coarse, made.coarse_xy, made.extents[0], 10)
    for name in bad:
        path = tmp_path / "mixed" / f"{name}.h5"
        rng.choice((_cut, _noise, _empty))(path, rng)
    stores = {}
    for folder in ("mixed", "alone"):
        stores[folder] = marble("import", "--level", f"10:{tmp_path / folder}", "--store", tmp_path / f"{folder}-bags")
        _no_traceback(stores[folder])
    assert stores["alone"].code == 0, stores["alone"].output
    assert stores["mixed"].code == (1 if bad else 0), stores["mixed"].output
    assert sorted(line.split(":")[0].rpartition("/")[2].split(".")[0] for line in stores["mixed"].failed) == sorted(bad)
    alone, mixed = (tree(tmp_path / f"{folder}-bags") for folder in ("alone", "mixed"))
    assert {name: mixed.get(name) for name in alone if name != "audit.csv"} == {
        name: digest for name, digest in alone.items() if name != "audit.csv"
    }


@seeds
def test_run_and_report_name_what_is_damaged(seed: int, clean: Clean, tmp_path: Path) -> None:
    rng = random.Random(seed)
    for name in ("cohort.csv", "tiny.toml"):
        shutil.copy(clean.root / name, tmp_path)
    shutil.copytree(clean.root / "bags", tmp_path / "bags")
    all_harmed = list(damaged(BagStore(tmp_path / "bags"), rng))
    # a slide without a record was never finished: it has no bag, and none that is damaged
    harmed = [slide for slide, what, damage in all_harmed if what == "bag" or damage is not _gone]
    said = marble("run", tmp_path / "tiny.toml", "--out", tmp_path / "out")
    _no_traceback(said)
    # every one is named once, and the fits go on without them where enough patients are left to choose an epoch on
    named = [line for line in said.failed if "so the slide was left out" in line]
    too_few = [line for line in said.failed if "no checkpoint could be chosen" in line or "patient has a bag" in line]
    assert len(named) == len(harmed)
    assert all(sum(slide in line for line in named) == 1 for slide in harmed), said.output
    assert len(said.failed) == len(named) + len(too_few), said.output
    assert said.code == (1 if said.failed else 0), said.output
    assert not harmed or f"{len(harmed)} with a damaged bag" in said.output
    if too_few:
        assert all_harmed
        return
    runs = tmp_path / "out" / "tiny"
    one = rng.choice(sorted(path for path in runs.rglob("*") if path.name in ("predictions.csv", "run.json")))
    rng.choice((_cut, _flip, _noise, _empty))(one, rng)
    told = marble("report", runs, "--out", tmp_path / "report")
    _no_traceback(told)
    assert told.code == 2, told.output
    assert str(one.parent) in told.output
