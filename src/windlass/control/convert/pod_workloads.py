"""Workloads of external pods: a single pod, or a gang of them.

A waiting pod is a workload of one replica, a bound pod uses its capacity; the pods of a gang are
one
workload from the first to the last. Everything is read from the pods: the binding is the record of
a decision. Pure, but for `Reader`, which caches what it has read.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

from windlass.control.convert import external_pods, pod_groups, run_workloads
from windlass.control.model import members, selectors
from windlass.control.volumes import attach_limits, topology
from windlass.core.model import types
from windlass.kinds.reasons import Reason
from windlass.kinds.types import core, pod_placement
from windlass.kinds.values import times

POD, GANG = "pod/", "gang/"
"""Prefixes of the keys of workloads of pods; the key of a Run is its uid."""
ROLE = "pod"
DEFAULT_GRACE = 30
"""Seconds, if a pod has no value: the default of Kubernetes."""
_REMEMBERED = 50_000
_WAITS, _HOLDS = "waits", "holds"

PodsByReplica = dict[tuple[str, int], str]
"""(role, index) -> uid of the pod."""


@dataclasses.dataclass(frozen=True, slots=True)
class Read:
    """A workload, and the pods of its replicas."""

    fact: types.Workload | types.Running | None
    pods: PodsByReplica
    since: float | None = None
    """When a gang became incomplete; None: it is complete, or no pod is bound."""


class Reader:
    """Reads pods, and gives equal pods the same `types.Role` object."""

    def __init__(self, known: topology.Volumes, attachments: attach_limits.Attachments) -> None:
        self._roles: dict[object, types.Role] = {}
        self._read: dict[tuple[str, bytes], types.Role] = {}
        """Roles of waiting and of bound pods, by what the pods request."""
        self._volumes, self._attachments = known, attachments
        self.namespaces: Mapping[str, Mapping[str, str]] = {}
        """Labels of all namespaces."""
        self.users: Callable[[str, str], set[str]] = lambda _, __: set()
        """Namespace and claim -> uids of bound pods that use it."""

    def waiting(self, pod: core.Pod, queue: str) -> types.Workload:
        workload = _workload(f"{POD}{pod.uid}", [pod], (self._role(pod),), queue)
        return self._waits_for_data(workload, [pod])

    def holding(self, pod: core.Pod, queue: str, *, protected: bool) -> types.Running:
        """A bound pod, whichever scheduler bound it. In no queue if it is not of this scheduler."""
        role, created = self._placed(pod), _created(pod)
        workload = types.Workload(
            key=f"{POD}{pod.uid}",
            queue=queue,
            roles=(role,),
            submitted=created,
            namespace=pod.namespace,
            priority=external_pods.priority(pod),
            preemptible=bool(queue),
            max_runtime=_max_runtime((pod,)),
            grace=_grace((pod,)),
            history_key=None,
        )
        assigned = types.PodAssignment(ROLE, 0, pod.spec.node_name, _grants(pod, role))
        goes = pod.metadata.deletion_timestamp is not None
        return types.Running(
            workload=workload,
            pods=(assigned,),
            started=created,
            protected_until=types.PROTECTED if protected else 0.0,
            leaving=((ROLE, 0),) if goes else (),
        )

    def gang(
        self, gang: pod_groups.Gang, pods: Sequence[core.Pod], queue: str, now: float,
        *, protected: bool,
    ) -> Read:  # fmt: skip
        """All existing pods of a gang. It does not wait for pods that have ended."""
        size = gang.size if gang.size is not None else len(pods)
        ended = sum(members.state(pod) == "succeeded" for pod in pods)
        least = max(0, size - ended)
        listed = sorted((pod for pod in pods if _counts(pod)), key=lambda pod: pod.name)
        if not listed:
            return Read(None, {})
        groups = self._groups(listed)
        key = f"{GANG}{gang.key}"
        assigned_pods: PodsByReplica = {}
        roles = []
        for number, (role, some) in enumerate(groups):
            name = str(number)
            alone = len(groups) == 1
            fewest = min(least, len(some)) if alone else len(some)
            roles.append(
                dataclasses.replace(role, name=name, min_count=fewest, max_count=len(some))
            )
            assigned_pods |= {(name, index): pod.uid for index, pod in enumerate(some)}
        workload = _workload(key, listed, tuple(roles), queue)
        by_uid = {pod.uid: pod for pod in listed}
        bound = {
            where: by_uid[uid] for where, uid in assigned_pods.items() if by_uid[uid].spec.node_name
        }
        if not bound:
            workload = self._waits_for_data(workload, listed)
            return Read(_hold(workload, gang, len(listed), least), assigned_pods)
        running = _running(workload, bound, protected=protected)
        part = len(bound) < least
        return Read(running, assigned_pods, _since(listed, least, now) if part else None)

    def _groups(self, pods: Sequence[core.Pod]) -> list[tuple[types.Role, list[core.Pod]]]:
        """Pods that differ only in their labels are replicas of one role; it has the labels that
        all of them have."""
        found: dict[object, tuple[types.Role, list[core.Pod]]] = {}
        seen: dict[int, tuple[types.Role, object]] = {}
        """By the id of a role: pods of one template have the identical object."""
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

    def _role(self, pod: core.Pod) -> types.Role:
        role = self._once(_WAITS, pod, self._waiting_role)
        if pod.spec.volumes and (mounted := external_pods.claims(pod)):
            reach = self._volumes.reach_of(pod.namespace, mounted)
            role = self._known(self._attachments.extend(reach, pod.namespace, mounted).bounds(role))
        return role

    def _waiting_role(self, pod: core.Pod) -> types.Role:
        return self._known(external_pods.role(pod, ROLE, self._select))

    def _once(self, how: str, pod: core.Pod, read: Callable[[core.Pod], types.Role]) -> types.Role:
        """The cached role of an equal pod; unless it depends on other objects."""
        if external_pods.selects_namespaces(pod):
            return read(pod)
        key = how, external_pods.asks(pod)
        known = self._read.get(key)
        if known is None:
            if len(self._read) > _REMEMBERED:
                self._read.clear()
            known = self._read[key] = read(pod)
        return known

    def _waits_for_data(self, workload: types.Workload, pods: Sequence[core.Pod]) -> types.Workload:
        """Held while a claim keeps it from every node."""
        for pod in pods:
            mounted = (
                external_pods.claims(pod)
                if pod.spec.volumes and workload.hold_reason is None
                else []
            )
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
                return dataclasses.replace(workload, hold_reason=(Reason.WAITING_FOR_DATA, problem))
        return workload

    def _placed(self, pod: core.Pod) -> types.Role:
        """Of a bound pod, only its usage and its anti-affinities matter."""
        role = self._once(_HOLDS, pod, self._bound_role)
        if pod.spec.volumes and (mounted := external_pods.claims(pod)):
            attach = self._attachments.alone(pod.namespace, mounted, pod.spec.node_name)
            role = self._known(dataclasses.replace(role, attach=attach))
        return role

    def _bound_role(self, pod: core.Pod) -> types.Role:
        requests, needs = external_pods.devices(members.pod_amounts(pod))
        return self._known(
            types.Role(
                ROLE, 1, 1, needs, requests,
                ports=external_pods.ports(pod), labels=external_pods.labels(pod),
                affinities=external_pods.keeps_away(pod, self._select),
            )
        )  # fmt: skip

    def _known(self, role: types.Role) -> types.Role:
        if len(self._roles) > _REMEMBERED:
            self._roles.clear()
        return self._roles.setdefault(_key(role), role)

    def _select(self, selector: pod_placement.LabelSelector) -> frozenset[str]:
        wanted = selectors.requirements(selector)
        return frozenset(
            name
            for name, labels in self.namespaces.items()
            if all(external_pods.holds(each, labels) for each in wanted)
        )


def is_pods(key: str) -> bool:
    """Whether a workload is a pod or a gang of pods, not a Run."""
    return key.startswith((POD, GANG))


def has_unnamed_devices(fact: types.Workload | types.Running | None) -> bool:
    """Whether it uses devices and does not name them."""
    return (
        isinstance(fact, types.Running)
        and bool(fact.workload.roles[0].devices)
        and not fact.pods[0].grants
    )


def queue_of(pod: core.Pod, homes: Mapping[str, str]) -> str:
    """By its label, else by its namespace."""
    named = (pod.metadata.labels or {}).get(external_pods.LABEL_QUEUE)
    return named or homes.get(pod.namespace, run_workloads.DEFAULT_QUEUE)


def _workload(
    key: str, pods: Sequence[core.Pod], roles: tuple[types.Role, ...], queue: str
) -> types.Workload:
    first = pods[0]
    hold_reason = next((why for pod in pods if (why := external_pods.unsupported(pod))), None)
    return types.Workload(
        key=key,
        queue=queue,
        roles=roles,
        submitted=min(_created(pod) for pod in pods),
        namespace=first.namespace,
        priority=max(external_pods.priority(pod) for pod in pods),
        preempts=all(pod.spec.preemption_policy != "Never" for pod in pods),
        max_runtime=_max_runtime(pods),
        grace=_grace(pods),
        # Their durations predict nothing about Runs.
        history_key=None,
        hold_reason=hold_reason,
    )


def _max_runtime(pods: Sequence[core.Pod]) -> float | None:
    """Seconds after which the kubelet stops all of them; None: some have no deadline."""
    deadlines = [pod.spec.active_deadline_seconds for pod in pods]
    return float(max(d or 0 for d in deadlines)) if all(deadlines) else None


def _grace(pods: Sequence[core.Pod]) -> float:
    graces = (pod.spec.termination_grace_period_seconds for pod in pods)
    return float(max(DEFAULT_GRACE if grace is None else grace for grace in graces))


def _hold(
    workload: types.Workload, gang: pod_groups.Gang, there: int, least: int
) -> types.Workload:
    """The waiting gang; the scheduler cannot decide until all its pods exist."""
    message = ""
    if gang.size is None:
        source = f"{gang.source.kind} {gang.source.name}" if gang.source else "its owner"
        message = f"{there} of the gang's pods exist; the scheduler does not know yet how many "
        message += f"{source} has"
    elif there < least:
        message = f"{there} of the gang's {least} pods exist; the scheduler waits for the others"
    if not message or workload.hold_reason is not None:
        return workload
    return dataclasses.replace(workload, hold_reason=(Reason.WAITING_FOR_MEMBERS, message))


def _running(
    workload: types.Workload, bound: Mapping[tuple[str, int], core.Pod], *, protected: bool
) -> types.Running:
    roles = {role.name: role for role in workload.roles}
    return types.Running(
        workload=dataclasses.replace(workload, hold_reason=None),
        pods=tuple(
            types.PodAssignment(role, index, pod.spec.node_name, _grants(pod, roles[role]))
            for (role, index), pod in sorted(bound.items())
        ),
        started=min(_created(pod) for pod in bound.values()),
        protected_until=types.PROTECTED if protected else 0.0,
        leaving=tuple(
            sorted(where for where, pod in bound.items() if pod.metadata.deletion_timestamp)
        ),
    )


def _since(pods: Sequence[core.Pod], least: int, now: float) -> float:
    """Since when a gang is there in part: its last member was bound then, or the youngest that
    waits was made; while some do not exist, that is unknown."""
    if len(pods) < least:
        return now
    moments = [_created(pod) for pod in pods if not pod.spec.node_name]
    moments += [_bound_at(pod) for pod in pods if pod.spec.node_name]
    return max(moments)


def _counts(pod: core.Pod) -> bool:
    """It waits for its placement, or uses capacity."""
    return bool(pod.spec.node_name and members.is_active(pod)) or external_pods.waits(pod)


def _grants(pod: core.Pod, role: types.Role) -> tuple[types.Grant, ...]:
    """The devices that its binding named, if it named as many as it requests."""
    names = members.device_names(pod)
    if len(names) != sum(request.count for request in role.devices):
        return ()
    return tuple(types.Grant(name) for name in names)


def _created(pod: core.Pod) -> float:
    created = pod.metadata.creation_timestamp
    return _moment(created) if created else 0.0


def _bound_at(pod: core.Pod) -> float:
    for condition in pod.status.conditions or ():
        if condition.type == "PodScheduled" and condition.last_transition_time:
            return _moment(condition.last_transition_time)
    return _created(pod)


@functools.lru_cache(maxsize=1024)
def _moment(text: str) -> float:
    """Whole seconds: many pods are created in each."""
    return times.parse(text).timestamp()


def _key(role: types.Role) -> object:
    return (
        role.name, tuple(sorted(role.needs.items())), role.devices, role.constraint, role.prefers,
        role.ports, role.attach, role.labels, role.affinities, role.spreads,
    )  # fmt: skip
