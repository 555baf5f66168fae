"""The connection below the application: nobody can hold it open by sending slowly, or by opening many.

uvicorn waits for a request's headers as long as they take, so a thousand half-sent ones would keep everybody out. Here
a header has a few seconds; of one address only so many connections may be without a request for longer than a moment,
the oldest makes room for the newest; and beyond a total, whoever asks is told when to come back. Under TLS the same few
seconds hold for the greeting before the header.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import OrderedDict
from functools import partial
from typing import Any

import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from marble.errors import InputError
from marble.viewer.security import answer

HEADER_S = 5.0
MOMENT_S = 1.0  # hundreds who come at once have their headers on the way: nobody is dropped before it
WAITING_PER_ADDRESS = 64
OPEN_PER_ADDRESS = 768
OPEN_IN_ALL = 1024
RETRY_AFTER_S = "5"


class Wire(H11Protocol):
    """HTTP/1.1 with a time limit for headers and limits on connections."""

    #: connections without a request, oldest first, by address
    waiting: dict[str, OrderedDict[Wire, None]] = {}  # noqa: RUF012  shared by all connections of the process

    _timers: tuple[asyncio.TimerHandle, ...] = ()
    _address = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        near = sum(1 for one in self.connections if isinstance(one, Wire) and one._address == self._address)
        if near > OPEN_PER_ADDRESS or len(self.connections) > OPEN_IN_ALL:
            self.app = turned_away
        if len(self.connections) > 2 * OPEN_IN_ALL:
            transport.abort()  # too many even to be told
            return
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._waits_no_more()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._waits_no_more()
        elif not self._timers and not self.transport.is_closing():
            self._wait()  # the beginning of a further header

    def _wait(self) -> None:
        # A timer runs after what has been received is read, so whoever has sent a header by then is not dropped.
        later = self.loop.call_later
        self._timers = (later(HEADER_S, self._give_up), later(MOMENT_S, self._make_room))
        self.waiting.setdefault(self._address, OrderedDict())[self] = None

    def _make_room(self) -> None:
        """The oldest without a request goes if there are too many; it has waited no less than this one."""
        line = self.waiting[self._address]
        if len(line) > WAITING_PER_ADDRESS:
            next(iter(line))._give_up()

    def _waits_no_more(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers = ()
        line = self.waiting.get(self._address)
        if line is not None:
            line.pop(self, None)
            if not line:
                del self.waiting[self._address]

    def _give_up(self) -> None:
        self._waits_no_more()
        self.transport.abort()


async def turned_away(_: Scope, __: Receive, send: Send) -> None:
    """What a client hears when there are too many connections."""
    head: dict[str, Any] = {"retry-after": RETRY_AFTER_S, "connection": "close", "cache-control": "no-store"}
    await answer(send, 503, "busy: try again in a moment", head)


class Server(uvicorn.Server):
    """uvicorn under our own TLS context, whose greeting has no more time than a header."""

    def __init__(self, config: uvicorn.Config, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(config)
        config.load()
        config.ssl = tls

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self.config.ssl is not None:
            loop = asyncio.get_running_loop()
            patient = partial(loop.create_server, ssl_handshake_timeout=HEADER_S)  # uvicorn does not pass it on
            loop.create_server = patient  # type: ignore[method-assign]
        await super().startup(sockets)


def open_sockets(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen on every address of a host; what stands against it is said in one line."""
    found: list[socket.socket] = []
    reason: OSError | None = None
    try:
        places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise InputError(f"no such address: {host}", hint="Choose another --host") from error
    for family, _, _, _, address in places:
        try:
            found.append(socket.create_server(address[:2], family=family))
        except OSError as error:  # a machine may know localhost by an IPv6 address that it does not have
            reason = error
    if not found:
        what = f"cannot listen on {host}, port {port}: {(reason and reason.strerror) or reason}"
        raise InputError(what, hint="Choose another --port, or end what listens there")
    return found
