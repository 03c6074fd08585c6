"""Tells the server what this node of Kubernetes and its pods use; `agent.cluster` runs it.

The agent tells and is not asked: so it listens nowhere, and whoever answers for the server takes
it. The server says when it wants to hear again, by how many nodes there are.
"""

from __future__ import annotations

import asyncio
import logging
import time
import urllib.parse
from typing import Protocol

import msgspec

from windlass.agent import rates, usage
from windlass.store import errors
from windlass.store.kubernetes.client import KubernetesStore

log = logging.getLogger(__name__)

_PATH = "/apis/platform.windlass.dev/v1alpha1/nodemetrics/"
_FIRST = 1.0
"""Seconds of the first window: whoever has just started tells soon."""
_SHORTEST, _LONGEST = 1.0, 300.0
_RETRY = 30.0


class Measuring(Protocol):
    def measure(self) -> usage.Measured: ...


class Answer(msgspec.Struct, rename="camel"):
    """To a report: when the next one is wanted."""

    next_seconds: float


class Reports:
    def __init__(self, store: KubernetesStore, node: str, meter: Measuring) -> None:
        self._store = store
        self._path = _PATH + urllib.parse.quote(node)
        self._meter = meter
        self._refused = ""

    async def run(self) -> None:
        """Until cancelled."""
        before, pause = await self._look(), _FIRST
        while True:
            await asyncio.sleep(pause)
            after = await self._look()
            pause = await self._tell(rates.between(before, after))
            before = after

    async def _look(self) -> rates.Look:
        measured = await asyncio.to_thread(self._meter.measure)
        return rates.Look(time.monotonic(), usage.summary(measured))

    async def _tell(self, told: rates.Rates) -> float:
        """How many seconds to wait."""
        refused = ""
        try:
            status, _, body = await self._store.raw(
                "PUT", self._path, body=msgspec.json.encode(told)
            )
            if status < 300:
                wanted = msgspec.json.decode(body, type=Answer).next_seconds
                return min(_LONGEST, max(_SHORTEST, wanted))
            refused = f"the server answered {status}"
        except errors.ApiError as problem:
            refused = problem.message
        except msgspec.MsgspecError as problem:
            refused = f"the server's answer cannot be read: {problem}"
        finally:
            if refused and refused != self._refused:
                log.warning("what this node uses cannot be told: %s", refused)
            self._refused = refused
        return _RETRY
