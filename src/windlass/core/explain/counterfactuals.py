"""What would have to be different for a waiting unit to start now: the nearest such changes.

`core.explain` asks. Every change is tried by running the whole cycle on the changed facts, with
everybody else still in line, so what is said is what would happen. Searches are by halving and the
number of tries is bounded; a change that was not found is not said to be useless.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

from windlass.core import cycle, place, state, userlimits, verdicts
from windlass.core.facts import (
    DeviceRequest,
    Policy,
    Queue,
    Role,
    Running,
    Seat,
    Topology,
    Unit,
    Verdict,
)
from windlass.core.place import Failure, Scene, Work
from windlass.core.state import Snapshot
from windlass.kinds.reasons import Reason

Rule = Literal["", "limit", "guarantee", "user limit"]
Kind = Literal[
    "topology", "bundle", "members", "devices", "model", "quota", "ends", "nodes", "moves"
]

_COUNTED = (userlimits.RUNNING, userlimits.SUBMITTED)
MOST_TRIES = 40
"""Decisions that are made for one explanation at most."""
MOST_ENDS = 512
"""Running units, by their expected end, that are looked at for "after these end"."""


@dataclasses.dataclass(frozen=True, slots=True)
class Relocation:
    """A running workload that would have to run elsewhere."""

    unit: str
    source: tuple[str, ...]
    """Nodes."""
    seats: tuple[Seat, ...]
    """Where it would be."""
    allowed: bool
    """Whether its owner allows that it is moved."""

    @property
    def target(self) -> tuple[str, ...]:
        return tuple(sorted({seat.node for seat in self.seats}))


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """One thing that would start the unit now."""

    kind: Kind
    message: str
    names: tuple[str, ...] = ()
    """The units that end, the nodes that come, the queue that may use more, the model."""
    amount: int = 0
    """Members or devices per member that fit, or how much more the queue must be allowed."""
    role: str = ""
    """Whose members or devices would be fewer, or whose devices of another model."""
    resource: str = ""
    """What there would be less or more of."""
    rule: Rule = ""
    """What of the queue would have to be raised."""
    moves: tuple[Relocation, ...] = ()
    """Which workloads would have to run where."""


def moved(moves: Sequence[Relocation], names: Sequence[str]) -> str:
    """The sentence about workloads that would have to move, by the names they have for a reader."""
    parts = [
        f"{name} moved from {', '.join(each.source)} to {', '.join(each.target)}"
        for each, name in zip(moves, names, strict=True)
    ]
    words = f"it would start if {' and '.join(parts)}"
    if all(each.allowed for each in moves):
        return f"{words}; moves wait for a recent checkpoint, and an hour after the last move"
    owners = "its owner has" if len(moves) == 1 else "not all owners have"
    negation = " not" if len(moves) == 1 else ""
    return f"{words}; {owners}{negation} allowed moves (--movable)"


class Lab:
    """Tries changes of one unit's world."""

    def __init__(self, snapshot: Snapshot, unit: Unit, now: float, policy: Policy) -> None:
        self.snapshot, self.unit, self.now, self.policy = snapshot, unit, now, policy
        self.tries = MOST_TRIES

    def starts(self, changed: Snapshot) -> bool:
        """Whether the unit starts now in a changed world."""
        return self.outcome(changed) is None

    def outcome(self, changed: Snapshot) -> Verdict | None:
        """Its verdict there; None: it starts."""
        self.tries -= 1
        done = cycle.run(changed, self.now, self.policy)
        if self.unit.key in done.placements:
            return None
        return done.verdict_of(self.unit.key)

    def with_unit(self, unit: Unit) -> Snapshot:
        twin = with_own_line(self.snapshot)
        twin.try_waiting(unit)
        return twin

    def with_queue(self, queue: Queue, base: Snapshot | None = None) -> Snapshot:
        twin = copy.copy(base or self.snapshot)
        twin.queues, twin._lines = dict(twin.queues), dict(twin._lines)
        twin.put_queue(queue)
        return twin

    def without_units(self, gone: Iterable[str]) -> Snapshot:
        facts, names = self.snapshot.facts(), set(gone)
        running = tuple(each for each in facts.running if each.unit.key not in names)
        return state.build(dataclasses.replace(facts, running=running), self.snapshot.history)

    def with_nodes(self, names: Iterable[str]) -> Snapshot:
        facts, wanted = self.snapshot.facts(), set(names)
        nodes = tuple(
            dataclasses.replace(node, ready_in=0.0) if node.name in wanted else node
            for node in facts.nodes
        )
        return state.build(dataclasses.replace(facts, nodes=nodes), self.snapshot.history)

    def with_moved(self, moves: Iterable[Relocation]) -> Snapshot:
        facts, seats = self.snapshot.facts(), {each.unit: each.seats for each in moves}
        running = tuple(
            dataclasses.replace(each, seats=seats.get(each.unit.key, each.seats))
            for each in facts.running
        )
        return state.build(dataclasses.replace(facts, running=running), self.snapshot.history)

    def largest(self, most: int, variant: Callable[[int], Unit]) -> int:
        """The largest number below or at `most` with which the unit starts, by halving; 0: none."""
        low, high = 0, most
        while low < high and self.tries > 0:
            middle = (low + high + 1) // 2
            if self.starts(self.with_unit(variant(middle))):
                low = middle
            else:
                high = middle - 1
        return low


def with_own_line(snapshot: Snapshot) -> Snapshot:
    """The same world; who waits in it can be changed without changing the other."""
    twin = copy.copy(snapshot)
    twin.waiting = dict(snapshot.waiting)
    twin._lines = {name: list(line) for name, line in snapshot._lines.items()}
    twin.demand, twin.user_quotas = snapshot.demand.copy(), snapshot.user_quotas.fork()
    return twin


def nearest(lab: Lab, verdict: Verdict, wanted: Sequence[str]) -> Iterator[Change]:
    """Changes of the unit, then of its queue, then of the cluster."""
    if verdict.reason is Reason.WAITING_FOR_QUOTA:
        yield from _more_quota(lab, verdict)
    yield from _looser_topology(lab)
    yield from _looser_bundle(lab)
    yield from _fewer_members(lab)
    yield from _fewer_devices(lab)
    yield from _other_models(lab)
    if verdict.reason is Reason.WAITING_FOR_QUOTA:
        yield from _after(lab, _who_frees_quota(lab, verdict))
    elif verdict.reason is not Reason.IMPOSSIBLE:
        yield from _after(lab, first_ends(lab))
    if wanted and lab.tries > 0 and lab.starts(lab.with_nodes(wanted)):
        names = ", ".join(wanted)
        yield Change("nodes", f"it would start if {names} were there", tuple(wanted))


# --- of the unit --------------------------------------------------------------------------------


def _looser_topology(lab: Lab) -> Iterator[Change]:
    topology, levels = lab.unit.topology, lab.snapshot.levels
    if topology is None or not topology.required:
        return
    at = levels.index(topology.level) if topology.level in levels else len(levels)
    looser = [Topology(level, required=True) for level in reversed(levels[:at])]
    for other in (*looser, Topology(topology.level)):
        if lab.tries <= 0:
            return
        if lab.starts(lab.with_unit(dataclasses.replace(lab.unit, topology=other))):
            words = (
                f"within one {other.level} instead of one {topology.level}"
                if other.required
                else f"with {topology.level} preferred instead of required"
            )
            yield Change("topology", f"it would start {words}", (other.level,))
            return


def _looser_bundle(lab: Lab) -> Iterator[Change]:
    """Of all roles: a Run asks for one bundle."""
    asked = {role.bundle for role in lab.unit.roles}
    looser: list[Literal["", "numa"]] = ["numa", ""] if "pcie" in asked else [""]
    for other in looser if asked != {""} else ():
        if lab.tries <= 0:
            return
        roles = tuple(
            dataclasses.replace(role, bundle=other if role.bundle else "")
            for role in lab.unit.roles
        )
        if lab.starts(lab.with_unit(dataclasses.replace(lab.unit, roles=roles))):
            place = "on one NUMA node" if other else "anywhere on a node"
            words = f"it would start with its devices, CPU and memory {place}"
            yield Change("bundle", words, (other,) if other else ())
            return


def _fewer_members(lab: Lab) -> Iterator[Change]:
    if not lab.unit.gang:
        return
    for role in lab.unit.roles:
        if role.least < 2 or lab.tries <= 0:
            continue

        def variant(count: int, role: Role = role) -> Unit:
            most = count if role.most == role.least else role.most
            return _with_role(lab.unit, dataclasses.replace(role, least=count, most=most))

        fits = lab.largest(role.least - 1, variant)
        if fits:
            yield Change(
                "members", f"it would start with {fits} {role.name} instead of {role.least}",
                (role.name,), fits, role.name,
            )  # fmt: skip


def _fewer_devices(lab: Lab) -> Iterator[Change]:
    for role in lab.unit.roles:
        for at, request in enumerate(role.devices):
            if request.form != "whole" or request.count < 2 or lab.tries <= 0:
                continue

            def variant(count: int, role: Role = role, at: int = at) -> Unit:
                asked = dataclasses.replace(role.devices[at], count=count)
                return _with_role(lab.unit, _with_request(role, at, asked))

            fits = lab.largest(request.count - 1, variant)
            if fits:
                yield Change(
                    "devices",
                    f"it would start with {fits} {request.kind} per {role.name} instead of "
                    f"{request.count}",
                    (request.kind,), fits, role.name, request.kind,
                )  # fmt: skip


def _other_models(lab: Lab) -> Iterator[Change]:
    for role in lab.unit.roles:
        for at, request in enumerate(role.devices):
            if not request.models:
                continue
            for model in _models(lab, request):
                if lab.tries <= 0:
                    return
                asked = dataclasses.replace(request, models=(*request.models, model))
                unit = _with_role(lab.unit, _with_request(role, at, asked))
                if lab.starts(lab.with_unit(unit)):
                    words = f"it would start if it accepted {model} besides {request.models[-1]}"
                    yield Change("model", words, (model,), 0, role.name, request.kind)


def _models(lab: Lab, request: DeviceRequest) -> list[str]:
    names = (name.partition("/") for name in sorted(lab.snapshot.tree.capacity))
    return [m for kind, _, m in names if kind == request.kind and m and m not in request.models]


def _with_role(unit: Unit, role: Role) -> Unit:
    roles = tuple(role if each.name == role.name else each for each in unit.roles)
    return dataclasses.replace(unit, roles=roles)


def _with_request(role: Role, at: int, request: DeviceRequest) -> Role:
    devices = (*role.devices[:at], request, *role.devices[at + 1 :])
    return dataclasses.replace(role, devices=devices)


# --- of its queue -------------------------------------------------------------------------------


def _more_quota(lab: Lab, verdict: Verdict) -> Iterator[Change]:
    """Raises what stands in the way, queue by queue, each time by just what is missing."""
    world, raised = lab.snapshot, list[tuple[str, Rule, str, int]]()
    told: Verdict | None = verdict
    while told is not None and told.reason is Reason.WAITING_FOR_QUOTA and lab.tries > 0:
        if not told.queue:
            return  # a quota of its namespace: no queue can help
        rule = _rule(world, told)
        if (raised and raised[-1][:3] == (told.queue, rule, told.resource)) or not told.deficit:
            return  # more of it does not help
        raised.append((told.queue, rule, told.resource, told.deficit))
        queue = _raised(world.queues[told.queue], *raised[-1][1:], lab.unit.user)
        world = lab.with_queue(queue, world)
        told = lab.outcome(world)
    if told is None and len(raised) == 1:
        name, rule, resource, amount = raised[0]
        more = _more(resource, amount, rule, name)
        yield Change("quota", f"it would start with {more}", (name,), amount, "", resource, rule)
    elif told is None:
        parts = [_more(resource, n, rule, name) for name, rule, resource, n in raised]
        yield Change(
            "quota", f"it would start with {' and '.join(parts)}", tuple(r[0] for r in raised)
        )


def _rule(world: Snapshot, told: Verdict) -> Rule:
    if told.user is not None:
        return "user limit"
    return "limit" if told.resource in world.queues[told.queue].limit else "guarantee"


def _more(resource: str, amount: int, rule: Rule, queue: str) -> str:
    if rule == "user limit" and resource in _COUNTED:
        return f"a user limit of {amount} more {resource} in queue {queue}"
    return f"{verdicts.told(resource, amount)} more {rule} in queue {queue}"


def _raised(queue: Queue, rule: str, resource: str, amount: int, user: str) -> Queue:
    if rule == "user limit":
        return userlimits.raised(queue, user, resource, amount)
    amounts = queue.limit if rule == "limit" else queue.guarantee
    more = {**amounts, resource: amounts.get(resource, 0) + amount}
    if rule == "limit":
        return dataclasses.replace(queue, limit=more)
    return dataclasses.replace(queue, guarantee=more)


# --- of who runs --------------------------------------------------------------------------------


def _after(lab: Lab, ends: Sequence[Running]) -> Iterator[Change]:
    if ends and lab.tries > 0 and lab.starts(lab.without_units(r.unit.key for r in ends)):
        names = tuple(each.unit.key for each in ends)
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        verb = "ends" if len(names) == 1 else "end"
        yield Change("ends", f"it would start when {shown} {verb}", names)


def _by_end(running: Iterable[Running]) -> list[Running]:
    """Who probably ends first: those who said or were predicted when, then the oldest. Pods that
    others placed are not waited for."""
    return sorted(
        (each for each in running if each.unit.kin is not None),
        key=lambda r: (
            r.expected_end is None,
            r.started if r.expected_end is None else r.expected_end,
            r.unit.key,
        ),
    )[:MOST_ENDS]


def _who_frees_quota(lab: Lab, verdict: Verdict) -> list[Running]:
    """The first units to end that hold enough of what the queue, or the namespace, is short of."""
    needed, missing = list[Running](), verdict.deficit
    for running in _by_end(who_counts(lab.snapshot, lab.unit, verdict)):
        held = lab.snapshot.held[running.unit.key].get(verdict.resource, 0)
        if verdict.resource == "pods":
            held = len(running.seats)
        elif verdict.user is not None and verdict.resource in _COUNTED:
            held = int(running.unit.kin is not None)
        if not held:
            continue
        needed.append(running)
        missing -= held
        if missing <= 0:
            return needed
    return []


def who_counts(snapshot: Snapshot, unit: Unit, verdict: Verdict) -> Iterator[Running]:
    """Running units that count against the quota in the way: of a queue and all below it, of one
    user there, or of the unit's namespace."""
    for running in snapshot.running.values():
        if verdict.user is not None and running.unit.user != verdict.user:
            continue
        if verdict.queue:
            if verdict.queue in snapshot.tree.path(running.unit.queue):
                yield running
        elif running.unit.namespace == unit.namespace:
            yield running


def first_ends(lab: Lab) -> list[Running]:
    """The first running units, in the order of their ends, whose room the unit needs."""
    ranked = _by_end(lab.snapshot.running.values())
    if not ranked or not _fits_without(lab, ranked):
        return []
    low, high = 1, len(ranked)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _fits_without(lab, ranked[:middle]) else (middle + 1, high)
    needed = ranked[:low]
    for each in list(needed):  # those whose end does not matter are not named
        fewer = [other for other in needed if other is not each]
        if len(needed) <= 32 and _fits_without(lab, fewer):
            needed = fewer
    return needed


def _fits_without(lab: Lab, gone: Sequence[Running]) -> bool:
    """A quick look at room alone; what is found is tried for real before it is told."""
    cluster, crowd = lab.snapshot.cluster.fork(()), lab.snapshot.crowd.fork()
    for running in gone:
        roles = {role.name: role for role in running.unit.roles}
        crowd.leave(running)
        for seat in running.seats:
            if seat.role in roles:
                cluster.release(roles[seat.role], seat)
    scene = Scene(cluster, Work(lab.policy.operations), crowd)
    return not isinstance(place.place(scene, lab.unit, place.least_of(lab.unit)), Failure)
