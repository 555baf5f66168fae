"""The viewer asked often and oddly: numbers out of range, hostile names, slides that change, a line of log for each."""

from __future__ import annotations

import html
import logging
import os
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path

import psutil
import pytest

from marble.bags.store import BagStore
from marble.viewer.app import create_app
from marble.viewer.registry import build_registry, key_of
from tests.viewer.client import get
from tests.viewer.payloads import PAYLOADS
from tests.viewer.world import World

Record = Callable[[str, object], None]
pytestmark = [pytest.mark.reliability, pytest.mark.timeout(3600)]
ODD = (
    "-1",
    "99",
    "8888888",
    "99999999",
    "1" + "0" * 18,
    "NaN",
    "inf",
    "1e3",
    "1.5",
    "0x1",
    "+1",
    "%2b1",
    "%00",
    "٣",
    "1" * 900,
)
NAMES = (
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "\"><svg onload=alert(1)>", "'><b>x</b>",
    "</title><h1>", "javascript:alert(1)", "&lt;b&gt;", "<!--", "-->", "]]>", "<style>*{}</style>",
    "\u202egnp.exe<i>", "<a href=//x>",
    "${7*7}<u>", "{{7*7}}<s>", "<iframe srcdoc=x>", "a' onclick='x", "<base href=//x>", "<form action=//x>", "<meta x>",
)  # fmt: skip


def slide_key(name: str) -> str:
    return key_of("slide", name)


def test_numbers_out_of_range_are_refused_and_cost_no_memory(world: World, record_property: Record) -> None:
    app = create_app(build_registry(world.runs, world.slides, world.store.root))
    good = f"/api/slides/{slide_key('S1')}"
    assert get(app, f"{good}/pixels/11/1/1").status == 200
    before = psutil.Process().memory_info().rss
    asked = [f"{good}/pixels/{zoom}/{x}/{y}" for odd in ODD for zoom, x, y in ((odd, 0, 0), (11, odd, 0), (11, 0, odd))]
    asked += [f"{good}/crops/{level}/{index}" for odd in ODD for level, index in ((odd, 0), (0, odd))]
    for path in asked:
        assert 400 <= get(app, path).status < 500, path
    for headers in ({"range": "bytes=" + ",".join(f"{n}-{n}" for n in range(10_000))}, {"x": "y" * 60_000}):
        assert get(app, f"{good}/pixels/11/1/1", headers).status in (200, 400, 413, 416, 431)
    assert psutil.Process().memory_info().rss - before < 200 << 20
    record_property("cases", len(asked) + 2)


def test_names_with_markup_are_text_everywhere(world: World, tmp_path: Path, record_property: Record) -> None:
    bag = world.store.load("S0")
    for number, name in enumerate(NAMES):
        store = BagStore(tmp_path / str(number))
        store.save(type(bag)(name, bag.levels, bag.provenance))
        registry = build_registry(store.root)
        app = create_app(registry)
        for path in ("/", f"/slide/{next(iter(registry.slides))}"):
            body = get(app, path).body.decode()
            assert name in html.unescape(body)
            assert name not in body or html.escape(name) == name, (path, name)
    record_property("cases", len(NAMES))


def test_a_slide_that_is_replaced_cut_or_deleted_is_never_mixed(
    world: World, tmp_path: Path, record_property: Record
) -> None:
    def replaced(file: Path) -> None:
        shutil.copy(world.slides / ("S3.tiff" if file.stem != "S3" else "S4.tiff"), file)

    def cut(file: Path) -> None:
        os.truncate(file, file.stat().st_size // 2)

    ways: dict[Callable[[Path], object], int] = {replaced: 409, cut: 409, Path.unlink: 404}
    places = list(product([f"S{n}" for n in range(5)], ["11/1/1", "11/2/1"]))
    for change, status in ways.items():
        for number, (name, place) in enumerate(places):
            folder = tmp_path / f"{change.__name__}-{number}"
            folder.mkdir()
            file = Path(shutil.copy(world.slides / f"{name}.tiff", folder))
            app = create_app(build_registry(world.store.root, folder))
            path = f"/api/slides/{slide_key(name)}/pixels/{place}"
            whole = get(app, path)
            assert whole.status == 200
            change(file)
            reply = get(app, path)
            assert reply.status == status, (change.__name__, name)
            assert str(tmp_path).encode() not in reply.body
    record_property("cases", len(ways) * len(places))


def test_a_thousand_requests_leave_a_thousand_lines_and_no_reply_names_a_file(
    world: World, caplog: pytest.LogCaptureFixture, record_property: Record
) -> None:
    app = create_app(build_registry(world.runs, world.slides, world.store.root))
    wrong = [f"/{prefix}/{payload}" for prefix in ("slide", "results", "static", "api/slides") for payload in PAYLOADS]
    right = ["/", "/healthz", f"/slide/{slide_key('S1')}", f"/api/slides/{slide_key('S2')}"]
    asked = (wrong[::3] + right * 250)[:1000]
    assert len(asked) == 1000
    errors = 0
    with caplog.at_level(logging.INFO, logger="marble.viewer.access"):
        for path in asked:
            reply = get(app, path, query="token=hush")
            if reply.status >= 400:
                errors += 1
                assert reply.status < 500
                assert not [word for word in (b"Traceback", b'File "', str(world.root).encode()) if word in reply.body]
    assert len(caplog.messages) == len(asked)
    assert not [line for line in caplog.messages if "hush" in line or str(world.root) in line or "passwd" in line]
    assert errors >= 200
    record_property("cases", len(asked))
