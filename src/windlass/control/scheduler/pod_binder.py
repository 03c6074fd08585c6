"""Carries out what was decided about other people's pods: binds, evicts, nominates, tells why.

The binding is the record: it names the pod's uid, so another pod of the same name is never bound,
and carries the devices as an annotation. Victims go through pods/eviction, which asks their
disruption budgets; a refusal is waited out. A gang that is there only in part when its time is over
is evicted as a whole.
"""

from __future__ import annotations

import datetime
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from windlass.control import (
    claiming,
    events,
    foreign,
    members,
    podbook,
    podunits,
    snapshots,
    summaries,
)
from windlass.control.runs import all_of
from windlass.core import facts
from windlass.kinds import kubernetes, meta, times
from windlass.kinds.reasons import Reason
from windlass.store import client, errors

log = logging.getLogger(__name__)

NAME = "windlass-scheduler"
SCHEDULED, UNSCHEDULABLE = "PodScheduled", "Unschedulable"
AT_ONCE = 64
"""Bindings under way at the same time."""
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 300.0
"""Seconds before a binding that was refused is tried again: doubling each time."""
REFUSED_FOR = 10.0
"""Seconds before a pod whose eviction was refused is asked to go again."""


class Binder:
    """One per leader's term; the scheduler's loop calls it."""

    def __init__(
        self,
        store: client.Store,
        book: podbook.PodBook,
        now: Callable[[], datetime.datetime],
        clock: Callable[[], float] = time.monotonic,
        nodes: Callable[[str], facts.Node | None] = lambda _: None,
    ) -> None:
        self._store, self._book, self._now, self._clock = store, book, now, clock
        self._nodes = nodes
        self.placed = summaries.Summaries(store)
        self._refused: dict[str, float] = {}
        """Uid of a pod -> the time before which its eviction is not asked for again."""
        self._unadmitted: dict[str, tuple[float, float]] = {}
        """Uid of a pod whose binding was refused -> when it may be tried again, by the steady
        clock, and after how many seconds."""
        self._partial: dict[str, tuple[float, float]] = {}
        """Gangs that are there in part -> since when by the wall clock, which may be set; and when
        their time is over by the steady one."""
        self._first_look = True

    # --- binding

    async def place(self, placements: Iterable[facts.Placement]) -> list[float]:
        """Binds all; what changed meanwhile is left to the next decision. When to come again for
        those whose binding was refused."""
        ready = [
            each
            for placement in placements
            if not self._is_held_back(placement)
            for each in await self._supplied(placement)
        ]
        await all_of((self._bind(pod, seat) for pod, seat in ready), at_once=AT_ONCE)
        known = self._book.pods
        self._unadmitted = {uid: told for uid, told in self._unadmitted.items() if uid in known}
        wall, steady = self._now().timestamp(), self._clock()
        return [wall + at - steady for at, _ in self._unadmitted.values() if at > steady]

    async def _supplied(
        self, placement: facts.Placement
    ) -> list[tuple[kubernetes.Pod, facts.Seat]]:
        """The pods of a unit and their seats. None of them if claims of any still wait for their
        volumes: these are provided for its node first, and when they are there, we come again."""
        found = [
            (pod, seat)
            for seat in placement.seats
            if (pod := self._member(placement.unit, seat.role, seat.index)) is not None
        ]
        wanting = [each for each in found if self._book.lacks_volumes(each[0])]
        for pod, seat in wanting:
            node = self._nodes(seat.node)
            if node is not None:
                names = foreign.claims(pod)
                await claiming.provide(self._store, self._book.volumes, pod.namespace, names, node)
        return [] if wanting else found

    async def _bind(self, pod: kubernetes.Pod, seat: facts.Seat) -> None:
        devices = snapshots.device_names(seat.grants)
        metadata: dict[str, Any] = {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid}
        if devices:
            metadata["annotations"] = {members.ANNOTATION_DEVICES: ",".join(devices)}
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": metadata,
            "target": {"apiVersion": "v1", "kind": "Node", "name": seat.node},
        }
        try:
            await self._store.create_subresource(
                kubernetes.Pod, pod.name, pod.namespace, "binding", body
            )
        except (errors.Conflict, errors.NotFound) as error:
            # It is gone, going, or bound by somebody else; the watch will say which.
            log.info("pod %s/%s was not bound: %s", pod.namespace, pod.name, error.message)
            return
        except (errors.Forbidden, errors.Invalid, errors.BadRequest) as error:
            await self._not_admitted(pod, error)
            return
        self._unadmitted.pop(pod.uid, None)
        self._book.bound(pod.uid, seat.node, devices)
        self.placed.note(pod, seat.node)

    def _is_held_back(self, placement: facts.Placement) -> bool:
        """Whether the binding of a member was refused just now: the others of its gang wait with
        it, because half of it would have to go again."""
        if not self._unadmitted:
            return False
        steady = self._clock()
        members_of = self._book.seats_of(placement.unit).values()
        return any(self._unadmitted.get(uid, (0.0, 0.0))[0] > steady for uid in members_of)

    async def _not_admitted(self, pod: kubernetes.Pod, error: errors.ApiError) -> None:
        """A policy or a webhook refuses the binding: it is tried again, later each time, and
        keeps nobody else."""
        _, before = self._unadmitted.get(pod.uid, (0.0, 0.0))
        pause = min(LONGEST_PAUSE, before * 2) or FIRST_PAUSE
        self._unadmitted[pod.uid] = self._clock() + pause, pause
        log.info("pod %s/%s may not be bound: %s", pod.namespace, pod.name, error.message)
        await self.tell(f"{podunits.POD}{pod.uid}", Reason.ADMISSION_REFUSED, error.message)

    def _member(self, unit: str, role: str, index: int) -> kubernetes.Pod | None:
        """The pod that a seat is for, if it still waits."""
        uid = self._book.seats_of(unit).get((role, index), "")
        pod = self._book.pods.get(uid)
        return pod if pod is not None and not pod.spec.node_name else None

    # --- making room

    async def evict(self, eviction: facts.Eviction) -> None:
        """Those of a unit's pods that must go; all of a gang if it would be left in part."""
        seats = self._book.seats_of(eviction.unit)
        uids = [uid for where, uid in seats.items() if where in eviction.seats]
        await self._evict_all(uids, eviction.reason)

    async def end_partial_gangs(self) -> float | None:
        """Evicts what there is of gangs whose time to be whole is over; when to come again."""
        now, moments = self._now().timestamp(), []
        for key, left in self._partial_gangs(now):
            if left > 0:
                moments.append(now + left)
                continue
            bound = [
                uid
                for uid in self._book.seats_of(key).values()
                if (pod := self._book.pods.get(uid)) is not None and pod.spec.node_name
            ]
            words = "its gang could not be completed in time"
            await self._evict_all(bound, words)
            moments.append(now + REFUSED_FOR)
        return min(moments, default=None)

    def _partial_gangs(self, now: float) -> list[tuple[str, float]]:
        """Gangs that are there in part, and the seconds that each has left. What a leader before
        saw is told by the wall clock alone; from then on the steady one counts, because the other
        may be set."""
        steady, before = self._clock(), self._partial
        self._partial = {}
        for key, since, timeout in self._book.partial_gangs():
            passed = min(max(0.0, now - since), timeout) if self._first_look else 0.0
            known = before.get(key)
            due = known[1] if known and known[0] == since else steady + timeout - passed
            self._partial[key] = since, due
        self._first_look = False
        return [(key, due - steady) for key, (_, due) in self._partial.items()]

    async def _evict_all(self, uids: Iterable[str], words: str) -> None:
        now = self._now().timestamp()
        self._refused = {uid: at for uid, at in self._refused.items() if at > now}
        pods = (self._book.pods.get(uid) for uid in uids if uid not in self._refused)
        await all_of(
            self._evict_one(pod, words)
            for pod in pods
            if pod is not None and not pod.metadata.deletion_timestamp
        )

    async def _evict_one(self, pod: kubernetes.Pod, words: str) -> None:
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
        try:
            await self._store.create_subresource(
                kubernetes.Pod, pod.name, pod.namespace, "eviction", body
            )
        except errors.TooManyRequests as error:
            # A disruption budget says no; it is asked again when the decision still wants it.
            self._refused[pod.uid] = self._now().timestamp() + REFUSED_FOR
            log.info("pod %s/%s stays for now: %s", pod.namespace, pod.name, error.message)
        except (errors.Conflict, errors.NotFound):
            return
        else:
            log.info("pod %s/%s was evicted: %s", pod.namespace, pod.name, words)
            await events.tell(self._store, pod, events.NORMAL, "Preempted", words, NAME)

    # --- nominations

    async def nominate(self, nomination: facts.Nomination) -> bool:
        """Writes down for whom room is being freed; whether all of it is written."""
        written = [
            await self._nominate_one(pod, seat)
            for seat in nomination.seats
            if (pod := self._member(nomination.unit, seat.role, seat.index)) is not None
        ]
        return bool(written) and all(written)

    async def withdraw(self, unit: str) -> None:
        """Nobody makes room for the unit any more."""
        for uid in self._book.seats_of(unit).values():
            pod = self._book.pods.get(uid)
            if pod is not None and pod.status.nominated_node_name and not pod.spec.node_name:
                await self._patch(pod, {"status": {"nominatedNodeName": None}})

    async def _nominate_one(self, pod: kubernetes.Pod, seat: facts.Seat) -> bool:
        devices = ",".join(snapshots.device_names(seat.grants))
        told = (pod.metadata.annotations or {}).get(members.ANNOTATION_NOMINATED, "")
        if pod.status.nominated_node_name == seat.node and told == devices:
            return True
        patch: dict[str, Any] = {"status": {"nominatedNodeName": seat.node}}
        if told != devices:
            patch["metadata"] = {"annotations": {members.ANNOTATION_NOMINATED: devices or None}}
        return await self._patch(pod, patch)

    # --- words

    def unsaid(self, unit: str, verdict: facts.Verdict, *, is_head: bool) -> list[tuple[bool, str]]:
        """The unit's pods that have not been told why they wait, and whether the reason is new.
        Numbers that only change are told to the heads of queues."""
        found = []
        for uid in self._book.seats_of(unit).values():
            pod = self._book.pods.get(uid)
            if pod is None or pod.spec.node_name or pod.metadata.deletion_timestamp:
                continue
            told = _condition(pod)
            known = told.message if told is not None and told.status == "False" else ""
            new = not known.startswith(f"{verdict.reason}:")
            if new or (is_head and known != _words(verdict.reason, verdict.message)):
                found.append((new, f"{podunits.POD}{uid}"))
        return found

    async def tell(self, key: str, reason: str, message: str) -> None:
        """PodScheduled is False, as kube-scheduler says it: autoscalers read this."""
        pod = self._book.pods.get(key.removeprefix(podunits.POD))
        if pod is None or pod.spec.node_name or pod.metadata.deletion_timestamp:
            return
        known, moment = _condition(pod), times.seconds(self._now())
        was = known.last_transition_time if known and known.status == "False" else None
        ours = meta.Condition(
            type=SCHEDULED,
            status="False",
            reason=UNSCHEDULABLE,
            message=_words(reason, message),
            last_transition_time=was or moment,
        )
        others = [each for each in pod.status.conditions or () if each.type != SCHEDULED]
        listed = msgspec.to_builtins([*others, ours])
        await self._patch(pod, {"status": {"conditions": listed}})

    async def _patch(self, pod: kubernetes.Pod, patch: dict[str, Any]) -> bool:
        metadata = {**patch.get("metadata", {}), "uid": pod.uid}
        metadata["resourceVersion"] = pod.metadata.resource_version
        try:
            written = await self._store.patch(
                kubernetes.Pod, pod.name, pod.namespace, subresource="status",
                patch={**patch, "metadata": metadata},
            )  # fmt: skip
        except (errors.Conflict, errors.NotFound):
            return False  # it changed since; the change is on its way to us
        self._book.wrote(written)
        return True


def _condition(pod: kubernetes.Pod) -> meta.Condition | None:
    return next((each for each in pod.status.conditions or () if each.type == SCHEDULED), None)


def _words(reason: str, message: str) -> str:
    return f"{reason}: {message}"
