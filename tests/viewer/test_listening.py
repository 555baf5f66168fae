"""Where others can connect, a token and TLS are asked for; TLS is spoken by the command itself."""

from __future__ import annotations

import http.client
import os
import re
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from marble.errors import InputError
from marble.viewer import wire
from marble.viewer.listening import Listening
from tests.cli.commands import marble
from tests.viewer.certificates import make_certificate
from tests.viewer.world import World

TOKEN = "a-long-enough-token-of-ours"
OTHERS = ["0.0.0.0", "192.168.1.4", "::", "example.org"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("pair"))


@pytest.mark.parametrize("host", OTHERS)
def test_listening_to_others_needs_a_token_and_tls(host: str, pair: tuple[Path, Path]) -> None:
    certificate, key = pair
    with pytest.raises(InputError, match="needs TLS"):
        Listening(host, token=TOKEN).check()
    secure = Listening(host, certificate=certificate, key=key)
    for good in (secure, replace(secure, token=TOKEN), Listening(host, behind_proxy=True)):
        good.check()
        assert good.is_secure
        assert good.admission()[0] is not None


@pytest.mark.parametrize("host", OTHERS)
def test_the_command_refuses_in_one_line_with_the_next_step(host: str, tmp_path: Path) -> None:
    for words in ((), ("--token", TOKEN), ("--token-hours", "2")):
        ended = marble("view", tmp_path, "--host", host, *words)
        assert (ended.code, len(ended.err.splitlines())) == (2, 1), ended.err
        assert "--certificate" in ended.err


def test_on_this_machine_a_token_is_asked_for_where_one_was_spoken_of_or_a_proxy_stands_before() -> None:
    for host in ("127.0.0.1", "localhost", "::1"):
        Listening(host).check()
        assert Listening(host).admission()[0] is None
    assert Listening(behind_proxy=True).admission()[0] is not None  # a proxy may let anybody through
    tokens, said = Listening(token_hours=2).admission()
    shown = re.search(r"\?token=([\w-]{43}) ", said)
    assert tokens is not None
    assert shown is not None
    assert tokens.find(shown[1]) is not None
    assert TOKEN not in Listening(token=TOKEN).admission()[1]


def test_a_certificate_that_cannot_be_used_is_refused_in_one_line(pair: tuple[Path, Path], tmp_path: Path) -> None:
    certificate, key = pair
    _, another = make_certificate(tmp_path / "another")
    hidden = make_certificate(tmp_path / "hidden", b"a passphrase")
    (tmp_path / "text.pem").write_text("not a certificate")
    bad = [(certificate, another), (key, certificate), hidden, (tmp_path / "text.pem", key), (certificate, tmp_path)]
    for one, other in bad:
        with pytest.raises(InputError) as refused:
            Listening(certificate=one, key=other).tls()
        assert str(one) in str(refused.value)
        assert str(other) in str(refused.value)
    for words in (("--certificate", certificate), ("--key", key)):
        ended = marble("view", tmp_path, *words)
        assert (ended.code, len(ended.err.splitlines())) == (2, 1)
        assert "says nothing without" in ended.err
    ended = marble("view", tmp_path, "--certificate", certificate, "--key", another)
    assert (ended.code, len(ended.err.splitlines())) == (2, 1), ended.err
    assert "not a certificate and its key" in ended.err


@contextmanager
def viewing(*words: object) -> Iterator[tuple[int, list[str]]]:
    """Port of a viewer started as a command, and the lines it said."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "marble", "view", *map(str, words), "--port", str(port)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    started = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert started.stdout is not None
    said: list[str] = []
    try:
        for line in started.stdout:  # the address is said once the port is open: whoever connects now is answered
            said.append(line)
            if "Ctrl-C" in line:
                break
        else:
            assert started.stderr is not None
            pytest.fail(started.stderr.read())
        yield port, said
    finally:
        started.terminate()
        started.communicate(timeout=240)


def ask(port: int, path: str, headers: dict[str, str], context: ssl.SSLContext | None) -> tuple[int, str]:
    """Status and Set-Cookie of one answer."""
    if context is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=240)
    else:
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=240, context=context)
    try:
        connection.request("GET", path, headers=headers)
        reply = connection.getresponse()
        reply.read()
        return reply.status, reply.getheader("set-cookie", "")
    finally:
        connection.close()


def test_the_command_speaks_tls_and_nothing_older_or_plain(world: World, pair: tuple[Path, Path]) -> None:
    certificate, key = pair
    with viewing(world.runs, "--certificate", certificate, "--key", key) as (port, said):
        assert f"https://127.0.0.1:{port}/?token=" in said[-1]
        token = said[-1].partition("token=")[2].split()[0]
        trusting = ssl.create_default_context(cafile=str(certificate))
        assert ask(port, "/healthz", {}, trusting)[0] == 200
        assert ask(port, "/", {}, trusting)[0] == 401
        status, cookie = ask(port, f"/?token={token}", {}, trusting)
        assert status == 303
        assert "; Secure" in cookie
        assert ask(port, "/", {"cookie": cookie.partition(";")[0]}, trusting)[0] == 200
        with pytest.raises((OSError, http.client.HTTPException)):
            ask(port, "/healthz", {}, None)
        with pytest.raises(ssl.SSLCertVerificationError):
            ask(port, "/healthz", {}, ssl.create_default_context())
        old = ssl.create_default_context(cafile=str(certificate))
        old.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        old.set_ciphers("ALL:@SECLEVEL=0")  # so that it is the server that refuses
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        assert ask(port, "/healthz", {}, old)[0] == 200
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionError)):
            ask(port, "/healthz", {}, old)
        with socket.create_connection(("127.0.0.1", port), 240) as silent:  # no greeting: dropped like a slow header
            assert silent.recv(1) == b""


def test_users_of_a_table_come_in_until_their_last_day(world: World, tmp_path: Path) -> None:
    table = tmp_path / "tokens.csv"
    anna, bert = (
        marble("view", "--new-token", name, "--tokens", table).out.splitlines()[1] for name in ("anna", "bert")
    )
    lines = table.read_text().splitlines(keepends=True)
    table.write_text(lines[0] + lines[1][:-11] + "2026-01-01\n" + lines[2])  # anna's token has ended
    with viewing(world.runs, "--tokens", table) as (port, said):
        assert anna not in "".join(said)
        assert ask(port, "/", {"authorization": f"Bearer {anna}"}, None)[0] == 401
        assert ask(port, "/", {"authorization": f"Bearer {bert}"}, None)[0] == 200
        table.write_text("".join(lines[:2]))  # now it is bert who is gone
        assert ask(port, "/", {"authorization": f"Bearer {bert}"}, None)[0] == 401
        assert ask(port, "/", {"authorization": f"Bearer {anna}"}, None)[0] == 200


def test_without_a_token_whoever_uses_this_machine_is_answered(world: World) -> None:
    with viewing(world.runs) as (port, said):
        assert "whoever uses this machine" in said[-1]
        assert ask(port, "/", {}, None)[0] == 200
        assert ask(port, "/", {"host": "evil.example"}, None)[0] == 421


def test_a_port_that_is_taken_and_a_host_that_is_none_are_said_in_one_line(world: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = marble("view", world.runs, "--port", str(taken.getsockname()[1]))
    assert (ended.code, len(ended.err.splitlines())) == (2, 1), ended.err
    assert "--port" in ended.err
    with pytest.raises(InputError, match="no such address"):
        wire.open_sockets("no such host.invalid", 1)
