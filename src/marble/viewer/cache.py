"""A cache bounded by bytes: the least recently used goes first."""

from __future__ import annotations

from collections.abc import Hashable
from threading import Lock

from cachetools import LRUCache


class ByteCache:
    """Bytes by key, at most `max_bytes` in all; safe from several threads."""

    def __init__(self, max_bytes: int) -> None:
        self._items: LRUCache[Hashable, bytes] = LRUCache(max_bytes, getsizeof=len)
        self._lock = Lock()

    @property
    def held_bytes(self) -> int:
        return int(self._items.currsize)

    def get(self, key: Hashable) -> bytes | None:
        with self._lock:
            return self._items.get(key)

    def put(self, key: Hashable, value: bytes) -> None:
        """Keep `value`; one that is larger than the whole cache is not kept."""
        with self._lock:
            if len(value) <= self._items.maxsize:
                self._items[key] = value
