"""All pods, overlaid by our own writes until the informer shows them, and the gangs they form.

A part of `cache`, which turns the workloads read here into snapshot events.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping

from windlass.control.convert import disruption_budgets, external_pods, pod_groups, pod_workloads
from windlass.control.model import members
from windlass.control.volumes import attach_limits, topology
from windlass.core.model import types
from windlass.kinds.types import cluster, core
from windlass.store.informer import Change

Fact = types.Workload | types.Running


@dataclasses.dataclass(slots=True)
class Gathering:
    """What is known of a gang of pods."""

    gang: pod_groups.Gang
    pods: set[str] = dataclasses.field(default_factory=set)
    assigned: pod_workloads.PodsByReplica = dataclasses.field(default_factory=dict)
    since: float | None = None
    """Since when it is there in part."""
    doubted: bool = False
    """A pod of it has gone: lost, or its owner wants fewer since."""


class PodCache:
    def __init__(self, known: topology.Volumes, attachments: attach_limits.Attachments) -> None:
        self.pods: dict[str, core.Pod] = {}
        self.changed: set[str] = set()
        """Uids of pods that changed since the last `SchedulerCache.drain_changes`."""
        self.sizes: dict[pod_groups.Source, pod_groups.Size] = {}
        """How many pods gangs have whose pods do not say so; kept while a pod refers to it."""
        self._sources: dict[str, pod_groups.Source] = {}
        """Uid of a pod -> the object that names the size of its gang."""
        self._referring: collections.Counter[pod_groups.Source] = collections.Counter()
        self.volumes, self._attachments = known, attachments
        self._reader = pod_workloads.Reader(known, attachments)
        self._reader.users = self._users
        self._mounted: dict[str, list[str]] = {}
        """Uids of pods that mount claims -> the claims."""
        self._mounts: dict[tuple[str, str], set[str]] = {}
        """Namespace and claim -> uids of the pods that mount it."""
        self._bound: dict[str, core.Pod] = {}
        """Assumed pods: bound by us, until the informer shows the binding."""
        self._gangs: dict[str, Gathering] = {}
        """By workload key."""
        self._gang_of: dict[str, str] = {}
        """Uid of a pod -> the workload key of its gang."""
        self._namespaces: dict[str, dict[str, str]] = {}
        self._budgets = disruption_budgets.Budgets()

    # --- what is seen and written -----------------------------------------------------------------

    def put(self, pod: core.Pod) -> bool:
        """A pod as it was seen; False: what is known of it is newer."""
        known = self.pods.get(pod.uid)
        if known is not None and version(pod) < version(known):
            return False  # older than what we wrote: ours is on its way
        ours = self._bound.get(pod.uid)
        if ours is not None and pod.spec.node_name:
            del self._bound[pod.uid]
        elif ours is not None:
            # What the informer shows may be older than our binding, which is final.
            pod = members.placed_on(pod, ours.spec.node_name, members.device_names(ours))
        self.pods[pod.uid] = pod
        self.changed.add(pod.uid)
        if pod.spec.volumes and (names := external_pods.claims(pod)):
            self._mounted[pod.uid] = names
            for name in names:
                self._mounts.setdefault((pod.namespace, name), set()).add(pod.uid)
            self.volumes_changed()
        return True

    def drop(self, uid: str) -> None:
        pod = self.pods.pop(uid, None)
        self._bound.pop(uid, None)
        self.changed.add(uid)
        if pod is not None and uid in self._mounted:
            for name in self._mounted.pop(uid):
                users = self._mounts[pod.namespace, name]
                users.discard(uid)
                if not users:
                    del self._mounts[pod.namespace, name]
            self._attachments.hold(f"{pod_workloads.POD}{uid}", None)
            self.volumes_changed()

    def volumes_changed(self, *claims: tuple[str, str]) -> None:
        """Waiting pods that mount claims are converted again, and all that mount these."""
        self.changed.update(uid for uid in self._mounted if external_pods.waits(self.pods[uid]))
        for claim in claims:
            self.changed |= self._mounts.get(claim, set())

    def limits_changed(self) -> None:
        """Other drivers than before limit how many volumes nodes attach."""
        self.changed |= set(self._mounted)

    def attach(self) -> None:
        """Updates the locations of changed volumes of pods."""
        for uid in self.changed & self._mounted.keys():
            pod = self.pods[uid]
            there = pod.spec.node_name if members.is_active(pod) else ""
            handles = self._attachments.handles(pod.namespace, self._mounted[uid])
            mounted = {there: handles} if there and handles else None
            self._attachments.hold(f"{pod_workloads.POD}{uid}", mounted)

    def lacks_volumes(self, pod: core.Pod) -> bool:
        """Whether a claim of it has no volume: one must be found or provisioned for its node, or
        another pod got the volume since the node was chosen."""
        if pod.uid not in self._mounted:
            return False
        reach = self.volumes.reach_of(pod.namespace, self._mounted[pod.uid])
        return bool(reach.unbound or reach.problem)

    def _users(self, namespace: str, claim: str) -> set[str]:
        listed = (self.pods[uid] for uid in self._mounts.get((namespace, claim), ()))
        return {pod.uid for pod in listed if pod.spec.node_name and members.is_active(pod)}

    def bound(self, uid: str, node: str, devices: list[str]) -> None:
        """Assumes a binding of ours."""
        pod = self.pods.get(uid)
        if pod is None or pod.spec.node_name:
            return  # the watch was quicker
        self._bound[uid] = self.pods[uid] = members.placed_on(pod, node, devices)
        self.changed.add(uid)

    def assume(self, pod: core.Pod) -> None:
        """Records the pod that a write of ours returned, unless the informer shows a later one."""
        known = self.pods.get(pod.uid)
        if known is not None and version(known) < version(pod):
            self.pods[pod.uid] = pod
            self.changed.add(pod.uid)

    def on_namespace(
        self, _: Change, before: core.Namespace | None, after: core.Namespace | None
    ) -> None:
        """Only labels count, and only for pods that select namespaces by them."""
        name = after.name if after is not None else before.name if before is not None else ""
        labels = None if after is None else after.metadata.labels or {}
        if labels == self._namespaces.get(name):
            return
        if labels is None:
            del self._namespaces[name]
        else:
            self._namespaces[name] = labels
        self._reader.namespaces = self._namespaces
        self.changed.update(
            uid for uid, pod in self.pods.items() if external_pods.selects_namespaces(pod)
        )

    def on_disruption_budget(
        self,
        _: Change,
        before: cluster.PodDisruptionBudget | None,
        after: cluster.PodDisruptionBudget | None,
    ) -> None:
        changed = after or before
        assert changed is not None, "a change has an object before or after it"  # noqa: S101
        key = changed.namespace, changed.name
        self.changed |= self._budgets.put(key, after, self.pods.values())

    def queues_changed(self) -> None:
        """Which queue they are in may be another."""
        self.changed.update(uid for uid, pod in self.pods.items() if external_pods.is_ours(pod))

    # --- workloads---------------------------------------------------------------------------------

    def pods_of(self, key: str) -> pod_workloads.PodsByReplica:
        """Role and index -> pod of a workload of external pods, as the snapshot has it."""
        if key.startswith(pod_workloads.POD):
            return {(pod_workloads.ROLE, 0): key.removeprefix(pod_workloads.POD)}
        gathering = self._gangs.get(key)
        return {} if gathering is None else gathering.assigned

    def workload_key(self, uid: str) -> str:
        """The key of the workload that the pod belongs to: its gang, or itself."""
        return self._gang_of.get(uid) or f"{pod_workloads.POD}{uid}"

    def partial_gangs(self) -> list[tuple[str, float, float]]:
        """Incomplete gangs, since when, and in how many seconds they must be complete."""
        return [
            (key, each.since, each.gang.timeout)
            for key, each in sorted(self._gangs.items())
            if each.since is not None
        ]

    def unsized(self) -> list[pod_groups.Source]:
        """Owners that must be asked how many pods a gang has."""
        known = self._gangs.values()
        found = (each.gang for each in known if each.gang.size is None or each.doubted)
        return list(dict.fromkeys(gang.source for gang in found if gang.source is not None))

    def learn(self, sizes: Mapping[pod_groups.Source, pod_groups.Size]) -> None:
        """How many pods gangs have."""
        self.sizes |= sizes
        for gathering in self._gangs.values():
            if gathering.gang.source in sizes:
                gathering.doubted = False
                self.changed |= gathering.pods

    def gather(self, uid: str) -> set[str]:
        """Updates gang membership; returns the gangs that a change of a pod touches."""
        pod, before = self.pods.get(uid), self._gang_of.pop(uid, "")
        gang = pod_groups.of(pod) if pod is not None and external_pods.is_ours(pod) else None
        self._refer(uid, None if gang is None else gang.source)
        if gang is not None and gang.source is not None and gang.source in self.sizes:
            gang = pod_groups.sized(gang, self.sizes[gang.source])
        after = ""
        if gang is not None and (gang.size is None or gang.size > 1):
            after = f"{pod_workloads.GANG}{gang.key}"
            self._gang_of[uid] = after
            gathering = self._gangs.setdefault(after, Gathering(gang))
            gathering.gang = gang
            gathering.pods.add(uid)
        if before and before != after:
            self._gangs[before].pods.discard(uid)
            self._gangs[before].doubted = True
        return {key for key in (before, after) if key}

    def _refer(self, uid: str, source: pod_groups.Source | None) -> None:
        """The size that a source gave is forgotten with the last pod that refers to it."""
        before = self._sources.pop(uid, None)
        if source is not None:
            self._sources[uid] = source
            self._referring[source] += 1
        if before is not None:
            self._referring[before] -= 1
            if not self._referring[before]:
                del self._referring[before]
                self.sizes.pop(before, None)

    def read(self, uid: str, homes: Mapping[str, str]) -> Fact | None:
        """A pod outside Runs as a workload of its own, waiting or running. A pod of a gang is
        none."""
        pod = self.pods[uid]
        queue_name = pod_workloads.queue_of(pod, homes) if external_pods.is_ours(pod) else ""
        if external_pods.waits(pod):
            return None if uid in self._gang_of else self._reader.waiting(pod, queue_name)
        if not pod.spec.node_name or not members.is_active(pod):
            return None
        if uid in self._gang_of and _names_devices(pod):
            return None
        protected = bool(queue_name) and self._budgets.protects(pod)
        return self._reader.holding(pod, queue_name, protected=protected)

    def read_gang(self, key: str, homes: Mapping[str, str], now: float) -> Fact | None:
        gathering = self._gangs[key]
        listed = [self.pods[uid] for uid in sorted(gathering.pods)]
        if not listed:
            del self._gangs[key]
            return None
        mine = [pod for pod in listed if not pod.spec.node_name or _names_devices(pod)]
        queue_name = pod_workloads.queue_of(min(listed, key=lambda pod: pod.name), homes)
        bound = [pod for pod in mine if disruption_budgets.is_evictable(pod)]
        protected = any(self._budgets.protects(pod) for pod in bound)
        read = self._reader.gang(gathering.gang, mine, queue_name, now, protected=protected)
        gathering.assigned = read.pods
        if read.since is None:
            gathering.since = None
        elif gathering.since is None or read.since < now:
            gathering.since = read.since
        return read.fact

    def nomination(self, fact: Fact | None) -> types.Nomination | None:
        """The nominated nodes of a waiting workload of pods, or of the missing pods of a gang, as
        their statuses say."""
        if fact is None:
            return None
        workload = fact if isinstance(fact, types.Workload) else fact.workload
        roles = {role.name: role for role in workload.roles}
        pods = []
        for (role, index), uid in sorted(self.pods_of(workload.key).items()):
            pod = self.pods.get(uid)
            if pod is None or pod.spec.node_name or not pod.status.nominated_node_name:
                continue
            known = (pod.metadata.annotations or {}).get(members.ANNOTATION_NOMINATED, "")
            names = [name for name in known.split(",") if name]
            if len(names) == sum(request.count for request in roles[role].devices):
                grants = tuple(types.Grant(name) for name in names)
                pods.append(
                    types.PodAssignment(role, index, pod.status.nominated_node_name, grants)
                )
        return types.Nomination(workload.key, tuple(pods)) if pods else None


def version(obj: core.Pod) -> int:
    return int(obj.metadata.resource_version or 0)


def _names_devices(pod: core.Pod) -> bool:
    """Whether a bound pod records which devices it holds, or holds none."""
    wanted = sum(request.count for request in external_pods.devices(members.pod_amounts(pod))[0])
    return len(members.device_names(pod)) == wanted
