"""The files a slide consists of, and what tells two slides apart without reading all of either.

Most slides are one file. A MIRAX slide is a small picture and a folder of the same name; a DICOM slide is all files of
one series in one folder; a Hamamatsu `.vms` names the files beside it. Whoever looks at the file that was given alone
takes two such slides for one, and does not see that a part was changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from marble import files

_SERIES_TAG = b"\x20\x00\x0e\x00UI"  # DICOM (0020,000E) SeriesInstanceUID, explicit little endian
_HEADER_BYTES = 1 << 16
_INDEX_BYTES = 1 << 20
#: what a desktop leaves in a folder that it has shown; on others a name with a point in front (.DS_Store)
_LEFT = frozenset({"thumbs.db", "desktop.ini"})


@dataclass(frozen=True)
class FileLook:
    """What is seen of a file, or of several together.

    Args:
        size: in bytes.
        mtime_ns: of the file; of several the latest.
        sample_sha256: of its beginning, middle and end: cheap, and other for every other slide.
        sha256: of all of it, if it was asked for.
    """

    size: int
    mtime_ns: int
    sample_sha256: str
    sha256: str | None = None


def files_of(path: Path) -> tuple[Path, ...]:
    """All files of the slide at `path`: that one first, the others sorted."""
    kind = path.suffix.lower()
    if kind == ".mrxs":
        others = [below for below in path.with_suffix("").rglob("*") if below.is_file() and not _is_left(below)]
    elif kind in (".vms", ".vmu"):
        others = _named_in(path)
    elif kind == ".dcm" and (series := series_of(path)) is not None:
        beside = (one for one in path.parent.iterdir() if one.suffix.lower() == kind and one.is_file())
        others = [one for one in beside if series_of(one) == series]
    else:
        others = []
    return (path, *sorted(set(others) - {path}))


def series_of(path: Path) -> bytes | None:
    """A DICOM file's series, or None if the header does not say."""
    try:
        stat = path.stat()
        return _series(path, stat.st_size, stat.st_mtime_ns)
    except OSError:
        return None  # the reader will name the fault


def look_at(path: Path, *, hashed: bool = False) -> FileLook:
    """One file as it is."""
    stat = path.stat()
    digest = files.sha256_file(path) if hashed else None
    return FileLook(stat.st_size, stat.st_mtime_ns, files.sha256_sample(path, stat.st_size), digest)


def together(paths: Sequence[Path], looks: Sequence[FileLook]) -> FileLook:
    """Several files of one slide as one: what they hold and what they are called, but not what the slide is called.

    DICOM files say themselves which part they are, so they may be called anything.
    """
    if len(looks) == 1:
        return looks[0]
    named = ["" if path.suffix.lower() == ".dcm" or path == paths[0] else path.name for path in paths]
    samples = sorted(f"{name}\0{look.size}\0{look.sample_sha256}" for name, look in zip(named, looks, strict=True))
    wholes = sorted(f"{name}\0{look.size}\0{look.sha256}" for name, look in zip(named, looks, strict=True))
    hashed = all(look.sha256 is not None for look in looks)
    return FileLook(
        sum(look.size for look in looks),
        max(look.mtime_ns for look in looks),
        files.sha256_bytes("\n".join(samples).encode("utf-8", "surrogateescape")),
        files.sha256_bytes("\n".join(wholes).encode("utf-8", "surrogateescape")) if hashed else None,
    )


@lru_cache(maxsize=1 << 16)
def _series(path: Path, size: int, mtime_ns: int) -> bytes | None:
    """Kept by size and time: every slide of a folder asks for the series of all files in it."""
    del size, mtime_ns
    with open(path, "rb") as file:
        head = file.read(_HEADER_BYTES)
    at = head.find(_SERIES_TAG)
    if at < 0:
        return None
    start = at + len(_SERIES_TAG) + 2
    length = int.from_bytes(head[start - 2 : start], "little")
    return head[start : start + length].rstrip(b"\0 ")


def _is_left(path: Path) -> bool:
    """Whether a file was left by who looked at the folder, and is no part of a slide."""
    return path.name.startswith(".") or path.name.lower() in _LEFT


def _named_in(index: Path) -> list[Path]:
    """The files that the lines `key=name` of an index name and that lie beside it."""
    with open(index, "rb") as file:
        text = file.read(_INDEX_BYTES).decode("utf-8", "replace")
    names = {line.partition("=")[2].strip() for line in text.splitlines()}
    return [one for one in index.parent.iterdir() if one.name in names and one.is_file()]
