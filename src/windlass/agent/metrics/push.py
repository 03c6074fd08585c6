"""Pushes the usage of a Kubernetes node and its pods to the server; run by `agent.daemonset.main`.

The agent pushes and is not scraped: it needs no open port, and any replica of the server takes the
report. The server's response sets the time of the next report, by the number of nodes.
"""

from __future__ import annotations

import asyncio
import logging
import time
import urllib.parse
from typing import Protocol

import msgspec

from windlass.agent.metrics import usage
from windlass.store import errors
from windlass.store.kubernetes.client import KubernetesStore
from windlass.telemetry import usage_rates

log = logging.getLogger(__name__)

_PATH = "/apis/platform.windlass.dev/v1alpha1/nodemetrics/"
_FIRST = 1.0
"""Seconds of the first window: an agent that has just started reports soon."""
_SHORTEST, _LONGEST = 1.0, 300.0
_RETRY = 30.0


class NodeMeter(Protocol):
    def measure(self) -> usage.NodeMeasurement: ...


class ReportResponse(msgspec.Struct, rename="camel"):
    """The server's response: seconds until the next report."""

    next_seconds: float


class MetricsPush:
    def __init__(self, store: KubernetesStore, node: str, meter: NodeMeter) -> None:
        self._store = store
        self._path = _PATH + urllib.parse.quote(node)
        self._meter = meter
        self._refused = ""

    async def run(self) -> None:
        """Runs until cancelled."""
        before, pause = await self._measure(), _FIRST
        while True:
            await asyncio.sleep(pause)
            after = await self._measure()
            pause = await self._push(usage_rates.between(before, after))
            before = after

    async def _measure(self) -> usage_rates.UsageSnapshot:
        measured = await asyncio.to_thread(self._meter.measure)
        return usage_rates.UsageSnapshot(time.monotonic(), usage.summary(measured))

    async def _push(self, rates: usage_rates.Rates) -> float:
        """Sends one report; returns the seconds until the next one."""
        refused = ""
        try:
            status, _, body = await self._store.raw(
                "PUT", self._path, body=msgspec.json.encode(rates)
            )
            if status < 300:
                wanted = msgspec.json.decode(body, type=ReportResponse).next_seconds
                return min(_LONGEST, max(_SHORTEST, wanted))
            refused = f"the server answered {status}"
        except errors.ApiError as problem:
            refused = problem.message
        except msgspec.MsgspecError as problem:
            refused = f"the server's response is not valid: {problem}"
        finally:
            if refused and refused != self._refused:
                log.warning("the usage of this node is not reported: %s", refused)
            self._refused = refused
        return _RETRY
