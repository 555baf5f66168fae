"""Planes read in another process: a decoder that crashes, hangs or asks for too much takes only that process with it.

with reading_elsewhere() as desk:
    slide = Slide.open("a.svs", desk=desk)
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marble.compute.desk import Desk, DeskError
from marble.compute.limits import GIB, Limits
from marble.errors import SlideError
from marble.slides.mpp import PixelSizeClues
from marble.slides.readers.planes import Mask, Pixels, Planes
from marble.slides.readers.registry import open_planes

#: of one read: generous for slow disks, finite for decoders that never end
LIMITS = Limits(memory_bytes=4 * GIB, timeout_s=900)
_OPEN_FILES = 16


@dataclass(frozen=True)
class Question:
    """What a reading process is asked: to open a file, or for a box of one of its planes."""

    path: Path
    box: tuple[int, int, int, int, int] | None = None  # plane, x, y, width, height


class UndecodableError(SlideError):
    """A slide whose decoder died, did not end or wanted too much."""


ReadingDesk = Desk[Question, Any]


def reading_elsewhere(limits: Limits = LIMITS) -> ReadingDesk:
    """A process that reads slides, started when it is first needed; close it, or use it as a context manager."""
    return Desk(_answer, limits)


class ElsewherePlanes:
    """The planes of a file that is open in another process."""

    def __init__(self, path: Path, desk: ReadingDesk) -> None:
        self._path, self._desk = path, desk
        self.vendor: str
        self.sizes: tuple[tuple[int, int], ...]
        self.clues: PixelSizeClues
        self.vendor, self.sizes, self.clues = self._ask(Question(path))

    def read(self, plane: int, x: int, y: int, width: int, height: int) -> tuple[Pixels, Mask | None]:
        found: tuple[Pixels, Mask | None] = self._ask(Question(self._path, (plane, x, y, width, height)))
        return found

    def close(self) -> None:
        """Nothing to do: the other process lets go of what it has not read for long, and ends with its desk."""

    def _ask(self, question: Question) -> Any:
        try:
            return self._desk.ask(question)
        except DeskError as error:
            raise UndecodableError(f"cannot be decoded: {error.what}", where=self._path) from None


#: of the reading process
_open: OrderedDict[Path, Planes] = OrderedDict()


def _answer(question: Question) -> Any:
    if question.box is None or question.path not in _open:
        if (before := _open.pop(question.path, None)) is not None:
            before.close()
        _open[question.path] = open_planes(question.path)
        while len(_open) > _OPEN_FILES:
            _open.popitem(last=False)[1].close()
    _open.move_to_end(question.path)
    planes = _open[question.path]
    return (planes.vendor, planes.sizes, planes.clues) if question.box is None else planes.read(*question.box)
