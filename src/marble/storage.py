"""Object storage behind local folders, so that everything else works with paths.

A location such as `s3://bucket/bags` is a folder below this machine's cache, and the folder's path says which location
it stands for. Objects are the truth, the folder holds copies: what is published there is put as a whole object before
its copy appears, and what is read is fetched as a whole object unless the copy is of the object that is there now, by
its tag. Copies can be deleted at any time. Within one process an object is looked at once.

    MARBLE_CACHE/objects/s3/bucket/bags/a.json      the copy of s3://bucket/bags/a.json
    MARBLE_CACHE/tags/s3/bucket/bags/a.json         the tag of the object it was copied from

Whoever can be used by fsspec can be used here; settings and credentials are those of fsspec and of its package for the
kind of storage, such as AWS_ENDPOINT_URL for s3fs. A path that is no such location is left alone by every function.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from marble.errors import InputError, MarbleError, UnavailableError

CACHE = "MARBLE_CACHE"
#: how the help of a command calls what `location` takes
PLACE = "DIR_OR_URL"
#: large, and read one by one: fetched when they are opened, not with the folder they are in
_LATE = ".safetensors"
_URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]+):/+(?P<rest>.*)", re.DOTALL)
#: what kinds of storage call the thing that changes whenever an object does
_TAGS = ("ETag", "etag", "md5Hash", "content_md5", "created", "mtime", "LastModified")
_here: set[Path] = set()  # copies, and folders, that this process has compared with what is there


def cache() -> Path:
    """The folder of copies: what `MARBLE_CACHE` names, else one in the user's cache."""
    return _cache(os.environ.get(CACHE), os.environ.get("XDG_CACHE_HOME"))


def location(text: str | Path) -> Path:
    """The path of a location: of a URL its folder in the cache, and anything else as it is."""
    found = _URL.fullmatch(str(text))  # a URL that went through Path has lost a slash
    if found is None:
        return Path(text)
    parts = [part for part in found["rest"].split("/") if part]
    if not parts or any(part in (".", "..") for part in parts):
        raise InputError(f"'{text}' names no folder or file of a storage", hint="Say it as in s3://bucket/folder")
    return cache() / "objects" / found["scheme"] / Path(*parts)


def address(path: Path) -> str | None:
    """The URL that a path stands for; None for a path of this machine."""
    inside = _inside(path)
    if inside is None:
        return None
    scheme, _, rest = inside.partition("/")
    return f"{scheme}://{rest}"


def named(path: Path) -> str:
    """How a path is written down for another machine: the URL it stands for, or itself."""
    return address(path) or str(path)


def shown(text: str) -> str:
    """A text for the user, with locations in place of the paths of their copies."""
    return re.sub(re.escape(str(cache() / "objects")) + r"/([a-z0-9+.-]+)/", r"\1://", text)


def put(path: Path, source: Path) -> str | None:
    """Put the bytes of `source` there, as the whole object that `path` stands for; the tag it got."""
    url = address(path)
    if url is None:
        return None
    data = source.read_bytes()
    with _at(url) as (system, key):
        system.pipe_file(key, data)
        return _tag(system.info(key))


def keep(path: Path, tag: str | None) -> None:
    """From now on the copy at `path` is known to be of the object with this tag."""
    if tag is not None:
        note = _note(path)
        note.parent.mkdir(parents=True, exist_ok=True)
        _write(note, tag.encode())
        _here.add(path)


def fetch(path: Path) -> None:
    """Make the copy at `path` be the object that is there, or be absent if there is none."""
    url = address(path)
    if url is None or path in _here or path.name.startswith("."):  # locks are of this machine alone
        return
    with _at(url) as (system, key):
        try:
            found = system.info(key)
        except FileNotFoundError:
            if _note(path).is_file():  # a copy of what is there no more; other files are this machine's own
                path.unlink(missing_ok=True)
            return
        if found.get("type") != "directory":
            _bring(system, found, path)


def pull(folder: Path, *, again: bool = False) -> None:
    """Make the copies in a folder be the objects that are there; tensors stay there until they are opened.

    Args:
        folder: or the copy of one object.
        again: look also if this process has looked before.
    """
    url = address(folder)
    if url is None or (folder in _here and not again):
        return
    with _at(url) as (system, key):
        there = {folder.joinpath(*_below(key, name)): found for name, found in _objects(system, key).items()}
        for path, found in there.items():
            if path.suffix == _LATE:
                _here.discard(path)
            else:
                _bring(system, found, path)
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if path not in there and path.is_file() and _note(path).is_file():  # a copy of what is there no more
            path.unlink()
    _here.add(folder)


def remove(folder: Path) -> None:
    """Remove every object below a folder, the copies are the caller's to remove."""
    url = address(folder)
    if url is None:
        return
    with _at(url) as (system, key):
        for name in _objects(system, key):
            system.rm_file(name)
    _here.difference_update([path for path in _here if path.is_relative_to(folder)])
    shutil.rmtree(_note(folder), ignore_errors=True)


@lru_cache(maxsize=4)
def _cache(asked: str | None, home: str | None) -> Path:
    return Path(asked or Path(home or "~/.cache") / "marble").expanduser().absolute()


def _inside(path: Path) -> str | None:
    root = f"{cache() / 'objects'}{os.sep}"
    text = str(path)
    return text[len(root) :].replace(os.sep, "/") if text.startswith(root) else None


def _note(path: Path) -> Path:
    """Where the tag of a copy is kept."""
    return cache() / "tags" / path.relative_to(cache() / "objects")


@contextmanager
def _at(url: str) -> Iterator[tuple[Any, str]]:
    """A storage as fsspec sees it, and the key there; whatever it refuses is one line that names the URL."""
    try:
        import fsspec
    except ImportError:
        raise UnavailableError(
            "fsspec is not installed", where=url, hint="Install it with pip install 'marble-wsi[remote]'"
        ) from None
    try:
        yield fsspec.core.url_to_fs(url, use_listings_cache=False)
    except MarbleError:
        raise
    except ImportError as error:
        raise UnavailableError(f"cannot be reached: {error}", where=url) from None
    except Exception as error:  # every kind of storage has errors of its own
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UnavailableError(
            f"cannot be reached: {reason}", where=url, hint="Check the address, the network and your credentials"
        ) from error


def _objects(system: Any, key: str) -> dict[str, dict[str, Any]]:
    """Every object at or below a key."""
    try:
        found: dict[str, dict[str, Any]] = system.find(key, detail=True)
    except FileNotFoundError:
        return {}
    return found


def _below(key: str, name: str) -> list[str]:
    return [part for part in name[len(key) :].split("/") if part]


def _bring(system: Any, found: dict[str, Any], path: Path) -> None:
    """Copy an object unless its copy is here."""
    tag, note = _tag(found), _note(path)
    if not (path.is_file() and note.is_file() and note.read_text() == tag):
        note.unlink(missing_ok=True)  # a copy without a tag is never trusted
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, system.cat_file(found["name"]))
    keep(path, tag)


def _tag(found: dict[str, Any]) -> str:
    stamp = next((found[name] for name in _TAGS if found.get(name)), "")
    if isinstance(stamp, datetime):  # the same moment is a number in a listing
        stamp = stamp.timestamp()
    return f"{stamp} {found.get('size')}"


def _write(path: Path, data: bytes) -> None:
    part = cache() / "parts" / secrets.token_hex(8)
    part.parent.mkdir(parents=True, exist_ok=True)
    try:
        part.write_bytes(data)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
