"""Results that are kept because computing them costs more. Standard library only."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Kept(Generic[K, V]):
    """Values by key, up to a number of bytes; the least recently used go first. For use by several threads.

    Args:
        max_bytes: What all values kept may have, by what `put` was told of each.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._lock = threading.Lock()
        self.bytes = 0

    def get(self, key: K) -> V | None:
        """The value, or None."""
        with self._lock:
            found = self._values.get(key)
            if found is None:
                return None
            self._values.move_to_end(key)
            return found[0]

    def put(self, key: K, value: V, size_bytes: int) -> None:
        """Keeps a value, unless it alone is more than all may be."""
        if size_bytes > self._max_bytes:
            return
        with self._lock:
            _, before = self._values.pop(key, (None, 0))
            self._values[key] = (value, size_bytes)
            self.bytes += size_bytes - before
            while self.bytes > self._max_bytes:
                self.bytes -= self._values.popitem(last=False)[1][1]

    def clear(self) -> None:
        """Drops everything."""
        with self._lock:
            self._values.clear()
            self.bytes = 0
