"""Writes of the scheduler into Run statuses, and why each workload waits.

Every write names the resourceVersion that was decided on. A Run that changed meanwhile is left
alone until its change has arrived, and is decided again. Reasons are written at a limited rate:
thousands may wait, and each write delays the next decision.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from windlass.control.convert import pod_workloads, run_workloads
from windlass.control.runtime.concurrency import all_of
from windlass.control.scheduler import assignment, pod_binder, rate_limit
from windlass.control.scheduler.cache import cache
from windlass.core.cycle import cycle as core
from windlass.core.model import types
from windlass.core.snapshot.snapshot import Snapshot
from windlass.kinds.types.run import QueuePlace, Run
from windlass.kinds.values import times
from windlass.store import errors, interface

AT_ONCE = 64
"""Writes in flight at the same time."""
HEADS = 3
"""Workloads at the head of each queue whose status says their place and expected start."""
REASONS_PER_SECOND, REASONS_BESIDE_STARTS = 20, 4
"""Writes of reasons in any second, at most; and while workloads start, whose writes they would
delay."""
MOST_PENDING = 100
"""Reasons that are kept to be written after a decision, at most."""


class StatusWriter:
    def __init__(
        self, store: interface.Store, known: cache.SchedulerCache, written: Callable[[], None]
    ) -> None:
        """`written` is called after each write."""
        self._store, self._cache, self._written = store, known, written
        self.conflicts: set[str] = set()
        """Uids of Runs that changed while we decided: left alone until the change arrives."""

    def current(self, uid: str) -> Run | None:
        """The Run that was decided on; None if it changed since."""
        owner = self._cache.run(uid)
        if owner is None or self.is_stale(uid):
            self.conflicts.add(uid)
            return None
        return owner

    def is_stale(self, uid: str) -> bool:
        return uid in self.conflicts or self._cache.is_changed(uid)

    async def patch(self, owner: Run, status: dict[str, Any]) -> bool:
        """Returns whether the status was written."""
        version = {"resourceVersion": owner.metadata.resource_version}
        try:
            written = await self._store.patch(
                Run, owner.name, owner.namespace, subresource="status",
                patch={"metadata": version, "status": assignment.with_past_nodes(owner, status)},
            )  # fmt: skip
        except (errors.Conflict, errors.NotFound):
            # The informer will show the change, and the scheduler wakes up.
            self.conflicts.add(owner.uid)
            return False
        self._cache.assume(written)
        self._written()
        return True

    async def patch_all(self, patches: Iterable[tuple[Run, dict[str, Any] | None]]) -> None:
        """Skips Runs whose patch is None."""
        due = ((owner, status) for owner, status in patches if status is not None)
        await all_of((self.patch(owner, status) for owner, status in due), AT_ONCE)


@dataclasses.dataclass(frozen=True, slots=True)
class WaitReason:
    """The reason, message and place in the queue in the status of a Run or pod that waits."""

    reason: str
    message: str
    place: QueuePlace | None


@dataclasses.dataclass(frozen=True, slots=True)
class WaitReport:
    """Why workloads wait, by a decision."""

    verdicts: dict[str, types.Verdict]
    """By workload, in the order in which they were considered. Equivalent workloads share one."""
    places: dict[str, QueuePlace]
    """By workload, of the heads of each queue."""


def report(snapshot: Snapshot, done: core.Cycle, decision: types.Decision) -> WaitReport:
    return WaitReport(done.waits(), dict(_places(snapshot, done, decision)))


Outdated = tuple[bool, str, str]
"""Whether the reason is new, the Run or pod whose status is out of date, and its workload."""


class ReasonPublisher:
    """Brings statuses of waiting workloads up to date with the latest decision, a few at a time."""

    def __init__(
        self,
        writer: StatusWriter,
        known: cache.SchedulerCache,
        binder: pod_binder.Binder,
        *,
        now: Callable[[], datetime.datetime],
        clock: Callable[[], float],
    ) -> None:
        self._writer, self._cache, self._binder, self._now = writer, known, binder, now
        self.limiter = rate_limit.RateLimiter(REASONS_PER_SECOND, clock)
        self._pending: list[tuple[str, WaitReason]] = []
        """By uid, the most urgent last."""
        self._report: WaitReport | None = None
        """Of the latest decision, as long as some status is out of date."""

    def replace(self, report: WaitReport) -> None:
        """A later decision: what was pending from earlier ones is dropped."""
        self._pending, self._report = [], report

    async def publish_reasons(self, most: int) -> float | None:
        """Writes as many as the rate allows; returns when to write the rest."""
        while self._pending or self._find_pending():
            pause = self.limiter.pause(most)
            if pause > 0:
                return self._now().timestamp() + pause
            # All at once: the next decision waits for them.
            count = self.limiter.allowed(most)
            due, self._pending = self._pending[-count:], self._pending[:-count]
            await all_of((self._publish(uid, reason) for uid, reason in reversed(due)), AT_ONCE)
        return None

    def _find_pending(self) -> bool:
        if self._report is not None:
            self._pending = self._outdated(self._report)
            if not self._pending:
                self._report = None
        return bool(self._pending)

    def _outdated(self, report: WaitReport) -> list[tuple[str, WaitReason]]:
        """The most urgent last: a new reason before a new message, heads of queues before others.
        No more than can be written soon: a later decision may give better reasons, and without one
        this is called again."""
        verdicts, places = report.verdicts, report.places
        heads = {key: verdicts[key] for key in places if key in verdicts}
        found = list(self._outdated_of(heads, places))
        messages: list[Outdated] = []
        for each in self._outdated_of(verdicts, {}):
            if len(found) >= MOST_PENDING:
                break
            if each[2] in places:
                continue
            if each[0]:
                found.append(each)
            elif len(messages) < MOST_PENDING:
                messages.append(each)
        ordered = sorted([*found, *messages], key=lambda each: (each[0], each[2] in places))
        return [
            (uid, WaitReason(verdicts[key].reason, verdicts[key].message, places.get(key)))
            for _, uid, key in ordered
        ]

    def _outdated_of(
        self, verdicts: Mapping[str, types.Verdict], places: Mapping[str, QueuePlace]
    ) -> Iterator[Outdated]:
        for key, verdict in verdicts.items():
            owner, place = self._cache.run(key), places.get(key)
            if owner is not None:
                if key in self._writer.conflicts:
                    continue
                if not run_workloads.waits(owner):
                    if assignment.incomplete(owner, verdict.reason, verdict.message):
                        yield True, key, key
                    continue
                status, reason = owner.status, verdict.reason
                new = status.reason != reason
                if new or status.message != verdict.message or status.queue != place:
                    yield new, key, key
            elif pod_workloads.is_pods(key):
                for new, pod in self._binder.outdated(key, verdict, is_head=place is not None):
                    yield new, pod, key

    async def _publish(self, uid: str, reason: WaitReason) -> None:
        if pod_workloads.is_pods(uid):
            for _ in range(
                await self._binder.set_unschedulable(uid, reason.reason, reason.message)
            ):
                self.limiter.count()
            return
        owner = self._cache.run(uid)
        if owner is None or uid in self._writer.conflicts:
            return
        if run_workloads.waits(owner):
            patch = _differences(owner, reason)
        else:
            patch = assignment.incomplete(owner, reason.reason, reason.message)
        if patch:
            self.limiter.count()
            await self._writer.patch(owner, patch)


def _places(
    snapshot: Snapshot, done: core.Cycle, decision: types.Decision
) -> Iterator[tuple[str, QueuePlace]]:
    """Position and expected start of the heads of each queue, among those that wait."""
    placed = {placement.workload for placement in decision.placements}
    starts = {each.workload: each.start for each in decision.reservations if each.firm}
    for name in {workload.queue for workload in snapshot.waiting.values()} & snapshot.queues.keys():
        line = [
            workload.key
            for workload in snapshot.pending_in_order(name, done.state.ordering)
            if workload.key not in placed and workload.hold_reason is None
        ]
        for position, key in enumerate(line[:HEADS], 1):
            start = starts.get(key)
            moment = None if start is None else times.seconds(times.from_unix(math.ceil(start)))
            yield key, QueuePlace(position=position, of=len(line), expected_start=moment)


def _differences(owner: Run, wanted: WaitReason) -> dict[str, Any]:
    """The status patch that a Run needs; empty when its status is up to date."""
    status = owner.status
    patch: dict[str, Any] = {}
    if status.reason != wanted.reason:
        patch["reason"] = wanted.reason
    if status.message != wanted.message:
        patch["message"] = wanted.message
    if status.queue != wanted.place:
        place = wanted.place
        patch["queue"] = place and {
            "position": place.position,
            "of": place.of,
            "expectedStart": place.expected_start,
        }
    return patch
