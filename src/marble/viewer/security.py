"""The one door of the server: who may come in, what every answer carries, one log line per request.

With tokens, every route but `/healthz` asks for one that is known and has not ended. Without any, only requests to a
loopback name are answered, so that a page elsewhere cannot reach the viewer through a name that resolves here.
"""

from __future__ import annotations

import json
import logging
import re
import time
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, quote, unquote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from marble.viewer.tokens import Ticket, Tokens

access_log = logging.getLogger("marble.viewer.access")
error_log = logging.getLogger("marble.viewer.errors")

COOKIE = "marble_token"
USER = "user"  # in the scope: the name of whoever asks, if tokens have names
OPEN_PATHS = frozenset({"/healthz"})
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_HOST = re.compile(r"(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9.-]+))(?::(?P<port>[0-9]{1,5}))?")
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


class Guard:
    """ASGI middleware around everything. `secure`: browsers reach it by TLS alone, so cookies never travel without."""

    def __init__(self, app: ASGIApp, tokens: Tokens | None = None, *, secure: bool = False) -> None:
        self.app, self.tokens, self.secure = app, tokens, secure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # there are no sockets here
            await send({"type": "websocket.close", "code": 1008})
            return
        began = time.perf_counter()
        sent = {"status": 500, "bytes": 0, "started": False}

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                sent["status"], sent["started"] = message["status"], True
                message["headers"] = [*message.get("headers", ()), *_raw(HEADERS)]
            else:
                sent["bytes"] += len(message.get("body", b""))
            await send(message)

        try:
            if not await self._refused(scope, guarded):
                await self.app(scope, receive, guarded)
        except Exception as error:  # whatever happens, the client learns nothing about this machine
            error_log.error("%s in %s", type(error).__name__, _route(scope))
            if not sent["started"]:
                await answer(guarded, 500, "something went wrong here")
        finally:
            milliseconds = (time.perf_counter() - began) * 1000
            who = f" {scope[USER]}" if scope.get(USER) else ""
            access_log.info(
                "%s %s %d %d B %.1f ms%s",
                scope["method"], _route(scope), sent["status"], sent["bytes"], milliseconds, who,
            )  # fmt: skip

    async def _refused(self, scope: Scope, send: Send) -> bool:
        """Answer and return True if the request may not come in."""
        if scope["path"] in OPEN_PATHS:
            return False
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if self.tokens is None:
            if _host(headers)[0] in LOOPBACK_NAMES:
                return False
            await answer(send, 421, "this viewer answers on localhost only")
            return True
        cookie_name = _cookie_name(headers)
        asked = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        found = self.tokens.find(asked)
        left = 0 if found is None else self.tokens.seconds_left(found)
        if left and scope["method"] == "GET":  # before any cookie: a link of another user changes who one is
            # The token leaves the address bar at once and lives on in a cookie that no script can read. Lax, not
            # Strict: the links of a report, which is a file, lead here; only such links carry it from elsewhere.
            cookie = f"{cookie_name}={quote(asked, safe='')}; HttpOnly; SameSite=Lax; Path=/; Max-Age={left}"
            cookie += "; Secure" if self.secure else ""
            await answer(send, 303, "welcome", {"location": "/", "set-cookie": cookie, "cache-control": "no-store"})
            return True
        known = self.tokens.find(_bearer(headers)) or self.tokens.find(_cookie(headers, cookie_name))
        if known is not None and self.tokens.seconds_left(known):
            scope[USER] = known.name
            return False
        head = {"www-authenticate": "Bearer", "cache-control": "no-store"}
        await answer(send, 401, self._reason(found or known), head)
        return True

    def _reason(self, found: Ticket | None) -> str:
        assert self.tokens is not None
        if found is not None and not self.tokens.seconds_left(found):
            return "this token has ended: ask whoever started the viewer for another"
        return "a token is needed: open the address with ?token= that `marble view` printed"


async def answer(send: Send, status: int, text: str, headers: dict[str, str] | None = None) -> None:
    """A short JSON answer."""
    body = json.dumps({"error": text} if status >= 400 else {"message": text}).encode()
    head = {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
    await send({"type": "http.response.start", "status": status, "headers": _raw(head)})
    await send({"type": "http.response.body", "body": body})


def _raw(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]


def _route(scope: Scope) -> str:
    """The route's pattern, never what the client wrote: logs hold no names."""
    route = scope.get("route")
    return str(getattr(route, "path", "-"))


def _host(headers: dict[bytes, str]) -> tuple[str, str]:
    """Name and port, of `name`, `name:port`, `[address]` or `[address]:port`; nothing of anything else."""
    found = _HOST.fullmatch(headers.get(b"host", ""))
    return ("", "") if found is None else ((found["address"] or found["name"]).lower(), found["port"] or "")


def _cookie_name(headers: dict[bytes, str]) -> str:
    """Of its own for each port: browsers send the cookies of one port of a machine to all others."""
    port = _host(headers)[1]
    return f"{COOKIE}_{port}" if port else COOKIE


def _bearer(headers: dict[bytes, str]) -> str:
    kind, _, value = headers.get(b"authorization", "").partition(" ")
    return value if kind.lower() == "bearer" else ""


def _cookie(headers: dict[bytes, str], name: str) -> str:
    try:
        morsel = SimpleCookie(headers.get(b"cookie", "")).get(name)
    except CookieError:
        return ""
    return "" if morsel is None else unquote(morsel.value)
