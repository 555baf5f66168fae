"""Nobody comes in without a token that this server knows and that has not ended; tokens of users come and go."""

from __future__ import annotations

import csv
import logging
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from starlette.routing import Route
from starlette.types import ASGIApp

from marble.errors import InputError, TableError
from marble.viewer.app import _routes, create_app
from marble.viewer.notes import Notes
from marble.viewer.registry import Registry, build_registry
from marble.viewer.token_file import TokenFile, add_token, read_tokens
from marble.viewer.tokens import Ticket, Tokens, hash_of, new_token, one_token
from tests.cli.commands import marble
from tests.viewer.client import get
from tests.viewer.test_security import filled
from tests.viewer.world import World

TOKEN = "a-long-enough-token-of-ours"
DAY = timedelta(days=1)


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = datetime(2027, 1, 31, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture(scope="module")
def registry(world: World) -> Registry:
    return build_registry(world.runs, world.slides, world.store.root)


def doors(registry: Registry, folder: Path) -> list[tuple[str, str]]:
    """Method and address of every route there can be, from the application itself, notes among them."""
    app = _routes(registry, 1, 1, Notes(folder / "notes.json"))
    found = [
        (method, filled(route.path, registry))
        for route in app.routes
        if isinstance(route, Route)
        for method in route.methods or ()
    ]
    assert len(found) >= 16
    assert any(method == "POST" for method, _ in found)
    return sorted(found)


def shut(app: ASGIApp, found: list[tuple[str, str]], token: str | None) -> int:
    """Every way to show a token at every door says 401, but for one door; how many were tried."""
    ways: list[dict[str, str]] = [{}]
    if token is not None:
        ways = [{"authorization": f"Bearer {token}"}, {"cookie": f"marble_token_1={token}; marble_token={token}"}]
    tried = 0
    for method, path in found:
        expected = 200 if path == "/healthz" else 401
        for headers in ways:
            assert get(app, path, headers, method=method).status == expected, (method, path, headers)
            tried += 1
        if token is not None:
            reply = get(app, path, query=f"token={token}", method=method)
            assert reply.status == expected, (method, path)
            assert "set-cookie" not in reply.headers
            tried += 1
    return tried


def test_no_wrong_ended_removed_or_foreign_token_opens_any_door(
    registry: Registry, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    clock, file = Clock(), tmp_path / "tokens.csv"
    anna, removed = (add_token(file, name, 4000)[0] for name in ("anna", "bert"))
    listed = TokenFile(file)
    app = create_app(registry, Tokens(listed, clock), notes=Notes(tmp_path / "notes.json"))
    assert get(app, "/", {"authorization": f"Bearer {removed}"}).status == 200
    file.write_text("".join(line for line in file.read_text().splitlines(True) if not line.startswith("bert")))
    other = create_app(registry, one_token(TOKEN, 1, clock)[0])
    assert get(other, "/", {"authorization": f"Bearer {TOKEN}"}).status == 200
    found = doors(registry, tmp_path)
    tried = sum(shut(app, found, token) for token in (None, "wrong", anna[:-1], hash_of(anna), removed, TOKEN))
    for door in found:  # the good one opens them all, so that it is the token that was refused above
        reply = get(app, door[1], {"authorization": f"Bearer {anna}"}, method=door[0])
        assert reply.status not in (401, 403) or door[0] == "POST", door
    clock.now = read_tokens(file)[0].ends
    record_property("cases", tried + shut(app, found, anna))
    assert get(app, "/no/such/thing").status == 401
    assert not (tmp_path / "notes.json").exists()


def test_a_token_is_good_until_it_ends_and_says_so_after(registry: Registry) -> None:
    clock = Clock()
    app = create_app(registry, one_token(TOKEN, 12, clock)[0])
    cookie = get(app, "/", query=f"token={TOKEN}").headers["set-cookie"]
    assert "Max-Age=43200" in cookie
    shown = {"cookie": cookie.partition(";")[0]}
    clock.now += timedelta(hours=11, minutes=59)
    assert get(app, "/", shown).status == 200
    clock.now += timedelta(minutes=1)
    for reply in (get(app, "/", shown), get(app, "/", query=f"token={TOKEN}")):
        assert reply.status == 401
        assert "has ended" in reply.json()["error"]


def test_the_token_moves_from_the_address_into_a_cookie(registry: Registry) -> None:
    for secure in (False, True):
        app = create_app(registry, one_token(TOKEN, 12)[0], secure=secure)
        reply = get(app, "/", query=f"token={TOKEN}")
        assert (reply.status, reply.headers["location"]) == (303, "/")
        cookie = reply.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Lax" in cookie
        assert ("Secure" in cookie) == secure
        assert get(app, "/", {"cookie": cookie.partition(";")[0]}).status == 200
    # two viewers of one machine do not take each other's cookie away
    ports = {get(app, "/", {"host": f"127.0.0.1:{port}"}, query=f"token={TOKEN}").headers["set-cookie"].split("=")[0]
             for port in (8765, 8766)}  # fmt: skip
    assert ports == {"marble_token_8765", "marble_token_8766"}


def test_a_link_of_another_user_changes_who_one_is(registry: Registry) -> None:
    ends = datetime.now(UTC) + DAY
    tickets = [Ticket(name, hash_of(name * 6), ends) for name in ("anna", "bert")]
    app = create_app(registry, Tokens(lambda: tickets))
    reply = get(app, "/", {"cookie": f"marble_token_1={'anna' * 6}"}, query=f"token={'bert' * 6}")
    assert reply.status == 303
    assert "bert" * 6 in reply.headers["set-cookie"]


def test_the_log_names_whoever_came_in(registry: Registry, caplog: pytest.LogCaptureFixture) -> None:
    tickets = [Ticket("anna", hash_of(TOKEN), datetime.now(UTC) + DAY)]
    app = create_app(registry, Tokens(lambda: tickets))
    with caplog.at_level(logging.INFO, logger="marble.viewer.access"):
        get(app, "/", {"authorization": f"Bearer {TOKEN}"})
        get(app, "/", {"authorization": "Bearer anna"})
    assert [line.endswith(" anna") for line in caplog.messages] == [True, False]
    assert TOKEN not in caplog.text


def test_a_made_token_is_long_kept_as_a_hash_and_replaced_by_the_next(tmp_path: Path) -> None:
    file = tmp_path / "tokens.csv"
    first, last_day, replaced = add_token(file, "Änne O'Neil", 30)
    assert len(first) >= 43
    assert not replaced
    assert first not in file.read_text()
    assert [(one.name, one.sha256, one.ends.date()) for one in read_tokens(file)] == [
        ("Änne O'Neil", hash_of(first), last_day + DAY)
    ]
    add_token(file, "bert", 0)
    second, _, replaced = add_token(file, "Änne O'Neil", 30)
    assert replaced
    known = Tokens(TokenFile(file))
    assert known.find(first) is None
    found = known.find(second)
    assert found is not None
    assert found.name == "Änne O'Neil"
    assert len({new_token() for _ in range(100)}) == 100


HASH = "0" * 64


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (f"anna,{HASH},2027-02-30\n", "row 2, column 'last_day'"),
        (f"anna,{HASH},31.1.2027\n", "row 2, column 'last_day'"),
        (f"anna,{HASH},\n", "row 2, column 'last_day'"),
        (f"anna,{HASH},9999-12-31\n", "row 2, column 'last_day'"),
        (f"anna,{HASH[1:]},2027-01-31\n", "row 2, column 'sha256'"),
        ("anna,a-token-as-it-is-in-place-of-its-hash,2027-01-31\n", "row 2, column 'sha256'"),
        (f"anna,{hash_of('')},2027-01-31\n", "row 2, column 'sha256'"),
        (f",{HASH},2027-01-31\n", "row 2, column 'name'"),
        (f"<b>,{HASH},2027-01-31\n", "row 2, column 'name'"),
        (f"=anna,{HASH},2027-01-31\n", "row 2, column 'name'"),
        (f"anna,{HASH},2027-01-31\nanna,{HASH[1:]}1,2027-01-31\n", "row 3, column 'name'"),
        (f"anna,{HASH},2027-01-31\nbert,{HASH},2027-01-31\n", "row 3, column 'sha256'"),
        (f"anna,{HASH}\n", "row 2"),
        ("", "row 1"),
    ],
)
def test_a_malformed_file_is_refused_with_file_row_and_column(tmp_path: Path, text: str, where: str) -> None:
    file = tmp_path / "tokens.csv"
    file.write_text("name,sha256,last_day\n" + text)
    with pytest.raises(TableError) as refused:
        TokenFile(file)
    assert f"{file}, {where}" in str(refused.value)
    ended = marble("view", tmp_path, "--tokens", file)
    assert (ended.code, len(ended.err.splitlines())) == (2, 1)
    assert where in ended.err


def test_a_file_that_breaks_while_it_is_used_lets_nobody_in(
    registry: Registry, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "tokens.csv"
    shown = {"authorization": f"Bearer {add_token(file, 'anna', 30)[0]}"}
    app = create_app(registry, Tokens(TokenFile(file)))
    good = file.read_text()
    for damage in ("name,sha256\n", good + "bert,x,2027-01-31\n", None):
        if damage is None:
            file.unlink()
        else:
            file.write_text(damage)
        assert [get(app, "/", shown).status for _ in range(3)] == [401] * 3
        file.write_text(good)
        assert get(app, "/", shown).status == 200
    said = [line for line in caplog.messages if "nobody comes in" in line]
    assert len(said) == 3  # one for each change, not for each request
    assert "row 3, column 'sha256'" in said[1]


def test_a_change_that_keeps_size_and_time_is_seen(registry: Registry, tmp_path: Path) -> None:
    file = tmp_path / "tokens.csv"
    token = add_token(file, "anna", 30)[0]
    app = create_app(registry, Tokens(TokenFile(file)))
    before = file.stat()
    (tmp_path / "next.csv").write_text(file.read_text().replace(hash_of(token), hash_of(TOKEN)))
    os.utime(tmp_path / "next.csv", ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(tmp_path / "next.csv", file)
    assert get(app, "/", {"authorization": f"Bearer {token}"}).status == 401
    assert get(app, "/", {"authorization": f"Bearer {TOKEN}"}).status == 200


def test_the_command_makes_a_token_that_the_viewer_takes(registry: Registry, tmp_path: Path) -> None:
    file = tmp_path / "tokens.csv"
    made = marble("view", "--new-token", "anna", "--tokens", file, "--days", "7")
    assert made.code == 0, made.err
    token = made.out.splitlines()[1]
    assert token not in file.read_text()
    assert get(create_app(registry, Tokens(TokenFile(file))), "/", {"authorization": f"Bearer {token}"}).status == 200
    with file.open(newline="") as rows:
        assert [row["name"] for row in csv.DictReader(rows)] == ["anna"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--new-token", "anna"), "--tokens"),
        (("--new-token", "a\nb", "--tokens", "{out}"), "no name for a user"),
        (("--new-token", "anna", "--tokens", "{out}", "{path}"), "Leave out"),
        (("{path}", "--days", "3"), "--new-token"),
        (("{path}", "--tokens", "{missing}"), "no such file"),
        (("{path}", "--token", "short"), "shorter than 16"),
        (("{path}", "--token", TOKEN, "--tokens", "{path}/table"), "contradict"),
        (("{path}", "--tokens", "{path}/table", "--token-hours", "2"), "--token-hours"),
        ((), "a folder of runs or a store"),
    ],
)
def test_what_says_nothing_or_cannot_be_is_refused_in_one_line(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    places = {"path": tmp_path, "out": tmp_path / "tokens.csv", "missing": tmp_path / "none.csv"}
    add_token(tmp_path / "table", "anna", 30)
    ended = marble("view", *(word.format(**places) for word in words))
    assert (ended.code, len(ended.err.splitlines())) == (2, 1), ended.err
    assert said in ended.err
    assert not (tmp_path / "tokens.csv").exists()


def test_a_short_token_is_refused() -> None:
    with pytest.raises(InputError, match="shorter"):
        one_token("short", 12)
