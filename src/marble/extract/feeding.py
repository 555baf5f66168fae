"""Batches for accelerators: one thread feeds each device, and tokens come back in the order of the batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import TypeVar

from marble.encoders import Encoder
from marble.encoders.encoder import Tiles, Tokens
from marble.encoders.feed import SETS, Feed, Take

Name = TypeVar("Name")
_Asked = tuple[Tiles, "Future[Tokens]"]


def fed(encoder: Encoder, batches: Iterable[tuple[Name, Tiles]]) -> Iterator[tuple[Name, Tokens]]:
    """Tokens of named batches, in their order; at most two for each device and one more are held at a time.

    An error is raised in the place of the batch it happened in, after every device has let go of what it was given.
    """
    asked: SimpleQueue[_Asked | None] = SimpleQueue()
    running: deque[tuple[Name, Future[Tokens]]] = deque()
    with ThreadPoolExecutor(len(encoder.feeds), thread_name_prefix="marble-feeder") as threads:
        for feed in encoder.feeds:
            threads.submit(_serve, encoder, feed, asked)
        try:
            for name, tiles in batches:
                answer: Future[Tokens] = Future()
                running.append((name, answer))
                asked.put((tiles, answer))
                if len(running) > SETS * len(encoder.feeds):
                    first, done = running.popleft()
                    yield first, done.result()
            while running:
                first, done = running.popleft()
                yield first, done.result()
        finally:
            for _, answer in running:
                answer.cancel()
            for _ in encoder.feeds:
                asked.put(None)


def _serve(encoder: Encoder, feed: Feed, asked: SimpleQueue[_Asked | None]) -> None:
    """Feed one device, once no other slide does."""
    with feed.lock:
        _serve_alone(encoder, feed, asked)


def _serve_alone(encoder: Encoder, feed: Feed, asked: SimpleQueue[_Asked | None]) -> None:
    """Queue batches on one device. Tokens are taken when the next batch is queued, or when there is none yet."""
    under_way: deque[tuple[Future[Tokens], Take]] = deque()
    while True:
        try:
            request = asked.get(block=not under_way)
        except Empty:
            _answer(*under_way.popleft())
            continue
        if request is None:
            break
        tiles, answer = request
        if not answer.set_running_or_notify_cancel():
            continue
        try:
            under_way.append((answer, encoder.begin(feed, tiles)))
        except BaseException as error:
            answer.set_exception(error)
        if len(under_way) == SETS:
            _answer(*under_way.popleft())
    while under_way:
        _answer(*under_way.popleft())


def _answer(answer: Future[Tokens], take: Callable[[], Tokens]) -> None:
    try:
        answer.set_result(take())
    except BaseException as error:
        answer.set_exception(error)
