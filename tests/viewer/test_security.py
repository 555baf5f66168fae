"""Nothing leaks, and every answer carries its headers. Who may come in: test_tokens.py."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.types import ASGIApp

from marble.viewer.app import _routes, create_app
from marble.viewer.registry import Registry, build_registry
from tests.viewer.client import get, send
from tests.viewer.payloads import PAYLOADS
from tests.viewer.world import World

CANARY = b"CANARY-b1946ac92492d2347c6235b4d2611184"
_FIELD = re.compile(r"{[^}]*}")


@pytest.fixture(scope="module")
def registry(world: World) -> Registry:
    (world.root / "secret.txt").write_bytes(CANARY)
    (world.slides / "secret.txt").write_bytes(CANARY)
    return build_registry(world.runs, world.slides, world.store.root)


@pytest.fixture(scope="module")
def app(registry: Registry) -> ASGIApp:
    return create_app(registry)


def routes(registry: Registry) -> list[str]:
    """Every route's pattern, from the application itself."""
    found = [str(getattr(route, "path", "")) for route in _routes(registry, 1, 1).routes]
    assert len(found) >= 12
    return sorted(found)


def filled(pattern: str, registry: Registry) -> str:
    """The route with keys and numbers that exist."""
    good = {"slide": next(iter(registry.slides)), "run": next(iter(registry.runs)), "mode": "attention",
            "experiment": next(iter(registry.experiments)), "figure": "cost", "name": "style.css", "zoom": "0",
            "column": "0", "row": "0", "level": "0", "index": "0"}  # fmt: skip
    return pattern.format(**good)


def test_every_route_answers(app: ASGIApp, registry: Registry) -> None:
    for pattern in routes(registry):
        reply = get(app, filled(pattern, registry))
        assert reply.status in (200, 404), (pattern, reply.status)
        assert reply.status == 200 or pattern == "/results/{experiment}/{figure}", pattern


def test_no_payload_leaks_or_breaks_anything(
    app: ASGIApp, registry: Registry, world: World, record_property: Callable[[str, object], None]
) -> None:
    assert len(PAYLOADS) >= 100

    async def attack() -> int:
        count = 0
        for pattern in routes(registry):
            for field in _FIELD.findall(pattern):
                for payload in PAYLOADS:
                    path = filled(pattern.replace(field, "\0"), registry).replace("\0", payload)
                    await check(app, path, "", world)
                    count += 1
            for payload in PAYLOADS[::7]:
                await check(app, filled(pattern, registry).rstrip("/") + "/" + payload, "", world)
        maps = filled("/api/slides/{slide}/runs/{run}/{mode}", registry)
        for payload in PAYLOADS:
            await check(app, maps, f"target={payload}", world)
        return count

    tried = asyncio.run(attack())
    assert tried > 1000
    record_property("cases", tried)


async def check(app: ASGIApp, path: str, query: str, world: World) -> None:
    reply = await send(app, path, query=query)
    # dots and slashes may spell a real route or an existing number: then the answer is that of the plain address
    assert 400 <= reply.status < 500 or is_plain(path), (path[:120], reply.status)
    for secret in (CANARY, b"root:", b"Traceback", str(world.root).encode()):
        assert secret not in reply.body, path[:120]


def is_plain(path: str) -> bool:
    return (
        re.fullmatch(r"/?(static/[a-z.]+|slide/[0-9a-f]{16}|api/[a-z0-9/]+|results/[0-9a-f]{16}|healthz)?/?", path)
        is not None
    )


def test_others_cannot_reach_it_through_a_name_that_resolves_here(app: ASGIApp) -> None:
    assert get(app, "/", {"host": "evil.example"}).status == 421
    assert get(app, "/", {"host": "localhost:8765"}).status == 200
    assert get(app, "/", {"host": "[::1]:8765"}).status == 200
    assert get(app, "/", {"host": "LOCALHOST"}).status == 200
    for host in ("[::1].evil.com", "[::1]evil.com:80", "[::1", "::1].evil.com", "localhost.evil.com", "localhost:80:80",
                 "127.0.0.1.evil.com", "127.0.0.1:x", "user@localhost", "localhost/", "", "[localhost]"):  # fmt: skip
        assert get(app, "/", {"host": host}).status == 421, host


def test_every_answer_carries_the_headers_and_no_page_holds_inline_code(app: ASGIApp, registry: Registry) -> None:
    paths = [filled(pattern, registry) for pattern in routes(registry)] + ["/no/such"]
    for path in paths:
        reply = get(app, path)
        assert "script-src 'self'" in reply.headers["content-security-policy"]
        assert "unsafe" not in reply.headers["content-security-policy"]
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["referrer-policy"] == "no-referrer"
        assert not [name for name in reply.headers if name.startswith("access-control")]
        if reply.headers["content-type"].startswith("text/html"):
            text = reply.body.decode()
            assert not re.search(r"<script(?![^>]*\ssrc=)|<style|\son\w+=|style=", text)
            assert "http://" not in text
            assert "https://" not in text


def test_only_reading_is_possible(app: ASGIApp, registry: Registry) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        for pattern in routes(registry):
            assert get(app, filled(pattern, registry), method=method).status == 405


def test_the_log_has_one_line_for_each_request_and_no_names(
    app: ASGIApp, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="marble.viewer.access"):
        for path in ["/", filled("/slide/{slide}", registry), "/S0/secret-patient", "/healthz"]:
            get(app, path, query="token=hush")
    assert len(caplog.messages) == 4
    assert not [line for line in caplog.messages if "secret" in line or "hush" in line or "S0" in line]


def test_names_are_escaped(world: World, tmp_path: Path) -> None:
    from marble.bags.store import BagStore

    hostile = "<script>alert('x')</script>\u202e\"&"
    bag = world.store.load("S0")
    store = BagStore(tmp_path / "bags")
    store.save(type(bag)(hostile, bag.levels, bag.provenance))
    registry = build_registry(tmp_path / "bags")
    app = create_app(registry)
    for path in ("/", f"/slide/{next(iter(registry.slides))}"):
        body = get(app, path).body.decode()
        assert "<script>alert" not in body
        assert "&lt;script&gt;alert" in body
