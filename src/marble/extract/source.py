"""The slide files: finding them, naming them, and checking that they are what they were."""

from __future__ import annotations

import csv
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marble import files
from marble.errors import InputError, IntegrityError, TableError

SLIDE_SUFFIXES = frozenset(
    (".bif", ".czi", ".dcm", ".mrxs", ".ndpi", ".scn", ".svs", ".svslide", ".tif", ".tiff", ".vms", ".vmu")
)
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_SERIES_TAG = b"\x20\x00\x0e\x00UI"  # DICOM (0020,000E) SeriesInstanceUID, explicit little endian
_DICOM_HEADER_BYTES = 1 << 16


def find_slides(paths: Iterable[str | Path]) -> list[Path]:
    """Every slide in `paths`, sorted. Folders are searched for known endings; a file named outright is taken as it is.

    A DICOM slide is a series of files in one folder; it is given once, by the first of them.
    """
    found: dict[tuple[Path, str], Path] = {}
    for given in map(Path, paths):
        if not given.exists():
            raise InputError("no such file or folder", where=given)
        for path in [given] if given.is_file() else _inside(given):
            found.setdefault((path.resolve(), path.name), path)
    return sorted(found.values())


def slide_id_of(path: str | Path) -> str:
    """A slide is named by its file's stem."""
    return Path(path).stem


def name_clashes(paths: Sequence[Path]) -> dict[Path, str]:
    """Paths that cannot be told apart by their slide id, each with the reason. Case and Unicode form do not count."""
    same: dict[str, list[Path]] = defaultdict(list)
    for path in paths:
        same[unicodedata.normalize("NFC", slide_id_of(path)).casefold()].append(path)
    return {
        path: f"slide id '{slide_id_of(path)}' is also that of {next(other for other in group if other is not path)}"
        for group in same.values()
        if len(group) > 1
        for path in group
    }


@dataclass(frozen=True)
class Source:
    """A slide file as it was when it was read, with what was said about it from outside.

    Args:
        size: in bytes.
        mtime_ns: of the file.
        sha256: of the file, if it was asked for.
        verified: the hash was found in the user's manifest.
        mpp: pixel size given in place of the file's.
        outlines_sha256: of the file with tissue outlines given in place of segmentation.
    """

    size: int
    mtime_ns: int
    sha256: str | None = None
    verified: bool = False
    mpp: float | None = None
    outlines_sha256: str | None = None

    @classmethod
    def of(
        cls, path: Path, *, hashed: bool, expect_sha256: str | None, mpp: float | None, outlines: Path | None
    ) -> Source:
        """Look at the file; refuse it if its hash is not the expected one."""
        try:
            stat = path.stat()
            digest = files.sha256_file(path) if hashed or expect_sha256 else None
            drawn = None if outlines is None else files.sha256_file(outlines)
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror or error}", where=error.filename or path) from None
        if expect_sha256 and digest != expect_sha256.lower():
            raise IntegrityError(
                f"not the file of the manifest: sha256 {digest}, expected {expect_sha256.lower()}",
                where=path,
                hint="Copy the slide again",
            )
        return cls(stat.st_size, stat.st_mtime_ns, digest, expect_sha256 is not None, mpp, drawn)

    def record(self) -> dict[str, Any]:
        return {
            "bytes": self.size,
            "mtime_ns": self.mtime_ns,
            "sha256": self.sha256,
            "verified": self.verified,
            "mpp_given": self.mpp,
            "outlines_sha256": self.outlines_sha256,
        }

    def is_that_of(self, recorded: Mapping[str, Any], path: Path) -> bool:
        """Whether a record was made from this very file, under the same outside information.

        A file with another time stamp is hashed and compared, if its hash was recorded; else it counts as another.
        """
        ours = self.record()
        if any(recorded.get(key) != ours[key] for key in ("bytes", "mpp_given", "outlines_sha256")):
            return False
        if self.verified and not recorded.get("verified"):
            return False
        known = recorded.get("sha256")
        if self.sha256 is not None and known is not None:
            return bool(self.sha256 == known)
        if recorded.get("mtime_ns") == self.mtime_ns:
            return self.sha256 is None or known is not None
        return known is not None and files.sha256_file(path) == known


def read_manifest(path: str | Path) -> dict[str, str]:
    """Hashes by file name, from a table with the columns `sha256,file` or from the output of `sha256sum`."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise TableError(f"cannot be read: {error}", where=path) from None
    hashes: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or (number == 1 and line.replace(" ", "").lower() in ("sha256,file", "file,sha256")):
            continue
        name, digest = _manifest_entry(line, f"{path}, row {number}")
        if hashes.setdefault(name, digest) != digest:
            raise TableError(f"file '{name}' occurs twice with different hashes", where=f"{path}, row {number}")
    return hashes


def _manifest_entry(line: str, where: str) -> tuple[str, str]:
    fields = next(csv.reader([line])) if "," in line else line.split(maxsplit=1)
    if len(fields) == 2 and _SHA256.fullmatch(fields[1].strip()):
        fields = fields[::-1]
    if len(fields) != 2 or not _SHA256.fullmatch(fields[0].strip()):
        raise TableError("not a SHA-256 and a file name", where=where, hint="Make it with `sha256sum *.svs > FILE`")
    return Path(fields[1].strip().removeprefix("*")).name, fields[0].strip().lower()


def _inside(folder: Path) -> list[Path]:
    candidates = sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in SLIDE_SUFFIXES and not path.name.startswith(".") and path.is_file()
    )
    seen: set[tuple[Path, bytes]] = set()
    kept = []
    for path in candidates:
        series = _series(path) if path.suffix.lower() == ".dcm" else None
        if series is None or (path.parent, series) not in seen:
            kept.append(path)
        if series is not None:
            seen.add((path.parent, series))
    return kept


def _series(path: Path) -> bytes | None:
    """A DICOM file's series, or None if the header does not say."""
    try:
        with open(path, "rb") as file:
            head = file.read(_DICOM_HEADER_BYTES)
    except OSError:
        return None  # the reader will name the fault
    at = head.find(_SERIES_TAG)
    if at < 0:
        return None
    start = at + len(_SERIES_TAG) + 2
    length = int.from_bytes(head[start - 2 : start], "little")
    return head[start : start + length].rstrip(b"\0 ")
