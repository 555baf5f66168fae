"""The slide files: finding them, naming them, and checking that they are what they were."""

from __future__ import annotations

import csv
import os
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from marble import files
from marble.errors import InputError, IntegrityError, TableError
from marble.identifiers import SLIDE_EXTENSIONS, IdFrom, slide_id_of
from marble.slide_files import FileLook, files_of, look_at, series_of, together
from marble.slides.slide import require_file
from marble.walking import below

PICTURE_SUFFIXES = frozenset({".bmp", ".jpeg", ".jpg", ".png"})
#: searched for in folders; pictures are not, since many a scanner leaves some of the label beside its slides
SLIDE_SUFFIXES = frozenset(SLIDE_EXTENSIONS) - PICTURE_SUFFIXES
_KINDS_NAMED = 5
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")


def find_slides(paths: Iterable[str | Path]) -> list[Path]:
    """Every slide in `paths`, sorted. Folders are searched for known endings; a file named outright is taken as it is.

    A DICOM slide is a series of files in one folder; it is given once, by the first of them. What is called like a
    slide and is none (a dangling link, a pipe, a folder without slides, a name that is not there) is given too: it
    gets a status like any other, and the rest goes on. Only if nothing that was named is there, that is an error.
    """
    given = [Path(path) for path in paths]
    if given and not any(os.path.lexists(path) for path in given):
        raise InputError("no such file or folder", where=given[0], hint="Give slide files, or folders that hold some")
    found: dict[tuple[str, str], Path] = {}
    for one in given:
        for path in _inside(one) if os.path.lexists(one) and one.is_dir() else [one]:
            found.setdefault((os.path.realpath(path), path.name), path)
    return _one_of_each_series(sorted(found.values()))


def slides_in(paths: Iterable[str | Path]) -> list[Path]:
    """As `find_slides`, but nothing found is an error that says what is there instead."""
    given = [Path(path) for path in paths]
    if found := find_slides(given):
        return found
    there = Counter(path.suffix.lower() for one in given for path in below(one) if _counts(path))
    most = sorted(there.items(), key=lambda kind: (-kind[1], kind[0]))[:_KINDS_NAMED]
    named = ", ".join(f"{count} {suffix or 'without an ending'}" for suffix, count in most)
    pictures = sorted(PICTURE_SUFFIXES & set(there))
    hint = f"In folders the endings {', '.join(sorted(SLIDE_SUFFIXES))} are looked for"
    if pictures:
        hint += f"; pictures are taken only by name, as {given[0] / f'*{pictures[0]}'}"
    raise InputError(
        f"no slides here, but {named}" if named else "no slides here, and no other file", where=given[0], hint=hint
    )


def _counts(path: Path) -> bool:
    return path.is_file() and not path.name.startswith(".")


def ids_of(paths: Sequence[Path], sources: Iterable[str | Path], how: IdFrom = "stem") -> dict[Path, str]:
    """The slide id of each path: its file's stem, or its place below the folder that was given, that folder included.

    `siteA/case1.svs`, found in `siteA`, is `case1` by its stem and `siteA__case1` by its path.
    """
    if how == "stem":
        return {path: slide_id_of(path) for path in paths}
    folders = [folder for folder in map(Path, sources) if os.path.lexists(folder) and folder.is_dir()]
    named = {}
    for path in paths:
        above = next((folder for folder in folders if folder in path.parents), None)
        steps = () if above is None else (above.resolve().name, *path.parent.relative_to(above).parts)
        named[path] = "__".join((*filter(None, steps), slide_id_of(path)))
    return named


def name_clashes(paths: Sequence[Path], ids: Mapping[Path, str] | None = None) -> dict[Path, str]:
    """Paths that cannot be told apart by their slide id, each with the reason. Case and Unicode form do not count."""
    known = ids or {path: slide_id_of(path) for path in paths}
    same: dict[str, list[Path]] = defaultdict(list)
    for path in paths:
        same[unicodedata.normalize("NFC", known[path]).casefold()].append(path)
    return {
        path: f"slide id '{known[path]}' is also that of {next(other for other in group if other is not path)}; "
        "rename one of them, or make ids from paths with --id-from path"
        for group in same.values()
        if len(group) > 1
        for path in group
    }


def drawn_for(folder: str | Path | None, path: Path, slide_id: str, *, private: bool = False) -> Path | None:
    """The tissue outlines of a slide, if the folder holds some. Who drew them knew a private slide by its file."""
    drawn = None if folder is None else Path(folder) / f"{slide_id_of(path) if private else slide_id}.geojson"
    return drawn if drawn is not None and drawn.is_file() else None


def unusable_names(ids: Mapping[Path, str]) -> dict[Path, str]:
    """Paths whose name cannot be an id, each with the reason."""
    refused = {}
    for path, slide_id in ids.items():
        if not slide_id:
            refused[path] = "nothing in its name can be seen; rename it"
        elif any("\ud800" <= letter <= "\udfff" for letter in slide_id):  # could be written into no table
            refused[path] = "its name is not valid UTF-8; rename it"
    return refused


def size_of(path: Path) -> int:
    """Of all its files, in bytes; 0 for what cannot be looked at."""
    try:
        return sum(one.stat().st_size for one in files_of(path)) if path.is_file() else 0
    except OSError:
        return 0


@dataclass(frozen=True)
class SlideFacts:
    """What is known of a slide from outside its file, and goes before what the file says.

    Args:
        slide_id: of the bag; by default made from the file's name.
        mpp: um per level-0 pixel.
        outlines: GeoJSON with tissue outlines, in place of segmentation.
        expect_sha256: refuse the file, before anything is decoded, unless it has this hash.
        hash_source: put the file's SHA-256 into the record.
        private: the file's name, folders and date are written and said nowhere; the id stands for them.
    """

    slide_id: str | None = None
    mpp: float | None = None
    outlines: Path | None = None
    expect_sha256: str | None = None
    hash_source: bool = False
    private: bool = False


@dataclass(frozen=True)
class Source:
    """A slide file as it was when it was read, with what was said about it from outside.

    Args:
        own: the file that was given. Its time is 0 of a private slide, whose hash tells whether it is the same.
        whole: all files of the slide together.
        files: how many these are.
        place: where the file lies, hashed, since folders may be named after patients; of a private slide its id, since
            a path that somebody guesses could be hashed too.
        verified: the hash was found in the user's manifest.
        mpp: pixel size given in place of the file's.
        outlines_sha256: of the file with tissue outlines given in place of segmentation.
    """

    own: FileLook
    whole: FileLook
    files: int
    place: str
    verified: bool = False
    mpp: float | None = None
    outlines_sha256: str | None = None

    @property
    def sha256(self) -> str | None:
        """Of the slide, if it was asked for."""
        return self.whole.sha256

    @classmethod
    def of(cls, path: Path, facts: SlideFacts) -> Source:
        """Look at the file; refuse it if its hash is not the expected one."""
        try:
            require_file(path)
            hashed = facts.hash_source or facts.private or facts.expect_sha256 is not None
            parts = files_of(path)
            looks = [look_at(part, hashed=hashed) for part in parts]
            drawn = None if facts.outlines is None else files.sha256_file(facts.outlines)
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror or error}", where=error.filename or path) from None
        if facts.expect_sha256 and looks[0].sha256 != facts.expect_sha256.lower():
            raise IntegrityError(
                f"not the file of the manifest: sha256 {looks[0].sha256}, expected {facts.expect_sha256.lower()}",
                where=path,
                hint="Copy the slide again",
            )
        if facts.private:
            looks = [replace(look, mtime_ns=0) for look in looks]
        known_by = facts.slide_id if facts.private and facts.slide_id else os.path.realpath(path)
        place = files.sha256_bytes(os.fsencode(known_by))[:16]
        verified = facts.expect_sha256 is not None and len(parts) == 1  # the manifest says nothing of the others
        return cls(looks[0], together(parts, looks), len(parts), place, verified, facts.mpp, drawn)

    def record(self) -> dict[str, Any]:
        return {
            "files": self.files,
            "bytes": self.whole.size,
            "mtime_ns": self.whole.mtime_ns,
            "sample_sha256": self.whole.sample_sha256,
            "place": self.place,
            "sha256": self.whole.sha256,
            "verified": self.verified,
            "mpp_given": self.mpp,
            "outlines_sha256": self.outlines_sha256,
        }

    def is_that_of(self, recorded: Mapping[str, Any], path: Path) -> bool:
        """Whether a record was made from this very file, under the same outside information.

        A file with another time stamp is hashed and compared, if its hash was recorded; else it counts as another.
        """
        ours, look = self.record(), self._as_in(recorded)
        if recorded.get("bytes") != look.size:
            return False
        if any(recorded.get(key) != ours[key] for key in ("mpp_given", "outlines_sha256")):
            return False
        if recorded.get("sample_sha256", look.sample_sha256) != look.sample_sha256:
            return False
        if self.verified and not recorded.get("verified"):
            return False
        known = recorded.get("sha256")
        if look.sha256 is not None and known is not None:
            return bool(look.sha256 == known)
        if recorded.get("mtime_ns") == look.mtime_ns:
            return look.sha256 is None or known is not None
        return known is not None and self._hashed_as_in(recorded, path) == known

    def is_another_than(self, recorded: Mapping[str, Any]) -> bool:
        """Whether a record was made from another slide, and not from an earlier state of this file.

        The same place is the same slide, made again; a moved file is known by its content.
        """
        look = self._as_in(recorded)
        if look.sha256 is not None and recorded.get("sha256") is not None:
            other = look.sha256 != recorded["sha256"]
        elif "sample_sha256" in recorded:
            other = (look.size, look.sample_sha256) != (recorded.get("bytes"), recorded["sample_sha256"])
        else:  # a record of an earlier version
            other = "bytes" in recorded and look.size != recorded["bytes"]
        return other and recorded.get("place") != self.place

    def _as_in(self, recorded: Mapping[str, Any]) -> FileLook:
        """What a record is compared with: those of earlier versions know of the slide's own file alone."""
        return self.whole if "files" in recorded else self.own

    def _hashed_as_in(self, recorded: Mapping[str, Any], path: Path) -> str | None:
        parts = files_of(path) if "files" in recorded else (path,)
        return together(parts, [look_at(part, hashed=True) for part in parts]).sha256


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
    candidates = [
        path for path in below(folder) if path.suffix.lower() in SLIDE_SUFFIXES and not path.name.startswith(".")
    ]
    holding = {above for path in candidates for above in path.parents}
    # a folder may be named after the slide inside it
    return [path for path in candidates if not (path in holding and path.is_dir())]


def _one_of_each_series(paths: Sequence[Path]) -> list[Path]:
    seen: set[tuple[Path, bytes]] = set()
    kept = []
    for path in paths:
        series = series_of(path) if path.suffix.lower() == ".dcm" and path.is_file() else None
        if series is None or (path.parent, series) not in seen:
            kept.append(path)
        if series is not None:
            seen.add((path.parent, series))
    return kept
