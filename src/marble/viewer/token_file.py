"""A file of tokens: one row per user, with the hash of the token and the last day it is good for.

    name,sha256,last_day
    anna,9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08,2027-01-31

It is read again when it changes: a row that is removed locks its user out at the next request. While it cannot be read
nobody comes in.
"""

from __future__ import annotations

import logging
import re
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path

from marble import files
from marble.errors import InputError, MarbleError
from marble.tabular import Row, Table, csv_text, read_table
from marble.viewer.tokens import Ticket, hash_of, new_token, now

log = logging.getLogger("marble.viewer.tokens")

NAME, HASH, LAST_DAY = COLUMNS = ("name", "sha256", "last_day")
_NAME = re.compile(r"\w[\w .@'-]{0,63}")
_HASH = re.compile(r"[0-9a-f]{64}")
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_HOW = "Make tokens with `marble view --new-token NAME --tokens FILE`"


class TokenFile:
    """The tickets of a file, read again whenever it changes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._state = _state(path)
        self._tickets = read_tokens(path)

    def __call__(self) -> tuple[Ticket, ...]:
        state = _state(self.path)
        if state != self._state:
            self._state = state
            try:
                self._tickets = read_tokens(self.path)
            except MarbleError as error:
                self._tickets = ()  # whoever was removed must not come in because of a slip elsewhere in the file
                log.error("nobody comes in: %s", error)  # noqa: TRY400  one line is the rule
        return self._tickets


def read_tokens(path: Path) -> tuple[Ticket, ...]:
    """All tickets of a file; whatever is wrong is said with file, row and column."""
    table = read_table(path)
    for column in COLUMNS:
        table.require(column, _HOW)
    tickets: dict[str, Ticket] = {}
    hashes: set[str] = set()
    for row in table.rows:
        ticket = _ticket(table, row)
        if ticket.name in tickets:
            raise table.fault(row, NAME, f"'{ticket.name}' has two rows", "Keep the newer one")
        if ticket.sha256 in hashes:
            raise table.fault(row, HASH, "this token belongs to two users", "Make one for each with --new-token")
        tickets[ticket.name] = ticket
        hashes.add(ticket.sha256)
    return tuple(tickets.values())


def add_token(path: Path, name: str, days: int) -> tuple[str, date, bool]:
    """Make a token for `name`, good for so many days from today; the token, its last day, and if it replaces one."""
    if not _NAME.fullmatch(name):
        raise InputError(f"'{name}' is no name for a user", hint="Use letters, digits, blanks and . @ ' - _, up to 64")
    kept = read_tokens(path) if path.exists() else ()
    token, last_day = new_token(), now().date() + timedelta(days=days)
    added = Ticket(name, hash_of(token), _end_of(last_day))
    tickets = [*(one for one in kept if one.name != name), added]
    rows = [(one.name, one.sha256, (one.ends - timedelta(days=1)).date().isoformat()) for one in tickets]
    files.publish(path, csv_text(COLUMNS, rows))
    return token, last_day, len(tickets) == len(kept)


def _ticket(table: Table, row: Row) -> Ticket:
    name, sha256, last_day = (table.cell(row, table.require(column)) for column in COLUMNS)
    if not _NAME.fullmatch(name):
        hint = "Use letters, digits, blanks and . @ ' - _, up to 64"
        raise table.fault(row, NAME, f"'{name}' is no name for a user", hint)
    if not _HASH.fullmatch(sha256) or sha256 == hash_of(""):
        raise table.fault(row, HASH, "not the SHA-256 of a token: 64 hexadecimal digits in lower case", _HOW)
    try:
        if not _DAY.fullmatch(last_day):
            raise ValueError
        return Ticket(name, sha256, _end_of(date.fromisoformat(last_day)))
    except (ValueError, OverflowError):
        raise table.fault(row, LAST_DAY, f"'{last_day}' is no day", "Write it as 2027-01-31") from None


def _end_of(day: date) -> datetime:
    """The end of a day, UTC."""
    return datetime.combine(day + timedelta(days=1), time(), UTC)


def _state(path: Path) -> tuple[int, ...]:
    """Changes whenever the file does."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
