"""How many objects, and how many bytes of them, each namespace has in the store.

Counted once when the store is opened, then kept up to date by every commit.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable

from windlass.store.embedded.mvcc import ADDED, DELETED, Revision


class NamespaceUsage:
    def __init__(self, counted: Iterable[tuple[str, str, int, int]]) -> None:
        """`counted`: resource, namespace, objects, bytes."""
        self._objects: collections.Counter[tuple[str, str]] = collections.Counter()
        self._bytes: collections.Counter[str] = collections.Counter()
        for resource, namespace, objects, size in counted:
            self._objects[resource, namespace] += objects
            self._bytes[namespace] += size

    def observe(self, changes: Iterable[Revision]) -> None:
        for each in changes:
            key = each.key
            if each.event == DELETED:
                self._objects[key.resource, key.namespace] -= 1
                self._bytes[key.namespace] -= len(each.previous or b"")
                continue
            if each.event == ADDED:
                self._objects[key.resource, key.namespace] += 1
            self._bytes[key.namespace] += len(each.data) - len(each.previous or b"")

    def objects(self, resource: str, namespace: str) -> int:
        return self._objects[resource, namespace]

    def bytes(self, namespace: str) -> int:
        return self._bytes[namespace]
