"""Work on a Ray cluster: the only file that imports ray.

Workers are actors, so what a worker loads (an encoder's weights) is loaded once and used for all its items. An item is
sent when a worker is free, never before: a cohort of any size waits in the driver, not in the cluster. A worker that is
lost takes nothing with it, because items are idempotent: the item is given to another worker, and only an item that
loses several is reported as failed.
"""

from __future__ import annotations

import math
import os
import secrets
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marble import storage
from marble.compute.executor import Done, Failed, Item, Result, describe
from marble.errors import InputError, UnavailableError
from marble.floors import refuse_older

if TYPE_CHECKING:
    from types import ModuleType

STARTS = 3  # Ray gives its own processes fixed seconds to start, too few on a busy machine
_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
_DOCS = "See docs/how-to/cluster.md"


@dataclass(frozen=True)
class Offer:
    """What a cluster has, and how many workers of the kind asked for fit into it."""

    nodes: int
    cpus: float
    gpus: float
    workers: int


@dataclass(frozen=True)
class Cluster:
    """Run items in actors of a Ray cluster.

    Args:
        address: `auto` takes the cluster of `RAY_ADDRESS`, and without one starts a cluster of this machine alone that
            ends with the batch; anything else is the address of a running cluster.
        workers: actors side by side; by default as many as the cluster has room for.
        cpus: cores of each actor; also its number of BLAS threads.
        gpus: GPUs of each actor; a fraction lets several share one.
        timeout_s: give up on an item after this long.
        retries: how often an item is given to another worker when its worker was lost.
    """

    address: str = "auto"
    workers: int | None = None
    cpus: float = 1.0
    gpus: float = 0.0
    timeout_s: float | None = None
    retries: int = 3

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise InputError(f"workers must be at least 1, got {self.workers}")
        if self.cpus <= 0 or self.gpus < 0:
            raise InputError(f"a worker needs cpus > 0 and gpus >= 0, got {self.cpus} and {self.gpus}")

    @property
    def cores_each(self) -> int:
        return max(1, int(self.cpus))

    def map(self, fn: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Done[Item, Result] | Failed[Item]]:
        waiting: deque[tuple[Item, int]] = deque((item, 0) for item in items)
        ray, ours = self._connect()
        busy: dict[Any, _Task] = {}  # by the reference of the answer
        idle: list[Any] = []
        try:
            actor_class = ray.remote(_Actor).options(
                num_cpus=self.cpus, num_gpus=self.gpus, max_restarts=0, runtime_env={"env_vars": self._environment()}
            )
            missing = min(len(waiting), self._room(ray))
            while waiting or busy:
                while missing and waiting:
                    idle.append(actor_class.remote(str(Path.cwd())))
                    missing -= 1
                while waiting and idle:
                    item, tries = waiting.popleft()
                    actor = idle.pop()
                    busy[actor.run.remote(fn, item)] = _Task(actor, item, tries)
                for task, answer in self._ended(ray, busy):
                    ended, alive = self._collect(task, answer, waiting)
                    if alive:
                        idle.append(task.actor)
                    else:
                        missing += 1
                    if ended is not None:
                        yield ended
        finally:  # also when the consumer stops early or is interrupted
            for actor in [*idle, *(task.actor for task in busy.values())]:
                ray.kill(actor)
            if ours:
                ray.shutdown()

    # ---- the cluster -------------------------------------------------------------------------------------------

    def offer(self) -> Offer:
        """What the cluster has, without any work; one that is started here for the question ends with it."""
        ray, ours = self._connect()
        try:
            has = ray.cluster_resources()
            nodes = sum(bool(node["Alive"]) for node in ray.nodes())
            return Offer(nodes, float(has.get("CPU", 0)), float(has.get("GPU", 0)), self._room(ray))
        finally:
            if ours:
                ray.shutdown()

    def _connect(self) -> tuple[ModuleType, bool]:
        """Ray, connected; and whether the cluster was started here and ends with the batch."""
        mode = os.environ.setdefault("RAY_AUTH_MODE", "token")  # before ray is imported: it looks only then
        if mode != "token":
            raise UnavailableError(
                f"RAY_AUTH_MODE={mode} would open the cluster to everybody who reaches its ports",
                hint=f"Unset RAY_AUTH_MODE, or set it to token. {_DOCS}",
            )
        ray = _import_ray()
        if ray.is_initialized():
            _require_token(ray)
            return ray, False
        address = os.environ.get("RAY_ADDRESS") if self.address == "auto" else self.address
        if address is None:
            start_local(ray, None if self.workers is None else math.ceil(self.workers * self.cpus))
            return ray, True
        try:
            ray.init(address=address, **_QUIET)
        except (ConnectionError, RuntimeError, ValueError, ray.exceptions.AuthenticationError) as error:
            reason = str(error).strip().splitlines()[0]
            raise UnavailableError(
                f"no Ray cluster answers: {reason}",
                where=address,
                hint=f"Start one with `ray start --head`, and give this machine its token (RAY_AUTH_TOKEN). {_DOCS}",
            ) from None
        _require_token(ray)
        return ray, True

    def _room(self, ray: ModuleType) -> int:
        """How many actors to start: none that would only wait for its place."""
        has = ray.cluster_resources()
        room = int(has.get("CPU", 0) // self.cpus)
        if self.gpus:
            room = min(room, int(has.get("GPU", 0) / self.gpus))
        if room < 1:
            raise UnavailableError(
                f"the cluster has {has.get('CPU', 0):g} cores and {has.get('GPU', 0):g} GPUs, a worker needs "
                f"{self.cpus:g} and {self.gpus:g}",
                hint="Add nodes, or ask for less per worker",
            )
        return room if self.workers is None else min(room, self.workers)

    def _environment(self) -> dict[str, str]:
        """Set before a worker loads torch, so that workers share a machine's cores instead of fighting for them."""
        return {"OMP_NUM_THREADS": str(self.cores_each), storage.CACHE: str(storage.cache())}

    # ---- one item ----------------------------------------------------------------------------------------------

    def _ended(self, ray: ModuleType, busy: dict[Any, _Task]) -> list[tuple[_Task, Any]]:
        """Wait until a worker has answered, was lost, or has run out of time; (task, answer or what went wrong)."""
        left = None
        if self.timeout_s is not None:
            left = max(0.0, min(task.began for task in busy.values()) + self.timeout_s - time.monotonic())
        ready, _ = ray.wait(list(busy), num_returns=1, timeout=left)
        ended = []
        for reference in ready:
            try:
                answer = ray.get(reference)
            except ray.exceptions.RayError as error:  # the worker, its node or its memory is gone
                answer = error
            ended.append((busy.pop(reference), answer))
        now = time.monotonic()
        for reference, task in list(busy.items()):
            if self.timeout_s is not None and now - task.began >= self.timeout_s:
                ray.kill(task.actor)
                ended.append((busy.pop(reference), TimeoutError()))
        return ended

    def _collect(
        self, task: _Task, answer: Any, waiting: deque[tuple[Any, int]]
    ) -> tuple[Done[Any, Any] | Failed[Any] | None, bool]:
        """What became of an item (None: it is tried again), and whether its worker lives."""
        if isinstance(answer, TimeoutError):
            return Failed(task.item, f"no answer within {self.timeout_s:g} s; its worker was stopped"), False
        if isinstance(answer, Exception):
            if task.tries < self.retries:
                waiting.appendleft((task.item, task.tries + 1))
                return None, False
            return Failed(task.item, f"its worker was lost {task.tries + 1} times ({type(answer).__name__})"), False
        good, *payload = answer
        return (Done(task.item, payload[0]) if good else Failed(task.item, payload[0], payload[1])), True


@dataclass
class _Task:
    actor: Any
    item: Any
    tries: int
    began: float = field(default_factory=time.monotonic)


class _Actor:
    """A worker: one item at a time, in the folder of the command, so that relative paths mean the same."""

    def __init__(self, folder: str) -> None:
        with suppress(OSError):  # a node without that folder gets absolute paths, or says which one it lacks
            os.chdir(folder)

    def run(self, fn: Callable[[Any], Any], item: Any) -> tuple[Any, ...]:
        """(True, result), or (False, reason, trace): errors travel as text, never as objects."""
        try:
            return True, fn(item)
        except Exception as error:  # reported to the driver, which goes on with the batch
            return False, describe(error), traceback.format_exc()


def _import_ray() -> ModuleType:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing connects anywhere unless asked
    try:
        import ray
    except ImportError:
        raise UnavailableError("Ray is not installed", hint="Install it with pip install 'marble-wsi[ray]'") from None
    refuse_older("ray", ray.__version__)
    return ray


def start_local(ray: ModuleType, cpus: int | None) -> None:
    """Start a cluster of this machine alone, with a token that nobody else has."""
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    for left in reversed(range(STARTS)):
        try:
            ray.init(address="local", num_cpus=cpus, include_dashboard=False, **_QUIET)
            return
        except Exception as error:  # what Ray raises here has no type of its own
            ray.shutdown()
            if not left:
                reason = str(error).strip().splitlines()[0]
                raise UnavailableError(
                    f"Ray did not start on this machine: {reason}",
                    hint="Try again when the machine is less busy, or work with --workers instead of --ray",
                ) from None


def _require_token(ray: ModuleType) -> None:
    """Refuse a cluster whose own processes do not ask for a token: everybody who reaches its ports could run code."""
    mode = ray.get(ray.remote(_auth_mode).options(num_cpus=0).remote())
    if mode != "token":
        ray.shutdown()
        raise UnavailableError(
            "this Ray cluster asks nobody for a token, so everybody who reaches its ports can run code on it",
            hint=f"Start it with RAY_AUTH_MODE=token on every node. {_DOCS}",
        )


def _auth_mode() -> str | None:
    return os.environ.get("RAY_AUTH_MODE")
