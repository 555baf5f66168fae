"""A cache bounded by bytes: the least recently used goes first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock


class ByteCache:
    """Bytes by key, at most `max_bytes` in all; safe from several threads."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0
        self._items: OrderedDict[Hashable, bytes] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Hashable) -> bytes | None:
        with self._lock:
            found = self._items.get(key)
            if found is not None:
                self._items.move_to_end(key)
            return found

    def put(self, key: Hashable, value: bytes) -> None:
        """Keep `value`; one that is larger than the whole cache is not kept."""
        if len(value) > self.max_bytes:
            return
        with self._lock:
            old = self._items.pop(key, None)
            self.held_bytes += len(value) - (0 if old is None else len(old))
            self._items[key] = value
            while self.held_bytes > self.max_bytes:
                _, dropped = self._items.popitem(last=False)
                self.held_bytes -= len(dropped)
