"""All pods that are there, with our own writes over what is seen of them, and who is in which gang.

A part of `control.picture`: it keeps the pods and reads units from them; the picture tells these to
the snapshot.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping

from windlass.control import attaching, budgets, foreign, gangs, members, podunits, volumes
from windlass.core import facts
from windlass.kinds import clusterkinds, kubernetes
from windlass.store.reflector import Change

Fact = facts.Unit | facts.Running


@dataclasses.dataclass(slots=True)
class Gathering:
    """What is known of a gang of pods."""

    gang: gangs.Gang
    pods: set[str] = dataclasses.field(default_factory=set)
    seats: podunits.Seats = dataclasses.field(default_factory=dict)
    since: float | None = None
    """Since when it is there in part."""
    doubted: bool = False
    """A pod of it has gone: lost, or its owner wants fewer since."""


class PodBook:
    def __init__(self, known: volumes.Volumes, attachments: attaching.Attachments) -> None:
        self.pods: dict[str, kubernetes.Pod] = {}
        self.changed: set[str] = set()
        """Uids of pods that the picture has not looked at since they changed."""
        self.sizes: dict[gangs.Source, gangs.Size] = {}
        """How many pods gangs have whose pods do not say so; kept while a pod refers to it."""
        self._sources: dict[str, gangs.Source] = {}
        """Uid of a pod -> who says how many it belongs to."""
        self._referring: collections.Counter[gangs.Source] = collections.Counter()
        self.volumes, self._attachments = known, attachments
        self._reader = podunits.Reader(known, attachments)
        self._reader.users = self._users
        self._mounted: dict[str, list[str]] = {}
        """Uids of pods that mount claims -> the claims."""
        self._mounts: dict[tuple[str, str], set[str]] = {}
        """Namespace and claim -> uids of the pods that mount it."""
        self._bound: dict[str, kubernetes.Pod] = {}
        """Pods that we have bound, as they are since, until somebody shows them to us."""
        self._gangs: dict[str, Gathering] = {}
        """By the key of their unit."""
        self._gang_of: dict[str, str] = {}
        """Uid of a pod -> the key of its gang's unit."""
        self._namespaces: dict[str, dict[str, str]] = {}
        self._budgets = budgets.Budgets()

    # --- what is seen and written -----------------------------------------------------------------

    def put(self, pod: kubernetes.Pod) -> bool:
        """A pod as it was seen; False: what is known of it is newer."""
        known = self.pods.get(pod.uid)
        if known is not None and version(pod) < version(known):
            return False  # older than what we wrote: ours is on its way
        ours = self._bound.get(pod.uid)
        if ours is not None and pod.spec.node_name:
            del self._bound[pod.uid]
        elif ours is not None:
            # What is seen may be older than our binding, which nobody can undo.
            pod = members.placed_on(pod, ours.spec.node_name, members.device_names(ours))
        self.pods[pod.uid] = pod
        self.changed.add(pod.uid)
        if pod.spec.volumes and (names := foreign.claims(pod)):
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
            self._attachments.hold(f"{podunits.POD}{uid}", None)
            self.volumes_changed()

    def volumes_changed(self, *claims: tuple[str, str]) -> None:
        """Pods that wait and mount claims are looked at again, and all that mount these."""
        self.changed.update(uid for uid in self._mounted if foreign.waits(self.pods[uid]))
        for claim in claims:
            self.changed |= self._mounts.get(claim, set())

    def limits_changed(self) -> None:
        """Other drivers than before limit how many volumes nodes attach."""
        self.changed |= set(self._mounted)

    def attach(self) -> None:
        """Says where the volumes of pods are that changed."""
        for uid in self.changed & self._mounted.keys():
            pod = self.pods[uid]
            there = pod.spec.node_name if members.is_active(pod) else ""
            handles = self._attachments.handles(pod.namespace, self._mounted[uid])
            held = {there: handles} if there and handles else None
            self._attachments.hold(f"{podunits.POD}{uid}", held)

    def lacks_volumes(self, pod: kubernetes.Pod) -> bool:
        """Whether a claim of it has no volume yet: one is to be found or made for its node, or
        somebody else got the one that there was since its place was chosen."""
        if pod.uid not in self._mounted:
            return False
        reach = self.volumes.reach_of(pod.namespace, self._mounted[pod.uid])
        return bool(reach.unbound or reach.problem)

    def _users(self, namespace: str, claim: str) -> set[str]:
        listed = (self.pods[uid] for uid in self._mounts.get((namespace, claim), ()))
        return {pod.uid for pod in listed if pod.spec.node_name and members.is_active(pod)}

    def bound(self, uid: str, node: str, devices: list[str]) -> None:
        """A pod was bound by us."""
        pod = self.pods.get(uid)
        if pod is None or pod.spec.node_name:
            return  # the watch was quicker
        self._bound[uid] = self.pods[uid] = members.placed_on(pod, node, devices)
        self.changed.add(uid)

    def wrote(self, pod: kubernetes.Pod) -> None:
        """What the store answered to a write of ours; the watch may have been quicker."""
        known = self.pods.get(pod.uid)
        if known is not None and version(known) < version(pod):
            self.pods[pod.uid] = pod
            self.changed.add(pod.uid)

    def see_namespace(
        self, _: Change, before: kubernetes.Namespace | None, after: kubernetes.Namespace | None
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
            uid for uid, pod in self.pods.items() if foreign.selects_namespaces(pod)
        )

    def see_budget(
        self,
        _: Change,
        before: clusterkinds.PodDisruptionBudget | None,
        after: clusterkinds.PodDisruptionBudget | None,
    ) -> None:
        changed = after or before
        assert changed is not None, "a change has an object before or after it"  # noqa: S101
        key = changed.namespace, changed.name
        self.changed |= self._budgets.put(key, after, self.pods.values())

    def ours_changed(self) -> None:
        """Which queue they are in may be another."""
        self.changed.update(uid for uid, pod in self.pods.items() if foreign.is_ours(pod))

    # --- units ------------------------------------------------------------------------------------

    def seats_of(self, key: str) -> podunits.Seats:
        """Which pod is which member of a unit of pods, as the snapshot knows it."""
        if key.startswith(podunits.POD):
            return {(podunits.ROLE, 0): key.removeprefix(podunits.POD)}
        gathering = self._gangs.get(key)
        return {} if gathering is None else gathering.seats

    def partial_gangs(self) -> list[tuple[str, float, float]]:
        """Gangs that are there in part, since when, and in how many seconds they must be whole."""
        return [
            (key, each.since, each.gang.timeout)
            for key, each in sorted(self._gangs.items())
            if each.since is not None
        ]

    def unsized(self) -> list[gangs.Source]:
        """Who must be asked how many pods a gang has."""
        known = self._gangs.values()
        found = (each.gang for each in known if each.gang.size is None or each.doubted)
        return list(dict.fromkeys(gang.source for gang in found if gang.source is not None))

    def learn(self, sizes: Mapping[gangs.Source, gangs.Size]) -> None:
        """How many pods gangs have."""
        self.sizes |= sizes
        for gathering in self._gangs.values():
            if gathering.gang.source in sizes:
                gathering.doubted = False
                self.changed |= gathering.pods

    def gather(self, uid: str) -> set[str]:
        """Keeps who belongs to which gang; the gangs that a change of a pod touches."""
        pod, before = self.pods.get(uid), self._gang_of.pop(uid, "")
        gang = gangs.of(pod) if pod is not None and foreign.is_ours(pod) else None
        self._refer(uid, None if gang is None else gang.source)
        if gang is not None and gang.source is not None and gang.source in self.sizes:
            gang = gangs.sized(gang, self.sizes[gang.source])
        after = ""
        if gang is not None and (gang.size is None or gang.size > 1):
            after = f"{podunits.GANG}{gang.key}"
            self._gang_of[uid] = after
            gathering = self._gangs.setdefault(after, Gathering(gang))
            gathering.gang = gang
            gathering.pods.add(uid)
        if before and before != after:
            self._gangs[before].pods.discard(uid)
            self._gangs[before].doubted = True
        return {key for key in (before, after) if key}

    def _refer(self, uid: str, source: gangs.Source | None) -> None:
        """What a source said is forgotten with the last pod that refers to it."""
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
        """What a pod that is no member of a Run is by itself: somebody who waits, or room that is
        taken. Members of gangs are nothing by themselves."""
        pod = self.pods[uid]
        queue_name = podunits.queue_of(pod, homes) if foreign.is_ours(pod) else ""
        if foreign.waits(pod):
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
        queue_name = podunits.queue_of(min(listed, key=lambda pod: pod.name), homes)
        bound = [pod for pod in mine if budgets.is_evictable(pod)]
        protected = any(self._budgets.protects(pod) for pod in bound)
        read = self._reader.gang(gathering.gang, mine, queue_name, now, protected=protected)
        gathering.seats = read.seats
        if read.since is None:
            gathering.since = None
        elif gathering.since is None or read.since < now:
            gathering.since = read.since
        return read.fact

    def nomination(self, fact: Fact | None) -> facts.Nomination | None:
        """Room that is being freed for a unit of pods that waits, or for those of a gang that are
        missing, as their statuses say."""
        if fact is None:
            return None
        unit = fact if isinstance(fact, facts.Unit) else fact.unit
        roles = {role.name: role for role in unit.roles}
        seats = []
        for (role, index), uid in sorted(self.seats_of(unit.key).items()):
            pod = self.pods.get(uid)
            if pod is None or pod.spec.node_name or not pod.status.nominated_node_name:
                continue
            told = (pod.metadata.annotations or {}).get(members.ANNOTATION_NOMINATED, "")
            names = [name for name in told.split(",") if name]
            if len(names) == sum(request.count for request in roles[role].devices):
                grants = tuple(facts.Grant(name) for name in names)
                seats.append(facts.Seat(role, index, pod.status.nominated_node_name, grants))
        return facts.Nomination(unit.key, tuple(seats)) if seats else None


def version(obj: kubernetes.Pod) -> int:
    return int(obj.metadata.resource_version or 0)


def _names_devices(pod: kubernetes.Pod) -> bool:
    """Whether a bound pod says which devices it holds, or holds none."""
    wanted = sum(request.count for request in foreign.devices(members.pod_amounts(pod))[0])
    return len(members.device_names(pod)) == wanted
