"""Many clients at once, on a real socket: 50 are served well, 500 are turned away politely.

How long an answer may take is measured beside: one client alone, on the same server and machine, just before.
"""

from __future__ import annotations

import http.client
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import psutil
import pytest

from marble.viewer.registry import key_of
from tests.reliability.scale import scaled
from tests.viewer.payloads import PAYLOADS
from tests.viewer.world import World

pytestmark = [pytest.mark.reliability, pytest.mark.timeout(3600)]
CANARY = b"CANARY-5d41402abc4b2a76b9719d911017c592"
SECONDS = scaled(60)
PATIENCE_S = 300  # of one request: only a server that hangs takes so long
QUIET_P95_S, QUIET_RECOVERY_S = 2.0, 10.0  # what a machine with nothing else to do must keep
SLOWER = 8  # how many times its fair share of the machine a client may wait


@dataclass
class Seen:
    """What one client saw."""

    statuses: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Server:
    """The viewer in a process of its own."""

    process: psutil.Process
    port: int

    def ask(self, path: str, timeout: float = PATIENCE_S) -> tuple[int, float]:
        """The status of a reply, and the seconds it took."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        began = time.perf_counter()
        try:
            connection.request("GET", path)
            reply = connection.getresponse()
            reply.read()
            return reply.status, time.perf_counter() - began
        finally:
            connection.close()

    def answers(self) -> bool:
        try:
            return self.ask("/healthz")[0] == 200
        except OSError:
            return False


@pytest.fixture(scope="module")
def server(world: World) -> Iterator[Server]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "marble", "view", str(world.runs), "--slides", str(world.slides),
               "--store", str(world.store.root), "--port", str(port)]  # fmt: skip
    started = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL)
    viewer = Server(psutil.Process(started.pid), port)
    while started.poll() is None and not viewer.answers():
        time.sleep(0.1)
    assert started.poll() is None, "the viewer did not start"
    yield viewer
    started.terminate()
    started.wait(PATIENCE_S)


def paths(world: World) -> list[str]:
    run = key_of("run", world.run("marble"))
    slides = [key_of("slide", f"S{n}") for n in range(6)]
    tiles = [f"/api/slides/{slide}/pixels/11/{x}/{y}" for slide in slides for x in range(6) for y in range(4)]
    return tiles + [f"/api/slides/{slide}/runs/{run}/attention" for slide in slides] * 4


def client(server: Server, world: World, number: int, until: float) -> Seen:
    rng, seen, wanted = random.Random(number), Seen(), paths(world)
    while time.perf_counter() < until:
        status, seconds = server.ask(rng.choice(wanted))
        seen.statuses.append(status)
        seen.seconds.append(seconds)
    return seen


def alone(server: Server, world: World) -> float:
    """Seconds an answer takes when nobody else asks: the slowest of twenty, on this machine as busy as it is now."""
    return max(server.ask(path)[1] for path in paths(world)[:20])


def test_raw_bytes_on_the_socket_leak_nothing(
    world: World, server: Server, record_property: Callable[[str, object], None]
) -> None:
    (world.root / "secret.txt").write_bytes(CANARY)
    asked = 0
    for payload in PAYLOADS:
        for prefix in (b"/", b"/static/", b"/slide/", b"/api/slides/"):
            with socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as wire:
                target = prefix + payload.encode("utf-8", "surrogateescape").replace(b" ", b"%20")
                wire.sendall(b"GET " + target + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
                reply = b"".join(iter(lambda: wire.recv(65536), b""))
            status = int(reply.split(b" ", 2)[1])
            assert 400 <= status < 500 or payload in ("~", ".", "..", "../"), (target[:80], status)
            assert CANARY not in reply
            assert b"root:" not in reply
            asked += 1
    assert server.process.is_running()
    record_property("cases", asked)


def test_fifty_clients_are_served_well(
    world: World, server: Server, record_property: Callable[[str, object], None]
) -> None:
    clients = 50
    for path in paths(world)[-6:]:
        assert server.ask(path)[0] == 200  # models are loaded once
    single = alone(server, world)
    before = server.process.memory_info().rss
    files = server.process.num_fds()
    with ThreadPoolExecutor(clients) as pool:
        until = time.perf_counter() + SECONDS
        found = list(pool.map(lambda n: client(server, world, n, until), range(clients)))
    statuses = [status for seen in found for status in seen.statuses]
    p95 = float(np.quantile([second for seen in found for second in seen.seconds], 0.95))
    growth = server.process.memory_info().rss - before
    limit = max(QUIET_P95_S, SLOWER * clients * max(single, alone(server, world)))
    record_property("measured", f"{len(statuses)} requests, p95 {p95:.3f} s, limit {limit:.1f} s, +{growth >> 20} MiB")
    assert set(statuses) == {200}
    assert len(statuses) >= clients
    assert p95 < limit
    assert growth < 300 << 20
    assert server.process.memory_info().rss < 1536 << 20
    assert server.process.num_fds() < files + 80
    record_property("cases", clients)


def test_five_hundred_are_turned_away_and_it_is_soon_over(world: World, server: Server) -> None:
    single = alone(server, world)
    with ThreadPoolExecutor(500) as pool:
        until = time.perf_counter() + 8
        found = list(pool.map(lambda n: client(server, world, n, until), range(500)))
    statuses = {status for seen in found for status in seen.statuses}
    assert statuses <= {200, 503}
    assert 503 in statuses
    over, after = time.perf_counter(), []
    for path in paths(world)[:20]:
        while True:  # the first may still be turned away
            status, seconds = server.ask(path)
            if status != 503:
                break
            time.sleep(0.1)
        after.append((status, seconds))
    recovered = time.perf_counter() - over
    share = SLOWER * max(single, alone(server, world))
    assert {status for status, _ in after} == {200}
    assert recovered < max(QUIET_RECOVERY_S, len(after) * share)
