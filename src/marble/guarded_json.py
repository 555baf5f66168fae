"""JSON from anywhere, read within limits: whatever the text holds, the answer is a plain value or one line.

Python's own reader follows nesting until it runs out of stack, takes `NaN` and numbers of any length, and of two
equal keys keeps the last. None of this is ever written here, so each of it is damage or an attack.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from marble.errors import IntegrityError

MAX_DEPTH = 64
MAX_DIGITS = 40
MAX_JSON_BYTES = 256 << 20
_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BRACKETS = re.compile(r"[\[\]{}]")


def parse_json(data: bytes | str, *, where: object) -> Any:
    """The value in `data`; `where` names it in the error."""
    try:
        text = data.decode("utf-8-sig") if isinstance(data, bytes) else data
        if text.count("[") + text.count("{") > MAX_DEPTH and _depth(text) > MAX_DEPTH:
            raise ValueError(f"nested more than {MAX_DEPTH} deep")
        value = json.loads(
            text, parse_int=_integer, parse_float=_real, parse_constant=_refuse, object_pairs_hook=_distinct
        )
        if "\\ud" in text.lower():
            json.dumps(value, ensure_ascii=False).encode()  # half a character: could be read, never be written
    except UnicodeDecodeError as error:
        raise IntegrityError(f"not valid JSON: byte {error.start} is not UTF-8", where=where) from None
    except UnicodeEncodeError:
        raise IntegrityError("not valid JSON: half of a character that needs two", where=where) from None
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"not valid JSON: {str(error)[:200]}", where=where) from None
    return value


def _depth(text: str) -> int:
    """How deep brackets are nested outside of strings; counting stops beyond the limit."""
    depth = deepest = 0
    for bracket in _BRACKETS.finditer(_STRINGS.sub("", text)):
        depth += 1 if bracket[0] in "[{" else -1
        deepest = max(deepest, depth)
        if deepest > MAX_DEPTH:
            break
    return deepest


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a number of {len(digits):,} digits")
    return int(digits)


def _real(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"the number {digits[:MAX_DIGITS]} is too large")
    return value


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key occurs twice")
    return found
