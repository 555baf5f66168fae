"""The only way anything is written: whole, durable, or not at all.

`publish` writes a temporary file beside the target, forces it to disk, renames it over the target and forces the
directory to disk. Whoever looks at the target sees the old bytes or the new ones, never a part; after a crash the same
holds. A temporary file left by a process that died is recognised by its name, and removed by `sweep` or by whoever
publishes something beside it next.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import shutil
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from marble import storage
from marble.errors import InputError, IntegrityError, WriteError
from marble.guarded_json import MAX_JSON_BYTES, parse_json
from marble.specs import canonical_json

Kind = TypeVar("Kind", dict[str, Any], list[Any])

PART = ".part"
SEAL = "seal"
_FOR_ALL = 0o666
_SAMPLE_BYTES = 1 << 16
_WORDS: dict[type, str] = {
    dict: "an object", list: "a list", str: "a text", int: "a number", float: "a number", bool: "true or false",
    type(None): "null",
}  # fmt: skip
_OWNER = re.compile(r"\.(?P<host>\w+)\.(?P<pid>\d+)\.[0-9a-f]{8}\.part$")
_HINTS = {
    errno.ENOSPC: "Free some space there, then start it again",
    errno.EDQUOT: "Your quota is used up: free some space, then start it again",
    errno.EACCES: "Choose a folder you may write to",
    errno.EPERM: "Choose a folder you may write to",
    errno.EROFS: "Choose a folder you may write to",
}


def _host() -> str:
    """This machine in 16 hex digits; the whole name counts, since those of a cluster may differ only at their ends."""
    machine = Path("/etc/machine-id")
    known = machine.read_text() if machine.is_file() and os.access(machine, os.R_OK) else ""
    return hashlib.sha256(f"{socket.gethostname()}\n{known}".encode()).hexdigest()[:16]


HOST = _host()
_swept: set[Path] = set()  # folders that this process has published into


def publish(path: str | Path, content: bytes | str | Callable[[BinaryIO], object], *, mode: int = _FOR_ALL) -> Path:
    """Write `content` (bytes, text, or a function that writes to an open binary file) to `path` atomically.

    `mode` are the permissions it has from its first byte on, without those that the user's mask takes.
    """
    target = Path(path)
    part = _part_beside(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep_once(target.parent)
        with open(part, "xb", opener=partial(os.open, mode=mode)) as file:
            if callable(content):
                content(file)
            else:
                file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        tag = storage.put(target, part)  # first there, then here: a copy is never ahead of its object
        os.replace(part, target)
        storage.keep(target, tag)
        _fsync_directory(target.parent)
    except OSError as error:
        _forget(part)
        raise cannot_write(error, target) from error
    except BaseException:
        _forget(part)
        raise
    return target


def publish_json(path: str | Path, value: object) -> Path:
    """Publish canonical JSON: equal values give equal bytes."""
    return publish(path, canonical_json(value) + b"\n")


def publish_directory(path: str | Path, fill: Callable[[Path], object]) -> Path:
    """Let `fill` write files into a temporary directory, then rename it to `path`, which must not exist."""
    target = Path(path)
    part = _part_beside(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep_once(target.parent)
        part.mkdir()
        fill(part)
        for below in sorted(part.rglob("*"), reverse=True):  # what is in a folder comes before the folder
            if below.is_dir():
                _fsync_directory(below)
            else:
                with open(below, "rb") as handle:
                    os.fsync(handle.fileno())
        _fsync_directory(part)
        tags = {name: storage.put(target / name, part / name) for name in _records_last(part)}
        os.rename(part, target)
        for name, tag in tags.items():
            storage.keep(target / name, tag)
        _fsync_directory(target.parent)
    except OSError as error:
        shutil.rmtree(part, ignore_errors=True)
        raise cannot_write(error, target) from error
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return target


def remove_folder(path: str | Path) -> None:
    """Remove a folder and all below it, if it is there."""
    storage.remove(Path(path))
    shutil.rmtree(path, ignore_errors=True)


def make_folder(path: str | Path) -> Path:
    """The folder, made if it is not there; one that cannot be made or written to is said in one line."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise cannot_write(error, folder / "") from error
    return folder


def read_json(path: str | Path, kind: type[Kind] | None = None) -> Any:
    """Read a JSON file within limits of size, depth and numbers (see `marble.guarded_json`); damage names the file.

    With `kind` (`dict`, `list`) a file that holds anything else is damaged too.
    """
    source = Path(path)
    storage.fetch(source)
    try:
        if not source.is_file():
            if source.exists():
                raise IntegrityError("not a regular file", where=path)
            raise InputError("no such file", where=path)
        if (size := source.stat().st_size) > MAX_JSON_BYTES:
            raise IntegrityError(f"{size:,} bytes are too many for JSON of ours", where=path)
        data = source.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=path) from None
    value = parse_json(data, where=path)
    if kind is not None and not isinstance(value, kind):
        raise IntegrityError(f"holds {_WORDS.get(type(value), 'something else')}, not {_WORDS[kind]}", where=path)
    return value


def seal(value: Mapping[str, Any]) -> dict[str, Any]:
    """The same fields and `seal`, the SHA-256 of all the others as canonical JSON."""
    body = {key: field for key, field in value.items() if key != SEAL}
    return {**body, SEAL: sha256_bytes(canonical_json(body))}


def is_sealed(value: Mapping[str, Any]) -> bool:
    """Whether the fields carry the seal that fits them."""
    return SEAL in value and seal(value)[SEAL] == value[SEAL]


def sha256_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: str | Path) -> str:
    storage.fetch(Path(path))
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_sample(path: str | Path, size: int) -> str:
    """The SHA-256 of a file's beginning, middle and end: cheap, and other for every other slide."""
    parts = []
    with open(path, "rb") as file:
        for start in sorted({0, max(0, size // 2 - _SAMPLE_BYTES // 2), max(0, size - _SAMPLE_BYTES)}):
            file.seek(start)
            parts.append(file.read(_SAMPLE_BYTES))
    return sha256_bytes(b"".join(parts))


def sweep(folder: str | Path) -> int:
    """Remove temporary files of processes of this machine that are gone; return how many."""
    removed = 0
    root = Path(folder)
    for part in root.glob(f".*{PART}") if root.is_dir() else ():
        owner = _OWNER.search(part.name)
        if owner is None or owner["host"] != HOST or is_alive(int(owner["pid"])):
            continue
        if part.is_dir():
            shutil.rmtree(part, ignore_errors=True)
        else:
            part.unlink(missing_ok=True)
        removed += 1
    return removed


def _sweep_once(folder: Path) -> None:
    if folder not in _swept:
        _swept.add(folder)
        with suppress(OSError):
            sweep(folder)


def _records_last(folder: Path) -> list[Path]:
    """The files of a folder, relative to it; JSON, which says what the others are, at the end."""
    found = [file.relative_to(folder) for file in sorted(folder.rglob("*")) if file.is_file()]
    return sorted(found, key=lambda file: file.suffix == ".json")


def _part_beside(target: Path) -> Path:
    # The random token keeps a restarted process with a recycled pid away from its predecessor's file. The target's
    # name is only there for the reader, and is cut so that the longest legal name still fits.
    shown = os.fsencode(target.name)[:120].decode("utf-8", "ignore")  # a name's limit is in bytes
    return target.parent / f".{shown}.{HOST}.{os.getpid()}.{secrets.token_hex(4)}{PART}"


def is_alive(pid: int) -> bool:
    """Whether a process of this machine has this number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _fsync_directory(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _forget(part: Path) -> None:
    with suppress(OSError):  # what went wrong before is what matters
        part.unlink(missing_ok=True)


def cannot_write(error: OSError, target: Path) -> WriteError:
    """The system's refusal to write `target` as one line: what, where, bytes free there, next step."""
    free = "unknown"
    with suppress(OSError):
        nearest = next(folder for folder in target.absolute().parents if folder.is_dir())
        free = f"{shutil.disk_usage(nearest).free:,}"
    what = f"cannot write {target}: {error.strerror or error} ({free} bytes free there)"
    return WriteError(what, hint=_HINTS.get(error.errno or 0), errno=error.errno)
