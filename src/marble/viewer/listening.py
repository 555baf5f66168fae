"""Where the viewer listens, to whom, and under which certificate: checked before anything else is done.

Whoever can only be on this machine needs a token if one is asked for. Where others can connect, they need a token and
the connection needs TLS, from here or from a proxy that was named.
"""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from marble.errors import InputError
from marble.viewer.token_file import TokenFile
from marble.viewer.tokens import Tokens, new_token, one_token

TOKEN_HOURS = 12


@dataclass(frozen=True)
class Listening:
    """The choices of `marble view` about its connections.

    Args:
        host: the address to listen on.
        port: the port.
        token: the only token; made if others can connect and neither it nor `tokens` is given.
        token_hours: when that one ends, `TOKEN_HOURS` by default; given, one is asked for on this machine too.
        tokens: a file of tokens by name, in its place.
        certificate: the certificate's file, with what it was signed by below it.
        key: its private key.
        behind_proxy: a proxy before the viewer gives TLS.
    """

    host: str = "127.0.0.1"
    port: int = 8765
    token: str | None = field(default=None, repr=False)
    token_hours: int | None = None
    tokens: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    behind_proxy: bool = False

    @property
    def is_secure(self) -> bool:
        """Whether what a browser sends travels under TLS."""
        return self.certificate is not None or self.behind_proxy

    @property
    def lets_others_in(self) -> bool:
        """Whether somebody who is not on this machine can connect."""
        return self.behind_proxy or not is_loopback(self.host)

    @property
    def asks(self) -> bool:
        """Whether a token is asked for: not where all are on this machine, and neither it nor TLS was spoken of."""
        spoken_of = (self.token, self.token_hours, self.tokens, self.certificate)
        return self.lets_others_in or any(one is not None for one in spoken_of)

    @property
    def address(self) -> str:
        where = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'http' if self.certificate is None else 'https'}://{where}:{self.port}/"

    def check(self) -> None:
        """Refuse choices that contradict each other, or that would let others in unasked or unprotected."""
        if (self.certificate is None) != (self.key is None):
            given, other = ("--certificate", "--key") if self.key is None else ("--key", "--certificate")
            raise InputError(f"{given} says nothing without {other}", hint=f"Give {other} too, or leave {given} out")
        if self.tokens is not None and self.token is not None:
            raise InputError("--token and --tokens contradict each other", hint="Leave out one of them")
        if self.lets_others_in and not self.is_secure:
            hint = "Give --certificate and --key, or --behind-proxy if a proxy before the viewer gives TLS"
            raise InputError(f"listening on {self.host} lets others connect, which needs TLS", hint=hint)

    def admission(self) -> tuple[Tokens | None, str]:
        """Who may come in, and the address to open with a word on the token."""
        if not self.asks:
            whom = "whoever uses this machine can open it (--token-hours asks for a token)"
            return None, f"{self.address}  (Ctrl-C ends it); {whom}"
        if self.tokens is not None:
            tokens = Tokens(TokenFile(self.tokens))
            return tokens, f"{self.address}?token=...  (Ctrl-C ends it); tokens are those of {self.tokens}"
        token = new_token() if self.token is None else self.token
        tokens, ticket = one_token(token, self.token_hours or TOKEN_HOURS)
        shown = token if self.token is None else "..."  # a given one is known, and may be meant for others too
        ends = ticket.ends.astimezone().strftime("%Y-%m-%d %H:%M")
        return tokens, f"{self.address}?token={shown}  (Ctrl-C ends it); the token ends {ends} (--token-hours)"

    def tls(self) -> ssl.SSLContext | None:
        """The server's side of TLS 1.2 or later; None without a certificate."""
        if self.certificate is None or self.key is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.certificate, self.key, password=_no_passphrase)
        except (OSError, ValueError) as error:  # SSLError is an OSError
            where = f"{self.certificate} and {self.key}"
            hint = "Give PEM files of a certificate and of its own private key, without a passphrase"
            raise InputError(f"not a certificate and its key: {_reason(error)}", where=where, hint=hint) from None
        return context


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _no_passphrase() -> str:
    """A key under a passphrase is refused: without this, the question for it would wait on the terminal for ever."""
    return ""


def _reason(error: Exception) -> str:
    """The library's own word, such as KEY_VALUES_MISMATCH, in plain letters."""
    found = getattr(error, "reason", None) or getattr(error, "strerror", None) or "unreadable"
    return str(found).replace("_", " ").lower()
