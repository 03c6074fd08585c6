"""Recent changes in memory, shared by all watchers.

A watcher is a cursor: the last revision it has passed on. It asks the hub for what came after, and
waits here when there is nothing. The hub keeps a bounded ring per resource and nothing per
watcher, so a slow one costs neither memory nor anyone else's time; whoever falls behind the ring
reads the engine's history instead.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque

from windlass.store.embedded.engine import Change

RING_CHANGES = 2048
RING_BYTES = 8 << 20


class _Ring:
    __slots__ = ("bytes", "changes", "floor", "waiters")

    def __init__(self, floor: int) -> None:
        self.changes: deque[Change] = deque()
        self.floor = floor
        """Every change after this revision is in the ring."""
        self.bytes = 0
        self.waiters: set[asyncio.Future[None]] = set()

    def append(self, change: Change) -> None:
        self.changes.append(change)
        self.bytes += len(change.data)
        while len(self.changes) > RING_CHANGES or self.bytes > RING_BYTES:
            oldest = self.changes.popleft()
            self.floor = oldest.rv
            self.bytes -= len(oldest.data)


class Hub:
    def __init__(self, last_rv: int) -> None:
        self.latest = last_rv
        """Every change up to here has been published."""
        self._rings: dict[str, _Ring] = defaultdict(lambda: _Ring(last_rv))
        self._closed = False

    def publish(self, changes: list[Change]) -> None:
        """Takes the changes of one commit, in order, and wakes whoever watches them."""
        touched = set()
        for change in changes:
            self._rings[change.key.resource].append(change)
            touched.add(change.key.resource)
        self.latest = changes[-1].rv
        for resource in touched:
            self._wake(self._rings[resource])

    def after(self, resource: str, cursor: int) -> list[Change] | None:
        """Changes after `cursor`; None when some of them are no longer in memory."""
        ring = self._rings[resource]
        if cursor < ring.floor:
            return None
        found: list[Change] = []
        for change in reversed(ring.changes):
            if change.rv <= cursor:
                break
            found.append(change)
        found.reverse()
        return found

    async def wait(self, resource: str, cursor: int, timeout_seconds: float) -> bool:
        """Until the resource changes after `cursor` or the hub closes (True), or the time is up."""
        ring = self._rings[resource]
        if self._closed or (ring.changes and ring.changes[-1].rv > cursor):
            return True
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ring.waiters.add(future)
        try:
            # Not wait_for: in Python 3.11 it loses a cancellation that comes with the wake-up.
            async with asyncio.timeout(timeout_seconds):
                await future
        except TimeoutError:
            return False
        finally:
            ring.waiters.discard(future)
        return True

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Ends every watch cleanly."""
        self._closed = True
        for ring in self._rings.values():
            self._wake(ring)

    @staticmethod
    def _wake(ring: _Ring) -> None:
        for future in ring.waiters:
            if not future.done():
                future.set_result(None)
