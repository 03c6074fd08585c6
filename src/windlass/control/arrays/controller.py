"""The array controller: executes the plans of `control.arrays.plan`.

The array is read from the store itself, so a step never acts on an outdated record. The Runs of its
indices come from the cache, with those that this controller created and the cache has not shown
yet. The record is written before a Run whose result it has is removed, and each such Run has a
finalizer: a crash at any write leaves either the Run or its result.

Writes the status of arrays, and of no other Run; `status.after` belongs to `control.dependencies`.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from windlass.control.arrays import plan as planning
from windlass.control.dependencies import controller as dependency_controller
from windlass.control.model import array_runs, run_indexes
from windlass.control.runs.controller import status_patch
from windlass.control.runtime import controller, event_recorder, leader_election
from windlass.control.runtime.concurrency import all_of
from windlass.kinds.types import run
from windlass.kinds.values import times
from windlass.store import errors, interface
from windlass.store.informer import Change, Informer

log = logging.getLogger(__name__)

NAME = "arrays"
WRITE_EVERY = 1.0
"""Seconds between writes of the status that have no result of an index."""
_AFTER_CONFLICT = 0.05
_EVENTS = {
    "Running": (event_recorder.NORMAL, "Started"),
    "Succeeded": (event_recorder.NORMAL, "Succeeded"),
    "Failed": (event_recorder.WARNING, "Failed"),
    "Stopped": (event_recorder.NORMAL, "Stopped"),
}


class Arrays:
    """The reconciler."""

    def __init__(
        self,
        store: interface.Store,
        runs: Informer[run.Run],
        *,
        now: Callable[[], datetime.datetime] = times.now,
        clock: Callable[[], float] = leader_election.steady_clock,
    ) -> None:
        self._store = store
        self._runs = runs
        self._now = now
        self._clock = clock
        self._created: dict[str, dict[str, run.Run]] = defaultdict(dict)
        """Uid of an array -> by uid, Runs of indices that the cache has not shown yet."""
        self._removed: set[str] = set()
        """Uids of Runs of indices whose removal was requested."""
        self._written: dict[str, float] = {}
        """Uid of an array -> when its status was last written."""

    def on_run(self, _: Change, before: run.Run | None, after: run.Run | None) -> None:
        """Called for every change that the cache shows."""
        shown = after or before
        assert shown is not None, "a change has an object before or after it"  # noqa: S101
        found = array_runs.identity(shown)
        if found is not None:
            self._created[found.array_uid].pop(shown.uid, None)
            if not self._created[found.array_uid]:
                del self._created[found.array_uid]
        if after is None:
            self._removed.discard(shown.uid)
            self._written.pop(shown.uid, None)

    async def reconcile(self, key: controller.Key) -> controller.Result:
        namespace, name = key
        try:
            array = await self._store.get(run.Run, name, namespace)
        except errors.NotFound:
            array = None
        await self._release_orphans(key, array)
        if array is None or array.spec.array is None:
            return controller.DONE
        children = self._children(array)
        plan = planning.plan(planning.View(array, children, self._now()))
        try:
            pause = await self._write(array, plan, children)
        except errors.Conflict:
            return controller.again(_AFTER_CONFLICT)
        # A write that can wait has no result: the stored record has those of all in `release`.
        await all_of(
            [
                *(self._create(array, index) for index in plan.create),
                *(self._change(child, patch) for child, patch in plan.change),
                *(self._remove(child) for child in plan.release),
            ]
        )
        if plan.delete_array:
            return await self._expire(array)
        wakes = [each for each in (plan.wake, pause) if each is not None]
        return controller.again(min(wakes) + 0.01) if wakes else controller.DONE

    def _children(self, array: run.Run) -> list[run.Run]:
        shown = self._shown(array.namespace, array.name)
        found = {child.uid: child for child in shown if _array_uid(child) == array.uid}
        return [*found.values(), *(
            child for uid, child in self._created.get(array.uid, {}).items() if uid not in found
        )]  # fmt: skip

    def _shown(self, namespace: str, name: str) -> list[run.Run]:
        return self._runs.by(run_indexes.BY_ARRAY, f"{namespace}/{name}")

    async def _write(
        self, array: run.Run, plan: planning.Plan, children: list[run.Run]
    ) -> float | None:
        """Writes the record; or returns when to write it, if that can wait."""
        status: dict[str, Any] = dict(plan.note or {})
        if plan.status is not None:
            status["array"] = _whole(array.status.array, plan.status)
        if plan.has_news:
            status |= planning.past_nodes(array, children)
        if plan.move is not None:
            status |= status_patch(array, plan.move, self._now())
        if not status:
            return None
        left = self._written.get(array.uid, -math.inf) + WRITE_EVERY - self._clock()
        if left > 0 and not plan.has_news and plan.move is None:
            return left
        await self._store.patch(
            run.Run, array.name, array.namespace, subresource="status",
            patch={
                "metadata": {"resourceVersion": array.metadata.resource_version},
                "status": status,
            },
        )  # fmt: skip
        self._written[array.uid] = self._clock()
        if plan.move is not None:
            log.info(
                "array %s/%s: %s -> %s %s", array.namespace, array.name, array.status.phase,
                plan.move.to, plan.move.message,
            )  # fmt: skip
            if plan.move.to in _EVENTS:
                kind, reason = _EVENTS[plan.move.to]
                await event_recorder.record(
                    self._store, array, kind, reason, plan.move.message, NAME
                )
        return None

    async def _create(self, array: run.Run, index: int) -> None:
        for taken in (False, True):
            wanted = array_runs.run_of(array, index, taken=taken)
            try:
                made = await self._store.create(wanted)
            except errors.AlreadyExists:
                made = await self._store.get(run.Run, wanted.name, wanted.namespace)
                found = array_runs.identity(made)
                if found is None or (found.array_uid, found.index) != (array.uid, index):
                    continue  # a Run of its own has this name
            if self._runs.get(made.name, made.namespace) is None:
                self._created[array.uid][made.uid] = made
            return
        raise errors.Conflict(
            f"the names {array_runs.name_of(array, index)} and "
            f"{array_runs.name_of(array, index, taken=True)} belong to other runs"
        )

    async def _change(self, child: run.Run, spec: Mapping[str, Any]) -> None:
        patch = {"metadata": {"uid": child.uid}, "spec": dict(spec)}
        try:
            await self._store.patch(run.Run, child.name, child.namespace, patch=patch)
        except (errors.NotFound, errors.Conflict):
            return  # it is gone: its end is recorded next

    async def _remove(self, child: run.Run) -> None:
        """Removes the finalizer, then the Run; again until the cache shows that it is gone."""
        if child.uid in self._removed:
            return
        # First: the cache may show that it is gone before the answer comes.
        self._removed.add(child.uid)
        try:
            await self._release(child)
        except errors.NotFound:
            pass
        except BaseException:
            self._removed.discard(child.uid)
            raise

    async def _release(self, child: run.Run) -> None:
        names = child.metadata.finalizers or []
        if run.FINALIZER_ARRAY in names:
            path = f"/metadata/finalizers/{names.index(run.FINALIZER_ARRAY)}"
            await self._store.patch(
                run.Run, child.name, child.namespace,
                patch=[
                    {"op": "test", "path": "/metadata/uid", "value": child.uid},
                    {"op": "test", "path": path, "value": run.FINALIZER_ARRAY},
                    {"op": "remove", "path": path},
                ],
            )  # fmt: skip
        if child.metadata.deletion_timestamp is None:
            await self._delete(child)

    async def _release_orphans(self, key: controller.Key, array: run.Run | None) -> None:
        """Runs of an array that was deleted: the garbage collector removes them, and their
        finalizer must not keep them."""
        uid = array.uid if array is not None else ""
        orphans = [child for child in self._shown(*key) if _array_uid(child) != uid]
        await all_of(self._remove(child) for child in orphans)

    async def _expire(self, array: run.Run) -> controller.Result:
        if not dependency_controller.all_recorded(self._runs, array):
            return controller.again(WRITE_EVERY)
        await self._delete(array)
        return controller.DONE

    async def _delete(self, old: run.Run) -> None:
        uid = interface.Preconditions(uid=old.uid)
        with contextlib.suppress(errors.NotFound, errors.Conflict):
            await self._store.delete(run.Run, old.name, old.namespace, preconditions=uid)


def concerns(changed: run.Run) -> list[controller.Key]:
    """The arrays that a change of a Run wakes: itself, or the one that it is an index of."""
    found = array_runs.identity(changed)
    if found is not None:
        return [(changed.namespace, found.array)]
    return [(changed.namespace, changed.name)] if changed.spec.array is not None else []


def _array_uid(child: run.Run) -> str:
    found = array_runs.identity(child)
    return "" if found is None else found.array_uid


def _whole(before: run.ArrayStatus | None, after: run.ArrayStatus) -> dict[str, Any]:
    """A merge patch that replaces the whole record."""
    old: dict[str, Any] = {} if before is None else msgspec.to_builtins(before)
    new: dict[str, Any] = msgspec.to_builtins(after)
    return dict.fromkeys(old) | new
