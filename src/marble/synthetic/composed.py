"""Cohorts composed of real tissue: bags whose tokens are real tiles, with a label that is known by construction.

Real slides are taken apart into tiles of two kinds at two levels (say malignant and benign), and put together anew: 16
coarse tiles, each with 4 fine ones. What the label depends on is chosen; what a tile looks like is not.

* `cross-scale`: marked fine tiles lie inside marked coarse tiles in one class, outside of them in the other. Both
  classes have as many of either, so no level alone can tell them apart.
* `fine-only`, `coarse-only`: the share of marked tiles of one level; the other level says nothing.
* `survival`: two groups of risk, told apart as in `cross-scale`; the hazard differs, times and censoring are random.
* `neighbourhood`: both kinds of fine tiles side by side in one class, mostly one kind, either, in the other. The mean
  share of either kind is the same, so tiles have to be seen together.

Patients of training, validation and test bags are different ones: a tile occurs in one part alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from marble import files
from marble.bags.augment import generator
from marble.bags.bag import Bag, Level
from marble.bags.provenance import EncoderIdentity, Provenance
from marble.bags.store import BagStore
from marble.cohorts.split_files import write_splits
from marble.cohorts.splits import Split
from marble.errors import InputError
from marble.specs import canonical_json
from marble.synthetic.cohort import keep_or_make, survival_outcome

Signal = Literal["cross-scale", "fine-only", "coarse-only", "survival", "neighbourhood"]
Strength = Literal["weak", "middle", "strong"]
SIGNALS: tuple[Signal, ...] = get_args(Signal)
STRENGTHS: tuple[Strength, ...] = get_args(Strength)

#: bags of each part, unless told otherwise, and the share of patients whose tiles they are made of
PARTS = {"train": 240, "val": 40, "test": 120}
PATIENTS = {"train": 0.5, "val": 0.2, "test": 0.3}
#: a bag: side * side coarse tiles, ratio * ratio fine tiles in each
SIDE, RATIO = 4, 2
#: share of marked tiles where the label has no say in it
MARKED_COARSE, MARKED_FINE = 0.5, 0.25
#: tiles of either kind that a part needs at least, at the coarse and at the fine level
LEAST = (20, 80)
#: how far the label moves a share away from its middle, in either direction
EFFECT: dict[Signal, dict[Strength, float]] = {
    "cross-scale": {"weak": 0.3, "middle": 0.4, "strong": 0.5},
    "fine-only": {"weak": 0.04, "middle": 0.08, "strong": 0.15},
    "coarse-only": {"weak": 0.1, "middle": 0.2, "strong": 0.3},
    "survival": {"weak": 0.3, "middle": 0.4, "strong": 0.5},
    "neighbourhood": {"weak": 0.2, "middle": 0.35, "strong": 0.5},
}


@dataclass(frozen=True, eq=False)
class TissueTiles:
    """The tiles one part is made of, by level and by whether they are of the marked kind."""

    coarse: tuple[Tensor, Tensor]  # (n, D) not marked, marked
    fine: tuple[Tensor, Tensor]


def take_apart(store: BagStore, tissue: Mapping[str, tuple[str, bool]], seed: int) -> dict[str, TissueTiles]:
    """Tiles for every part from `tissue` {slide: (patient, of the marked kind)}, patients in one part each.

    Patients are dealt at random until every part has enough of everything.
    """
    patients = sorted({patient for patient, _ in tissue.values()})
    bags = {slide: store.load(slide) for slide in sorted(tissue)}
    for attempt in range(1000):
        drawn = torch.rand(len(patients), generator=generator(seed, attempt, "deal-patients"))
        place = dict(zip(patients, drawn.tolist(), strict=True))
        edge, parts = 0.0, {}
        for part, share in PATIENTS.items():
            mine = [slide for slide in bags if edge <= place[tissue[slide][0]] < edge + share]
            edge += share
            parts[part] = [_by_kind(bags, tissue, mine, k) for k in (0, -1)]
        enough = all(
            sum(map(len, kind)) >= least
            for part in parts.values()
            for level, least in zip(part, LEAST, strict=True)
            for kind in level
        )
        if enough:
            return {part: TissueTiles(_joined(coarse), _joined(fine)) for part, (coarse, fine) in parts.items()}
    raise InputError(
        f"{len(patients)} patients cannot be dealt so that every part has {LEAST[0]} coarse and {LEAST[1]} fine tiles "
        "of either kind",
        where=store.root,
    )


def compose(slide_id: str, signal: Signal, severity: float, effect: float, tiles: TissueTiles, seed: int) -> Bag:
    """One bag; `severity` 0 and 1 are the two classes, or groups of risk."""
    rng = generator(seed, slide_id, "composed")
    count, children = SIDE * SIDE, RATIO * RATIO
    lean = 2 * severity - 1
    marked = torch.zeros(count, dtype=torch.bool)
    if signal == "coarse-only":
        marked = torch.rand(count, generator=rng) < MARKED_COARSE + lean * effect
    else:
        marked[torch.randperm(count, generator=rng)[: round(MARKED_COARSE * count)]] = True
    parent = torch.arange(count).repeat_interleave(children)  # (T1,)
    shows = _pattern(signal, lean, effect, marked[parent], rng)
    place = torch.arange(count)
    coarse_cells = torch.stack([place // SIDE, place % SIDE], dim=1)
    inside = torch.arange(children).repeat(count)
    fine_cells = coarse_cells[parent] * RATIO + torch.stack([inside // RATIO, inside % RATIO], dim=1)
    coarse, fine = _draw(tiles.coarse, marked, rng), _draw(tiles.fine, shows, rng)
    encoder = EncoderIdentity(name="composed", dim=fine.shape[1], input_px=256)
    return Bag(
        slide_id,
        [Level(coarse, coarse_cells), Level(fine, fine_cells, parent, RATIO)],
        Provenance(source="composed", encoders=(encoder,)),
    )


def write_composed(
    folder: str | Path,
    store: BagStore,
    tissue: Mapping[str, tuple[str, bool]],
    signal: Signal,
    strength: Strength,
    seed: int,
    train_bags: int | None = None,
) -> Path:
    """Write `cohort.csv`, `bags/` and `splits/` into `folder`; return it. A bag of the same tissue is kept.

    With `train_bags`, so many are there to train on, and a sixth as many to validate.
    """
    root = Path(folder)
    sizes = PARTS if train_bags is None else PARTS | {"train": train_bags, "val": train_bags // 6}
    tiles = take_apart(store, tissue, seed)
    taken = [[slide, *tissue[slide], store.record(slide).bag_sha256] for slide in sorted(tissue)]
    made_of = files.sha256_bytes(canonical_json(taken))
    bags = BagStore(root / "bags")
    rows = ["case_id,slide_id," + ("time,event" if signal == "survival" else "label")]
    parts: dict[str, list[str]] = {part: [] for part in sizes}
    for part, count in sizes.items():
        for index in range(count):
            name = f"{part}-{index:03d}"
            severity = float(index % 2)
            rng = generator(seed, name, signal, "outcome")
            target = survival_outcome(severity, rng) if signal == "survival" else ("negative", "positive")[index % 2]
            rows.append(f"{name},{name},{target}")
            parts[part].append(name)
            asked = (name, signal, severity, EFFECT[signal][strength])
            keep_or_make(bags, name, [*asked, seed, made_of], partial(compose, *asked, tiles[part], seed))
    files.publish(root / "cohort.csv", "\n".join(rows) + "\n")
    split = Split(**{part: tuple(names) for part, names in parts.items()}, scheme="composed", repeat=seed, seed=seed)
    write_splits([split], root / "splits")
    return root


def _pattern(signal: Signal, lean: float, effect: float, inside: Tensor, rng: torch.Generator) -> Tensor:
    """(T1,) which fine tiles are marked, given which lie inside marked coarse tiles (T1,)."""
    total = len(inside)
    chance = torch.rand(total, generator=rng)
    if signal in ("cross-scale", "survival"):
        shows = torch.zeros(total, dtype=torch.bool)
        wanted = round(MARKED_FINE * total)
        within = int((chance[:wanted] < 0.5 + lean * effect).sum())
        for region, count in ((inside, within), (~inside, wanted - within)):
            places = region.nonzero()[:, 0]
            shows[places[torch.randperm(len(places), generator=rng)[:count]]] = True
        return shows
    if signal == "fine-only":
        return chance < MARKED_FINE + lean * effect
    if signal == "neighbourhood":
        aside = 0.0 if lean > 0 else effect * (1 if torch.rand((), generator=rng) < 0.5 else -1)
        return chance < 0.5 + aside
    return chance < MARKED_FINE


def _draw(kinds: tuple[Tensor, Tensor], marked: Tensor, rng: torch.Generator) -> Tensor:
    """(T, D) a tile of the right kind for every place, with replacement."""
    out = kinds[0].new_empty(len(marked), kinds[0].shape[1])
    for kind, tokens in enumerate(kinds):
        mine = marked == bool(kind)
        out[mine] = tokens[torch.randint(len(tokens), (int(mine.sum()),), generator=rng)]
    return out


def _by_kind(
    bags: Mapping[str, Bag], tissue: Mapping[str, tuple[str, bool]], slides: list[str], k: int
) -> list[list[Tensor]]:
    """Tokens of level k of these slides: of those not marked, and of those marked."""
    return [[bags[s].levels[k].features for s in slides if tissue[s][1] == kind] for kind in (False, True)]


def _joined(kinds: list[list[Tensor]]) -> tuple[Tensor, Tensor]:
    plain, marked = (torch.cat(tokens) for tokens in kinds)
    return plain, marked
