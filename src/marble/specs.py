"""Settings: frozen, strict, and identified by a fingerprint over every field.

A stage's artefact is stored under the fingerprint of its spec. Because the fingerprint covers *all* fields, defaults
included, changing any choice can never pick up an artefact made with another one.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import tomllib
from pathlib import Path
from types import NoneType
from typing import Any, Literal, Self, get_args, get_origin

import tomli_w
from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator

from marble.errors import SpecError


class Spec(BaseModel):
    """Base of every group of settings: immutable, no unknown keys, TOML in and out."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        """True would be taken for 1: `epochs = true` would train for one epoch."""
        assert info.field_name is not None
        if _holds_truth(value) and _is_of_numbers(cls.model_fields[info.field_name].annotation):
            raise ValueError("a number is asked for, not true or false")
        return value

    def fingerprint(self) -> str:
        """16 hex digits that change when any field changes."""
        payload = canonical_json({"spec": type(self).__name__, "fields": self.model_dump(mode="json")})
        return hashlib.sha256(payload).hexdigest()[:16]

    @classmethod
    def parse(cls, values: dict[str, Any], *, where: object = None) -> Self:
        """Check `values`, turning the first fault into a :class:`SpecError` that names the field."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise _explain(cls, error, values, where) from None

    @classmethod
    def from_toml(cls, path: str | Path) -> Self:
        """Read and check a TOML file."""
        return cls.parse(read_toml(path), where=path)

    def to_toml(self) -> str:
        """The settings as TOML text that :meth:`from_toml` reads back equal (fields that are None are left out)."""
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read a TOML file; a syntax error names the file and the line."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SpecError("no such file", where=path) from None
    except IsADirectoryError:
        raise SpecError("a folder, where a file (TOML) is needed", where=path) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SpecError(f"not valid TOML: {error}", where=path) from None


def canonical_json(value: object) -> bytes:
    """JSON with sorted keys, no spaces and no NaN: equal values give equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def unknown_choice(what: str, given: str, valid: list[str]) -> str:
    """One sentence for a name that is not in a list: the nearest match, then all of them."""
    near = difflib.get_close_matches(given, valid, n=1)
    guess = f"; did you mean '{near[0]}'?" if near else "."
    listed = ", ".join(f'"{name}"' if "," in name else name for name in valid)
    return f"unknown {what} '{given}'{guess} Valid: {listed}"


def _holds_truth(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_holds_truth, value.values()))
    return any(map(_holds_truth, value)) if isinstance(value, list | tuple) else isinstance(value, bool)


def _is_of_numbers(annotation: Any) -> bool:
    """Whether all that a field takes is numbers, text or nothing, so that true and false have no place in it."""
    if get_origin(annotation) is Literal:
        return not any(isinstance(choice, bool) for choice in get_args(annotation))
    inner = [each for each in get_args(annotation) if isinstance(each, type) or get_args(each)]
    return all(map(_is_of_numbers, inner)) if inner else annotation in (int, float, str, NoneType)


def _explain(cls: type[BaseModel], error: ValidationError, values: Any, where: object) -> SpecError:
    """The fault a user would mend first: a key that does not exist, else one that is missing, else a value."""
    faults = error.errors(include_url=False, include_context=False)
    order = {"extra_forbidden": 0, "missing": 1}
    # Of a field that may be several things, the reading that got furthest is the one that was meant.
    fault = min(faults, key=lambda one: (order.get(one["type"], 2), -len(one["loc"])))
    path = _inside(values, fault["loc"])
    field = ".".join(str(part) for part in path)
    if fault["type"] == "extra_forbidden":
        owner = _owner(cls, fault["loc"][:-1])
        what = unknown_choice("key", str(path[-1]), sorted(owner.model_fields))
        return SpecError(f"{field}: {what}" if len(path) > 1 else what, where=where)
    if fault["type"] == "missing" and isinstance(fault["loc"][-1], int):
        return SpecError(f"field '{field}': too few values (got {_short(fault['input'])})", where=where)
    if fault["type"] == "missing":
        return SpecError(f"key '{field}' is missing", where=where)
    said = _in_words_of_a_file(fault["msg"])
    if not field or fault["type"] == "value_error":  # a rule of our own, which names what it is about
        return SpecError(f"{field}: {said}" if field else said, where=where)
    return SpecError(f"field '{field}': {said} (got {_short(fault['input'])})", where=where)


def _in_words_of_a_file(said: str) -> str:
    """What pydantic says, without the names that Python has for things."""
    said = said.removeprefix("Value error, ").replace("a valid tuple", "a list").replace(" after validation", "")
    said = said.replace("Tuple should", "List should").replace("Dictionary should", "Table should")
    return re.sub(r"a valid dictionary( or instance of \w+)?", "a table, as { key = value }", said)


def _inside(values: Any, loc: tuple[int | str, ...]) -> list[int | str]:
    """`loc` without what pydantic puts between keys: the name of the reading it tried."""
    path: list[int | str] = []
    for place, part in enumerate(loc):
        keyed = isinstance(values, dict) and part in values
        counted = isinstance(values, list | tuple) and isinstance(part, int) and part < len(values)
        if keyed or counted:
            values = values[part]
            path.append(part)
        elif place + 1 == len(loc) and isinstance(values, dict):  # a key that is missing
            path.append(part)
    return path


def _short(value: Any) -> str:
    """A value as an error shows it: never a page of it."""
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _owner(cls: type[BaseModel], loc: tuple[int | str, ...]) -> type[BaseModel]:
    """The spec class that the path `loc` leads to, as far as the annotations show it."""
    for part in loc:
        if isinstance(part, str) and part in cls.model_fields:
            found = _spec_in(cls.model_fields[part].annotation)
            cls = found or cls
    return cls


def _spec_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in getattr(annotation, "__args__", ()):
        if (found := _spec_in(inner)) is not None:
            return found
    return None
