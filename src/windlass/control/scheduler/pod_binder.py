"""Carries out decisions about external pods: binds, evicts, nominates, and writes why they wait.

The binding is the record: it names the pod's uid, so another pod of the same name is never bound,
and carries the devices as an annotation. Victims go through pods/eviction, which asks their
disruption budgets; a refused eviction is tried again later. A gang that is still incomplete at its
timeout is evicted as a whole.
"""

from __future__ import annotations

import datetime
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from windlass.control.convert import external_pods, pod_workloads, run_workloads
from windlass.control.model import members
from windlass.control.runtime import event_recorder
from windlass.control.runtime.concurrency import all_of
from windlass.control.scheduler import event_summaries
from windlass.control.scheduler.cache import pod_cache
from windlass.control.volumes import binding
from windlass.core.model import types
from windlass.kinds.reasons import Reason
from windlass.kinds.types import core, meta
from windlass.kinds.values import times
from windlass.store import errors, interface

log = logging.getLogger(__name__)

NAME = "windlass-scheduler"
SCHEDULED, UNSCHEDULABLE = "PodScheduled", "Unschedulable"
FAILED_SCHEDULING = "FailedScheduling"
"""The reason of the event, as kube-scheduler names it."""
AT_ONCE = 64
"""Bindings in flight at the same time."""
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 300.0
"""Seconds before a binding that was refused is tried again: doubling each time."""
REFUSED_FOR = 10.0
"""Seconds before a refused eviction is tried again."""


class Binder:
    """One per leader's term; the scheduler's loop calls it."""

    def __init__(
        self,
        store: interface.Store,
        pod_cache: pod_cache.PodCache,
        now: Callable[[], datetime.datetime],
        clock: Callable[[], float] = time.monotonic,
        nodes: Callable[[str], types.Node | None] = lambda _: None,
    ) -> None:
        self._store, self._pods, self._now, self._clock = store, pod_cache, now, clock
        self._nodes = nodes
        self.bindings = event_summaries.Summaries(store)
        self._refused: dict[str, float] = {}
        """Uid of a pod -> the time before which its eviction is not asked for again."""
        self._unadmitted: dict[str, tuple[float, float]] = {}
        """Uid of a pod whose binding was refused -> when it may be tried again, by the steady
        clock, and after how many seconds."""
        self._partial: dict[str, tuple[float, float]] = {}
        """Incomplete gangs -> since when by the wall clock, which may be set; and when their
        timeout ends by the monotonic one."""
        self._first_seen = True

    # --- binding

    async def place(self, placements: Iterable[types.Placement]) -> list[float]:
        """Binds all; pods that changed meanwhile are left to the next decision. Returns when
        refused bindings may be tried again."""
        ready = [
            each
            for placement in placements
            if not self._is_held_back(placement)
            for each in await self._supplied(placement)
        ]
        await all_of((self._bind(pod, assigned) for pod, assigned in ready), at_once=AT_ONCE)
        known = self._pods.pods
        self._unadmitted = {
            uid: recorded for uid, recorded in self._unadmitted.items() if uid in known
        }
        wall, steady = self._now().timestamp(), self._clock()
        return [wall + at - steady for at, _ in self._unadmitted.values() if at > steady]

    async def _supplied(
        self, placement: types.Placement
    ) -> list[tuple[core.Pod, types.PodAssignment]]:
        """The pods of a workload with their assignments. None of them if claims of any have no
        volumes yet: these are provided for its node first, and the workload is decided again."""
        found = [
            (pod, assigned)
            for assigned in placement.pods
            if (pod := self._member(placement.workload, assigned.role, assigned.index)) is not None
        ]
        wanting = [each for each in found if self._pods.lacks_volumes(each[0])]
        for pod, assigned in wanting:
            node = self._nodes(assigned.node)
            if node is not None:
                names = external_pods.claims(pod)
                await binding.provide(self._store, self._pods.volumes, pod.namespace, names, node)
        return [] if wanting else found

    async def _bind(self, pod: core.Pod, assigned: types.PodAssignment) -> None:
        devices = run_workloads.device_names(assigned.grants)
        metadata: dict[str, Any] = {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid}
        if devices:
            metadata["annotations"] = {members.ANNOTATION_DEVICES: ",".join(devices)}
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": metadata,
            "target": {"apiVersion": "v1", "kind": "Node", "name": assigned.node},
        }
        try:
            await self._store.create_subresource(core.Pod, pod.name, pod.namespace, "binding", body)
        except (errors.Conflict, errors.NotFound) as error:
            # It is gone, terminating, or bound by another scheduler; the informer will show which.
            log.info("pod %s/%s was not bound: %s", pod.namespace, pod.name, error.message)
            return
        except (errors.Forbidden, errors.Invalid, errors.BadRequest) as error:
            await self._not_admitted(pod, error)
            return
        self._unadmitted.pop(pod.uid, None)
        self._pods.bound(pod.uid, assigned.node, devices)
        self.bindings.note(pod, assigned.node)

    def _is_held_back(self, placement: types.Placement) -> bool:
        """Whether the binding of a member was refused just now: the others of its gang wait with
        it, because half of it would have to go again."""
        if not self._unadmitted:
            return False
        steady = self._clock()
        members_of = self._pods.pods_of(placement.workload).values()
        return any(self._unadmitted.get(uid, (0.0, 0.0))[0] > steady for uid in members_of)

    async def _not_admitted(self, pod: core.Pod, error: errors.ApiError) -> None:
        """A policy or a webhook refuses the binding: it is tried again, later each time. Other
        pods are bound meanwhile."""
        _, before = self._unadmitted.get(pod.uid, (0.0, 0.0))
        pause = min(LONGEST_PAUSE, before * 2) or FIRST_PAUSE
        self._unadmitted[pod.uid] = self._clock() + pause, pause
        log.info("pod %s/%s may not be bound: %s", pod.namespace, pod.name, error.message)
        await self.set_unschedulable(
            f"{pod_workloads.POD}{pod.uid}", Reason.ADMISSION_REFUSED, error.message
        )

    def _member(self, workload: str, role: str, index: int) -> core.Pod | None:
        """The pod that an assignment is for, if it still waits."""
        uid = self._pods.pods_of(workload).get((role, index), "")
        pod = self._pods.pods.get(uid)
        return pod if pod is not None and not pod.spec.node_name else None

    # --- evictions

    async def evict(self, eviction: types.Eviction) -> None:
        """Evicts the chosen pods of a workload."""
        pods = self._pods.pods_of(eviction.workload)
        uids = [uid for where, uid in pods.items() if where in eviction.pods]
        await self._evict_all(uids, eviction.reason)

    async def end_partial_gangs(self) -> float | None:
        """Evicts gangs that are incomplete at their timeout. Returns when to check again."""
        now, moments = self._now().timestamp(), []
        for key, left in self._partial_gangs(now):
            if left > 0:
                moments.append(now + left)
                continue
            bound = [
                uid
                for uid in self._pods.pods_of(key).values()
                if (pod := self._pods.pods.get(uid)) is not None and pod.spec.node_name
            ]
            message = "its gang could not be completed in time"
            await self._evict_all(bound, message)
            moments.append(now + REFUSED_FOR)
        return min(moments, default=None)

    def _partial_gangs(self, now: float) -> list[tuple[str, float]]:
        """Incomplete gangs, and the seconds that each has left. For gangs from before this leader
        only the wall clock is known; from then on the monotonic one counts, because the wall clock
        may be set."""
        steady, before = self._clock(), self._partial
        self._partial = {}
        for key, since, timeout in self._pods.partial_gangs():
            passed = min(max(0.0, now - since), timeout) if self._first_seen else 0.0
            known = before.get(key)
            due = known[1] if known and known[0] == since else steady + timeout - passed
            self._partial[key] = since, due
        self._first_seen = False
        return [(key, due - steady) for key, (_, due) in self._partial.items()]

    async def _evict_all(self, uids: Iterable[str], message: str) -> None:
        now = self._now().timestamp()
        self._refused = {uid: at for uid, at in self._refused.items() if at > now}
        pods = (self._pods.pods.get(uid) for uid in uids if uid not in self._refused)
        await all_of(
            self._evict_one(pod, message)
            for pod in pods
            if pod is not None and not pod.metadata.deletion_timestamp
        )

    async def _evict_one(self, pod: core.Pod, message: str) -> None:
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
        try:
            await self._store.create_subresource(
                core.Pod, pod.name, pod.namespace, "eviction", body
            )
        except errors.TooManyRequests as error:
            # A disruption budget forbids it; it is tried again if the next decision evicts it, too.
            self._refused[pod.uid] = self._now().timestamp() + REFUSED_FOR
            log.info("pod %s/%s stays for now: %s", pod.namespace, pod.name, error.message)
        except (errors.Conflict, errors.NotFound):
            return
        else:
            log.info("pod %s/%s was evicted: %s", pod.namespace, pod.name, message)
            await event_recorder.record(
                self._store, pod, event_recorder.NORMAL, "Preempted", message, NAME
            )

    # --- nominations

    async def nominate(self, nomination: types.Nomination) -> bool:
        """Writes the nominated nodes of the pods. Returns whether all are written."""
        written = [
            await self._nominate_one(pod, assigned)
            for assigned in nomination.pods
            if (pod := self._member(nomination.workload, assigned.role, assigned.index)) is not None
        ]
        return bool(written) and all(written)

    async def clear_nomination(self, workload: str) -> None:
        """No capacity is freed for the workload any more."""
        for uid in self._pods.pods_of(workload).values():
            pod = self._pods.pods.get(uid)
            if pod is not None and pod.status.nominated_node_name and not pod.spec.node_name:
                await self._patch(pod, {"status": {"nominatedNodeName": None}})

    async def _nominate_one(self, pod: core.Pod, assigned: types.PodAssignment) -> bool:
        devices = ",".join(run_workloads.device_names(assigned.grants))
        recorded = (pod.metadata.annotations or {}).get(members.ANNOTATION_NOMINATED, "")
        if pod.status.nominated_node_name == assigned.node and recorded == devices:
            return True
        patch: dict[str, Any] = {"status": {"nominatedNodeName": assigned.node}}
        if recorded != devices:
            patch["metadata"] = {"annotations": {members.ANNOTATION_NOMINATED: devices or None}}
        return await self._patch(pod, patch)

    # --- why pods wait

    def outdated(
        self, workload: str, verdict: types.Verdict, *, is_head: bool
    ) -> list[tuple[bool, str]]:
        """Pods of the workload whose condition is out of date, and whether the reason is new. A
        message that changes only in its numbers is written for heads of queues only."""
        found = []
        for uid in self._pods.pods_of(workload).values():
            pod = self._pods.pods.get(uid)
            if pod is None or pod.spec.node_name or pod.metadata.deletion_timestamp:
                continue
            recorded = _condition(pod)
            known = recorded.message if recorded is not None and recorded.status == "False" else ""
            new = not known.startswith(f"{verdict.reason}:")
            if new or (is_head and known != _condition_message(verdict.reason, verdict.message)):
                found.append((new, f"{pod_workloads.POD}{uid}"))
        return found

    async def set_unschedulable(self, key: str, reason: str, message: str) -> int:
        """Sets PodScheduled to False as kube-scheduler does: autoscalers read this. A new reason
        is an event too, which `kubectl describe` shows. Returns the number of writes."""
        pod = self._pods.pods.get(key.removeprefix(pod_workloads.POD))
        if pod is None or pod.spec.node_name or pod.metadata.deletion_timestamp:
            return 0
        known, moment = _condition(pod), times.seconds(self._now())
        was = known.last_transition_time if known and known.status == "False" else None
        ours = meta.Condition(
            type=SCHEDULED,
            status="False",
            reason=UNSCHEDULABLE,
            message=_condition_message(reason, message),
            last_transition_time=was or moment,
        )
        others = [each for each in pod.status.conditions or () if each.type != SCHEDULED]
        listed = msgspec.to_builtins([*others, ours])
        if not await self._patch(pod, {"status": {"conditions": listed}}):
            return 1
        if known is not None and known.message.startswith(f"{reason}:"):
            return 1
        await event_recorder.record(
            self._store, pod, event_recorder.WARNING, FAILED_SCHEDULING, ours.message, NAME
        )
        return 2

    async def _patch(self, pod: core.Pod, patch: dict[str, Any]) -> bool:
        metadata = {**patch.get("metadata", {}), "uid": pod.uid}
        metadata["resourceVersion"] = pod.metadata.resource_version
        try:
            written = await self._store.patch(
                core.Pod, pod.name, pod.namespace, subresource="status",
                patch={**patch, "metadata": metadata},
            )  # fmt: skip
        except (errors.Conflict, errors.NotFound):
            return False  # it changed since; the change is on its way to us
        self._pods.assume(written)
        return True


def _condition(pod: core.Pod) -> meta.Condition | None:
    return next((each for each in pod.status.conditions or () if each.type == SCHEDULED), None)


def _condition_message(reason: str, message: str) -> str:
    return f"{reason}: {message}"
