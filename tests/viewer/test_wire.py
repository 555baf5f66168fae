"""Connections that send nothing, or slowly: they are dropped, and nobody else is kept waiting by them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn
from starlette.responses import PlainTextResponse

from marble.viewer import wire
from marble.viewer.wire import Wire

GOOD = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


@pytest.fixture
def port() -> Iterator[int]:
    """A server that answers `hello`."""
    config = uvicorn.Config(PlainTextResponse("hello"), port=0, http=Wire, ws="none", log_level="critical")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        threading.Event().wait(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join(240)


async def talk(port: int, *pieces: bytes) -> bytes:
    """Send the pieces, then read until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def test_a_header_that_never_ends_is_dropped(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "HEADER_S", 3.0)

    async def scene() -> list[bytes]:
        nothing, half, second = await asyncio.gather(
            talk(port), talk(port, b"GET / HTTP/1.1\r\nHost: x\r\n"),
            talk(port, GOOD.replace(b"Connection: close\r\n", b"") + b"GET / HT"),
        )  # fmt: skip
        return [nothing, half, second]

    nothing, half, second = asyncio.run(asyncio.wait_for(scene(), 240))
    assert nothing == half == b""
    assert second.count(b"hello") == 1  # what was whole was answered; the half behind it was not waited for


def test_many_half_sent_headers_keep_nobody_out(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "HEADER_S", 600.0)  # so that only the limit can help
    monkeypatch.setattr(wire, "MOMENT_S", 0.0)
    monkeypatch.setattr(wire, "OPEN_IN_ALL", 100)
    monkeypatch.setattr(wire, "WAITING_PER_ADDRESS", 20)

    async def scene() -> tuple[list[bytes], int]:
        held: list[Any] = []
        for _ in range(150):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\nX: ")
            held.append((reader, writer))
        while (still := sum(len(line) for line in list(Wire.waiting.values()))) > 20:
            await asyncio.sleep(0.01)
        answers = [await talk(port, GOOD) for _ in range(30)]
        for _, writer in held:
            writer.transport.abort()
        return answers, still

    answers, still = asyncio.run(asyncio.wait_for(scene(), 240))
    assert all(b" 200 " in answer and answer.endswith(b"hello") for answer in answers)
    assert still <= 20


def test_many_who_come_at_once_and_send_a_little_later_are_all_answered(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three hundred connect before the first sends its header, as browsers and scripts on a busy machine do."""
    monkeypatch.setattr(wire, "MOMENT_S", 200.0)  # however busy this machine is
    monkeypatch.setattr(wire, "HEADER_S", 200.0)

    async def scene() -> list[bytes]:
        here = [await asyncio.open_connection("127.0.0.1", port) for _ in range(300)]
        for _, writer in here:
            writer.write(GOOD)
        answers = await asyncio.gather(*(reader.read() for reader, _ in here))
        for _, writer in here:
            writer.close()
        return list(answers)

    answers = asyncio.run(asyncio.wait_for(scene(), 240))
    assert len(answers) == 300
    assert all(b" 200 " in answer and answer.endswith(b"hello") for answer in answers)


def test_beyond_the_limit_one_is_told_when_to_come_back(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "OPEN_PER_ADDRESS", 2)

    async def scene() -> tuple[bytes, bytes]:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        for reader, writer in held:  # each has had an answer, and stays open
            writer.write(GOOD.replace(b"Connection: close\r\n", b""))
            await reader.readuntil(b"hello")
        refused = await talk(port, GOOD)
        for reader, writer in held:
            writer.close()
            await reader.read()
        return refused, await talk(port, GOOD)

    refused, after = asyncio.run(asyncio.wait_for(scene(), 240))
    assert b" 503 " in refused.split(b"\r\n")[0]
    assert b"retry-after: 5" in refused.lower()
    assert b" 200 " in after.split(b"\r\n")[0]


def test_nothing_is_remembered_of_connections_that_are_gone(port: int) -> None:
    async def scene() -> None:
        await asyncio.gather(*(talk(port, GOOD) for _ in range(20)))
        for _ in range(200):
            if not Wire.waiting:
                return
            await asyncio.sleep(0.05)

    asyncio.run(scene())
    assert Wire.waiting == {}
