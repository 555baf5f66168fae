"""What stands beside a bag in its store: the record of its slide, sealed by a checksum, and the names of both files."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

from pydantic import Field

from marble import files
from marble.bags.provenance import Provenance, Sha256
from marble.errors import IntegrityError
from marble.specs import Spec
from marble.version import VERSION

#: records and `store.json` of the first format carry no checksum
FIRST_FORMAT = 1
#: since 2 they carry the checksum of all they say
RECORD_FORMAT = 2
_SHORTENED = re.compile(r".{1,120}%[0-9a-f]{32}")
_PLAIN = re.compile(r"[^A-Za-z0-9._ +=@,-]")


class LevelCount(Spec):
    """How many tokens of which kind one level holds."""

    tokens: int = Field(gt=0)
    dim: int = Field(gt=0)
    dtype: Literal["float16", "float32"]
    ratio: int | None = None


class BagRecord(Spec):
    """The last thing written for a slide; only it makes the slide done."""

    format: int = RECORD_FORMAT
    slide_id: str
    status: Literal["ok", "failed", "excluded"]
    stage: str = "extract"
    reason: str | None = None
    bag_sha256: Sha256 | None = None
    bag_bytes: int | None = None
    levels: tuple[LevelCount, ...] = ()
    provenance: Provenance | None = None
    details: dict[str, Any] = Field(default_factory=dict)
    version: str = VERSION


def read_record(path: Path) -> BagRecord:
    """A record, after its checksum was compared with all it says."""
    return BagRecord.parse(read_sealed(path), where=path)


def has_checksum(path: Path) -> bool:
    """Whether a record or `store.json` carries a checksum; those of the first format do not."""
    return files.SEAL in files.read_json(path, dict)


def read_sealed(path: Path) -> dict[str, Any]:
    """The fields of a record or of `store.json`. Those of the first format carry no checksum, and are taken as read."""
    fields: dict[str, Any] = files.read_json(path, dict)
    known = fields.get("format")
    if known is None:
        hint = "Extract the slide again; a file of something else does not belong into a store"
        raise IntegrityError("no record of MARBLE: it names no format", where=path, hint=hint)
    if known not in (FIRST_FORMAT, RECORD_FORMAT):
        raise IntegrityError(f"format {str(known)[:20]!r} is not one of {FIRST_FORMAT}, {RECORD_FORMAT}", where=path)
    if (known == RECORD_FORMAT or files.SEAL in fields) and not files.is_sealed(fields):
        raise IntegrityError(
            "changed since it was written: its checksum does not fit", where=path, hint="Extract the slide again"
        )
    return {key: value for key, value in fields.items() if key != files.SEAL}


def file_stem(slide_id: str) -> str:
    """A file name for any slide id: no separators, no hidden files, no clash between different ids."""
    safe = _PLAIN.sub(lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), slide_id)
    if safe[:1] in (".", "-"):
        safe = f"%{ord(safe[0]):02X}{safe[1:]}"
    if len(safe) > 180 or safe.lower() == "store":
        safe = f"{safe[:120]}%{hashlib.sha256(slide_id.encode()).hexdigest()[:32]}"
    return safe


def id_of_stem(stem: str) -> str:
    """The slide id that `file_stem` made this name of; any other name is an id as it is."""
    try:
        slide_id = unquote(stem, errors="strict")
    except UnicodeDecodeError:
        return stem
    return slide_id if file_stem(slide_id) == stem else stem


def is_shortened(stem: str) -> bool:
    """Whether `file_stem` may have made this name of an id that the name does not hold."""
    return _SHORTENED.fullmatch(stem) is not None
