"""Seats and queues of requests: which caller's request executes next.

One event loop executes all requests, so one caller's thousand requests would all run before the
next caller's one. Here a request beyond its caller's burst waits in a queue of this caller, and in
each pass of the loop one waiting request per priority level starts, callers in turn. A caller that
had nothing executing goes before those that had, as sparse flows do in FQ-CoDel.

A request that finds its caller idle and nothing waiting passes with two additions and a lookup.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import time
from collections.abc import AsyncIterator, Mapping

from windlass.server.fairness.settings import DEFAULTS, NAME, NAMESPACE, LevelLimits, Settings
from windlass.store import errors
from windlass.telemetry.prometheus import Registry

RETRY_SECONDS = 1.0
"""The Retry-After of a refused request."""
PARSING = "parsing"
"""The level of large bodies: one is parsed at a time, callers in turn."""
_PARSING_LIMITS = LevelLimits(1, 1, 1, 256, 30, 0, 0)
PACED_FROM = 8
"""A caller with more open streams than this takes turns to write to them."""
_WAITS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0)


class Flow:
    """The requests of one caller at one level."""

    __slots__ = ("connections", "executing", "level", "name", "queued", "streams", "waiting")

    def __init__(self, level: Level, name: str) -> None:
        self.level = level
        self.name = name
        self.executing = 0
        self.streams = 0
        self.connections = 0
        self.waiting: collections.deque[asyncio.Future[None]] = collections.deque()
        self.queued = False
        """The flow is in one of its level's two lists."""

    def enter_now(self) -> bool:
        """Takes a seat if one is free, nothing waits and the burst is not used up."""
        level = self.level
        limits = level.limits
        if level.waiting or self.executing >= limits.burst or level.executing >= limits.seats:
            return False
        self.executing += 1
        level.executing += 1
        return True

    @property
    def idle(self) -> bool:
        return not (self.executing or self.streams or self.connections or self.waiting)

    @property
    def paced(self) -> bool:
        """Its streams take turns."""
        return self.streams > PACED_FROM and self.level.limits.burst <= PACED_FROM


class Level:
    """A priority level: its flows, its seats."""

    def __init__(self, queues: RequestQueues, name: str, limits: LevelLimits) -> None:
        self.queues = queues
        self.name = name
        self.limits = limits
        self.executing = 0
        self.waiting = 0
        self.flows: dict[str, Flow] = {}
        self._sparse: collections.deque[Flow] = collections.deque()
        """Flows that had nothing when their request came."""
        self._busy: collections.deque[Flow] = collections.deque()

    def enqueue(self, flow: Flow, *, sparse: bool = False) -> None:
        """The flow has a waiting request; called again after a request of it ended. `sparse`: it
        had nothing before."""
        if not flow.queued and flow.waiting and flow.executing < self.limits.user_seats:
            (self._sparse if sparse else self._busy).append(flow)
            flow.queued = True

    def next_waiting(self) -> tuple[Flow, asyncio.Future[None]] | None:
        """Takes the request that starts next; None: none may start now."""
        while self.executing < self.limits.seats and (self._sparse or self._busy):
            flow = (self._sparse or self._busy).popleft()
            flow.queued = False
            while flow.waiting:
                waiter = flow.waiting.popleft()
                self.waiting -= 1
                if not waiter.done():
                    return flow, waiter
        return None

    @property
    def startable(self) -> bool:
        return bool(self._sparse or self._busy) and self.executing < self.limits.seats


class RequestQueues:
    """All levels of one server."""

    def __init__(self, registry: Registry, settings: Settings = DEFAULTS) -> None:
        limits = {**settings.levels, PARSING: _PARSING_LIMITS}
        self.levels = {name: Level(self, name, each) for name, each in limits.items()}
        self._dispatching = False
        self._executing = registry.gauge(
            "windlass_api_seats_in_use", "Requests that execute, by priority level.", ("level",)
        )
        self._queued = registry.gauge(
            "windlass_api_requests_waiting", "Requests that wait for a seat.", ("level",)
        )
        self._streams = registry.gauge(
            "windlass_api_streams_open", "Watches, logs, sessions and long polls.", ("level",)
        )
        self._callers = registry.gauge(
            "windlass_api_callers", "Callers with a request, a stream or a connection.", ("level",)
        )
        self._refused = registry.counter(
            "windlass_api_requests_refused_total", "Requests refused with 429.", ("level", "limit")
        )
        self._waited = registry.histogram(
            "windlass_api_wait_seconds", "Wait of queued requests for a seat.", ("level",), _WAITS
        )

    def apply(self, levels: Mapping[str, LevelLimits]) -> None:
        """Other limits, from now on."""
        for name, limits in levels.items():
            self.levels[name].limits = limits
        self._dispatch_later()

    def flow(self, level: str, name: str) -> Flow:
        chosen = self.levels[level]
        found = chosen.flows.get(name)
        if found is None:
            found = chosen.flows[name] = Flow(chosen, name)
        return found

    async def enter(self, flow: Flow) -> None:
        """Returns when a request of the flow may execute; `leave` must follow. TooManyRequests if
        too many wait, or it waited too long."""
        if not flow.enter_now():
            await self._wait(flow)

    @contextlib.asynccontextmanager
    async def parsing(self, flow: Flow) -> AsyncIterator[None]:
        """Around the parsing of a large body: one at a time, callers in turn."""
        own = self.flow(PARSING, flow.name)
        await self.enter(own)
        try:
            yield
        finally:
            self.leave(own)

    def leave(self, flow: Flow) -> None:
        level = flow.level
        flow.executing -= 1
        level.executing -= 1
        if flow.waiting:
            level.enqueue(flow)
        if level.waiting:
            self._dispatch_later()
        self.forget(flow)

    def open_stream(self, flow: Flow) -> None:
        """One watch, log, session or long poll more. TooManyRequests beyond the limit."""
        limit = flow.level.limits.watches
        if flow.streams >= limit:
            raise self.refusal(
                flow, "watches", f"has {limit} watches and sessions open; close some"
            )
        flow.streams += 1

    def close_stream(self, flow: Flow) -> None:
        flow.streams -= 1
        self.forget(flow)

    def forget(self, flow: Flow) -> None:
        """Drops a flow without anything left."""
        if flow.idle and flow.level.flows.get(flow.name) is flow:
            del flow.level.flows[flow.name]

    def refusal(self, flow: Flow, limit: str, what: str) -> errors.TooManyRequests:
        level = flow.level.name
        self._refused.add(level, limit)
        return errors.TooManyRequests(
            f"{flow.name or 'the caller'} {what}, or ask an administrator to raise "
            f"{level}.{limit} in ConfigMap {NAMESPACE}/{NAME}",
            retry_after=RETRY_SECONDS,
        )

    def publish(self) -> None:
        """Sets the gauges; called before the metrics are rendered."""
        for name, level in self.levels.items():
            self._executing.set(name, to=level.executing)
            self._queued.set(name, to=level.waiting)
            self._streams.set(name, to=sum(flow.streams for flow in level.flows.values()))
            self._callers.set(name, to=len(level.flows))

    async def turn(self, flow: Flow) -> None:
        """Returns when it is the flow's turn, however many of its requests wait: for the next piece
        of a stream."""
        waiter = self._enqueue(flow)
        try:
            await waiter
        except BaseException:
            self._abandon(flow, waiter)
            raise
        self.leave(flow)

    async def _wait(self, flow: Flow) -> None:
        level = flow.level
        if len(flow.waiting) >= level.limits.queue:
            raise self.refusal(
                flow, "queue", f"has {len(flow.waiting)} requests waiting; send fewer at once"
            )
        waiter = self._enqueue(flow)
        began = time.monotonic()
        try:
            async with asyncio.timeout(level.limits.wait_seconds):
                await waiter
        except TimeoutError:
            self._abandon(flow, waiter)
            raise self.refusal(
                flow, "waitSeconds", "has more requests than the server can answer; send fewer"
            ) from None
        except BaseException:  # the client is gone
            self._abandon(flow, waiter)
            raise
        self._waited.observe(level.name, value=time.monotonic() - began)

    def _enqueue(self, flow: Flow) -> asyncio.Future[None]:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        sparse = not flow.executing and not flow.waiting
        flow.waiting.append(waiter)
        flow.level.waiting += 1
        flow.level.enqueue(flow, sparse=sparse)
        self._dispatch_later()
        return waiter

    def _abandon(self, flow: Flow, waiter: asyncio.Future[None]) -> None:
        if waiter.done() and not waiter.cancelled():
            self.leave(flow)  # the seat was granted in the same pass
            return
        waiter.cancel()
        if waiter in flow.waiting:
            flow.waiting.remove(waiter)
            flow.level.waiting -= 1
        self.forget(flow)

    def _dispatch_later(self) -> None:
        if not self._dispatching and any(level.startable for level in self.levels.values()):
            self._dispatching = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    def _dispatch(self) -> None:
        """Starts one waiting request of each level. The next one starts in the next pass of the
        loop: requests that arrive meanwhile are read before it."""
        self._dispatching = False
        for level in self.levels.values():
            found = level.next_waiting()
            if found is not None:
                flow, waiter = found
                flow.executing += 1
                level.executing += 1
                waiter.set_result(None)
                level.enqueue(flow)
        self._dispatch_later()
