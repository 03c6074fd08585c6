"""Units made of other people's pods: a pod by itself, or a gang of them.

A pod that waits is a unit of one member, a bound pod holds its room; the members of a gang are one
unit from the first to the last. Everything is read from the pods: the binding is the record of what
was decided. Pure, but for `Reader`, which remembers what it has read before.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

from windlass.control import attaching, foreign, gangs, members, snapshots, volumes
from windlass.core import facts
from windlass.kinds import kubernetes, placing, times
from windlass.kinds.reasons import Reason

POD, GANG = "pod/", "gang/"
"""What the keys of units begin with that are pods; those of Runs are their uids."""
ROLE = "pod"
FOREVER = 1e14
DEFAULT_GRACE = 30
"""Seconds, where a pod names none: Kubernetes' own default."""
"""Protected until then: as long as what protects it is there."""
_REMEMBERED = 50_000
_WAITS, _HOLDS = "waits", "holds"

Seats = dict[tuple[str, int], str]
"""(role, index) -> uid of the pod that is this member."""


@dataclasses.dataclass(frozen=True, slots=True)
class Read:
    """A unit and which pod is which of its members."""

    fact: facts.Unit | facts.Running | None
    seats: Seats
    since: float | None = None
    """Of a gang that is there in part: since when; None: it is whole, or not there at all."""


class Reader:
    """Reads pods, and gives pods that are alike one and the same `facts.Role`."""

    def __init__(self, known: volumes.Volumes, attachments: attaching.Attachments) -> None:
        self._roles: dict[object, facts.Role] = {}
        self._read: dict[tuple[str, bytes], facts.Role] = {}
        """What pods that wait, and pods that hold room, ask for, as they say it."""
        self._volumes, self._attachments = known, attachments
        self.namespaces: Mapping[str, Mapping[str, str]] = {}
        """Labels of all namespaces."""
        self.users: Callable[[str, str], set[str]] = lambda _, __: set()
        """Namespace and claim -> uids of pods that are on a node and use it."""

    def waiting(self, pod: kubernetes.Pod, queue: str) -> facts.Unit:
        unit = _unit(f"{POD}{pod.uid}", [pod], (self._role(pod),), queue)
        return self._waits_for_data(unit, [pod])

    def holding(self, pod: kubernetes.Pod, queue: str, *, protected: bool) -> facts.Running:
        """A pod that is bound, by us or by somebody else. In no queue: it is not ours."""
        role, created = self._placed(pod), _created(pod)
        unit = facts.Unit(
            key=f"{POD}{pod.uid}",
            queue=queue,
            roles=(role,),
            submitted=created,
            namespace=pod.namespace,
            priority=foreign.priority(pod),
            preemptible=bool(queue),
            max_runtime=_max_runtime((pod,)),
            grace=_grace((pod,)),
            kin=None,
        )
        seat = facts.Seat(ROLE, 0, pod.spec.node_name, _grants(pod, role))
        goes = pod.metadata.deletion_timestamp is not None
        return facts.Running(
            unit=unit,
            seats=(seat,),
            started=created,
            protected_until=FOREVER if protected else 0.0,
            leaving=((ROLE, 0),) if goes else (),
        )

    def gang(
        self, gang: gangs.Gang, pods: Sequence[kubernetes.Pod], queue: str, now: float,
        *, protected: bool,
    ) -> Read:  # fmt: skip
        """All that is there of a gang. Members that have ended are no longer waited for."""
        size = gang.size if gang.size is not None else len(pods)
        ended = sum(members.state(pod) == "succeeded" for pod in pods)
        least = max(0, size - ended)
        listed = sorted((pod for pod in pods if _counts(pod)), key=lambda pod: pod.name)
        if not listed:
            return Read(None, {})
        groups = self._groups(listed)
        key = f"{GANG}{gang.key}"
        seats: Seats = {}
        roles = []
        for number, (role, some) in enumerate(groups):
            name = str(number)
            alone = len(groups) == 1
            fewest = min(least, len(some)) if alone else len(some)
            roles.append(dataclasses.replace(role, name=name, least=fewest, most=len(some)))
            seats |= {(name, index): pod.uid for index, pod in enumerate(some)}
        unit = _unit(key, listed, tuple(roles), queue)
        by_uid = {pod.uid: pod for pod in listed}
        bound = {where: by_uid[uid] for where, uid in seats.items() if by_uid[uid].spec.node_name}
        if not bound:
            unit = self._waits_for_data(unit, listed)
            return Read(_held(unit, gang, len(listed), least), seats)
        running = _running(unit, bound, protected=protected)
        part = len(bound) < least
        return Read(running, seats, _since(listed, least, now) if part else None)

    def _groups(
        self, pods: Sequence[kubernetes.Pod]
    ) -> list[tuple[facts.Role, list[kubernetes.Pod]]]:
        """Pods that differ in nothing but their labels are members of one role; it has the labels
        that all of them have."""
        found: dict[object, tuple[facts.Role, list[kubernetes.Pod]]] = {}
        seen: dict[int, tuple[facts.Role, object]] = {}
        """By the id of a role: pods of one template have the very same."""
        for pod in pods:
            role = self._role(pod)
            if id(role) not in seen:
                key = _key(dataclasses.replace(role, labels=()))
                seen[id(role)] = role, key
                known, listed = found.get(key, (role, []))
                shared = tuple(pair for pair in known.labels if pair in role.labels)
                found[key] = dataclasses.replace(known, labels=shared), listed
            found[seen[id(role)][1]][1].append(pod)
        return list(found.values())

    def _role(self, pod: kubernetes.Pod) -> facts.Role:
        role = self._once(_WAITS, pod, self._asked)
        if pod.spec.volumes and (mounted := foreign.claims(pod)):
            reach = self._volumes.reach_of(pod.namespace, mounted)
            role = self._known(self._attachments.extend(reach, pod.namespace, mounted).bounds(role))
        return role

    def _asked(self, pod: kubernetes.Pod) -> facts.Role:
        return self._known(foreign.role(pod, ROLE, self._select))

    def _once(
        self, how: str, pod: kubernetes.Pod, read: Callable[[kubernetes.Pod], facts.Role]
    ) -> facts.Role:
        """What was read of a pod that says the same; unless that depends on other objects."""
        if foreign.selects_namespaces(pod):
            return read(pod)
        key = how, foreign.asks(pod)
        known = self._read.get(key)
        if known is None:
            if len(self._read) > _REMEMBERED:
                self._read.clear()
            known = self._read[key] = read(pod)
        return known

    def _waits_for_data(self, unit: facts.Unit, pods: Sequence[kubernetes.Pod]) -> facts.Unit:
        """Held as long as a claim keeps it from being on any node."""
        for pod in pods:
            mounted = foreign.claims(pod) if pod.spec.volumes and unit.held is None else []
            problem = self._volumes.reach_of(pod.namespace, mounted).problem if mounted else ""
            taken = [
                name
                for name in mounted
                if self._volumes.is_for_one(pod.namespace, name)
                and self.users(pod.namespace, name) - {pod.uid}
            ]
            if not problem and taken:
                problem = f"claim {taken[0]} is for one pod at a time, and another pod uses it"
            if problem:
                return dataclasses.replace(unit, held=(Reason.WAITING_FOR_DATA, problem))
        return unit

    def _placed(self, pod: kubernetes.Pod) -> facts.Role:
        """Of a pod that is there, only what it holds and whom it keeps away counts."""
        role = self._once(_HOLDS, pod, self._held)
        if pod.spec.volumes and (mounted := foreign.claims(pod)):
            attach = self._attachments.alone(pod.namespace, mounted, pod.spec.node_name)
            role = self._known(dataclasses.replace(role, attach=attach))
        return role

    def _held(self, pod: kubernetes.Pod) -> facts.Role:
        requests, needs = foreign.devices(members.pod_amounts(pod))
        return self._known(
            facts.Role(
                ROLE, 1, 1, needs, requests,
                ports=foreign.ports(pod), labels=foreign.labels(pod),
                affinities=foreign.keeps_away(pod, self._select),
            )
        )  # fmt: skip

    def _known(self, role: facts.Role) -> facts.Role:
        if len(self._roles) > _REMEMBERED:
            self._roles.clear()
        return self._roles.setdefault(_key(role), role)

    def _select(self, selector: placing.LabelSelector) -> frozenset[str]:
        wanted = foreign.selected(selector)
        return frozenset(
            name
            for name, labels in self.namespaces.items()
            if all(foreign.holds(each, labels) for each in wanted)
        )


def is_pods(key: str) -> bool:
    """Whether a unit is a pod or a gang of pods, not a Run."""
    return key.startswith((POD, GANG))


def has_unnamed_devices(fact: facts.Unit | facts.Running | None) -> bool:
    """Whether it holds devices and does not say which."""
    return (
        isinstance(fact, facts.Running)
        and bool(fact.unit.roles[0].devices)
        and not fact.seats[0].grants
    )


def queue_of(pod: kubernetes.Pod, homes: Mapping[str, str]) -> str:
    """By its label, else by its namespace."""
    named = (pod.metadata.labels or {}).get(foreign.LABEL_QUEUE)
    return named or homes.get(pod.namespace, snapshots.DEFAULT_QUEUE)


def _unit(
    key: str, pods: Sequence[kubernetes.Pod], roles: tuple[facts.Role, ...], queue: str
) -> facts.Unit:
    first = pods[0]
    held = next((why for pod in pods if (why := foreign.held(pod))), None)
    return facts.Unit(
        key=key,
        queue=queue,
        roles=roles,
        submitted=min(_created(pod) for pod in pods),
        namespace=first.namespace,
        priority=max(foreign.priority(pod) for pod in pods),
        preempts=all(pod.spec.preemption_policy != "Never" for pod in pods),
        max_runtime=_max_runtime(pods),
        grace=_grace(pods),
        # How long they stay says nothing about Runs.
        kin=None,
        held=held,
    )


def _max_runtime(pods: Sequence[kubernetes.Pod]) -> float | None:
    """Seconds after which the kubelet stops all of them; None: some have no deadline."""
    deadlines = [pod.spec.active_deadline_seconds for pod in pods]
    return float(max(d or 0 for d in deadlines)) if all(deadlines) else None


def _grace(pods: Sequence[kubernetes.Pod]) -> float:
    graces = (pod.spec.termination_grace_period_seconds for pod in pods)
    return float(max(DEFAULT_GRACE if grace is None else grace for grace in graces))


def _held(unit: facts.Unit, gang: gangs.Gang, there: int, least: int) -> facts.Unit:
    """The gang as it waits; until all its pods are there nothing can be decided."""
    words = ""
    if gang.size is None:
        words = "how many pods the gang has is being asked for"
    elif there < least:
        words = f"{there} of the gang's {least} pods exist; the others are waited for"
    if not words or unit.held is not None:
        return unit
    return dataclasses.replace(unit, held=(Reason.WAITING_FOR_MEMBERS, words))


def _running(
    unit: facts.Unit, bound: Mapping[tuple[str, int], kubernetes.Pod], *, protected: bool
) -> facts.Running:
    roles = {role.name: role for role in unit.roles}
    return facts.Running(
        unit=dataclasses.replace(unit, held=None),
        seats=tuple(
            facts.Seat(role, index, pod.spec.node_name, _grants(pod, roles[role]))
            for (role, index), pod in sorted(bound.items())
        ),
        started=min(_created(pod) for pod in bound.values()),
        protected_until=FOREVER if protected else 0.0,
        leaving=tuple(
            sorted(where for where, pod in bound.items() if pod.metadata.deletion_timestamp)
        ),
    )


def _since(pods: Sequence[kubernetes.Pod], least: int, now: float) -> float:
    """Since when a gang is there in part: its last member was bound then, or the youngest that
    waits was made; while some do not exist, nobody knows."""
    if len(pods) < least:
        return now
    moments = [_created(pod) for pod in pods if not pod.spec.node_name]
    moments += [_bound_at(pod) for pod in pods if pod.spec.node_name]
    return max(moments)


def _counts(pod: kubernetes.Pod) -> bool:
    """It waits to be placed, or holds room."""
    return bool(pod.spec.node_name and members.is_active(pod)) or foreign.waits(pod)


def _grants(pod: kubernetes.Pod, role: facts.Role) -> tuple[facts.Grant, ...]:
    """The devices that its binding named, if it named as many as it asks for."""
    names = members.device_names(pod)
    if len(names) != sum(request.count for request in role.devices):
        return ()
    return tuple(facts.Grant(name) for name in names)


def _created(pod: kubernetes.Pod) -> float:
    told = pod.metadata.creation_timestamp
    return _moment(told) if told else 0.0


def _bound_at(pod: kubernetes.Pod) -> float:
    for condition in pod.status.conditions or ():
        if condition.type == "PodScheduled" and condition.last_transition_time:
            return _moment(condition.last_transition_time)
    return _created(pod)


@functools.lru_cache(maxsize=1024)
def _moment(told: str) -> float:
    """Whole seconds: many pods are made in each."""
    return times.parse(told).timestamp()


def _key(role: facts.Role) -> object:
    return (
        role.name, tuple(sorted(role.needs.items())), role.devices, role.constraint, role.prefers,
        role.ports, role.attach, role.labels, role.affinities, role.spreads,
    )  # fmt: skip
