"""Names of slides and patients: file extensions, TCGA barcodes, and spellings of the same patient."""

from __future__ import annotations

import re

#: What a slide or feature file may end with. Nothing else is taken off: TCGA slide names contain dots.
EXTENSIONS = (".svs", ".tiff", ".tif", ".ndpi", ".mrxs", ".scn", ".dcm", ".h5", ".pt")

_TCGA = re.compile(r"TCGA-([A-Z0-9]{2})-[A-Z0-9]{4}(?![A-Z0-9])", re.IGNORECASE)
_PATIENT_LENGTH = len("TCGA-AA-1234")


def slide_id_of(name: str) -> str:
    """The stem of a slide's or feature file's name: no folder, no known extension."""
    stem = name.strip().replace("\\", "/").rpartition("/")[2]
    return stem.rpartition(".")[0] or stem if stem.lower().endswith(EXTENSIONS) else stem


def tcga_patient(name: str) -> str | None:
    """The patient of a TCGA barcode (its first 12 characters), or None for any other name."""
    return name[:_PATIENT_LENGTH] if _TCGA.match(name) else None


def tcga_site(name: str) -> str | None:
    """The tissue source site of a TCGA barcode: the text `05` or `NA`, never a number or a gap."""
    found = _TCGA.match(name)
    return found.group(1).upper() if found else None


def spelling_key(name: str) -> str:
    """Equal for names that differ only in case, outer blanks, extension or the tail of a TCGA barcode."""
    plain = slide_id_of(" ".join(name.split()))
    return (tcga_patient(plain) or plain).casefold()
