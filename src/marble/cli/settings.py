"""Settings from the command line: a TOML file, then `--set KEY=VALUE`, then flags; the later wins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from marble.cli.repeated import refuse_again


def key_values(pairs: Sequence[str]) -> dict[str, Any]:
    """`KEY=VALUE` pairs, each key once; a value is what TOML makes of it, or a word. `a.b=1` sets `b` inside `a`."""
    import tomllib

    from marble.errors import InputError

    found: dict[str, Any] = {}
    said: list[str] = []
    for pair in pairs:
        key, equals, text = pair.partition("=")
        parts = key.strip().split(".")
        if not equals or not all(part.isidentifier() for part in parts):
            raise InputError(f"--set '{pair}' is not KEY=VALUE", hint="Write it like --set batch=32")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text.strip()
        said += _set_by(parts, value)
        found = merged(found, nested(parts, value))
    refuse_again("--set", said)
    for inner in said:
        whole = next((key for key in said if inner.startswith(f"{key}.")), None)
        if whole is not None:
            raise InputError(f"--set '{whole}' and --set '{inner}' cannot both be", hint="Give one of them")
    return found


def _set_by(parts: Sequence[str], value: Any) -> list[str]:
    """The keys that one pair sets: of a table those inside it."""
    if isinstance(value, Mapping):
        return [key for name, inner in value.items() for key in _set_by([*parts, name], inner)]
    return [".".join(parts)]


def nested(parts: Sequence[str], value: Any) -> dict[str, Any]:
    """`value` under keys within keys."""
    for part in reversed(parts):
        value = {part: value}
    return dict(value)


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Both, where they differ the second; tables inside are merged in the same way."""
    body = dict(first)
    for key, value in second.items():
        both = isinstance(value, Mapping) and isinstance(body.get(key), Mapping)
        body[key] = merged(body[key], value) if both else value
    return body


def from_file(path: Path | None) -> dict[str, Any]:
    """What a settings file holds; nothing if none is given."""
    if path is None:
        return {}
    from marble.cli.paths import existing_file
    from marble.specs import read_toml

    return read_toml(existing_file(path, "settings file"))
