"""What an experiment asked for when it was last run, so that a table can say which of its runs it did not ask for.

asked.json    of the experiment's folder: {model/repeat: what makes that run the one that is asked for}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from marble import files, storage
from marble.errors import IntegrityError
from marble.specs import canonical_json
from marble.training.run import PlannedRun

ASKED = "asked.json"


def note_asked(home: Path, planned: Sequence[PlannedRun]) -> None:
    """Write down what is asked for, in the experiment's folder."""
    asked = {
        _name(storage.location(one.folder)): _identity(
            one.job.fingerprint(), files.sha256_file(storage.location(one.test)), one.about
        )
        for one in planned
    }
    files.publish_json(home / ASKED, asked)


def not_asked_for(records: Mapping[Path, Mapping[str, Any]]) -> tuple[str, ...]:
    """Those of finished runs that their experiment, as it was last run, would make otherwise or not at all."""
    asked = _asked_below({_home(folder) for folder in records})
    return tuple(
        _name(folder)
        for folder, record in sorted(records.items())
        if _home(folder) in asked
        and asked[_home(folder)].get(_name(folder))
        != _identity(record["job"], record["sha256"]["test"], record["about"])
    )


def _asked_below(homes: Iterable[Path]) -> dict[Path, dict[str, str]]:
    """By experiment's folder; runs that were copied without it, or made from Python, are taken as they are."""
    return {home: _read(home / ASKED) for home in homes if (home / ASKED).is_file()}


def _read(path: Path) -> dict[str, str]:
    try:
        asked: dict[str, str] = files.read_json(path, dict)
    except IntegrityError as error:
        raise IntegrityError(error.what, where=error.where, hint="Make it again with `marble run`") from None
    return asked


def _identity(job: str, test: str, about: Mapping[str, Any]) -> str:
    return files.sha256_bytes(canonical_json([job, test, about]))


def _home(folder: Path) -> Path:
    return folder.parent.parent


def _name(folder: Path) -> str:
    return f"{folder.parent.name}/{folder.name}"
