"""Who may come in: tokens that have an end, and where they are listed by name, the name of whoever holds one.

Kept is the SHA-256 of a token, never the token. A given one is compared with all there are, each in constant time, so
that the time of an answer tells nothing about any of them.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from marble.errors import InputError

LEAST_CHARACTERS = 16
BYTES = 32  # of a token made here


@dataclass(frozen=True)
class Ticket:
    """What is kept of a token: whose it is (nobody's in particular if empty), its hash, and when it ends."""

    name: str
    sha256: str
    ends: datetime  # with its time zone


def now() -> datetime:
    return datetime.now(UTC)


class Tokens:
    """The tokens a server knows. `tickets` is asked anew for each request, so that a list may change meanwhile."""

    def __init__(self, tickets: Callable[[], Iterable[Ticket]], clock: Callable[[], datetime] = now) -> None:
        self._tickets, self._clock = tickets, clock

    def find(self, given: str) -> Ticket | None:
        """The ticket of a token, whether or not it has ended; None if there is none."""
        if not given:
            return None
        hashed = hash_of(given).encode()
        found = None
        for ticket in self._tickets():
            if hmac.compare_digest(hashed, ticket.sha256.encode()):
                found = ticket
        return found

    def seconds_left(self, ticket: Ticket) -> int:
        """Whole seconds until it ends; 0 if it has."""
        return max(0, int((ticket.ends - self._clock()).total_seconds()))


def one_token(token: str, hours: float, clock: Callable[[], datetime] = now) -> tuple[Tokens, Ticket]:
    """A server's only token, which ends so many hours from now."""
    if len(token) < LEAST_CHARACTERS:
        hint = "Use a long random one, or leave it out and one is made"
        raise InputError(f"the token is shorter than {LEAST_CHARACTERS} characters", hint=hint)
    ticket = Ticket("", hash_of(token), clock() + timedelta(hours=hours))
    return Tokens(lambda: (ticket,), clock), ticket


def new_token() -> str:
    """A token nobody can guess."""
    return secrets.token_urlsafe(BYTES)


def hash_of(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
