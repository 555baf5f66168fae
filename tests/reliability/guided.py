"""Bytes that search their way through a reader: what reaches a new step of its code is kept, and changed further."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

#: numbers at which readers tend to stumble, as a byte, as 2, 4 and 8 of them, and as text
NUMBERS = (0, 1, 7, 8, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)
LONGEST = 1 << 16
Step = tuple[str, int, int]  # a file, and two lines of it that ran one after the other


@dataclass(frozen=True)
class Explored:
    """What a search found: inputs that each reached something new, and the steps that they and the seeds reached."""

    kept: tuple[bytes, ...]
    seeds: frozenset[Step]
    steps: frozenset[Step]


def explore(
    target: Callable[[bytes], object],
    of: Sequence[ModuleType],
    seeds: Sequence[bytes],
    tries: int,
    words: Sequence[bytes] = (),
) -> Explored:
    """Give `target` the seeds and then `tries` changed inputs, the same ones each time.

    Whatever it raises goes on, with the input in a note. `of` are the modules whose steps count.
    """
    rng, watched = random.Random(0), {str(Path(str(module.__file__))) for module in of}
    kept, steps = list(seeds), set[Step]()
    for data in seeds:
        steps |= _steps(target, data, watched)
    known = frozenset(steps)
    for _ in range(tries):
        data = _changed(rng.choice(kept), kept, words, rng)
        found = _steps(target, data, watched)
        if not found <= steps:
            steps |= found
            kept.append(data)
    return Explored(tuple(kept[len(seeds) :]), known, frozenset(steps))


def _steps(target: Callable[[bytes], object], data: bytes, watched: set[str]) -> set[Step]:
    found: set[Step] = set()
    last: dict[int, int] = {}  # of each frame that is at work, the line before this one

    def of_line(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            found.add((frame.f_code.co_filename, last.get(id(frame), 0), frame.f_lineno))
            last[id(frame)] = frame.f_lineno
        elif event == "return":
            last.pop(id(frame), None)
        return of_line

    def of_call(frame: FrameType, _event: str, _: Any) -> Any:
        return of_line if frame.f_code.co_filename in watched else None

    before = sys.gettrace()
    sys.settrace(of_call)
    try:
        target(data)
    except BaseException as error:
        error.add_note(f"the input was {data[:2000]!r}")
        raise
    finally:
        sys.settrace(before)
    return found


def _changed(data: bytes, others: Sequence[bytes], words: Sequence[bytes], rng: random.Random) -> bytes:
    for _ in range(rng.randint(1, 4)):
        at, length = rng.randint(0, len(data)), rng.choice((0, 0, 1, 2, 4, 8, 16))
        kind = rng.randrange(6)
        if kind == 0 and data:
            at = min(at, len(data) - 1)
            data = data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
        elif kind == 1:
            data = data[:at] + _number(rng) + data[at + length :]
        elif kind == 2 and words:
            data = data[:at] + rng.choice(words) + data[at + length :]
        elif kind == 3:
            data = data[:at] + data[at + length :]
        elif kind == 4:
            other = rng.choice(others)
            begin = rng.randint(0, len(other))
            data = data[:at] + other[begin : begin + rng.choice((4, 12, 64))] + data[at + length :]
        else:
            number = _number(rng)  # over as many bytes: what comes after stays in its place
            data = data[:at] + number + data[at + len(number) :]
    return data[:LONGEST]


def _number(rng: random.Random) -> bytes:
    number, size = rng.choice(NUMBERS), rng.choice((1, 2, 4, 8, 0))
    if size == 0:
        return str(number).encode()
    return (number % (1 << 8 * size)).to_bytes(size, rng.choice(("little", "big")))
