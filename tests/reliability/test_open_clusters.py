"""Clusters that everybody could use are refused, and one with a token refuses everybody else."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.compute.clusters import PATIENCE_S

pytest.importorskip("ray")
Record = Callable[[str, object], None]
pytestmark = [pytest.mark.reliability, pytest.mark.timeout(7200)]
#: a cluster that lives until its standard input is closed
CLUSTER = """
import sys
from tests.compute.clusters import patience
import os
os.environ["RAY_AUTH_MODE"] = sys.argv[1]
import ray
with patience():
    context = ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
print(context.address_info["address"], flush=True)
sys.stdin.read()
ray.shutdown()
"""
ASK = """
import sys
from marble.compute import Cluster
from marble.errors import MarbleError
try:
    print(Cluster(sys.argv[1], workers=1).offer())
except MarbleError as error:
    print(f"refused: {error}")
"""


def surroundings(**more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("RAY_AUTH") and key != "RAY_ADDRESS"}
    return kept | {"PYTHONPATH": os.pathsep.join(sys.path), "HOME": "/nonexistent", **more}


@contextmanager
def started(mode: str, token: str) -> Iterator[str]:
    """The address of a cluster in this mode."""
    words = [sys.executable, "-c", CLUSTER, mode]
    environment = surroundings(RAY_AUTH_TOKEN=token)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(words, env=environment, text=True, **pipes)  # type: ignore[call-overload]
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.wait(PATIENCE_S)
        process.stdout.close()


def said_to(address: str, **environment: str) -> str:
    words = [sys.executable, "-c", ASK, address]
    done = subprocess.run(words, env=surroundings(**environment), capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stdout + done.stderr, done.stderr[-2000:]
    return done.stdout.strip()


def test_open_clusters_are_refused_and_ours_refuses_strangers(tmp_path: Path, record_property: Record) -> None:
    token, other = secrets.token_hex(32), secrets.token_hex(32)
    with started("disabled", token) as address:
        asked_for_open = said_to(address, RAY_AUTH_MODE="disabled")
        found_open = said_to(address, RAY_AUTH_TOKEN=token)
    assert "RAY_AUTH_MODE=disabled would open the cluster to everybody" in asked_for_open
    assert found_open.startswith("refused: ")
    with started("token", token) as address:
        without = said_to(address)
        wrong = said_to(address, RAY_AUTH_TOKEN=other)
        right = said_to(address, RAY_AUTH_TOKEN=token)
    assert without.startswith("refused: ")
    assert wrong.startswith("refused: ")
    assert right.startswith("Offer(nodes=1, cpus=1.0")
    assert token not in asked_for_open + found_open + without + wrong + right
    record_property("cases", 4)
