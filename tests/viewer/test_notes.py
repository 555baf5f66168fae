"""Notes: written whole, by our own page only, never over somebody else's, and only where the viewer was told to."""

from __future__ import annotations

import json
import os
import time
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace

import pytest
from starlette.types import ASGIApp

from marble import files
from marble.viewer.app import create_app
from marble.viewer.notes import MAX_BODY_BYTES, MAX_CHARACTERS, Notes
from marble.viewer.registry import build_registry, key_of
from marble.viewer.tokens import Ticket, Tokens, hash_of, now, one_token
from tests.cli.commands import marble
from tests.viewer.client import Reply, get
from tests.viewer.world import World

TOKEN = "a-long-enough-token-of-ours"
PATH = f"/api/slides/{key_of('slide', 'S1')}/note"
OURS = {"content-type": "application/json", "x-marble-note": "1"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "notes.json"


@pytest.fixture
def app(world: World, file: Path) -> ASGIApp:
    return create_app(build_registry(world.runs, world.slides, world.store.root), notes=Notes(file))


def write(app: ASGIApp, text: object, seen: object = "", headers: dict[str, str] | None = None) -> Reply:
    body = json.dumps({"text": text, "seen": seen}).encode()
    return get(app, PATH, {**OURS, **(headers or {})}, method="POST", body=body)


def test_a_note_is_kept_in_the_file_and_read_back(app: ASGIApp, file: Path) -> None:
    assert get(app, PATH).json() == {"text": "", "at": "", "by": "", "others": []}
    reply = write(app, "  a fold at the\nupper edge  ")
    assert (reply.status, reply.json()["text"]) == (200, "a fold at the\nupper edge")
    assert get(app, PATH).json() == reply.json()
    kept = json.loads(file.read_text())["S1"][""]
    assert reply.json() == {**kept, "by": "", "others": []}
    assert [one.name for one in file.parent.iterdir()] == ["notes.json"]
    assert write(app, "", seen="a fold at the\nupper edge").status == 200
    assert json.loads(file.read_text()) == {}


def test_nobody_writes_over_what_they_have_not_seen(app: ASGIApp) -> None:
    assert write(app, "mine").status == 200
    late = write(app, "theirs", seen="")
    assert late.status == 409
    assert "meanwhile" in late.json()["error"]
    assert get(app, PATH).json()["text"] == "mine"
    assert write(app, "theirs", seen="mine").status == 200


def test_a_viewer_waits_while_another_writes_the_same_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second begins between the first one's reading and publishing."""
    one, other, waits_or_is_done = Notes(file), Notes(file), Event()
    publish, sleep = files.publish_json, time.sleep

    def write_too() -> None:
        other.write("S2", "theirs", "")
        waits_or_is_done.set()

    def waiting(seconds: float) -> None:
        waits_or_is_done.set()
        sleep(seconds)

    writing = Thread(target=write_too)

    def publish_late(path: Path, value: object) -> Path:
        if not writing.ident:
            writing.start()
            assert waits_or_is_done.wait(60)
        return publish(path, value)

    monkeypatch.setattr("marble.compute.locks.time", SimpleNamespace(sleep=waiting))
    monkeypatch.setattr("marble.viewer.notes.files.publish_json", publish_late)
    one.write("S1", "ours", "")
    writing.join(60)
    assert [one.read(slide)["text"] for slide in ("S1", "S2")] == ["ours", "theirs"]
    assert [left.name for left in file.parent.iterdir()] == ["notes.json"]


def test_another_page_cannot_write(app: ASGIApp, file: Path) -> None:
    foreign = [
        {"content-type": "text/plain"}, {"content-type": "application/x-www-form-urlencoded"}, {"x-marble-note": "0"},
        {"origin": "http://evil.example"}, {"origin": "null"}, {"origin": "http://127.0.0.1:2"},
        {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}, {"sec-fetch-site": "none"},
    ]  # fmt: skip
    for headers in foreign:
        assert write(app, "x", headers=headers).status == 403, headers
    assert write(app, "x", headers={"host": "evil.example"}).status == 421
    assert not file.exists()
    assert write(app, "x", headers={"origin": "http://127.0.0.1:1", "sec-fetch-site": "same-origin"}).status == 200


def test_it_asks_for_the_token_too(world: World, file: Path) -> None:
    registry = build_registry(world.runs, world.slides, world.store.root)
    app = create_app(registry, one_token(TOKEN, 1)[0], notes=Notes(file))
    assert write(app, "x").status == 401
    assert write(app, "x", headers={"authorization": "Bearer wrong"}).status == 401
    assert get(app, PATH, OURS, query=f"token={TOKEN}", method="POST").status == 401  # not by the address bar
    assert not file.exists()
    assert write(app, "x", headers={"authorization": f"Bearer {TOKEN}"}).status == 200


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b"[" * 20_000, b'{"text": 1, "seen": ""}', b'{"text": "a"}', b"\xff\xfe",
     b'{"text": "a", "seen": "", "more": 1}', b'{"text": "a\\u0000b", "seen": ""}', b'{"text": "\\ud800", "seen": ""}',
     b'{"text": "\\u202ea", "seen": ""}', json.dumps({"text": "a" * (MAX_CHARACTERS + 1), "seen": ""}).encode()],
)  # fmt: skip
def test_what_is_no_note_is_refused(app: ASGIApp, file: Path, body: bytes) -> None:
    assert get(app, PATH, OURS, method="POST", body=body).status == 422
    assert not file.exists()


def test_what_is_too_large_is_refused_before_it_is_read(app: ASGIApp, file: Path) -> None:
    assert get(app, PATH, OURS, method="POST", body=b" " * (MAX_BODY_BYTES + 1)).status == 413
    assert not file.exists()


def test_a_damaged_file_is_left_as_it_is(app: ASGIApp, file: Path) -> None:
    for damage in (b"[]", b'{"S1": "text"}', b'{"S1": {"text": 1, "at": ""}}', b"{",
                   b'{"S1": {"anna": {"text": "a"}}}', b'{"S1": {"anna": "a"}}', b'{"S1": []}'):  # fmt: skip
        file.write_bytes(damage)
        assert get(app, PATH).status == 409
        assert write(app, "x").status == 409
        assert file.read_bytes() == damage


def test_everybody_writes_their_own_note_and_no_other(world: World, file: Path) -> None:
    ends = now() + timedelta(days=1)
    tickets = [Ticket(name, hash_of(name * 6), ends) for name in ("anna", "bert")]
    registry = build_registry(world.runs, world.slides, world.store.root)
    app = create_app(registry, Tokens(lambda: tickets), notes=Notes(file))
    anna, bert = ({"authorization": f"Bearer {name * 6}"} for name in ("anna", "bert"))
    assert write(app, "a fold", headers=anna).json()["by"] == "anna"
    seen = get(app, PATH, bert).json()
    assert (seen["text"], seen["by"]) == ("", "bert")
    assert [(one["by"], one["text"]) for one in seen["others"]] == [("anna", "a fold")]
    before = json.loads(file.read_text())["S1"]["anna"]
    for text in ("mine now", ""):  # neither changed nor removed, whatever bert says to have seen
        assert write(app, text, seen="a fold", headers=bert).status == 409
    assert write(app, "none here", headers=bert).status == 200
    assert json.loads(file.read_text())["S1"]["anna"] == before
    assert write(app, "", seen="none here", headers=bert).status == 200
    assert json.loads(file.read_text()) == {"S1": {"anna": before}}
    assert write(app, "", seen="a fold", headers=anna).status == 200
    assert json.loads(file.read_text()) == {}


def test_notes_from_before_there_were_names_are_read_and_kept(app: ASGIApp, file: Path) -> None:
    file.write_text('{"S1": {"text": "old", "at": "2026-01-01T00:00:00+00:00"}, "S2": {"text": "too", "at": ""}}')
    assert get(app, PATH).json()["text"] == "old"
    assert write(app, "new", seen="old").status == 200
    assert json.loads(file.read_text())["S2"] == {"": {"text": "too", "at": ""}}


def test_where_nothing_can_be_written_the_reply_names_no_file(world: World, tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("")
    registry = build_registry(world.runs, world.slides, world.store.root)
    reply = write(create_app(registry, notes=Notes(tmp_path / "a file" / "notes.json")), "x")
    assert reply.status == 507
    assert str(tmp_path) not in reply.body.decode()
    assert "cannot be written" in reply.json()["error"]


def test_a_folder_that_takes_no_notes_is_told_at_the_start(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marble.viewer.serve.os.access", lambda _, how: how != os.W_OK)
    refused = marble("view", world.runs, "--notes")
    assert (refused.code, len(refused.err.splitlines())) == (2, 1)
    assert "Leave out --notes" in refused.err


def test_an_unknown_slide_has_no_note(app: ASGIApp) -> None:
    assert get(app, "/api/slides/0123456789abcdef/note", OURS, method="POST", body=b"{}").status == 404


def test_without_the_option_there_is_nothing_to_write_to(world: World) -> None:
    app = create_app(build_registry(world.runs, world.slides, world.store.root))
    assert write(app, "x").status in (404, 405)
    assert get(app, PATH).status == 404
    assert b"note-text" not in get(app, f"/slide/{key_of('slide', 'S1')}").body
