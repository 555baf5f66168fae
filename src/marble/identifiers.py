"""Names of slides, patients, sites and classes: every id is brought into one form here, once, where it is read.

Two programs may write one name in different bytes: `José` composed or decomposed, a no-break blank from a web page, a
zero-width mark from a PDF. `normal` makes them one text. `spelling_key` goes further, for the question whether two
texts mean the same patient.
"""

from __future__ import annotations

import re
import unicodedata
from pathlib import PurePath
from typing import Literal

#: What a slide or feature file may end with. Nothing else is taken off: TCGA slide names contain dots.
SLIDE_EXTENSIONS = (
    ".ome.tiff", ".ome.tif", ".bif", ".bmp", ".czi", ".dcm", ".jpeg", ".jpg", ".mrxs", ".ndpi", ".png", ".scn", ".svs",
    ".svslide", ".tif", ".tiff", ".vms", ".vmu",
)  # fmt: skip
FEATURE_EXTENSIONS = (".h5", ".hdf5", ".npy", ".pt", ".pth", ".safetensors", ".zarr")
EXTENSIONS = SLIDE_EXTENSIONS + FEATURE_EXTENSIONS  # of two that fit, the longer stands first

#: what the id of a slide is made of: its file's stem, or its path
IdFrom = Literal["stem", "path"]

_TCGA = re.compile(r"TCGA-([A-Z0-9]{2})-[A-Z0-9]{4}(?![A-Z0-9])", re.IGNORECASE)
_PATIENT_LENGTH = len("TCGA-AA-1234")
_DASHES = dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe63\uff0d"), "-")


def normal(text: str) -> str:
    """The one form of a name: composed (NFC), plain blanks, none of them outside, nothing invisible.

    Zero-width and bidirectional marks, soft hyphens and byte-order marks go; every kind of blank becomes a space.
    """
    if text.isascii():
        return text.strip()
    composed = unicodedata.normalize("NFC", text)
    visible = (character for character in composed if not is_invisible(character))
    return "".join(" " if unicodedata.category(each) == "Zs" else each for each in visible).strip()


def is_invisible(character: str) -> bool:
    """Whether a character prints nothing and takes no place, so that two names may look alike and differ."""
    return unicodedata.category(character) == "Cf"


def slide_id_of(name: str | PurePath) -> str:
    """The id of a slide's or feature file: its name in normal form, without folder and known extension."""
    plain = name.name if isinstance(name, PurePath) else name
    return _without_ending(normal(normal(plain).replace("\\", "/").rpartition("/")[2]))


def listed_id(name: str) -> str:
    """What a name in a list of patients or slides stands for: a file's name as of a slide, any other as it is.

    `1203/21` and `1507/21` are case numbers, not files of one name in two folders.
    """
    text = normal(name)
    return slide_id_of(text) if _without_ending(text) != text else text


def _without_ending(name: str) -> str:
    lower = name.lower()
    known = next((ending for ending in EXTENSIONS if lower.endswith(ending) and len(name) > len(ending)), "")
    return name[: len(name) - len(known)].rstrip() or name


def tcga_patient(name: str) -> str | None:
    """The patient of a TCGA barcode (its first 12 characters), or None for any other name."""
    return name[:_PATIENT_LENGTH] if _TCGA.match(name) else None


def tcga_site(name: str) -> str | None:
    """The tissue source site of a TCGA barcode: the text `05` or `NA`, never a number or a gap."""
    found = _TCGA.match(name)
    return found.group(1).upper() if found else None


def spelling_key(name: str) -> str:
    """Equal for names that differ only in case, blanks, dashes, width, extension or the tail of a TCGA barcode.

    A slash is part of the name, as in case numbers.
    """
    folded = unicodedata.normalize("NFKC", normal(name)).translate(_DASHES)
    plain = _without_ending(" ".join(folded.split()))
    return unicodedata.normalize("NFKC", (tcga_patient(plain) or plain).casefold())


def printable(text: object) -> str:
    """The text on one line, as it may be printed: what would do something instead of showing is written as a number."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in str(text))
