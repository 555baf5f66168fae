"""Talking to the viewer without a network: tests send exactly the bytes they mean to."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from starlette.types import ASGIApp, Message


@dataclass(frozen=True)
class Reply:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


async def send(
    app: ASGIApp,
    path: str,
    headers: dict[str, str] | None = None,
    query: str = "",
    method: str = "GET",
    body: bytes = b"",
) -> Reply:
    """One request as it would come off the wire: the path is percent-decoded once, as a server does."""
    head = {"host": "127.0.0.1:1", **(headers or {})}
    scope: dict[str, Any] = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": unquote(path, errors="replace"), "raw_path": path.encode("utf-8", "surrogateescape"), "root_path": "",
        "query_string": query.encode("utf-8", "surrogateescape"), "client": ("127.0.0.1", 2),
        "server": ("127.0.0.1", 1), "headers": [(k.encode(), v.encode("latin-1")) for k, v in head.items()],
    }  # fmt: skip
    found: dict[str, Any] = {"body": b""}

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def take(message: Message) -> None:
        if message["type"] == "http.response.start":
            found["status"] = message["status"]
            found["headers"] = {k.decode(): v.decode() for k, v in message["headers"]}
        else:
            found["body"] += message.get("body", b"")

    await app(scope, receive, take)
    return Reply(found["status"], found["headers"], found["body"])


def get(app: ASGIApp, path: str, headers: dict[str, str] | None = None, **further: Any) -> Reply:
    """`send`, and wait for the reply."""
    return asyncio.run(send(app, path, headers, **further))
