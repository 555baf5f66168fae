"""The only way anything is written: whole, durable, or not at all.

`publish` writes a temporary file beside the target, forces it to disk, renames it over the target and forces the
directory to disk. Whoever looks at the target sees the old bytes or the new ones, never a part; after a crash the same
holds. A temporary file left by a process that died is recognised by its name and removed by `sweep`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from marble.errors import InputError, IntegrityError
from marble.specs import canonical_json

PART = ".part"
_OWNER = re.compile(r"\.(?P<host>\w+)\.(?P<pid>\d+)\.[0-9a-f]{8}\.part$")
_HOST = "".join(c for c in socket.gethostname() if c.isalnum())[:24] or "host"


def publish(path: str | Path, content: bytes | str | Callable[[BinaryIO], object]) -> Path:
    """Write `content` (bytes, text, or a function that writes to an open binary file) to `path` atomically."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = _part_beside(target)
    try:
        with open(part, "xb") as file:
            if callable(content):
                content(file)
            else:
                file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
        _fsync_directory(target.parent)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise _explain(error, target) from error
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return target


def publish_json(path: str | Path, value: object) -> Path:
    """Publish canonical JSON: equal values give equal bytes."""
    return publish(path, canonical_json(value) + b"\n")


def publish_directory(path: str | Path, fill: Callable[[Path], object]) -> Path:
    """Let `fill` write files into a temporary directory, then rename it to `path`, which must not exist."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = _part_beside(target)
    try:
        part.mkdir()
        fill(part)
        for file in sorted(part.rglob("*")):
            if file.is_file():
                with open(file, "rb") as handle:
                    os.fsync(handle.fileno())
        _fsync_directory(part)
        os.rename(part, target)
        _fsync_directory(target.parent)
    except OSError as error:
        shutil.rmtree(part, ignore_errors=True)
        raise _explain(error, target) from error
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return target


def read_json(path: str | Path) -> Any:
    """Read a JSON file; damage names the file."""
    try:
        return json.loads(Path(path).read_bytes())
    except FileNotFoundError:
        raise InputError("no such file", where=path) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise IntegrityError(f"not valid JSON: {error}", where=path) from None


def sha256_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: str | Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sweep(folder: str | Path) -> int:
    """Remove temporary files of processes of this machine that are gone; return how many."""
    removed = 0
    root = Path(folder)
    for part in root.glob(f".*{PART}") if root.is_dir() else ():
        owner = _OWNER.search(part.name)
        if owner is None or owner["host"] != _HOST or _is_alive(int(owner["pid"])):
            continue
        if part.is_dir():
            shutil.rmtree(part, ignore_errors=True)
        else:
            part.unlink(missing_ok=True)
        removed += 1
    return removed


def _part_beside(target: Path) -> Path:
    # The random token keeps a restarted process with a recycled pid away from its predecessor's file. The target's
    # name is only there for the reader, and is cut so that the longest legal name still fits.
    return target.parent / f".{target.name[:120]}.{_HOST}.{os.getpid()}.{secrets.token_hex(4)}{PART}"


def _is_alive(pid: int) -> bool:
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


def _explain(error: OSError, target: Path) -> OSError:
    free = shutil.disk_usage(target.parent).free if target.parent.is_dir() else 0
    text = f"cannot write {target}: {error.strerror or error} ({free:,} bytes free there)"
    return type(error)(error.errno, text) if error.errno else OSError(text)
