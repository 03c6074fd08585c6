"""Leader election by Lease: of many candidates one writes.

A candidate takes the lease only after it has seen it unchanged for the whole lease duration by its
own monotonic clock; it never compares its wall clock with times of another machine. It watches the
lease, so that it counts from the moment of the last renewal and not from its next poll, and sees a
release at once. A leader counts from before it sent its last successful renewal, and stops at
`renew_deadline`, which is shorter than the lease: so it has stopped before another candidate can
begin, whatever the network did.

Each term has an epoch, `leaseTransitions`, which grows with every change of leader. `control.
manager` runs the controllers inside a term; `Guarded` is the store they write through.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Any, TypeVar

from windlass.control.runtime import work_report
from windlass.kinds.types import core, meta
from windlass.kinds.values import times
from windlass.store import errors, interface

log = logging.getLogger(__name__)

T = TypeVar("T", bound=meta.Object)

_TROUBLE = (errors.ApiError, OSError, TimeoutError)


class LeadershipLostError(errors.Unavailable):
    """A write was refused because the term may have ended; the present leader will do it."""


def steady_clock() -> float:
    """Monotonic seconds that also advance while the machine is suspended: leases do, too."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@dataclasses.dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. `retry` < `renew_deadline` < `lease`: the gap is the safety margin."""

    lease: float = 15.0
    renew_deadline: float = 10.0
    retry: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.retry < self.renew_deadline < self.lease:
            raise ValueError(f"need 0 < retry < renew_deadline < lease, got {self}")


class Term:
    """One uninterrupted leadership."""

    def __init__(self, epoch: int, ends: float, clock: Callable[[], float]) -> None:
        self.epoch = epoch
        self.lost = asyncio.Event()
        self._ends = ends
        self._clock = clock

    def remaining(self) -> float:
        """Seconds in which this leader may still write."""
        return 0.0 if self.lost.is_set() else max(0.0, self._ends - self._clock())

    def limit(self) -> Limit:
        """Work inside ends with the term: LeadershipLostError if it is not finished."""
        return Limit(self)

    def over(self) -> LeadershipLostError:
        return LeadershipLostError(
            f"the term of epoch {self.epoch} is over; the next leader carries on"
        )

    def extend(self, ends: float) -> None:
        self._ends = ends


class Limit:
    """See `Term.limit`. A class, not a generator: every write goes through it."""

    __slots__ = ("_term", "_timeout")

    def __init__(self, term: Term) -> None:
        self._term = term

    async def __aenter__(self) -> None:
        left = self._term.remaining()
        if left <= 0:
            raise self._term.over()
        self._timeout = asyncio.timeout(left)
        await self._timeout.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError as late:
            raise self._term.over() from late
        if isinstance(error, TimeoutError):
            raise self._term.over() from error


class Election:
    """A candidate for one lease.

    No two live candidates may share an identity: a candidate that finds the lease under its own
    takes
    it at once, as the earlier process with that identity must have ended.
    """

    def __init__(
        self,
        store: interface.Store,
        name: str,
        namespace: str,
        identity: str,
        *,
        timing: Timing | None = None,
        clock: Callable[[], float] = steady_clock,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._store = store
        self._name, self._namespace, self.identity = name, namespace, identity
        self._timing = timing or Timing()
        self._clock = clock
        self._sleep = sleep
        self._seen: tuple[Any, ...] = ()
        self._free_at = 0.0
        """When the last observed lease will have been unchanged for its whole duration."""
        self._given_back = asyncio.Event()
        self.report: Callable[[], str] | None = None
        """The report of its work that each renewal writes; None: no work has begun."""
        self.trouble = "it has not requested the lease yet"
        """Why the lease could not be read or written the last time; "" if it could."""

    async def run(self, lead: Callable[[Term], Awaitable[None]]) -> None:
        """Leads whenever possible, until cancelled: `lead` is called once per term and cancelled
        when the term is lost. If `lead` itself returns or fails, so does `run`."""
        while True:
            async with self.term() as term:
                leading = asyncio.ensure_future(lead(term))
                losing = asyncio.create_task(term.lost.wait())
                try:
                    await asyncio.wait({leading, losing}, return_when=asyncio.FIRST_COMPLETED)
                    if leading.done():
                        return leading.result()
                    log.warning("%s: lost the lease %s", self.identity, self._name)
                finally:
                    losing.cancel()
                    leading.cancel()
                    await asyncio.gather(leading, losing, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def term(self) -> AsyncIterator[Term]:
        """Waits for leadership, renews it inside the block, releases it after it."""
        term = await self._acquire()
        log.info("%s: leads %s, epoch %d", self.identity, self._name, term.epoch)
        renewing = asyncio.create_task(self._renew_until_lost(term), name=f"renew-{self._name}")
        try:
            yield term
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
            if not term.lost.is_set():
                term.lost.set()
                await self._release()

    async def _acquire(self) -> Term:
        following: asyncio.Task[None] | None = None
        try:
            while True:
                self._given_back.clear()
                try:
                    term = await self._try_acquire()
                    self.trouble = ""
                except _TROUBLE as error:
                    self._note("cannot take", error)
                    term = None
                if term is not None:
                    return term
                if following is None or following.done():
                    following = asyncio.create_task(self._follow(), name=f"follow-{self._name}")
                await self._pause()
        finally:
            if following is not None:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)

    async def _follow(self) -> None:
        """Watches the lease. A candidate that cannot watch polls it instead."""
        one = f"metadata.name={self._name}"
        try:
            async for event in self._store.watch(core.Lease, self._namespace, field_selector=one):
                exists = event.type in ("ADDED", "MODIFIED")
                if event.type == "DELETED" or (exists and self._is_free(event.object.spec)):
                    self._given_back.set()
        except _TROUBLE as error:
            log.debug("%s cannot follow the lease %s: %s", self.identity, self._name, error)

    async def _pause(self) -> None:
        """Waits until the lease may be free, but not for long: a watch may hang silently."""
        left, retry = self._free_at - self._clock(), self._timing.retry
        sleeping = asyncio.ensure_future(self._sleep(left if 0 < left < retry else retry))
        given_back = asyncio.create_task(self._given_back.wait())
        try:
            await asyncio.wait({sleeping, given_back}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (sleeping, given_back):
                each.cancel()
            await asyncio.gather(sleeping, given_back, return_exceptions=True)

    def _note(self, what: str, error: Exception) -> None:
        """A conflict means that another candidate was faster: no trouble."""
        problem = f"{what} the lease {self._name}: {error or type(error).__name__}"
        if isinstance(error, errors.Conflict | errors.AlreadyExists):
            log.debug("%s %s", self.identity, problem)
            return
        if problem != self.trouble:
            log.warning("%s %s", self.identity, problem)
        self.trouble = problem

    async def _try_acquire(self) -> Term | None:
        """A term if the lease is free or was not renewed for its whole duration."""
        try:
            lease = await self._store.get(core.Lease, self._name, self._namespace)
        except errors.NotFound:
            started = self._clock()
            lease = core.Lease(
                metadata=meta.ObjectMeta(name=self._name, namespace=self._namespace),
                spec=self._spec(epoch=1, acquired=True),
            )
            await self._store.create(lease)
            return self._begin(1, started)
        if not self._is_free(lease.spec):
            return None
        started = self._clock()
        epoch = (lease.spec.lease_transitions or 0) + 1
        (lease.metadata.annotations or {}).pop(work_report.ANNOTATION, None)  # of another leader
        # The resourceVersion that was read makes this fail if another candidate was faster.
        lease.spec = self._spec(epoch=epoch, acquired=True)
        await self._store.replace(lease)
        return self._begin(epoch, started)

    def _is_free(self, spec: core.LeaseSpec) -> bool:
        if spec.holder_identity in (None, "", self.identity):
            return True
        record = (spec.holder_identity, spec.renew_time, spec.acquire_time, spec.lease_transitions)
        now = self._clock()
        if record != self._seen:
            self._seen = record
            self._free_at = now + float(spec.lease_duration_seconds or self._timing.lease)
        return now >= self._free_at

    def _begin(self, epoch: int, started: float) -> Term:
        return Term(epoch, started + self._timing.renew_deadline, self._clock)

    async def _renew_until_lost(self, term: Term) -> None:
        while True:
            await self._sleep(min(self._timing.retry, term.remaining()))
            if term.remaining() <= 0:
                break
            started = self._clock()
            try:
                async with asyncio.timeout(term.remaining()):
                    if not await self._renew(term.epoch):
                        break
            except _TROUBLE as error:
                self._note("cannot renew", error)
                continue
            self.trouble = ""
            term.extend(started + self._timing.renew_deadline)
        term.lost.set()

    async def _renew(self, epoch: int) -> bool:
        """Renews the lease; returns whether this process still has it."""
        lease = await self._store.get(core.Lease, self._name, self._namespace)
        if not self._is_ours(lease.spec, epoch):
            return False
        fresh = self._spec(epoch=epoch, acquired=False)
        fresh.acquire_time = lease.spec.acquire_time
        lease.spec = fresh
        if self.report is not None:
            reported = {work_report.ANNOTATION: self.report()}
            lease.metadata.annotations = (lease.metadata.annotations or {}) | reported
        await self._store.replace(lease)
        return True

    async def _release(self) -> None:
        """Releases the lease so that the next leader need not wait; if that fails, it waits."""
        try:
            async with asyncio.timeout(self._timing.retry):
                while not await self._gave_back():
                    pass
        except _TROUBLE as error:
            log.debug("%s: could not give back %s: %s", self.identity, self._name, error)

    async def _gave_back(self) -> bool:
        """False: it changed meanwhile. A renewal that was cancelled with the term may still have
        arrived."""
        lease = await self._store.get(core.Lease, self._name, self._namespace)
        epoch = lease.spec.lease_transitions or 0
        if self._is_ours(lease.spec, epoch):
            lease.spec.holder_identity = ""
            try:
                await self._store.replace(lease)
            except errors.Conflict:
                return False
        return True

    def _is_ours(self, spec: core.LeaseSpec, epoch: int) -> bool:
        return spec.holder_identity == self.identity and spec.lease_transitions == epoch

    def _spec(self, *, epoch: int, acquired: bool) -> core.LeaseSpec:
        now = times.micros(times.now())
        return core.LeaseSpec(
            holder_identity=self.identity,
            lease_duration_seconds=math.ceil(self._timing.lease),
            acquire_time=now if acquired else None,
            renew_time=now,
            lease_transitions=epoch,
        )


class Guarded:
    """A store that writes only while a term lasts; reads pass through.

    A write without a response at the end of the term is cancelled, so that a client that retries
    cannot
    send it again in the term of another leader.
    """

    def __init__(self, store: interface.Store, term: Term) -> None:
        self._store, self._term = store, term
        self.get = store.get
        self.list = store.list
        self.watch = store.watch
        self.close = store.close

    async def create(self, obj: T, *, dry_run: bool = False) -> T:
        async with self._term.limit():
            return await self._store.create(obj, dry_run=dry_run)

    async def replace(self, obj: T, *, subresource: str = "", dry_run: bool = False) -> T:
        async with self._term.limit():
            return await self._store.replace(obj, subresource=subresource, dry_run=dry_run)

    async def patch(
        self,
        kind: type[T],
        name: str,
        namespace: str = "",
        *,
        patch: interface.MergePatch | interface.JsonPatch,
        subresource: str = "",
        dry_run: bool = False,
    ) -> T:
        async with self._term.limit():
            return await self._store.patch(
                kind, name, namespace, patch=patch, subresource=subresource, dry_run=dry_run
            )

    async def delete(
        self,
        kind: type[T],
        name: str,
        namespace: str = "",
        *,
        propagation: interface.Propagation = "Background",
        preconditions: interface.Preconditions | None = None,
        grace_seconds: int | None = None,
        dry_run: bool = False,
    ) -> T | None:
        async with self._term.limit():
            return await self._store.delete(
                kind,
                name,
                namespace,
                propagation=propagation,
                preconditions=preconditions,
                grace_seconds=grace_seconds,
                dry_run=dry_run,
            )

    async def create_subresource(
        self, kind: type[T], name: str, namespace: str, subresource: str, body: dict[str, Any]
    ) -> object:
        async with self._term.limit():
            return await self._store.create_subresource(kind, name, namespace, subresource, body)
