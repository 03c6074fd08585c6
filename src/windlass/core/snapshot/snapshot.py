"""The snapshot: facts with the indexes that decisions read, kept up to date event by event.

`build` makes one from facts; `apply` takes events. After any sequence of events a snapshot answers
exactly as one built fresh from the same facts: `decide` depends on facts only, never on the way
they came. What an index costs to keep grows with what changed.
"""

from __future__ import annotations

import bisect
import copy
import dataclasses
import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

from windlass.core.cluster import numbering
from windlass.core.cluster.cluster import Cluster
from windlass.core.cluster.pod_label_index import PodLabelIndex
from windlass.core.fairness import accounts, entitlement, past_use
from windlass.core.fairness.demand import Demand
from windlass.core.fairness.user_shares import UserShares
from windlass.core.model import gangs, pod_sets, validation
from windlass.core.model.equivalence import Shapes
from windlass.core.model.types import Account, ClusterFacts, Node, Queue, Quota, Running, Workload
from windlass.core.prediction.predictor import History
from windlass.core.queueing import queue_order, workload_info
from windlass.core.queueing.workload_info import WorkloadInfo
from windlass.core.quota import usage
from windlass.core.quota.namespace_quota import NamespaceQuotas
from windlass.core.quota.quota_tree import QuotaTree, Sums
from windlass.core.quota.user_limits import UserQuotas
from windlass.core.snapshot import relayout
from windlass.core.snapshot.advance_calendar import Calendar
from windlass.core.snapshot.availability_profile import AvailabilityProfile
from windlass.core.snapshot.events import AccountsPut as AccountsPut
from windlass.core.snapshot.events import AdvancePut as AdvancePut
from windlass.core.snapshot.events import CheckpointSaved as CheckpointSaved
from windlass.core.snapshot.events import Elapsed as Elapsed
from windlass.core.snapshot.events import Event as Event
from windlass.core.snapshot.events import NodeGone as NodeGone
from windlass.core.snapshot.events import NodePut as NodePut
from windlass.core.snapshot.events import Nominated as Nominated
from windlass.core.snapshot.events import NominationGone as NominationGone
from windlass.core.snapshot.events import QueueGone as QueueGone
from windlass.core.snapshot.events import QueuePut as QueuePut
from windlass.core.snapshot.events import QuotasPut as QuotasPut
from windlass.core.snapshot.events import ReservationsPut as ReservationsPut
from windlass.core.snapshot.events import RunningPut as RunningPut
from windlass.core.snapshot.events import WaitingPut as WaitingPut
from windlass.core.snapshot.events import WorkloadGone as WorkloadGone
from windlass.core.snapshot.running_index import RunningIndex
from windlass.core.snapshot.usage_profile import UsageProfile

Ranked = tuple[tuple[queue_order.Key, str], Workload]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _ClassCounts:
    """How many workloads of each class wait in a queue; valid for this list and these shapes."""

    pending: list[Ranked]
    shapes: Shapes
    counts: Counter[int]


BadFacts, refuse_bad = validation.BadFacts, validation.refuse_bad


class Snapshot:
    """Read by `decide`; changed only by `apply`."""

    def __init__(self, facts: ClusterFacts, history: History | None = None) -> None:
        validation.refuse_bad(facts)
        self.levels = facts.levels
        self.queues = {queue.name: queue for queue in facts.queues}
        self.running: dict[str, Running] = {}
        self.waiting: dict[str, Workload] = {}
        self.nominations = {each.workload: each for each in facts.nominations}
        self.reservations = facts.reservations
        self.calendar = Calendar(facts.advance)
        self.history = history or _first_history(facts)
        """How long workloads ran, for predictions."""
        self.usage: dict[str, Sums] = {}
        """What each running workload counts for in quotas."""
        self.workloads_on: dict[str, dict[str, None]] = {}
        """Node -> workloads that hold capacity there."""
        self.infos: dict[str, WorkloadInfo] = {}
        """What follows from a waiting workload and the nodes alone, by its key."""
        self.pod_index = PodLabelIndex()
        self.running_index = RunningIndex()
        self._pending: dict[str, list[Ranked]] = {}
        """Waiting workloads of steady queues, in order."""
        self._class_counts: dict[str, _ClassCounts] = {}
        self.cluster = Cluster(facts.nodes, facts.levels)
        self.profile = UsageProfile()
        self.availability = AvailabilityProfile(self.cluster)
        """When running workloads give back what they hold."""
        for running in facts.running:
            self._add_running(running)
        self.running_index.rebuild(len(self.cluster.resources))
        self.accounts = {(each.queue, each.user): each for each in facts.accounts}
        self.accounted_at = facts.accounted_at
        self.tree = self._new_tree()
        self.put_quotas(facts.quotas)
        self.demand = Demand()
        """What waiting workloads ask for, by queue."""
        self._entitled: tuple[object, dict[str, float]] | None = None
        """What the entitlements were computed from, and these."""
        self._enqueue_all(facts.waiting)
        self._count_users()
        if history is None:
            for workload in sorted(
                facts.waiting, key=lambda workload: (workload.submitted, workload.key)
            ):
                self._learn_demand(workload)

    def facts(self) -> ClusterFacts:
        """The facts as they are now; a snapshot built from them decides the same."""
        return ClusterFacts(
            nodes=tuple(self.cluster.nodes),
            queues=tuple(self.queues.values()),
            running=tuple(self.running.values()),
            waiting=tuple(self.waiting.values()),
            nominations=tuple(self.nominations.values()),
            reservations=self.reservations,
            levels=self.levels,
            quotas=tuple(self.namespace_quotas.quotas.values()),
            accounts=tuple(self.accounts[key] for key in sorted(self.accounts)),
            accounted_at=self.accounted_at,
            advance=self.calendar.windows,
        )

    def nonempty_queues(self) -> list[str]:
        """Queues with waiting workloads."""
        return sorted(name for name, pending in self._pending.items() if pending)

    def equivalence_classes(self, name: str) -> Collection[int]:
        """The kinds of workloads that wait in a queue, as `Shapes.kind_of` numbers them."""
        pending, shapes = self._pending.get(name, []), self.cluster.shapes
        known = self._class_counts.get(name)
        if known is None or known.pending is not pending or known.shapes is not shapes:
            counts = Counter(
                shapes.equivalence_class(workload, self.cluster.resources)
                for _, workload in pending
            )
            known = self._class_counts[name] = _ClassCounts(pending, shapes, counts)
        return known.counts.keys()

    def pending_in(self, name: str) -> Iterator[Workload]:
        """The waiting workloads of a queue, in no order that means anything."""
        return (workload for _, workload in self._pending.get(name, ()))

    def ordering(self, now: float) -> queue_order.OrderingContext:
        """What orders of queues use besides the workload, as of now."""
        shares = self.user_shares.shares(self.tree, self.accounts, self.horizon)
        return queue_order.OrderingContext(self.history.at(now), shares, self.user_shares.held)

    def only_waiting(self, keys: Collection[str]) -> Snapshot:
        """The same cluster, in which only these workloads wait."""
        reduced = copy.copy(self)
        reduced.waiting = {key: self.waiting[key] for key in keys if key in self.waiting}
        names = {workload.queue for workload in reduced.waiting.values()}
        reduced._pending = {
            name: [entry for entry in self._pending[name] if entry[1].key in reduced.waiting]
            for name in names
        }
        reduced.user_quotas = self.user_quotas.settled(self.pending_in)
        return reduced

    def pending_in_order(
        self, name: str, standing: queue_order.OrderingContext
    ) -> Iterable[Workload]:
        """The waiting workloads of a queue, in its order."""
        ranked = self._pending.get(name, [])
        queue = self.queues.get(name)
        if queue is None or queue_order.is_steady(queue):
            return (workload for _, workload in ranked)
        workloads = (workload for _, workload in ranked)
        if queue_order.is_fair(queue):
            return queue_order.in_turns(
                queue, workloads, standing, self._min_usage, self.tree.dominant_part
            )
        return sorted(workloads, key=lambda workload: queue_order.rank(queue, workload, standing))

    def _min_usage(self, workload: Workload) -> Mapping[str, int]:
        """What the workload's minimum counts for."""
        return usage.of_requests(self.cluster, pod_sets.minimum(workload))

    # --- events

    def put_nodes(self, nodes: Mapping[str, Node | None]) -> None:
        """Nodes that came, changed, or went (None), by name."""
        moved, resized, differs = dict[str, Node | None](), False, False
        for name, node in nodes.items():
            known = self.cluster.index.get(name)
            old = None if known is None else self.cluster.nodes[known]
            if node is None or old is None or relayout.layout(old) != relayout.layout(node):
                moved[name] = node
            else:
                self.cluster.update(node)
                resized |= relayout.size(old) != relayout.size(node)
                differs |= dataclasses.replace(old, ready=node.ready) != node
        if moved.keys() & self.cluster.index.keys() or any(moved.values()):
            self._move_nodes(moved)
        if moved or resized:
            self.tree = self.tree.resized(self.cluster.totals())
        if differs:
            self._count_demand_again()

    def put_queue(self, queue: Queue) -> None:
        self.queues[queue.name] = queue
        self.tree = self._new_tree()
        self._count_users()
        self._sort_pending(queue.name)

    def drop_queue(self, name: str) -> None:
        if self.queues.pop(name, None) is not None:
            self.tree = self._new_tree()
            self._count_users()
            self._sort_pending(name)

    def put_quotas(self, quotas: Iterable[Quota]) -> None:
        self.namespace_quotas = NamespaceQuotas(quotas, self._running_usage())

    def put_accounts(self, accounts: Iterable[Account], at: float) -> None:
        """Accounts as they were counted elsewhere, until a moment."""
        self.accounts = {(each.queue, each.user): each for each in accounts}
        self.accounted_at = at
        self.update_past_use()

    def _count_users(self) -> None:
        self.user_shares = UserShares(self.queues.values(), self._running_usage())
        self.user_quotas = UserQuotas(self.tree, self._running_usage(), self.waiting.values())

    def _running_usage(self) -> Iterator[tuple[Running, Sums]]:
        return ((running, self.usage[key]) for key, running in self.running.items())

    def put_waiting(self, workload: Workload) -> None:
        if workload.key not in self.waiting and workload.key not in self.running:
            self._learn_demand(workload)
        self.try_waiting(workload)
        self.history.register(workload)

    def try_waiting(self, workload: Workload) -> None:
        """Puts a workload in its queue without learning anything from it: for what-if questions."""
        self._remove(workload.key)
        self._enqueue(workload)

    def put_running(self, running: Running) -> None:
        self._remove(running.workload.key)
        self._add_running(running)
        self._count_usage(running, 1)
        self.history.register(running.workload, running.started)

    def put_saved(self, key: str, at: float) -> None:
        """Only what would be lost with the workload changes, so no capacity is counted again."""
        running = self.running.get(key)
        if running is not None:
            self.running[key] = running = dataclasses.replace(running, checkpoint_at=at)
            self.running_index.add(self.cluster, running, self.usage[key])
            if key in self.availability.unknown:
                self.availability.unknown[key] = running

    def drop_workload(self, key: str, ran: float | None = None) -> None:
        running, waiting = self.running.get(key), self.waiting.get(key)
        if running is not None and ran is not None:
            self.history.observe(running.workload, ran)
        elif running is not None or waiting is not None:
            workload = running.workload if running is not None else self.waiting[key]
            self.history.remove(key, workload.attained)
        self._remove(key)

    def _remove(self, key: str) -> None:
        running = self.running.get(key)
        if running is not None:
            self._count_usage(running, -1)
            self._remove_running(running)
        workload = self.waiting.pop(key, None)
        if workload is not None:
            line = self._pending[workload.queue]
            del line[bisect.bisect_left(line, self._ranked(workload)[0], key=lambda e: e[0])]
            self._count_class(workload, line, -1)
            self.infos.pop(key, None)
            self.demand.drop(key)
            self.user_quotas.count_waiting(workload, -1)

    def _learn_demand(self, workload: Workload) -> None:
        for role in workload.roles:
            self.history.demand.observe(self.cluster, self.cluster.shape_of(role), role.min_count)

    # --- keeping the indexes

    def _enqueue_all(self, workloads: Iterable[Workload]) -> None:
        """Adds all waiting workloads at once: each queue is sorted once."""
        for workload in workloads:
            self.waiting[workload.key] = workload
            self._pending.setdefault(workload.queue, []).append(self._ranked(workload))
            self._note_demand(workload)
        for pending in self._pending.values():
            pending.sort(key=lambda entry: entry[0])

    def _enqueue(self, workload: Workload) -> None:
        self.waiting[workload.key] = workload
        pending = self._pending.setdefault(workload.queue, [])
        bisect.insort(pending, self._ranked(workload), key=lambda e: e[0])
        self._count_class(workload, pending, 1)
        self._note_demand(workload)
        self.user_quotas.count_waiting(workload, 1)

    def _note_demand(self, workload: Workload) -> None:
        known = self.infos[workload.key] = workload_info.describe(self.cluster, workload)
        self.demand.put(self.cluster, known)

    def _count_demand_again(self) -> None:
        """What an empty cluster takes has changed."""
        self.demand = Demand()
        for workload in self.waiting.values():
            known = self.infos.get(workload.key)
            if known is None:
                self._note_demand(workload)
            else:
                self.demand.put(self.cluster, known)

    def _count_class(self, workload: Workload, pending: list[Ranked], sign: int) -> None:
        known = self._class_counts.get(workload.queue)
        if known is not None and known.pending is pending and known.shapes is self.cluster.shapes:
            number = known.shapes.equivalence_class(workload, self.cluster.resources)
            known.counts[number] += sign
            if not known.counts[number]:
                del known.counts[number]

    def _ranked(self, workload: Workload) -> Ranked:
        queue = self.queues.get(workload.queue)
        if queue is None or not queue_order.is_steady(queue):
            return ((workload.submitted,), workload.key), workload
        return queue_order.rank(queue, workload, queue_order.NOTHING_KNOWN), workload

    def _sort_pending(self, name: str) -> None:
        if name in self._pending:
            self._pending[name] = sorted(
                (self._ranked(workload) for _, workload in self._pending[name]),
                key=lambda entry: entry[0],
            )

    def _add_running(self, running: Running) -> None:
        key, roles = running.workload.key, running.workload.roles
        self.running[key] = running
        by_name = {role.name: role for role in roles}
        for pod in running.pods:
            self.workloads_on.setdefault(pod.node, {})[key] = None
            if pod.role in by_name:
                self.cluster.occupy(by_name[pod.role], pod)
        self.cluster.settle()
        self.usage[key] = usage.of_pods(self.cluster, roles, running.pods)
        self.pod_index.add(running)
        self.availability.add_running(self.cluster, running)
        self.profile.add(running)
        self.running_index.add(self.cluster, running, self.usage[key])

    def _remove_running(self, running: Running) -> None:
        by_name = {role.name: role for role in running.workload.roles}
        for pod in running.pods:
            if pod.role in by_name:
                self.cluster.release(by_name[pod.role], pod)
        self.cluster.settle()
        del self.running[running.workload.key], self.usage[running.workload.key]
        for node in {pod.node for pod in running.pods}:
            del self.workloads_on[node][running.workload.key]
        self.pod_index.remove(running)
        self.availability.remove(running.workload.key)
        self.profile.remove(running)
        self.running_index.remove(running)

    def _count_usage(self, running: Running, sign: int) -> None:
        workload = running.workload
        amounts = self.usage[workload.key]
        self.tree.add(workload.queue, amounts, non_preemptible=not workload.preemptible, sign=sign)
        self.namespace_quotas.add(workload.namespace, amounts, len(running.pods), sign)
        self.user_shares.add(workload, amounts, sign)
        self.user_quotas.add(workload, amounts, sign=sign)

    # --- past use

    def elapse(self, now: float) -> None:
        """Adds what each queue, and each user where users take turns, held until now to its
        account."""
        before, self.accounted_at = self.accounted_at, now
        if before is None or now <= before:
            return
        accounts.advance_users(self, now - before)
        accounts.advance_queues(self, now - before)
        self.update_past_use()

    def entitlements(self) -> dict[str, float]:
        """By queue, the share of the cluster that it is entitled to now."""
        tree, demand = self.tree, self.demand
        state = (tree, tree.generation, demand, demand.generation)
        if self._entitled is None or self._entitled[0] != state:
            asked_for = demand.by_queue(tree.paused, self.user_quotas)
            self._entitled = state, entitlement.entitlements(tree, asked_for)
        return self._entitled[1]

    @property
    def horizon(self) -> float:
        """Seconds of excess that count as much as the same share used now: see
        `core.fairness.past_use`."""
        return self.profile.horizon

    def update_past_use(self) -> None:
        """Before queues are compared: what past use adds depends on what runs."""
        past_use.apply(self.tree, self.accounts, self.queues, self.horizon)
        if self.tree.is_overcommitted:
            asked_for = self.demand.by_queue(self.tree.paused, self.user_quotas)
            self.tree.put_waiting(name for name, need in asked_for.items() if any(need.values()))

    def contending(self) -> frozenset[str]:
        """Queues that ask for more than they are entitled to."""
        asked_for = self.demand.by_queue(self.tree.paused, self.user_quotas)
        return entitlement.contending(self.tree, asked_for, self.entitlements())

    def _new_tree(self) -> QuotaTree:
        """A new tree after the queues changed, with all usage counted again."""
        tree = QuotaTree(self.queues.values(), self.cluster.totals())
        past_use.apply(tree, self.accounts, self.queues, self.horizon)
        for key, running in self.running.items():
            workload = running.workload
            tree.add(workload.queue, self.usage[key], non_preemptible=not workload.preemptible)
        return tree

    def _move_nodes(self, changed: Mapping[str, Node | None]) -> None:
        """Nodes are renumbered. Workloads on nodes that changed are removed and added again; all
        others keep their entries under new numbers, unless resources have other columns now."""
        old = self.cluster
        stay = [node for node in old.nodes if node.name not in changed]
        new = Cluster([*stay, *filter(None, changed.values())], self.levels)
        carried = relayout.mean_the_same(old, new)
        near = (key for name in changed for key in self.workloads_on.get(name, ()))
        there = [self.running[key] for key in dict.fromkeys(near if carried else self.running)]
        for each in there:
            self._count_usage(each, -1)
            self._remove_running(each)
        if carried:
            widths = (old.device_table.compute.shape[1], new.device_table.compute.shape[1])
            shifted = numbering.between(old.nodes, new.index, widths, changed)
            new.carry_over(old, shifted)
            self.availability.carry_over(shifted)
            self.running_index.carry_over(shifted)
        else:
            self.availability, self.running_index = AvailabilityProfile(new), RunningIndex()
            self.infos = {}
        self.cluster = new
        for each in there:
            self._add_running(each)
            self._count_usage(each, 1)
        self._count_demand_again()


def _first_history(facts: ClusterFacts) -> History:
    """A history without any ended workload: all present workloads are registered, in the order of
    submission."""
    history = History()
    started = {running.workload.key: running.started for running in facts.running}
    workloads = [*(running.workload for running in facts.running), *facts.waiting]
    for workload in sorted(workloads, key=lambda workload: (workload.submitted, workload.key)):
        history.register(workload, started.get(workload.key))
    return history


def build(facts: ClusterFacts, history: History | None = None) -> Snapshot:
    return Snapshot(facts, history)


def apply(snapshot: Snapshot, events: Iterable[Event]) -> Snapshot:
    """Brings the snapshot up to date and returns it. Nodes that change one after another do so at
    once: places shift, and that costs the same for one as for many."""
    once = validation.Once()
    for of_nodes, group in itertools.groupby(events, lambda e: isinstance(e, NodePut | NodeGone)):
        if of_nodes:
            _apply_to_nodes(snapshot, group, once)
        else:
            for event in group:
                _apply(snapshot, event, once)
    snapshot.running_index.refresh(len(snapshot.cluster.resources))
    return snapshot


def _apply_to_nodes(snapshot: Snapshot, events: Iterable[Event], once: validation.Once) -> None:
    nodes: dict[str, Node | None] = {}
    try:
        for event in events:
            match event:
                case NodePut(node):
                    validation.refuse_bad_node(node, once)
                    nodes[node.name] = node
                case NodeGone(name):
                    nodes[name] = None
    finally:
        snapshot.put_nodes(nodes)  # also those before one that is refused


def _apply(snapshot: Snapshot, event: Event, once: validation.Once) -> None:
    match event:
        case QueuePut(queue):
            validation.refuse_bad_queue(queue)
            snapshot.put_queue(queue)
        case QueueGone(name):
            snapshot.drop_queue(name)
        case QuotasPut(quotas):
            validation.refuse_bad_quotas(quotas)
            snapshot.put_quotas(quotas)
        case AdvancePut(windows):
            validation.refuse_bad_advance(windows)
            snapshot.calendar = Calendar(windows)
        case Nominated(nomination):
            validation.refuse_bad_nomination(nomination)
            snapshot.nominations[nomination.workload] = nomination
        case NominationGone(workload):
            snapshot.nominations.pop(workload, None)
        case Elapsed(now):
            validation.refuse_bad_time("elapsed", "now", now)
            snapshot.elapse(now)
        case AccountsPut(accounts, at):
            validation.refuse_bad_accounts(accounts)
            validation.refuse_bad_time("accounts", "at", at)
            snapshot.put_accounts(accounts, at)
        case ReservationsPut(reservations):
            validation.refuse_bad_reservations(reservations)
            snapshot.reservations = reservations
        case _:
            _apply_to_workload(snapshot, event, once)


def _apply_to_workload(snapshot: Snapshot, event: Event, once: validation.Once) -> None:
    match event:
        case WaitingPut(workload):
            validation.refuse_bad_workload(workload, once)
            snapshot.put_waiting(workload)
        case RunningPut(running):
            validation.refuse_bad_running(running, once)
            snapshot.put_running(running)
            if not gangs.keeps_nomination(running):
                snapshot.nominations.pop(running.workload.key, None)
        case CheckpointSaved(key, at):
            validation.refuse_bad_moment(key, "checkpoint_at", at)
            snapshot.put_saved(key, at)
        case WorkloadGone(key, ran):
            if ran is not None:
                validation.refuse_bad_seconds(key, "ran", ran)
            snapshot.drop_workload(key, ran)
            snapshot.nominations.pop(key, None)
