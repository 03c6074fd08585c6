"""The watch cache: recent changes in memory, shared by all watches.

A watch is a cursor: the last revision that it has sent. It reads later changes from the cache and
waits when there are none. The cache has a bounded ring per resource and no state per watch, so a
slow watch costs neither memory nor the time of others. A watch that falls behind the ring reads the
history of the MVCC store instead.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque

from windlass.store.embedded.mvcc import Revision

RING_CHANGES = 2048
RING_BYTES = 8 << 20


class _Ring:
    __slots__ = ("bytes", "changes", "floor", "waiters")

    def __init__(self, floor: int) -> None:
        self.changes: deque[Revision] = deque()
        self.floor = floor
        """Every change after this revision is in the ring."""
        self.bytes = 0
        self.waiters: set[asyncio.Future[None]] = set()

    def append(self, change: Revision) -> None:
        self.changes.append(change)
        self.bytes += len(change.data)
        while len(self.changes) > RING_CHANGES or self.bytes > RING_BYTES:
            oldest = self.changes.popleft()
            self.floor = oldest.rv
            self.bytes -= len(oldest.data)


class WatchCache:
    def __init__(self, last_rv: int) -> None:
        self.latest = last_rv
        """Every change up to here has been published."""
        self._rings: dict[str, _Ring] = defaultdict(lambda: _Ring(last_rv))
        self._closed = False

    def publish(self, changes: list[Revision]) -> None:
        """Adds the changes of one commit, in order, and wakes their watches."""
        touched = set()
        for change in changes:
            self._rings[change.key.resource].append(change)
            touched.add(change.key.resource)
        self.latest = changes[-1].rv
        for resource in touched:
            self._wake(self._rings[resource])

    def after(self, resource: str, cursor: int) -> list[Revision] | None:
        """Changes after `cursor`; None when some of them are no longer in memory."""
        ring = self._rings[resource]
        if cursor < ring.floor:
            return None
        found: list[Revision] = []
        for change in reversed(ring.changes):
            if change.rv <= cursor:
                break
            found.append(change)
        found.reverse()
        return found

    async def wait(self, resource: str, cursor: int, timeout_seconds: float) -> bool:
        """Waits until the resource changes after `cursor` or the cache closes; False on timeout."""
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
