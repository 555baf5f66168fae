"""Who was in which part of a run: known by slide id, by the slide file's hash and by what is in the bag; never guessed.

A slide keeps its place when its file is renamed (the hash tells) and when it is extracted again under another name (the
tiles and tokens tell).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from marble.bags.bag import Bag
from marble.bags.store import BagStore
from marble.identifiers import normal, spelling_key
from marble.training.job import CaseSpec

#: parts in the order in which a doubtful slide is told to be in one of them
BY_DOUBT = ("train", "val", "test")
NEW = "new"
#: tokens of each level that a bag's content hash covers; its cells are covered all
SAMPLED = 16


@dataclass(frozen=True)
class Membership:
    """The part a slide was in ("train", "val", "test", or "new"), and how that is known."""

    part: str
    why: str = ""

    @property
    def warning(self) -> str | None:
        """What must be said beside a prediction of this slide."""
        said = {
            "train": f"in the training part of this run ({self.why}): the prediction says nothing about new patients",
            "val": f"in the validation part of this run ({self.why}): "
            "its epoch, threshold or temperature may have been chosen on it",
        }
        return said.get(self.part)


def content_sha256(bag: Bag, dtype: torch.dtype | None = None) -> str:
    """Equal for bags of the same tiles and tokens, whatever they are called and in whatever order they are stored.

    The tokens count as they are stored, or as `dtype` holds them.
    """
    digest = hashlib.sha256()
    for level in bag.levels:
        cells = level.cells.numpy()
        order = np.lexsort((cells[:, 1], cells[:, 0]))
        digest.update(np.ascontiguousarray(cells[order]).tobytes())
        sampled = order[np.linspace(0, len(order) - 1, min(SAMPLED, len(order))).astype(np.int64)]
        tokens = level.features[sampled].detach()
        digest.update(np.ascontiguousarray(tokens.to(dtype or tokens.dtype).numpy()).tobytes())
    return digest.hexdigest()


def _contents(bag: Bag) -> tuple[str, ...]:
    """A bag that went through another tool, or was extracted again, may hold the same tokens in wider numbers."""
    return tuple(content_sha256(bag, dtype) for dtype in (None, torch.float16, torch.float32))


def members_of(parts: Mapping[str, Sequence[CaseSpec]], store: BagStore) -> dict[str, dict[str, Any]]:
    """{part: {slide id: its case, the hash of its file if that was recorded, the hash of what is in its bag}}."""
    return {part: {slide: _entry(case.case_id, store.load(slide)) for case in cases for slide in case.slides}
            for part, cases in parts.items()}  # fmt: skip


class Members:
    """The slides of a run's record, to be asked about any bag."""

    def __init__(self, parts: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
        self._by_id: dict[str, tuple[str, str | None, str]] = {}  # part, hash of the file, hash of the content
        self._by_file: dict[str, tuple[str, str]] = {}
        self._by_content: dict[str, tuple[str, str]] = {}
        self._by_case: dict[str, tuple[str, str]] = {}
        for part in reversed(BY_DOUBT):  # so that of two places the more doubtful one is remembered
            for slide_id, entry in parts.get(part, {}).items():
                self._by_id[_key(slide_id)] = (part, entry["file_sha256"], entry["content_sha256"])
                if entry["file_sha256"]:
                    self._by_file[entry["file_sha256"]] = (part, slide_id)
                self._by_content[entry["content_sha256"]] = (part, slide_id)
                self._by_case[spelling_key(entry["case_id"])] = (part, entry["case_id"])

    def of(self, bag: Bag) -> Membership:
        """Where this bag's slide was: as the slide itself, or as another slide of a patient whose id it carries."""
        found = list(self._places(bag))
        return min(found, key=lambda one: BY_DOUBT.index(one.part), default=Membership(NEW))

    def part_of_id(self, slide_id: str) -> str:
        """The part of a slide of which only the id is known."""
        known = self._by_id.get(_key(slide_id))
        return NEW if known is None else known[0]

    def _places(self, bag: Bag) -> Iterable[Membership]:
        file = None if bag.provenance.slide is None else bag.provenance.slide.sha256
        if (known := self._by_id.get(_key(bag.slide_id))) is not None:
            part, recorded, content = known
            if file is not None and file == recorded:
                yield Membership(part, "by its id")
                return
            if file is None or recorded is None:  # told by what is in it, or not at all
                routed = "route" in bag.provenance.notes  # by choice without some of the tiles
                trusted = routed or content in _contents(bag)
                yield Membership(part, "by its id" if trusted else "matched by id only: its tiles differ")
                return
        if file is not None and file in self._by_file:
            part, slide_id = self._by_file[file]
            yield Membership(part, f"the file of slide {slide_id}")
        for same in filter(None, map(self._by_content.get, _contents(bag))):
            yield Membership(same[0], f"the same tiles as slide {same[1]}")
        if (patient := self._by_case.get(spelling_key(bag.slide_id))) is not None:
            yield Membership(patient[0], f"its id is of patient {patient[1]}")


def _entry(case_id: str, bag: Bag) -> dict[str, Any]:
    slide = bag.provenance.slide
    file = None if slide is None else slide.sha256
    return {"case_id": case_id, "file_sha256": file, "content_sha256": content_sha256(bag)}


def _key(slide_id: str) -> str:
    return normal(slide_id).casefold()
