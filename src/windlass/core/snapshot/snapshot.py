"""The snapshot: facts with the indexes that decisions read, kept up to date event by event.

`build` makes one from facts; `apply` takes events. After any sequence of events a snapshot answers
exactly as one built fresh from the same facts: `decide` depends on facts only, never on the way
they came. What an index costs to keep grows with what changed.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

from windlass.core import (
    accounting,
    amounts,
    asked,
    entitlement,
    facts_check,
    layouts,
    nominations,
    numbers,
    order,
    place,
    usershares,
)
from windlass.core.calendar import Calendar
from windlass.core.cluster import Cluster
from windlass.core.crowd import Crowd
from windlass.core.demand import Demand
from windlass.core.events import AccountsPut as AccountsPut
from windlass.core.events import AdvancePut as AdvancePut
from windlass.core.events import Elapsed as Elapsed
from windlass.core.events import Event as Event
from windlass.core.events import Gone as Gone
from windlass.core.events import Holds as Holds
from windlass.core.events import NodeGone as NodeGone
from windlass.core.events import NodePut as NodePut
from windlass.core.events import Nominated as Nominated
from windlass.core.events import NominationGone as NominationGone
from windlass.core.events import Promised as Promised
from windlass.core.events import QueueGone as QueueGone
from windlass.core.events import QueuePut as QueuePut
from windlass.core.events import QuotasPut as QuotasPut
from windlass.core.events import Saved as Saved
from windlass.core.events import Waits as Waits
from windlass.core.facts import (
    Account,
    Facts,
    Node,
    Queue,
    Quota,
    Running,
    Unit,
)
from windlass.core.predict import History
from windlass.core.queues import Sums, Tree
from windlass.core.releases import Releases
from windlass.core.roster import Roster
from windlass.core.shapes import Shapes
from windlass.core.spaces import Spaces
from windlass.core.usage_profile import UsageProfile
from windlass.core.userlimits import UserQuotas
from windlass.core.usershares import UserShares

Ranked = tuple[tuple[order.Key, str], Unit]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Kinds:
    """How many of each kind wait in a line; of that very list, by these shapes."""

    line: list[Ranked]
    shapes: Shapes
    counts: Counter[int]


BadFacts, refuse_bad = facts_check.BadFacts, facts_check.refuse_bad


class Snapshot:
    """Read by `decide`; changed only by `apply`."""

    def __init__(self, facts: Facts, history: History | None = None) -> None:
        facts_check.refuse_bad(facts)
        self.levels = facts.levels
        self.queues = {queue.name: queue for queue in facts.queues}
        self.running: dict[str, Running] = {}
        self.waiting: dict[str, Unit] = {}
        self.nominations = {each.unit: each for each in facts.nominations}
        self.reservations = facts.reservations
        self.calendar = Calendar(facts.advance)
        self.history = history or _first_history(facts)
        """How long units ran, for predictions."""
        self.held: dict[str, Sums] = {}
        """What each running unit counts for in quotas."""
        self.there: dict[str, dict[str, None]] = {}
        """Node -> units that hold room there."""
        self.crowd = Crowd()
        self.roster = Roster()
        self._lines: dict[str, list[Ranked]] = {}
        """Waiting units of steady queues, in order."""
        self._kinds: dict[str, _Kinds] = {}
        self.cluster = Cluster(facts.nodes, facts.levels)
        self.profile = UsageProfile()
        self.releases = Releases(self.cluster)
        """When running units give back what they hold."""
        for running in facts.running:
            self._hold(running)
        self.roster.lay_out(len(self.cluster.resources))
        self.accounts = {(each.queue, each.user): each for each in facts.accounts}
        self.accounted_at = facts.accounted_at
        self.tree = self._new_tree()
        self.put_quotas(facts.quotas)
        self.demand = Demand()
        """What waiting workloads ask for, by queue."""
        self._entitled: tuple[object, dict[str, float]] | None = None
        """What the entitlements were computed from, and these."""
        self._line_up(facts.waiting)
        self._count_users()
        if history is None:
            for unit in sorted(facts.waiting, key=lambda unit: (unit.submitted, unit.key)):
                self._learn_demand(unit)

    def facts(self) -> Facts:
        """The facts as they are now; a snapshot built from them decides the same."""
        return Facts(
            nodes=tuple(self.cluster.nodes),
            queues=tuple(self.queues.values()),
            running=tuple(self.running.values()),
            waiting=tuple(self.waiting.values()),
            nominations=tuple(self.nominations.values()),
            reservations=self.reservations,
            levels=self.levels,
            quotas=tuple(self.spaces.quotas.values()),
            accounts=tuple(self.accounts[key] for key in sorted(self.accounts)),
            accounted_at=self.accounted_at,
            advance=self.calendar.windows,
        )

    def lines(self) -> list[str]:
        """Queues in which anybody waits."""
        return sorted(name for name, line in self._lines.items() if line)

    def kinds(self, name: str) -> Collection[int]:
        """The kinds of units that wait in a queue, as `Shapes.kind_of` numbers them."""
        line, shapes = self._lines.get(name, []), self.cluster.shapes
        known = self._kinds.get(name)
        if known is None or known.line is not line or known.shapes is not shapes:
            counts = Counter(shapes.kind_of(unit, self.cluster.resources) for _, unit in line)
            known = self._kinds[name] = _Kinds(line, shapes, counts)
        return known.counts.keys()

    def members(self, name: str) -> Iterator[Unit]:
        """The waiting units of a queue, in no order that means anything."""
        return (unit for _, unit in self._lines.get(name, ()))

    def line(self, name: str, standing: order.Standing) -> Iterable[Unit]:
        """The waiting units of a queue, in its order."""
        ranked = self._lines.get(name, [])
        queue = self.queues.get(name)
        if queue is None or order.is_steady(queue):
            return (unit for _, unit in ranked)
        units = (unit for _, unit in ranked)
        if order.is_fair(queue):
            return order.in_turns(queue, units, standing, self._least_need, self.tree.dominant_part)
        return sorted(units, key=lambda unit: order.rank(queue, unit, standing))

    def _least_need(self, unit: Unit) -> Mapping[str, int]:
        """What the unit's least counts for."""
        return amounts.of_wishes(self.cluster, place.least_of(unit))

    # --- events

    def put_nodes(self, nodes: Mapping[str, Node | None]) -> None:
        """Nodes that came, changed, or went (None), by name."""
        moved, resized, differs = dict[str, Node | None](), False, False
        for name, node in nodes.items():
            known = self.cluster.index.get(name)
            old = None if known is None else self.cluster.nodes[known]
            if node is None or old is None or layouts.layout(old) != layouts.layout(node):
                moved[name] = node
            else:
                self.cluster.update(node)
                resized |= layouts.size(old) != layouts.size(node)
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
        self._sort_line(queue.name)

    def drop_queue(self, name: str) -> None:
        if self.queues.pop(name, None) is not None:
            self.tree = self._new_tree()
            self._count_users()
            self._sort_line(name)

    def put_quotas(self, quotas: Iterable[Quota]) -> None:
        self.spaces = Spaces(quotas, self._usage())

    def put_accounts(self, accounts: Iterable[Account], at: float) -> None:
        """Accounts as they were counted elsewhere, until a moment."""
        self.accounts = {(each.queue, each.user): each for each in accounts}
        self.accounted_at = at
        accounting.tell(self.tree, self.accounts, self.queues)

    def _count_users(self) -> None:
        self.user_shares = UserShares(self.queues.values(), self._usage())
        self.user_quotas = UserQuotas(self.tree, self._usage(), self.waiting.values())

    def _usage(self) -> Iterator[tuple[Running, Sums]]:
        return ((running, self.held[key]) for key, running in self.running.items())

    def put_waiting(self, unit: Unit) -> None:
        if unit.key not in self.waiting and unit.key not in self.running:
            self._learn_demand(unit)
        self.try_waiting(unit)
        self.history.know(unit)

    def try_waiting(self, unit: Unit) -> None:
        """Puts a unit in line without learning anything from it: for questions."""
        self._take_out(unit.key)
        self._wait(unit)

    def put_running(self, running: Running) -> None:
        self._take_out(running.unit.key)
        self._hold(running)
        self._count(running, 1)
        self.history.know(running.unit, running.started)

    def put_saved(self, key: str, at: float) -> None:
        """Only what would be lost with the unit changes, so no room is counted again."""
        running = self.running.get(key)
        if running is not None:
            self.running[key] = running = dataclasses.replace(running, checkpoint_at=at)
            self.roster.enter(self.cluster, running, self.held[key])
            if key in self.releases.unknown:
                self.releases.unknown[key] = running

    def drop_unit(self, key: str, ran: float | None = None) -> None:
        running, waiting = self.running.get(key), self.waiting.get(key)
        if running is not None and ran is not None:
            self.history.observe(running.unit, ran)
        elif running is not None or waiting is not None:
            unit = running.unit if running is not None else self.waiting[key]
            self.history.leave(key, unit.attained)
        self._take_out(key)

    def _take_out(self, key: str) -> None:
        running = self.running.get(key)
        if running is not None:
            self._count(running, -1)
            self._let_go(running)
        unit = self.waiting.pop(key, None)
        if unit is not None:
            line = self._lines[unit.queue]
            del line[bisect.bisect_left(line, self._ranked(unit)[0], key=lambda e: e[0])]
            self._count_kind(unit, line, -1)
            self.cluster.asked.pop(key, None)
            self.demand.drop(key)
            self.user_quotas.count_waiting(unit, -1)

    def _learn_demand(self, unit: Unit) -> None:
        for role in unit.roles:
            self.history.demand.observe(self.cluster, self.cluster.shape_of(role), role.least)

    # --- keeping the indexes

    def _line_up(self, units: Iterable[Unit]) -> None:
        """All who wait, at once: each line is sorted once."""
        for unit in units:
            self.waiting[unit.key] = unit
            self._lines.setdefault(unit.queue, []).append(self._ranked(unit))
            self._note_demand(unit)
        for line in self._lines.values():
            line.sort(key=lambda entry: entry[0])

    def _wait(self, unit: Unit) -> None:
        self.waiting[unit.key] = unit
        line = self._lines.setdefault(unit.queue, [])
        bisect.insort(line, self._ranked(unit), key=lambda e: e[0])
        self._count_kind(unit, line, 1)
        self._note_demand(unit)
        self.user_quotas.count_waiting(unit, 1)

    def _note_demand(self, unit: Unit) -> None:
        known = self.cluster.asked[unit.key] = asked.tell(self.cluster, unit)
        self.demand.put(self.cluster, known)

    def _count_demand_again(self) -> None:
        """What an empty cluster takes has changed."""
        self.demand = Demand()
        for unit in self.waiting.values():
            known = self.cluster.asked.get(unit.key)
            if known is None:
                self._note_demand(unit)
            else:
                self.demand.put(self.cluster, known)

    def _count_kind(self, unit: Unit, line: list[Ranked], sign: int) -> None:
        known = self._kinds.get(unit.queue)
        if known is not None and known.line is line and known.shapes is self.cluster.shapes:
            kind = known.shapes.kind_of(unit, self.cluster.resources)
            known.counts[kind] += sign
            if not known.counts[kind]:
                del known.counts[kind]

    def _ranked(self, unit: Unit) -> Ranked:
        queue = self.queues.get(unit.queue)
        if queue is None or not order.is_steady(queue):
            return ((unit.submitted,), unit.key), unit
        return order.rank(queue, unit, order.NOTHING_KNOWN), unit

    def _sort_line(self, name: str) -> None:
        if name in self._lines:
            self._lines[name] = sorted(
                (self._ranked(unit) for _, unit in self._lines[name]), key=lambda entry: entry[0]
            )

    def _hold(self, running: Running) -> None:
        key, roles = running.unit.key, running.unit.roles
        self.running[key] = running
        by_name = {role.name: role for role in roles}
        for seat in running.seats:
            self.there.setdefault(seat.node, {})[key] = None
            if seat.role in by_name:
                self.cluster.occupy(by_name[seat.role], seat)
        self.cluster.settle()
        self.held[key] = amounts.of_seats(self.cluster, roles, running.seats)
        self.crowd.enter(running)
        self.releases.follow(self.cluster, running)
        self.profile.enter(running)
        self.roster.enter(self.cluster, running, self.held[key])

    def _let_go(self, running: Running) -> None:
        by_name = {role.name: role for role in running.unit.roles}
        for seat in running.seats:
            if seat.role in by_name:
                self.cluster.release(by_name[seat.role], seat)
        self.cluster.settle()
        del self.running[running.unit.key], self.held[running.unit.key]
        for node in {seat.node for seat in running.seats}:
            del self.there[node][running.unit.key]
        self.crowd.leave(running)
        self.releases.leave(running.unit.key)
        self.profile.leave(running)
        self.roster.leave(running)

    def _count(self, running: Running, sign: int) -> None:
        unit = running.unit
        held = self.held[unit.key]
        self.tree.add(unit.queue, held, firm=not unit.preemptible, sign=sign)
        self.spaces.add(unit.namespace, held, len(running.seats), sign)
        self.user_shares.add(unit, held, sign)
        self.user_quotas.add(unit, held, sign=sign)

    # --- past use

    def elapse(self, now: float) -> None:
        """Adds what each queue, and each user where users take turns, held until now to its
        account."""
        before, self.accounted_at = self.accounted_at, now
        if before is None or now <= before:
            return
        usershares.advance(self, now - before)
        accounting.advance_queues(self, now - before)
        accounting.tell(self.tree, self.accounts, self.queues)

    def entitlements(self) -> dict[str, float]:
        """By queue, the share of the cluster that it is entitled to now."""
        tree, demand = self.tree, self.demand
        state = (tree, tree.generation, demand, demand.generation)
        if self._entitled is None or self._entitled[0] != state:
            asked_for = demand.by_queue(tree.held, self.user_quotas)
            self._entitled = state, entitlement.entitlements(tree, asked_for)
        return self._entitled[1]

    def _new_tree(self) -> Tree:
        """The queues changed: everybody is counted again."""
        tree = Tree(self.queues.values(), self.cluster.totals())
        accounting.tell(tree, self.accounts, self.queues)
        for key, running in self.running.items():
            unit = running.unit
            tree.add(unit.queue, self.held[key], firm=not unit.preemptible)
        return tree

    def _move_nodes(self, changed: Mapping[str, Node | None]) -> None:
        """Places shift. Who is on nodes that changed goes and comes again; all others stay as they
        are, under new numbers, unless members mean something else by now."""
        old = self.cluster
        stay = [node for node in old.nodes if node.name not in changed]
        new = Cluster([*stay, *filter(None, changed.values())], self.levels)
        carried = layouts.mean_the_same(old, new)
        near = (key for name in changed for key in self.there.get(name, ()))
        there = [self.running[key] for key in dict.fromkeys(near if carried else self.running)]
        for each in there:
            self._count(each, -1)
            self._let_go(each)
        if carried:
            shifted = numbers.between(old, new, changed)
            new.carry_over(old, shifted)
            self.releases.carry_over(shifted)
            self.roster.carry_over(shifted)
        else:
            self.releases, self.roster = Releases(new), Roster()
        self.cluster = new
        for each in there:
            self._hold(each)
            self._count(each, 1)
        self._count_demand_again()


def _first_history(facts: Facts) -> History:
    """Nothing was seen to end yet, but who is there is known, in the order of submission."""
    history = History()
    started = {running.unit.key: running.started for running in facts.running}
    units = [*(running.unit for running in facts.running), *facts.waiting]
    for unit in sorted(units, key=lambda unit: (unit.submitted, unit.key)):
        history.know(unit, started.get(unit.key))
    return history


def build(facts: Facts, history: History | None = None) -> Snapshot:
    return Snapshot(facts, history)


def apply(snapshot: Snapshot, events: Iterable[Event]) -> Snapshot:
    """Brings the snapshot up to date and returns it. Nodes that change one after another do so at
    once: places shift, and that costs the same for one as for many."""
    once = facts_check.Once()
    for of_nodes, group in itertools.groupby(events, lambda e: isinstance(e, NodePut | NodeGone)):
        if of_nodes:
            _apply_to_nodes(snapshot, group, once)
        else:
            for event in group:
                _apply(snapshot, event, once)
    snapshot.roster.lay_out_again(len(snapshot.cluster.resources))
    return snapshot


def _apply_to_nodes(snapshot: Snapshot, events: Iterable[Event], once: facts_check.Once) -> None:
    nodes: dict[str, Node | None] = {}
    try:
        for event in events:
            match event:
                case NodePut(node):
                    facts_check.refuse_bad_node(node, once)
                    nodes[node.name] = node
                case NodeGone(name):
                    nodes[name] = None
    finally:
        snapshot.put_nodes(nodes)  # also those before one that is refused


def _apply(snapshot: Snapshot, event: Event, once: facts_check.Once) -> None:
    match event:
        case QueuePut(queue):
            facts_check.refuse_bad_queue(queue)
            snapshot.put_queue(queue)
        case QueueGone(name):
            snapshot.drop_queue(name)
        case QuotasPut(quotas):
            facts_check.refuse_bad_quotas(quotas)
            snapshot.put_quotas(quotas)
        case AdvancePut(windows):
            facts_check.refuse_bad_advance(windows)
            snapshot.calendar = Calendar(windows)
        case Nominated(nomination):
            facts_check.refuse_bad_nomination(nomination)
            snapshot.nominations[nomination.unit] = nomination
        case NominationGone(unit):
            snapshot.nominations.pop(unit, None)
        case Elapsed(now):
            facts_check.refuse_bad_time("elapsed", "now", now)
            snapshot.elapse(now)
        case AccountsPut(accounts, at):
            facts_check.refuse_bad_accounts(accounts)
            facts_check.refuse_bad_time("accounts", "at", at)
            snapshot.put_accounts(accounts, at)
        case Promised(reservations):
            facts_check.refuse_bad_reservations(reservations)
            snapshot.reservations = reservations
        case _:
            _apply_to_unit(snapshot, event, once)


def _apply_to_unit(snapshot: Snapshot, event: Event, once: facts_check.Once) -> None:
    match event:
        case Waits(unit):
            facts_check.refuse_bad_unit(unit, once)
            snapshot.put_waiting(unit)
        case Holds(running):
            facts_check.refuse_bad_running(running, once)
            snapshot.put_running(running)
            if not nominations.outlives(running):
                snapshot.nominations.pop(running.unit.key, None)
        case Saved(key, at):
            facts_check.refuse_bad_moment(key, "checkpoint_at", at)
            snapshot.put_saved(key, at)
        case Gone(key, ran):
            if ran is not None:
                facts_check.refuse_bad_seconds(key, "ran", ran)
            snapshot.drop_unit(key, ran)
            snapshot.nominations.pop(key, None)
