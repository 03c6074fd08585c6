"""The scheduler's picture of the cluster: one snapshot, kept up to date from what changed.

Handlers of reflectors note which objects changed; that is all they do. `collect` turns what was
noted into events, told only where the facts differ from what the snapshot knows, so that a
heartbeat costs next to nothing. `bring_up` applies them; it touches the snapshot and nothing that
handlers touch, so it may run in another thread.

Our own writes are shown over what the reflector shows until it has caught up with them: else room
just given away would look free. Never writes.
"""

from __future__ import annotations

import dataclasses

from windlass.control import (
    accounts,
    attaching,
    factparts,
    members,
    nodefacts,
    podbook,
    podunits,
    quotas,
    refusals,
    reservations,
    runhistory,
    runtimeclasses,
    snapshots,
    volumes,
)
from windlass.control import engine as engines
from windlass.core import constraints, facts, predict, state
from windlass.kinds import kubernetes, meta, queue
from windlass.kinds.run import MemberKey, Run
from windlass.store.reflector import Change

Fact = facts.Unit | facts.Running
Nomination = facts.Nomination


@dataclasses.dataclass(frozen=True, slots=True)
class Changes:
    """What `bring_up` has to apply."""

    events: tuple[state.Event, ...]
    runs: frozenset[str]
    """Uids of Runs that were looked at again, whether or not their facts differ."""
    now: float
    """The moment of all this: until then use is counted as it was before."""
    accounts: state.AccountsPut | None = None


class Picture:
    def __init__(
        self, levels: nodefacts.Levels = nodefacts.LEVELS, *, follow_accounts: bool = False
    ) -> None:
        self._levels = levels
        self._accounts = accounts.Accounts(follow=follow_accounts)
        self.engine: engines.Engine | None = None
        """What it can do, once that was seen."""
        self._nodes: dict[str, kubernetes.Node] = {}
        self._queues: dict[str, queue.Queue] = {}
        self._runs: dict[str, Run] = {}
        self._volumes = volumes.Volumes()
        self._attachments = attaching.Attachments(self._volumes)
        self.book = podbook.PodBook(self._volumes, self._attachments)
        """The pods. `control.binding` reads them there and tells what it wrote."""
        self.runtimes = runtimeclasses.RuntimeClasses()
        self._pods_of: dict[str, set[str]] = {}
        """Uid of a Run -> uids of its pods."""
        self._ours: dict[str, str] = {}
        """Uid of a Run -> the resourceVersion that we wrote and nobody has shown us yet."""
        self._changed_nodes: set[str] = set()
        self._changed_queues: set[str] = set()
        self._changed_runs: set[str] = set()
        self._homes: dict[str, str] = {}
        self._parents: frozenset[str] = frozenset()
        """Queues that have others below them."""
        self._covers: dict[str, object] = {}
        """Uid of a Run -> on what it depends which of its pods count by themselves."""
        self._told_nodes: dict[str, facts.Node] = {}
        self._told_queues: dict[str, facts.Queue] = {}
        self._told: dict[str, Fact] = {}
        self._nominations: dict[str, facts.Nomination] = {}
        self._evicted: set[str] = set()
        """Uids of Runs that hold room and were told to give some back."""
        self._unnamed: dict[str, dict[str, facts.Running]] = {}
        """Node -> pods that hold devices there without naming them, by key."""
        self._named: dict[str, set[str]] = {}
        """Node -> keys of those who name the devices that they hold there."""
        self._unstarted: set[str] = set()
        """Uids of Runs that hold room and have not started."""
        self.quotas = quotas.Quotas()
        self.reservations = reservations.Reservations()
        self._refusals = refusals.Refusals()
        self._held_back_until: float | None = None
        self._last_look = 0.0
        self._past = predict.History()
        self._snapshot: state.Snapshot | None = None

    # --- what is seen -----------------------------------------------------------------------------

    def see_node(
        self, _: Change, before: kubernetes.Node | None, after: kubernetes.Node | None
    ) -> None:
        self._changed_nodes.add(factparts.put(self._nodes, before, after, lambda node: node.name))

    def see_queue(self, _: Change, before: queue.Queue | None, after: queue.Queue | None) -> None:
        self._changed_queues.add(factparts.put(self._queues, before, after, lambda each: each.name))

    def see_pod(
        self, _: Change, before: kubernetes.Pod | None, after: kubernetes.Pod | None
    ) -> None:
        if after is None:
            assert before is not None, "a change has an object before or after it"  # noqa: S101
            self.book.drop(before.uid)
        elif not self.book.put(after):
            return
        uid = (after or before).uid  # type: ignore[union-attr]
        for pod in (before, after):
            if pod is not None and (owner := members.owner_uid(pod)):
                mine = self._pods_of.setdefault(owner, set())
                mine.add(uid) if uid in self.book.pods else mine.discard(uid)
                if not mine:
                    del self._pods_of[owner]
                if not self._holds_all(owner):
                    self._changed_runs.add(owner)

    def see_run(self, _: Change, before: Run | None, after: Run | None) -> None:
        if after is not None and (ours := self._ours.get(after.uid)) is not None:
            if _version(after) < int(ours):
                return  # older than what we wrote: ours is on its way
            del self._ours[after.uid]
        self._changed_runs.add(factparts.put(self._runs, before, after, lambda owner: owner.uid))

    def see_engine(
        self, _: Change, __: kubernetes.ConfigMap | None, after: kubernetes.ConfigMap | None
    ) -> None:
        self.engine = engines.Engine.read(after)
        self._volumes.kept = self.engine.kept_claim
        self._changed_runs.update(self._runs)

    def see_runtime(
        self,
        change: Change,
        before: runtimeclasses.Class | None,
        after: runtimeclasses.Class | None,
    ) -> None:
        self.runtimes.see(change, before, after)
        name = (after or before).name  # type: ignore[union-attr]
        users = (uid for uid, each in self._runs.items() if runtimeclasses.named_by(each) == name)
        self._changed_runs.update(users)

    def see_volumes(
        self, _: Change, before: volumes.Kind | None, after: volumes.Kind | None
    ) -> None:
        self._volumes.see(before, after)
        for each in (before, after):
            if isinstance(each, volumes.Volume):
                self._attachments.volume_changed(each.name)
        self._look_at_claims(*volumes.claims_of(before, after))

    def see_attachments(
        self, _: Change, before: attaching.Kind | None, after: attaching.Kind | None
    ) -> None:
        if self._attachments.see(before, after):
            self._changed_nodes.update(self._nodes)
            self.book.limits_changed()
            self._look_at_claims()

    def _look_at_claims(self, *claims: tuple[str, str]) -> None:
        """Who mounts these, or waits and mounts any, is looked at again."""
        self.book.volumes_changed(*claims)
        self._changed_runs.update(
            uid
            for uid, owner in self._runs.items()
            if not owner.finished and self._volumes.mounted(owner.spec)
        )

    def wrote(self, owner: Run) -> None:
        """What the store answered to a write of ours; the watch may have been quicker."""
        known = self._runs.get(owner.uid)
        if known is not None and _version(known) < _version(owner):
            self._runs[owner.uid] = owner
            self._ours[owner.uid] = owner.metadata.resource_version
            self._changed_runs.add(owner.uid)

    # --- reading ----------------------------------------------------------------------------------

    def run(self, uid: str) -> Run | None:
        return self._runs.get(uid)

    def node(self, name: str) -> facts.Node | None:
        """As the snapshot knows it."""
        return self._told_nodes.get(name)

    def changed_runs(self) -> list[Run]:
        """Those that `collect` has not looked at since they changed."""
        return [self._runs[uid] for uid in sorted(self._changed_runs) if uid in self._runs]

    def is_changed(self, uid: str) -> bool:
        """Whether `collect` has yet to look at what the Run is now."""
        return uid in self._changed_runs

    def takes(self, owner: Run, node: str) -> bool:
        """Whether a node takes new members of a Run, by its state, labels and taints of now."""
        known = self._nodes.get(node)
        if known is None or not nodefacts.is_open(known):
            return False
        fact = self._told_nodes.get(node)
        if fact is None or node in self._changed_nodes:
            fact = nodefacts.read_node(known, self._levels)
        constraint = self.runtimes.of(owner).narrowed(snapshots.constraint_of(owner))
        return constraints.accepts(constraint, fact)

    def unstarted(self) -> list[Run]:
        """Runs that hold room and have not started: whether their nodes still take them may change
        under them."""
        return [self._runs[uid] for uid in sorted(self._unstarted) if uid in self._runs]

    def held_back_until(self) -> float | None:
        """When time alone changes what `collect` finds."""
        return self._held_back_until

    def nominated(self) -> list[str]:
        """Uids of Runs for which room is being freed."""
        return sorted(self._nominations)

    def evicted(self) -> list[Run]:
        """Runs that hold room and were told to give some back."""
        return [self._runs[uid] for uid in sorted(self._evicted) if uid in self._runs]

    def is_drained(self, uid: str) -> bool:
        """Whether the queue in which a Run holds room, or one above it, is being drained."""
        fact = self._told.get(uid)
        name = fact.unit.queue if isinstance(fact, facts.Running) else ""
        seen: set[str] = set()
        while name in self._queues and name not in seen:
            seen.add(name)
            if snapshots.is_drained(self._queues[name]):
                return True
            name = self._queues[name].spec.parent or ""
        return False

    def drained(self) -> list[Run]:
        """Preemptible Runs that hold room in queues that are being drained."""
        if not any(snapshots.is_drained(each) for each in self._queues.values()):
            return []
        held = (self._runs.get(uid) for uid in self._told if self.is_drained(uid))
        return [owner for owner in held if owner is not None and owner.spec.preemptible]

    def pods_of(self, owner: Run) -> list[MemberKey]:
        """The members of its attempt of today that have pods, in whatever state."""
        keys = (members.key_of(self.book.pods[uid]) for uid in self._pods_of.get(owner.uid, ()))
        return [key for key in keys if key is not None and key.attempt == owner.status.attempt]

    @property
    def snapshot(self) -> state.Snapshot | None:
        """As `bring_up` left it; None before its first time."""
        return self._snapshot

    @property
    def size(self) -> tuple[int, int]:
        """How many nodes and units a decision is about."""
        return len(self._told_nodes), len(self._told)

    # --- from objects to events -------------------------------------------------------------------

    def collect(self, now: float) -> Changes:
        """What has changed since the last time, as events. `now`: see `snapshots.read_running`."""
        if now < self._last_look:  # the clock was set back: nobody waits for what it said before
            self._changed_runs.update(self._runs)
        self._last_look = now
        self._look_at_refusals(now)
        self.book.attach()
        if self._attachments.changed:
            self._look_at_claims()
        seen = frozenset(self._changed_runs)
        events: list[state.Event] = [
            *self._node_events(), *self._queue_events(), *self.quotas.events(),
            *self.reservations.events(now),
        ]  # fmt: skip
        touched = {factparts.node_of(event) for event in events}
        units: dict[str, state.Event] = {}
        nominations: list[state.Event] = []
        for uid in sorted(self._changed_runs):
            fact = self._read_run(uid, now)
            self._attachments.follow(uid, self._runs.get(uid), fact)
            self._tell(uid, fact, touched, units)
            nominations += self._nomination_events(uid, fact)
        gatherings: set[str] = set()
        for uid in sorted(self.book.changed):
            gatherings |= self.book.gather(uid)
            nominations += self._tell_pod(uid, touched, units)
        for key in sorted(gatherings):
            gang = self.book.read_gang(key, self._homes, now)
            self._tell(key, gang, touched, units)
            nominations += self._nominated(key, self.book.nomination(gang))
        for node in sorted(touched & self._unnamed.keys()):
            self._fill_in(node, units)
        self._changed_runs.clear()
        self.book.changed.clear()
        if self._attachments.changed:
            self._changed_nodes.update(self._attachments.changed)
            self._attachments.changed.clear()
            events += self._node_events()
            self._look_at_claims()
        if self._snapshot is None:
            self._past = self._history()
        put = None if self._snapshot is None else self._accounts.changed(self._queues.values())
        return Changes((*events, *units.values(), *nominations), seen, now, put)

    def bring_up(self, changes: Changes) -> state.Snapshot:
        """The snapshot with these changes."""
        elapsed: list[state.Event] = [state.Elapsed(changes.now)]
        if self._snapshot is None:
            self._snapshot = state.build(self.facts(), self._past)
            return state.apply(self._snapshot, elapsed)
        put = [changes.accounts] if changes.accounts else []
        return state.apply(self._snapshot, [*put, *elapsed, *changes.events])

    def facts(self) -> facts.Facts:
        """All that was told, at once."""
        told, (past, until) = self._told.values(), self._accounts.first(self._queues.values())
        return facts.Facts(
            nodes=tuple(self._told_nodes.values()),
            queues=tuple(self._told_queues.values()),
            running=tuple(each for each in told if isinstance(each, facts.Running)),
            waiting=tuple(each for each in told if isinstance(each, facts.Unit)),
            nominations=tuple(self._nominations.values()),
            levels=tuple(self._levels),
            quotas=self.quotas.told,
            accounts=past,
            accounted_at=until,
            advance=self.reservations.told,
        )

    def _node_events(self) -> list[state.Event]:
        events: list[state.Event] = []
        for name in sorted(self._changed_nodes):
            node = self._nodes.get(name)
            if node is None:
                if self._told_nodes.pop(name, None) is not None:
                    events.append(state.NodeGone(name))
                continue
            fact = self._attachments.limit(nodefacts.read_node(node, self._levels))
            if fact != self._told_nodes.get(name):
                self._told_nodes[name] = fact
                events.append(state.NodePut(fact))
        self._changed_nodes.clear()
        return events

    def _queue_events(self) -> list[state.Event]:
        events: list[state.Event] = []
        self._look_up()
        for name in sorted(self._changed_queues):
            each = self._queues.get(name)
            if each is None:
                if self._told_queues.pop(name, None) is not None:
                    events.append(state.QueueGone(name))
                    self._changed_runs.update(self._running_in(name))
                continue
            fact = snapshots.read_queue(each, is_parent=name in self._parents)
            known = self._told_queues.get(name)
            if fact != known:
                self._told_queues[name] = fact
                if known is not None and known.namespaces != fact.namespaces:
                    self._changed_runs.update(self._naming(name))
                if known is None or known.min_runtime != fact.min_runtime:
                    self._changed_runs.update(self._running_in(name))
                events.append(state.QueuePut(fact))
        if self._changed_queues:
            self._move_in()
        self._changed_queues.clear()
        return events

    def _look_up(self) -> None:
        """Which queues have others below them; whose that changes for is looked at again."""
        if self._changed_queues:
            parents = frozenset(each.spec.parent or "" for each in self._queues.values())
            self._changed_queues |= (parents ^ self._parents) & self._queues.keys()
            self._parents = parents

    def _naming(self, name: str) -> list[str]:
        return [uid for uid, owner in self._runs.items() if owner.spec.queue == name]

    def _look_at_refusals(self, now: float) -> None:
        """Runs whose members a node refused, or takes again, are looked at again."""
        touched = {
            shape
            for uid in self.book.changed
            if (pod := self.book.pods.get(uid)) is not None and self._refusals.concerns(pod)
            if (shape := self._shape_of(pod)) is not None and self._refusals.see(pod, shape)
        }
        if self._held_back_until is not None and self._held_back_until <= now:
            touched |= self._refusals.shapes()
        self._held_back_until = self._refusals.next_change(now)
        for uid, fact in self._told.items() if touched else ():
            unit = fact if isinstance(fact, facts.Unit) else fact.unit
            if uid in self._runs and any(refusals.shape_of(r) in touched for r in unit.roles):
                self._changed_runs.add(uid)

    def _shape_of(self, pod: kubernetes.Pod) -> refusals.Shape | None:
        owner, key = self._runs.get(members.owner_uid(pod)), members.key_of(pod)
        roles = (
            (each for each in owner.spec.roles if key and each.name == key.role) if owner else ()
        )
        role = next(iter(roles), None)
        if role is None or owner is None:
            return None
        return refusals.shape_of(snapshots.role_of(role, owner, self.runtimes.of(owner)))

    def _held_back(self, now: float) -> snapshots.HeldBack | None:
        if self._held_back_until is None:
            return None
        return lambda role: self._refusals.held_back(refusals.shape_of(role), now)

    def _move_in(self) -> None:
        """Runs that name no queue follow the one that owns their namespace."""
        homes = snapshots.homes(self._queues.values())
        if homes != self._homes:
            self._homes = homes
            self._changed_runs.update(
                uid for uid, owner in self._runs.items() if owner.spec.queue is None
            )
            self.book.ours_changed()

    def _read_run(self, uid: str, now: float) -> Fact | None:
        owner = self._runs.get(uid)
        self._follow_pods(uid, owner)
        self._unstarted.discard(uid)
        if owner is None:
            self._ours.pop(uid, None)
            return None
        waits, holds = snapshots.waits(owner), snapshots.holds_assignment(owner)
        if not waits and not holds:
            return None
        if holds and owner.status.phase == "Queued":
            self._unstarted.add(uid)
        name = self._queue_of(owner)
        unit = snapshots.read_unit(
            owner, name, self._levels, self.engine, self._attachments.reach(owner),
            self._held_back(now), self.runtimes.of(owner),
        )  # fmt: skip
        if waits:
            return snapshots.in_time(unit, owner, now, self._told.get(uid))
        queue_fact = self._told_queues.get(name)
        return snapshots.read_running(
            owner, unit, now,
            min_runtime=queue_fact.min_runtime if queue_fact else 0.0,
            ended=() if self._holds_all(uid) else self._ended(owner),
            history=self._snapshot.history if self._snapshot is not None else None,
        )  # fmt: skip

    def _nomination_events(self, uid: str, fact: Fact | None) -> list[state.Event]:
        """Also notes who was told to give something back."""
        owner = self._runs.get(uid)
        is_evicted = isinstance(fact, facts.Running) and owner is not None
        if is_evicted and owner is not None and owner.status.eviction is not None:
            self._evicted.add(uid)
        else:
            self._evicted.discard(uid)
        made = None
        if owner is not None and fact is not None:
            made = snapshots.read_nomination(owner, fact)
        return self._nominated(uid, made)

    def _nominated(self, key: str, made: Nomination | None) -> list[state.Event]:
        known = self._nominations.get(key)
        if made == known:
            return []
        if made is None:
            del self._nominations[key]
            return [state.NominationGone(key)]
        self._nominations[key] = made
        return [state.Nominated(made)]

    def _holds_all(self, uid: str) -> bool:
        """Whether a Run keeps the room of members that have ended, as gangs do."""
        owner = self._runs.get(uid)
        return owner is None or owner.spec.placement.gang

    def _ended(self, owner: Run) -> set[tuple[str, int]]:
        pods = (self.book.pods[uid] for uid in self._pods_of.get(owner.uid, ()))
        keys = [members.key_of(pod) for pod in pods if not members.is_active(pod)]
        attempt = owner.status.attempt
        return {(key.role, key.index) for key in keys if key and key.attempt == attempt}

    def _running_in(self, name: str) -> list[str]:
        running = ((key, f) for key, f in self._told.items() if isinstance(f, facts.Running))
        return [key for key, fact in running if fact.unit.queue == name and key in self._runs]

    def _follow_pods(self, uid: str, owner: Run | None) -> None:
        """Whether a pod counts by itself depends on its Run."""
        cover: object = None
        if owner is not None:
            held = owner.status.assignment if snapshots.holds_assignment(owner) else None
            sizes = held and {role: len(listed) for role, listed in held.members.items()}
            cover = (sizes, owner.status.attempt, self._queue_of(owner))
        if cover != self._covers.get(uid):
            self.book.changed.update(self._pods_of.get(uid, ()))
        if cover is None:
            self._covers.pop(uid, None)
        else:
            self._covers[uid] = cover

    def _queue_of(self, owner: Run) -> str:
        """What it holds counts in its namespace's own queue if the one it names is not for it."""
        name = snapshots.queue_of(owner, self._homes)
        known = self._told_queues.get(name)
        barred = known is not None and (
            known.namespaces is not None and owner.namespace not in known.namespaces
        )
        if barred and snapshots.holds_assignment(owner):
            return self._homes.get(owner.namespace, snapshots.DEFAULT_QUEUE)
        return name

    def _tell_pod(
        self, uid: str, touched: set[str], units: dict[str, state.Event]
    ) -> list[state.Event]:
        key, fact = f"{podunits.POD}{uid}", self._read_pod(uid)
        nominations = self._nominated(key, self.book.nomination(fact))
        known = self._told.get(key)
        if isinstance(known, facts.Running):
            self._forget_unnamed(known.seats[0].node, key)
        if podunits.has_unnamed_devices(fact):
            assert isinstance(fact, facts.Running), "only who holds room has devices"  # noqa: S101
            node = fact.seats[0].node
            self._unnamed.setdefault(node, {})[key] = fact
            touched.add(node)
            if node in self._told_nodes:
                return nominations  # told with the devices that are found for it
        self._tell(key, fact, touched, units)
        return nominations

    def _read_pod(self, uid: str) -> Fact | None:
        """What a pod is by itself: somebody who waits, or room that is taken."""
        pod = self.book.pods.get(uid)
        if pod is None:
            return None
        if owner_uid := members.owner_uid(pod):
            owner = self._runs.get(owner_uid)
            if snapshots.is_covered(pod, owner):
                return None
            return snapshots.read_pod(pod, owner, self._queue_of(owner) if owner else "")
        return self.book.read(uid, self._homes)

    def _forget_unnamed(self, node: str, key: str) -> None:
        there = self._unnamed.get(node, {})
        there.pop(key, None)
        if not there:
            self._unnamed.pop(node, None)

    def _fill_in(self, node: str, units: dict[str, state.Event]) -> None:
        pods = self._unnamed[node]
        taken = {
            grant.device
            for key in self._named.get(node, set()) - pods.keys()
            for grant in factparts.grants(self._told[key], node)
        }
        for each in snapshots.fill_in(self._told_nodes.get(node), taken, list(pods.values())):
            self._tell(each.unit.key, each, set(), units)

    def _tell(
        self, key: str, fact: Fact | None, touched: set[str], units: dict[str, state.Event]
    ) -> None:
        known = self._told.get(key)
        if fact == known:
            return
        self._attachments.tell(known, fact)
        for node in factparts.nodes_with_devices(known):
            self._named[node].discard(key)
            touched.add(node)
        for node in factparts.nodes_with_devices(fact):
            self._named.setdefault(node, set()).add(key)
            touched.add(node)
        if fact is None:
            del self._told[key]
            owner = self._runs.get(key)
            units[key] = state.Gone(key, snapshots.ran(owner) if owner else None)
        else:
            self._told[key] = fact
            told = state.Waits(fact) if isinstance(fact, facts.Unit) else state.Holds(fact)
            units[key] = told

    def _history(self) -> predict.History:
        """Of all Runs, in the order of submission."""
        owners = sorted(
            self._runs.values(), key=lambda each: (each.metadata.creation_timestamp or "", each.uid)
        )
        told = ((owner, self._told.get(owner.uid), self._queue_of(owner)) for owner in owners)
        return runhistory.history(told, self._levels)


def _version(owner: meta.Object) -> int:
    return int(owner.metadata.resource_version)
