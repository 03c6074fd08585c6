"""The scheduler's cache of the cluster: one snapshot, brought up to date from what changed.

Event handlers of informers only record which objects changed. `drain_changes` turns that into
events for the snapshot. `apply_changes` applies them; it touches the snapshot and nothing that the
handlers touch, so it may run in another thread.

A write of the scheduler is assumed: it overlays what the informers show until they show it, or
capacity just assigned would look free. The cache never writes to the store.
"""

from __future__ import annotations

import dataclasses

from windlass.control.convert import (
    node_facts,
    past_use,
    pod_workloads,
    quantities,
    reservations,
    resource_quotas,
    run_history,
    run_workloads,
    runtime_classes,
)
from windlass.control.model import capabilities as engines
from windlass.control.model import members
from windlass.control.scheduler.cache import cache_events, kubelet_rejections, pod_cache
from windlass.control.volumes import attach_limits, topology
from windlass.core.cluster import constraints
from windlass.core.model import types
from windlass.core.prediction import predictor
from windlass.core.snapshot.snapshot import AccountsPut, Elapsed, Event, Snapshot, apply, build
from windlass.kinds.types import core, meta, queue
from windlass.kinds.types.run import MemberKey, Run
from windlass.store.informer import Change

Fact = types.Workload | types.Running


@dataclasses.dataclass(frozen=True, slots=True)
class Changes:
    """What `apply_changes` has to apply."""

    events: tuple[Event, ...]
    runs: frozenset[str]
    """Uids of Runs that were read again, whether or not their facts differ."""
    now: float
    """The moment of all events: usage until then is accounted as it was before."""
    accounts: AccountsPut | None = None


class SchedulerCache:
    def __init__(
        self, levels: node_facts.Levels = node_facts.LEVELS, *, follow_accounts: bool = False
    ) -> None:
        """`follow_accounts`: past usage is read whenever a queue's status shows more of it. The
        scheduler accounts it itself, and reads it once."""
        self._levels = levels
        self._accounts = past_use.Accounts(follow=follow_accounts)
        self.engine: engines.Engine | None = None
        """Its capabilities, once its ConfigMap was seen."""
        self._nodes: dict[str, core.Node] = {}
        self._queues: dict[str, queue.Queue] = {}
        self._runs: dict[str, Run] = {}
        self._volumes = topology.Volumes()
        self._attachments = attach_limits.Attachments(self._volumes)
        self.pod_cache = pod_cache.PodCache(self._volumes, self._attachments)
        """`control.scheduler.pod_binder` reads pods there and records its writes."""
        self.runtimes = runtime_classes.RuntimeClasses()
        self.quotas = resource_quotas.Quotas()
        self.reservations = reservations.Reservations()
        self._rejections = kubelet_rejections.KubeletRejections()
        self._rejected_until: float | None = None
        """When the next node stops being avoided after a rejection."""
        self._pods_of: dict[str, set[str]] = {}
        """Uid of a Run -> uids of its pods."""
        self._assumed: dict[str, str] = {}
        """Uid of a Run -> the resourceVersion of our write that the informer has yet to show."""
        self._changed_nodes: set[str] = set()
        self._changed_queues: set[str] = set()
        self._changed_runs: set[str] = set()
        self._homes: dict[str, str] = {}
        """Namespace -> the queue that owns it."""
        self._parents: frozenset[str] = frozenset()
        """Queues that have child queues."""
        self._covers: dict[str, object] = {}
        """Uid of a Run -> what decides which of its pods count by themselves."""
        self._evicted: set[str] = set()
        """Uids of Runs that hold an assignment and have an eviction."""
        self._unstarted: set[str] = set()
        """Uids of Runs that hold an assignment and have not started."""
        self._known = cache_events.KnownFacts(self._attachments)
        self._last_drain = 0.0
        self._history = predictor.History()
        self._snapshot: Snapshot | None = None

    # --- event handlers ---------------------------------------------------------------------------

    def on_node(self, _: Change, before: core.Node | None, after: core.Node | None) -> None:
        self._changed_nodes.add(quantities.put(self._nodes, before, after, lambda node: node.name))

    def on_queue(self, _: Change, before: queue.Queue | None, after: queue.Queue | None) -> None:
        self._changed_queues.add(
            quantities.put(self._queues, before, after, lambda each: each.name)
        )

    def on_pod(self, _: Change, before: core.Pod | None, after: core.Pod | None) -> None:
        if after is None:
            assert before is not None, "a change has an object before or after it"  # noqa: S101
            self.pod_cache.drop(before.uid)
        elif not self.pod_cache.put(after):
            return
        uid = (after or before).uid  # type: ignore[union-attr]
        for pod in (before, after):
            if pod is not None and (owner := members.owner_uid(pod)):
                mine = self._pods_of.setdefault(owner, set())
                mine.add(uid) if uid in self.pod_cache.pods else mine.discard(uid)
                if not mine:
                    del self._pods_of[owner]
                if not self._holds_all(owner):
                    self._changed_runs.add(owner)

    def on_run(self, _: Change, before: Run | None, after: Run | None) -> None:
        if after is not None and (version := self._assumed.get(after.uid)) is not None:
            if _version(after) < int(version):
                return  # older than the assumed one
            del self._assumed[after.uid]
        self._changed_runs.add(quantities.put(self._runs, before, after, lambda owner: owner.uid))

    def on_engine(self, _: Change, __: core.ConfigMap | None, after: core.ConfigMap | None) -> None:
        self.engine = engines.Engine.read(after)
        self._volumes.kept = self.engine.kept_claim
        self._changed_runs.update(self._runs)

    def on_runtime_class(
        self,
        change: Change,
        before: runtime_classes.Class | None,
        after: runtime_classes.Class | None,
    ) -> None:
        self.runtimes.on_change(change, before, after)
        name = (after or before).name  # type: ignore[union-attr]
        users = (uid for uid, each in self._runs.items() if runtime_classes.named_by(each) == name)
        self._changed_runs.update(users)

    def on_volume(
        self, _: Change, before: topology.Kind | None, after: topology.Kind | None
    ) -> None:
        self._volumes.on_change(before, after)
        for each in (before, after):
            if isinstance(each, topology.Volume):
                self._attachments.volume_changed(each.name)
        self._claims_changed(*topology.claims_of(before, after))

    def on_attachment(
        self, _: Change, before: attach_limits.Kind | None, after: attach_limits.Kind | None
    ) -> None:
        if self._attachments.on_change(before, after):
            self._changed_nodes.update(self._nodes)
            self.pod_cache.limits_changed()
            self._claims_changed()

    def _claims_changed(self, *claims: tuple[str, str]) -> None:
        """Reads again the pods that mount these claims, and all that wait and mount any."""
        self.pod_cache.volumes_changed(*claims)
        self._changed_runs.update(
            uid
            for uid, owner in self._runs.items()
            if not owner.finished and self._volumes.mounted(owner.spec)
        )

    def assume(self, owner: Run) -> None:
        """Records the Run that a write of ours returned, unless the informer shows a later one."""
        known = self._runs.get(owner.uid)
        if known is not None and _version(known) < _version(owner):
            self._runs[owner.uid] = owner
            self._assumed[owner.uid] = owner.metadata.resource_version
            self._changed_runs.add(owner.uid)

    # --- reading ----------------------------------------------------------------------------------

    def run(self, uid: str) -> Run | None:
        return self._runs.get(uid)

    def node(self, name: str) -> types.Node | None:
        """As the snapshot has it."""
        return self._known.nodes.get(name)

    def changed_runs(self) -> list[Run]:
        """Runs that changed since the last `drain_changes`."""
        return [self._runs[uid] for uid in sorted(self._changed_runs) if uid in self._runs]

    def is_changed(self, uid: str) -> bool:
        """Whether a Run changed since the last `drain_changes`."""
        return uid in self._changed_runs

    def takes(self, owner: Run, node: str) -> bool:
        """Whether a node accepts new pods of a Run, by its current state, labels and taints."""
        known = self._nodes.get(node)
        if known is None or not node_facts.is_open(known):
            return False
        fact = self._known.nodes.get(node)
        if fact is None or node in self._changed_nodes:
            fact = node_facts.read_node(known, self._levels)
        constraint = self.runtimes.of(owner).narrowed(run_workloads.constraint_of(owner))
        return constraints.feasible(constraint, fact)

    def unstarted(self) -> list[Run]:
        """Runs that hold an assignment and have not started. Their nodes may become unsuitable
        meanwhile."""
        return [self._runs[uid] for uid in sorted(self._unstarted) if uid in self._runs]

    def rejected_until(self) -> float | None:
        """When the next node stops being avoided after its kubelet rejected pods."""
        return self._rejected_until

    def nominated(self) -> list[str]:
        """Keys of workloads for which capacity is being freed."""
        return sorted(self._known.nominations)

    def evicted(self) -> list[Run]:
        """Runs that hold an assignment and have an eviction."""
        return [self._runs[uid] for uid in sorted(self._evicted) if uid in self._runs]

    def is_drained(self, uid: str) -> bool:
        """Whether the queue of a Run that holds an assignment, or a parent of it, is drained."""
        fact = self._known.workloads.get(uid)
        name = fact.workload.queue if isinstance(fact, types.Running) else ""
        visited: set[str] = set()
        while name in self._queues and name not in visited:
            visited.add(name)
            if run_workloads.is_drained(self._queues[name]):
                return True
            name = self._queues[name].spec.parent or ""
        return False

    def drained(self) -> list[Run]:
        """Preemptible Runs that hold assignments in drained queues."""
        if not any(run_workloads.is_drained(each) for each in self._queues.values()):
            return []
        found = (self._runs.get(uid) for uid in self._known.workloads if self.is_drained(uid))
        return [owner for owner in found if owner is not None and owner.spec.preemptible]

    def pods_of(self, owner: Run) -> list[MemberKey]:
        """Role and index of each pod of the current attempt, in whatever state it is."""
        pods = (self.pod_cache.pods[uid] for uid in self._pods_of.get(owner.uid, ()))
        keys = map(members.key_of, pods)
        return [key for key in keys if key is not None and key.attempt == owner.status.attempt]

    @property
    def snapshot(self) -> Snapshot | None:
        """As `apply_changes` left it; None before its first call."""
        return self._snapshot

    @property
    def size(self) -> tuple[int, int]:
        """How many nodes and workloads a decision is about."""
        return len(self._known.nodes), len(self._known.workloads)

    # --- from objects to events -------------------------------------------------------------------

    def drain_changes(self, now: float) -> Changes:
        """What changed since the last call, as events. `now`: see `run_workloads.read_running`."""
        if now < self._last_drain:  # the clock was set back: moments read before may be wrong
            self._changed_runs.update(self._runs)
        self._last_drain = now
        self._read_rejections(now)
        self.pod_cache.attach()
        if self._attachments.changed:
            self._claims_changed()
        runs = frozenset(self._changed_runs)
        self._read_nodes()
        self._read_queues()
        self._known.add((*self.quotas.events(), *self.reservations.events(now)))
        for uid in sorted(self._changed_runs):
            self._update_run(uid, now)
        self._update_pods(now)
        self._known.fill_in()
        self._changed_runs.clear()
        if self._attachments.changed:
            self._changed_nodes.update(self._attachments.changed)
            self._attachments.changed.clear()
            self._read_nodes()
            self._claims_changed()
        if self._snapshot is None:
            self._history = self._read_history()
        put = None if self._snapshot is None else self._accounts.changed(self._queues.values())
        return Changes(self._known.take(), runs, now, put)

    def apply_changes(self, changes: Changes) -> Snapshot:
        """The snapshot with these changes."""
        elapsed: list[Event] = [Elapsed(changes.now)]
        if self._snapshot is None:
            self._snapshot = build(self.facts(), self._history)
            return apply(self._snapshot, elapsed)
        put = [changes.accounts] if changes.accounts else []
        return apply(self._snapshot, [*put, *elapsed, *changes.events])

    def facts(self) -> types.ClusterFacts:
        """All facts at once."""
        workloads = self._known.workloads.values()
        past, until = self._accounts.first(self._queues.values())
        return types.ClusterFacts(
            nodes=tuple(self._known.nodes.values()),
            queues=tuple(self._known.queues.values()),
            running=tuple(each for each in workloads if isinstance(each, types.Running)),
            waiting=tuple(each for each in workloads if isinstance(each, types.Workload)),
            nominations=tuple(self._known.nominations.values()),
            levels=tuple(self._levels),
            quotas=self.quotas.known,
            accounts=past,
            accounted_at=until,
            advance=self.reservations.known,
        )

    def _read_nodes(self) -> None:
        for name in sorted(self._changed_nodes):
            node = self._nodes.get(name)
            fact = None
            if node is not None:
                fact = self._attachments.limit(node_facts.read_node(node, self._levels))
            self._known.put_node(name, fact)
        self._changed_nodes.clear()

    def _read_queues(self) -> None:
        if not self._changed_queues:
            return
        self._find_parents()
        for name in sorted(self._changed_queues):
            each, known = self._queues.get(name), self._known.queues.get(name)
            fact = None
            if each is not None:
                fact = run_workloads.read_queue(each, is_parent=name in self._parents)
            if not self._known.put_queue(name, fact):
                continue
            if fact is not None and known is not None and known.namespaces != fact.namespaces:
                self._changed_runs.update(self._naming(name))
            if fact is None or known is None or known.min_runtime != fact.min_runtime:
                self._changed_runs.update(self._running_in(name))
        self._find_homes()
        self._changed_queues.clear()

    def _find_parents(self) -> None:
        """Queues that got their first child, or lost their last, are read again."""
        parents = frozenset(each.spec.parent or "" for each in self._queues.values())
        self._changed_queues |= (parents ^ self._parents) & self._queues.keys()
        self._parents = parents

    def _find_homes(self) -> None:
        """Runs that name no queue follow the one that owns their namespace."""
        homes = run_workloads.homes(self._queues.values())
        if homes != self._homes:
            self._homes = homes
            self._changed_runs.update(
                uid for uid, owner in self._runs.items() if owner.spec.queue is None
            )
            self.pod_cache.queues_changed()

    def _naming(self, name: str) -> list[str]:
        return [uid for uid, owner in self._runs.items() if owner.spec.queue == name]

    def _running_in(self, name: str) -> list[str]:
        facts = self._known.workloads.items()
        running = ((key, fact) for key, fact in facts if isinstance(fact, types.Running))
        return [key for key, fact in running if fact.workload.queue == name and key in self._runs]

    # --- nodes that rejected pods -----------------------------------------------------------------

    def _read_rejections(self, now: float) -> None:
        """Runs with pods of a shape that a node rejected, or accepts again, are read again."""
        touched = {
            shape
            for uid in self.pod_cache.changed
            if (pod := self.pod_cache.pods.get(uid)) is not None and self._rejections.concerns(pod)
            if (shape := self._shape_of(pod)) is not None and self._rejections.record(pod, shape)
        }
        if self._rejected_until is not None and self._rejected_until <= now:
            touched |= self._rejections.shapes()
        self._rejected_until = self._rejections.next_change(now)
        for uid, fact in self._known.workloads.items() if touched else ():
            workload = fact if isinstance(fact, types.Workload) else fact.workload
            shapes = {kubelet_rejections.shape_of(role) for role in workload.roles}
            if uid in self._runs and shapes & touched:
                self._changed_runs.add(uid)

    def _shape_of(self, pod: core.Pod) -> kubelet_rejections.Shape | None:
        owner, key = self._runs.get(members.owner_uid(pod)), members.key_of(pod)
        if owner is None or key is None:
            return None
        role = next((each for each in owner.spec.roles if each.name == key.role), None)
        if role is None:
            return None
        fact = run_workloads.role_of(role, owner, self.runtimes.of(owner))
        return kubelet_rejections.shape_of(fact)

    def _avoided(self, now: float) -> run_workloads.Avoided | None:
        if self._rejected_until is None:
            return None
        return lambda role: self._rejections.avoided(kubelet_rejections.shape_of(role), now)

    # --- Runs and pods ----------------------------------------------------------------------------

    def _update_run(self, uid: str, now: float) -> None:
        owner, fact = self._runs.get(uid), self._read_run(uid, now)
        self._attachments.follow(uid, owner, fact)
        self._known.put_workload(uid, fact, run_workloads.ran(owner) if owner else None)
        nomination = None
        if owner is not None and fact is not None:
            nomination = run_workloads.read_nomination(owner, fact)
        self._known.put_nomination(uid, nomination)
        holds = owner is not None and isinstance(fact, types.Running)
        if holds and owner is not None and owner.status.eviction is not None:
            self._evicted.add(uid)
        else:
            self._evicted.discard(uid)

    def _update_pods(self, now: float) -> None:
        """Pods that count by themselves, then the gangs that their changes touch."""
        gangs: set[str] = set()
        for uid in sorted(self.pod_cache.changed):
            gangs |= self.pod_cache.gather(uid)
            key, fact = f"{pod_workloads.POD}{uid}", self._read_pod(uid)
            self._known.put_nomination(key, self.pod_cache.nomination(fact))
            self._known.put_pod(key, fact)
        for key in sorted(gangs):
            gang = self.pod_cache.read_gang(key, self._homes, now)
            self._known.put_workload(key, gang)
            self._known.put_nomination(key, self.pod_cache.nomination(gang))
        self.pod_cache.changed.clear()

    def _read_run(self, uid: str, now: float) -> Fact | None:
        owner = self._runs.get(uid)
        self._follow_pods(uid, owner)
        self._unstarted.discard(uid)
        if owner is None:
            self._assumed.pop(uid, None)
            return None
        waits, holds = run_workloads.waits(owner), run_workloads.holds_assignment(owner)
        if not waits and not holds:
            return None
        if holds and owner.status.phase == "Queued":
            self._unstarted.add(uid)
        workload = self.workload_of(owner, now)
        if waits:
            return run_workloads.in_time(workload, owner, now, self._known.workloads.get(uid))
        queue_fact = self._known.queues.get(workload.queue)
        return run_workloads.read_running(
            owner, workload, now,
            min_runtime=queue_fact.min_runtime if queue_fact else 0.0,
            ended=() if self._holds_all(uid) else self._ended(owner),
            history=self._snapshot.history if self._snapshot is not None else None,
        )  # fmt: skip

    def workload_of(self, owner: Run, now: float) -> types.Workload:
        """A Run as the scheduler decides about it, whether or not the store has it."""
        return run_workloads.read_workload(
            owner, self.queue_of(owner), self._levels, self.engine,
            self._attachments.reach(owner), self._avoided(now), self.runtimes.of(owner),
        )  # fmt: skip

    def _holds_all(self, uid: str) -> bool:
        """Whether a Run keeps the capacity of pods that have ended, as gangs do."""
        owner = self._runs.get(uid)
        return owner is None or owner.spec.placement.gang

    def _ended(self, owner: Run) -> set[tuple[str, int]]:
        pods = (self.pod_cache.pods[uid] for uid in self._pods_of.get(owner.uid, ()))
        keys = [members.key_of(pod) for pod in pods if not members.is_active(pod)]
        attempt = owner.status.attempt
        return {(key.role, key.index) for key in keys if key and key.attempt == attempt}

    def _follow_pods(self, uid: str, owner: Run | None) -> None:
        """Whether a pod is a workload of its own depends on its Run."""
        cover: object = None
        if owner is not None:
            given = owner.status.assignment if run_workloads.holds_assignment(owner) else None
            sizes = given and {role: len(listed) for role, listed in given.members.items()}
            cover = (sizes, owner.status.attempt, self.queue_of(owner))
        if cover != self._covers.get(uid):
            self.pod_cache.changed.update(self._pods_of.get(uid, ()))
        if cover is None:
            self._covers.pop(uid, None)
        else:
            self._covers[uid] = cover

    def queue_of(self, owner: Run) -> str:
        """An assignment counts in the namespace's own queue if the Run's queue is closed to it."""
        name = run_workloads.queue_of(owner, self._homes)
        known = self._known.queues.get(name)
        barred = known is not None and (
            known.namespaces is not None and owner.namespace not in known.namespaces
        )
        if barred and run_workloads.holds_assignment(owner):
            return self._homes.get(owner.namespace, run_workloads.DEFAULT_QUEUE)
        return name

    def _read_pod(self, uid: str) -> Fact | None:
        """A pod that is a workload of its own, waiting or running; None: it is not."""
        pod = self.pod_cache.pods.get(uid)
        if pod is None:
            return None
        if owner_uid := members.owner_uid(pod):
            owner = self._runs.get(owner_uid)
            if run_workloads.is_covered(pod, owner):
                return None
            return run_workloads.read_pod(pod, owner, self.queue_of(owner) if owner else "")
        return self.pod_cache.read(uid, self._homes)

    def _read_history(self) -> predictor.History:
        """Of all Runs, in the order of submission."""
        owners = sorted(
            self._runs.values(), key=lambda each: (each.metadata.creation_timestamp or "", each.uid)
        )
        known = self._known.workloads
        facts = ((owner, known.get(owner.uid), self.queue_of(owner)) for owner in owners)
        return run_history.history(facts, self._levels)


def _version(owner: meta.Object) -> int:
    return int(owner.metadata.resource_version)
