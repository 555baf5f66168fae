"""The one door of the server: who may come in, what every answer carries, one log line per request.

Without a token only requests to a loopback name are answered, so that a page elsewhere cannot reach the viewer through
a name that resolves here. With one, every route but `/healthz` asks for it.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import logging
import re
import time
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, quote, unquote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from marble.errors import InputError

access_log = logging.getLogger("marble.viewer.access")
error_log = logging.getLogger("marble.viewer.errors")

COOKIE = "marble_token"
LEAST_TOKEN = 16
OPEN_PATHS = frozenset({"/healthz"})
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_HOST = re.compile(r"(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9.-]+))(?::[0-9]{1,5})?")
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


def check_bind(host: str, token: str | None) -> None:
    """Refuse to listen where others can connect unless a token is asked for."""
    if token is not None and len(token) < LEAST_TOKEN:
        raise InputError(f"the token is shorter than {LEAST_TOKEN} characters", hint="Use a long random one")
    if not is_loopback(host) and token is None:
        raise InputError(
            f"listening on {host} lets others connect, which needs a token",
            hint="Give one with --token or MARBLE_VIEW_TOKEN, and put TLS before the viewer",
        )


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Guard:
    """ASGI middleware around everything."""

    def __init__(self, app: ASGIApp, token: str | None = None) -> None:
        self.app, self.token = app, token

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
            access_log.info(
                "%s %s %d %d B %.1f ms", scope["method"], _route(scope), sent["status"], sent["bytes"], milliseconds
            )

    async def _refused(self, scope: Scope, send: Send) -> bool:
        """Answer and return True if the request may not come in."""
        if scope["path"] in OPEN_PATHS:
            return False
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if self.token is None:
            if _host_name(headers.get(b"host", "")) in LOOPBACK_NAMES:
                return False
            await answer(send, 421, "this viewer answers on localhost only")
            return True
        if self._matches(_bearer(headers)) or self._matches(_cookie(headers)):
            return False
        asked = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if self._matches(asked) and scope["method"] == "GET":
            # The token leaves the address bar at once and lives on in a cookie that no script can read.
            cookie = f"{COOKIE}={quote(asked, safe='')}; HttpOnly; SameSite=Strict; Path=/"
            await answer(send, 303, "welcome", {"location": "/", "set-cookie": cookie, "cache-control": "no-store"})
            return True
        await answer(send, 401, "a token is needed", {"www-authenticate": "Bearer"})
        return True

    def _matches(self, given: str) -> bool:
        assert self.token is not None
        return hmac.compare_digest(given.encode(), self.token.encode())


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


def _host_name(host: str) -> str:
    """The name alone, of `name`, `name:port`, `[address]` or `[address]:port`; nothing of anything else."""
    found = _HOST.fullmatch(host)
    return "" if found is None else (found["address"] or found["name"]).lower()


def _bearer(headers: dict[bytes, str]) -> str:
    kind, _, value = headers.get(b"authorization", "").partition(" ")
    return value if kind.lower() == "bearer" else ""


def _cookie(headers: dict[bytes, str]) -> str:
    try:
        morsel = SimpleCookie(headers.get(b"cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return "" if morsel is None else unquote(morsel.value)
