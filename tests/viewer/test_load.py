"""Many clients at once, on a real socket: 50 are served well, 500 are turned away politely."""

from __future__ import annotations

import http.client
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
import pytest

from marble.viewer.registry import key_of
from tests.viewer.payloads import PAYLOADS
from tests.viewer.world import World

pytestmark = pytest.mark.reliability
PORT = 18765
CANARY = b"CANARY-5d41402abc4b2a76b9719d911017c592"
SECONDS = 30


@dataclass
class Seen:
    """What one client saw."""

    statuses: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


@pytest.fixture(scope="module")
def server(world: World) -> Iterator[psutil.Process]:
    marble = str(Path(sys.executable).parent / "marble")
    command = [marble, "view", str(world.runs), "--slides", str(world.slides), "--store", str(world.store.root),
               "--port", str(PORT)]  # fmt: skip
    started = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL)
    for _ in range(600):
        try:
            if ask("/healthz", 2)[0] == 200:
                break
        except OSError:
            time.sleep(0.1)
    yield psutil.Process(started.pid)
    started.terminate()
    started.wait(20)


def ask(path: str, timeout: float = 60) -> tuple[int, float]:
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=timeout)
    began = time.perf_counter()
    try:
        connection.request("GET", path)
        reply = connection.getresponse()
        reply.read()
        return reply.status, time.perf_counter() - began
    finally:
        connection.close()


def paths(world: World) -> list[str]:
    run = key_of("run", world.run("marble"))
    slides = [key_of("slide", f"S{n}") for n in range(6)]
    tiles = [f"/api/slides/{slide}/pixels/11/{x}/{y}" for slide in slides for x in range(6) for y in range(4)]
    return tiles + [f"/api/slides/{slide}/runs/{run}/attention" for slide in slides] * 4


def client(world: World, number: int, until: float) -> Seen:
    rng, seen, wanted = random.Random(number), Seen(), paths(world)
    while time.perf_counter() < until:
        status, seconds = ask(rng.choice(wanted))
        seen.statuses.append(status)
        seen.seconds.append(seconds)
    return seen


def test_raw_bytes_on_the_socket_leak_nothing(world: World, server: psutil.Process) -> None:
    (world.root / "secret.txt").write_bytes(CANARY)
    for payload in PAYLOADS:
        for prefix in (b"/", b"/static/", b"/slide/", b"/api/slides/"):
            with socket.create_connection(("127.0.0.1", PORT), 20) as wire:
                target = prefix + payload.encode("utf-8", "surrogateescape").replace(b" ", b"%20")
                wire.sendall(b"GET " + target + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
                reply = b"".join(iter(lambda: wire.recv(65536), b""))
            status = int(reply.split(b" ", 2)[1])
            assert 400 <= status < 500 or payload in ("~", ".", "..", "../"), (target[:80], status)
            assert CANARY not in reply
            assert b"root:" not in reply
    assert server.is_running()


def test_fifty_clients_are_served_well(world: World, server: psutil.Process) -> None:
    for path in paths(world)[-6:]:
        assert ask(path)[0] == 200  # models are loaded once
    before = server.memory_info().rss
    files = server.num_fds()
    with ThreadPoolExecutor(50) as pool:
        until = time.perf_counter() + SECONDS
        found = list(pool.map(lambda n: client(world, n, until), range(50)))
    statuses = [status for seen in found for status in seen.statuses]
    p95 = float(np.quantile([second for seen in found for second in seen.seconds], 0.95))
    growth = server.memory_info().rss - before
    print(f"{len(statuses)} requests, p95 {p95:.3f} s, memory +{growth / 2**20:.0f} MiB")
    assert set(statuses) == {200}
    assert p95 < 2
    assert growth < 300 << 20
    assert server.num_fds() < files + 80


def test_five_hundred_are_turned_away_and_it_is_soon_over(world: World, server: psutil.Process) -> None:
    with ThreadPoolExecutor(500) as pool:
        until = time.perf_counter() + 8
        found = list(pool.map(lambda n: client(world, n, until), range(500)))
    statuses = {status for seen in found for status in seen.statuses}
    assert statuses <= {200, 503}
    assert 503 in statuses
    time.sleep(10)
    after = [ask(path) for path in paths(world)[:20]]
    assert {status for status, _ in after} == {200}
    assert max(seconds for _, seconds in after) < 2
