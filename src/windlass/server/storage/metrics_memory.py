"""Node metrics in the memory of one server. After a restart every node reports within a minute."""

from __future__ import annotations

import time
from collections.abc import Callable

from windlass.server.storage.interfaces import FRESH_SECONDS


class InMemoryNodeMetrics:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._reports: dict[str, tuple[float, bytes]] = {}

    async def put(self, node: str, report: bytes) -> int:
        self._reports[node] = (self._clock(), report)
        return len(self._reports)

    async def fresh(self) -> dict[str, bytes]:
        oldest = self._clock() - FRESH_SECONDS
        self._reports = {name: each for name, each in self._reports.items() if each[0] > oldest}
        return {name: report for name, (_, report) in self._reports.items()}
