"""A cluster of this machine for tests, and how its workers are lost."""

from __future__ import annotations

import os
import random
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import psutil
import pytest

from marble.compute import cluster as ours
from marble.compute.cluster import start_local

os.environ["RAY_AUTH_MODE"] = "token"  # ray looks at it when it is imported
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
#: seconds that a busy machine may take for what Ray does in one
PATIENCE_S = 900
NODE_S, NODE_STARTS = 60, 20
AGENT_PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port")
# Ray's own limits fail on a machine that is busy with other tests; none of them is what is tested here.
for limit in (
    "worker_register_timeout_seconds",
    "gcs_server_request_timeout_seconds",
    "health_check_failure_threshold",
):
    os.environ[f"RAY_{limit}"] = str(PATIENCE_S)
os.environ.update({"RAY_worker_niceness": "0"})  # else workers stand behind whatever else the machine does


@contextmanager
def cluster_here(cores: int = 2) -> Iterator[None]:
    """A cluster of this machine alone, with a token; commands of this process with --ray join it."""
    ray = pytest.importorskip("ray")
    with patience():
        start_local(ray, cores)
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def patience() -> Iterator[None]:
    """Ray gives a node thirty seconds to start and its agents fifteen, and no setting changes that: here a node has a
    minute and more tries, and of agents whose ports are known fewer are waited for.
    """
    ray = pytest.importorskip("ray")
    services, parameters = ray._private.services, ray._private.parameter.RayParams
    ask, made, launch = services.get_node, parameters.__init__, services.start_ray_process

    def until_there(*arguments: Any) -> Any:
        deadline = time.monotonic() + NODE_S
        while True:
            try:
                return ask(*arguments)
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)

    def with_ports(self: Any, *arguments: Any, **named: Any) -> None:
        made(self, *arguments, **named)
        for name, port in zip(AGENT_PORTS, _free_ports(len(AGENT_PORTS)), strict=True):
            setattr(self, name, port)

    def launch_with_port(command: list[str], process_type: str, *arguments: Any, **named: Any) -> Any:
        if process_type == "raylet":  # the one port that Ray tells the agent and not the node
            told = next(word for word in " ".join(command).split() if word.startswith("--listen-port="))
            command = [*command, f"--dashboard_agent_listen_port={told.partition('=')[2]}"]
        return launch(command, process_type, *arguments, **named)

    services.get_node, parameters.__init__ = until_there, with_ports
    services.start_ray_process = launch_with_port
    tries, ours.STARTS = ours.STARTS, NODE_STARTS
    try:
        yield
    finally:
        services.get_node, parameters.__init__, ours.STARTS = ask, made, tries
        services.start_ray_process = launch


def _free_ports(count: int) -> list[int]:
    with ExitStack() as open_sockets:
        sockets = [open_sockets.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def workers_at_work() -> list[psutil.Process]:
    """Processes of the cluster that hold an item, or start to."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if process.cmdline()[:1] and process.cmdline()[0].startswith("ray::_Actor"):
                found.append(process)
    return found


class Killer:
    """Kills random workers while its block runs: at most `most`, at moments drawn from `rng`."""

    def __init__(self, most: int, rng: random.Random, pause_s: float) -> None:
        self.most, self.rng, self.pause_s = most, rng, pause_s
        self.killed = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        dead: set[int] = set()
        while self.killed < self.most:
            if self._over.wait(self.rng.uniform(0.0, self.pause_s)):
                return
            alive = [process for process in workers_at_work() if process.pid not in dead]
            if alive:
                chosen = self.rng.choice(alive)
                with suppress(ProcessLookupError):
                    os.kill(chosen.pid, signal.SIGKILL)
                    dead.add(chosen.pid)
                    self.killed += 1
