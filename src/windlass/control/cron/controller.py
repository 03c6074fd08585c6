"""CronRun: creates its Runs on schedule.

The name of a Run is derived from its time on the schedule, so creation is idempotent: after a crash
between creating the Run and recording the start, the second creation finds the first. Everything is
read from the store itself, not from a cache, because a stale `lastScheduleTime` after the Run is
deleted would start it again.

`control.manager` runs `CronRuns.reconcile`; changes of CronRuns and of their Runs wake it.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from windlass.control.cron import schedule
from windlass.control.runtime import controller, event_recorder
from windlass.kinds import reasons
from windlass.kinds.types import cronrun, meta, run
from windlass.kinds.values import times
from windlass.store import errors, interface

log = logging.getLogger(__name__)

NAME = "cronruns"
ANNOTATION_SCHEDULED = "windlass.dev/scheduled-at"
LONGEST_SLEEP = 300.0
"""Seconds: bounds the delay after a change of the wall clock or a suspend of the machine."""


class CronRuns:
    """The reconciler; `now` is the wall clock."""

    def __init__(
        self, store: interface.Store, now: Callable[[], datetime.datetime] = times.now
    ) -> None:
        self._store = store
        self._now = now

    async def reconcile(self, key: controller.Key) -> controller.Result:
        namespace, name = key
        try:
            cron = await self._store.get(cronrun.CronRun, name, namespace)
        except errors.NotFound:
            return controller.DONE
        if cron.metadata.deletion_timestamp:
            return controller.DONE
        now = self._now()
        try:
            plan = schedule.due(cron.spec, _last_start(cron), now)
        except schedule.ScheduleError as error:
            await self._cannot_schedule(cron, str(error))
            return controller.DONE
        runs = await self._own_runs(cron)
        before = msgspec.to_builtins(cron.status)
        following = None if cron.spec.suspend else plan.next
        cron.status.next_schedule_time = None if following is None else times.seconds(following)
        if cron.spec.suspend:
            _set_condition(
                cron, "False", reasons.Reason.SUSPENDED, "suspended by spec.suspend", self._now()
            )
        elif plan.start is not None:
            runs = await self._start(cron, plan.start, plan.missed, runs)
        elif _reason(cron) == reasons.Reason.SUSPENDED:
            _set_condition(cron, "True", reasons.Reason.ASSIGNED, "released", self._now())
        if plan.too_late is not None and not cron.spec.suspend:
            await self._record_event(
                cron, event_recorder.WARNING, reasons.Reason.MISSED_START,
                f"the start of {times.seconds(plan.too_late)} was missed by more than "
                f"{cron.spec.starting_deadline} and is skipped",
            )  # fmt: skip
        await self._write_status(cron, before, runs)
        await self._trim_history(cron, runs)
        if plan.next is None or cron.spec.suspend:
            return controller.DONE
        # A little after the second: waking before it would find nothing due.
        wait = (plan.next - now).total_seconds() + 0.01
        return controller.again(min(LONGEST_SLEEP, wait))

    async def _start(
        self, cron: cronrun.CronRun, at: datetime.datetime, missed: int, runs: list[run.Run]
    ) -> list[run.Run]:
        """Creates the Run of this start, as the concurrency policy allows; returns all Runs
        afterwards."""
        wanted = run_name(cron.name, at)
        active = [r for r in runs if not r.finished and r.name != wanted]
        if active and cron.spec.concurrency_policy == "Forbid":
            why = f"the start of {times.seconds(at)} waits: {active[0].name} has not ended"
            await self._record_event(
                cron, event_recorder.NORMAL, reasons.Reason.LAST_NOT_ENDED, why
            )
            _set_condition(cron, "False", reasons.Reason.LAST_NOT_ENDED, why, self._now())
            return runs
        if active and cron.spec.concurrency_policy == "Replace":
            for old in active:
                await self._stop(old)
        made = await self._create(cron, at)
        if missed:
            more = "at least " if missed + 1 >= schedule.COUNT_LIMIT else ""
            await self._record_event(
                cron, event_recorder.WARNING, reasons.Reason.MISSED_START,
                f"{more}{missed} earlier starts were missed; made up only for {times.seconds(at)}",
            )  # fmt: skip
        cron.status.last_schedule_time = times.seconds(at)
        _set_condition(cron, "True", reasons.Reason.ASSIGNED, f"made {made.name}", self._now())
        return [r for r in runs if r.name != made.name] + [made]

    async def _create(self, cron: cronrun.CronRun, at: datetime.datetime) -> run.Run:
        template = cron.spec.template
        extra = template.metadata or cronrun.TemplateMeta()
        wanted = run.Run(
            metadata=meta.ObjectMeta(
                name=run_name(cron.name, at),
                namespace=cron.namespace,
                labels={**(extra.labels or {}), cronrun.LABEL_CRONRUN: cron.name},
                annotations={
                    **(extra.annotations or {}), ANNOTATION_SCHEDULED: times.seconds(at)
                },
                owner_references=[_owner(cron)],
            ),
            spec=template.spec,
        )  # fmt: skip
        try:
            made = await self._store.create(wanted)
        except errors.AlreadyExists:
            found = await self._store.get(run.Run, wanted.name, wanted.namespace)
            if not _is_owned(found, cron):
                raise
            return found
        log.info("cronrun %s/%s started %s", cron.namespace, cron.name, made.name)
        return made

    async def _own_runs(self, cron: cronrun.CronRun) -> list[run.Run]:
        found = await self._store.list(
            run.Run, cron.namespace, label_selector=f"{cronrun.LABEL_CRONRUN}={cron.name}"
        )
        return [r for r in found.items if _is_owned(r, cron)]

    async def _write_status(
        self, cron: cronrun.CronRun, before: dict[str, Any], runs: list[run.Run]
    ) -> None:
        active = [
            cronrun.ActiveRun(name=r.name, uid=r.uid)
            for r in sorted(runs, key=lambda r: r.name)
            if not r.finished and not r.metadata.deletion_timestamp
        ]
        cron.status.active = active or None
        cron.status.observed_generation = cron.metadata.generation
        await self._patch_status(cron, before)

    async def _cannot_schedule(self, cron: cronrun.CronRun, why: str) -> None:
        before = msgspec.to_builtins(cron.status)
        cron.status.next_schedule_time = None
        cron.status.observed_generation = cron.metadata.generation
        _set_condition(cron, "False", reasons.Reason.UNSUPPORTED, why, self._now())
        await self._patch_status(cron, before)

    async def _patch_status(self, cron: cronrun.CronRun, before: dict[str, Any]) -> None:
        after = msgspec.to_builtins(cron.status)
        if after == before:
            return
        # Without a resourceVersion: only this reconciler, of one leader, writes this status.
        gone = dict.fromkeys(before.keys() - after.keys())
        await self._store.patch(
            cronrun.CronRun, cron.name, cron.namespace,
            patch={"status": gone | after}, subresource="status",
        )  # fmt: skip

    async def _trim_history(self, cron: cronrun.CronRun, runs: list[run.Run]) -> None:
        ended = sorted((r for r in runs if r.finished), key=_scheduled_at)
        good = [r for r in ended if r.status.phase == "Succeeded"]
        bad = [r for r in ended if r.status.phase != "Succeeded"]
        surplus = _all_but_last(good, cron.spec.successful_history_limit)
        surplus += _all_but_last(bad, cron.spec.failed_history_limit)
        for old in surplus:
            await self._delete(old)

    async def _stop(self, old: run.Run) -> None:
        """Stops it by the checkpoint contract; the object stays as a record."""
        if old.spec.stop or old.metadata.deletion_timestamp:
            return
        try:
            await self._store.patch(
                run.Run, old.name, old.namespace,
                patch={"metadata": {"uid": old.uid}, "spec": {"stop": True}},
            )  # fmt: skip
        except errors.NotFound:
            return

    async def _delete(self, old: run.Run) -> None:
        try:
            await self._store.delete(
                run.Run, old.name, old.namespace, preconditions=interface.Preconditions(uid=old.uid)
            )
        except errors.NotFound:
            return

    async def _record_event(
        self, cron: cronrun.CronRun, kind: str, reason: reasons.Reason, message: str
    ) -> None:
        await event_recorder.record(self._store, cron, kind, reason, message, NAME)


def run_name(cron_name: str, at: datetime.datetime) -> str:
    """`NAME-yymmdd-hhmm` in UTC: one name per time on a schedule, which has whole minutes."""
    return f"{cron_name}-{at.astimezone(datetime.UTC):%y%m%d-%H%M}"


def owner_key(made: run.Run) -> controller.Key | None:
    """The key of the CronRun that created this Run, to wake it."""
    for owner in made.metadata.owner_references or ():
        if owner.kind == cronrun.CronRun.resource.kind and owner.controller:
            return made.namespace, owner.name
    return None


def _last_start(cron: cronrun.CronRun) -> datetime.datetime:
    last = cron.status.last_schedule_time or cron.metadata.creation_timestamp
    assert last is not None, "every stored object has a creation time"  # noqa: S101
    return times.parse(last)


def _scheduled_at(made: run.Run) -> str:
    return (made.metadata.annotations or {}).get(ANNOTATION_SCHEDULED, "")


def _all_but_last(runs: list[run.Run], kept: int) -> list[run.Run]:
    return runs[: max(0, len(runs) - kept)]


def _owner(cron: cronrun.CronRun) -> meta.OwnerReference:
    resource = cron.resource
    return meta.OwnerReference(
        api_version=resource.api_version,
        kind=resource.kind,
        name=cron.name,
        uid=cron.uid,
        controller=True,
        block_owner_deletion=True,
    )


def _is_owned(made: run.Run, cron: cronrun.CronRun) -> bool:
    return any(owner.uid == cron.uid for owner in made.metadata.owner_references or ())


def _reason(cron: cronrun.CronRun) -> str:
    """The reason of the condition `Scheduled`, "" if there is none."""
    return next((c.reason for c in cron.status.conditions or () if c.type == "Scheduled"), "")


def _set_condition(
    cron: cronrun.CronRun, status: str, reason: str, message: str, now: datetime.datetime
) -> None:
    """Sets the condition `Scheduled`; its time changes only with its status."""
    old = next((c for c in cron.status.conditions or () if c.type == "Scheduled"), None)
    since = old.last_transition_time if old and old.status == status else times.seconds(now)
    cron.status.conditions = [
        meta.Condition(
            type="Scheduled",
            status=status,
            reason=reason,
            message=message,
            observed_generation=cron.metadata.generation,
            last_transition_time=since,
        )
    ]
