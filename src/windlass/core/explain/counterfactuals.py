"""What would have to be different for a waiting workload to start now: the nearest such changes.

`core.explain.explain` asks. Every change is tried by running the whole cycle on the changed facts,
with all other workloads still queued, so the answer is what would happen. Searches are by halving
and the number of tries is bounded; a change that was not found may still help.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

from windlass.core.cycle import cycle
from windlass.core.model import pod_sets
from windlass.core.model.types import (
    DeviceRequest,
    PodAssignment,
    Policy,
    Queue,
    Role,
    Running,
    Topology,
    Verdict,
    Workload,
)
from windlass.core.placement import gang_placement
from windlass.core.placement.placement_context import PlacementContext, PlacementFailure, Work
from windlass.core.quota import user_limits
from windlass.core.snapshot.snapshot import Snapshot, build
from windlass.core.verdicts import formatting
from windlass.kinds.reasons import Reason

Rule = Literal["", "limit", "guarantee", "user limit"]
Action = Literal[
    "topology", "bundle", "members", "devices", "model", "quota", "ends", "nodes", "moves"
]

_COUNTED = (user_limits.RUNNING, user_limits.SUBMITTED)
MOST_TRIES = 40
"""Decisions that are made for one explanation at most."""
MOST_ENDS = 512
"""Running workloads, by their expected end, that are considered for "after these end"."""


@dataclasses.dataclass(frozen=True, slots=True)
class Relocation:
    """A running workload that would have to run elsewhere."""

    workload: str
    source: tuple[str, ...]
    """Nodes."""
    pods: tuple[PodAssignment, ...]
    """Where it would be."""
    allowed: bool
    """Whether its owner allows that it is moved."""

    @property
    def target(self) -> tuple[str, ...]:
        return tuple(sorted({pod.node for pod in self.pods}))


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """One thing that would start the workload now."""

    action: Action
    message: str
    names: tuple[str, ...] = ()
    """The workloads that end, the nodes that come, the queue that may use more, the model."""
    amount: int = 0
    """Pods or devices per pod that fit, or how much more the queue must be allowed."""
    role: str = ""
    """The role whose pods or devices would be fewer, or whose devices of another model."""
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
    condition = f"it would start if {' and '.join(parts)}"
    if all(each.allowed for each in moves):
        return f"{condition}; moves wait for a recent checkpoint, and an hour after the last move"
    owners = "its owner has" if len(moves) == 1 else "not all owners have"
    negation = " not" if len(moves) == 1 else ""
    return f"{condition}; {owners}{negation} allowed moves (--movable)"


class Lab:
    """Tries changes of one workload's world."""

    def __init__(self, snapshot: Snapshot, workload: Workload, now: float, policy: Policy) -> None:
        self.snapshot, self.workload, self.now, self.policy = snapshot, workload, now, policy
        self.tries = MOST_TRIES

    def starts(self, changed: Snapshot) -> bool:
        """Whether the workload starts now in a changed world."""
        return self.outcome(changed) is None

    def outcome(self, changed: Snapshot) -> Verdict | None:
        """Its verdict there; None: it starts."""
        self.tries -= 1
        done = cycle.run(changed, self.now, self.policy)
        if self.workload.key in done.state.placements:
            return None
        return done.verdict_of(self.workload.key)

    def with_workload(self, workload: Workload) -> Snapshot:
        fork = with_own_line(self.snapshot)
        fork.try_waiting(workload)
        return fork

    def with_queue(self, queue: Queue, base: Snapshot | None = None) -> Snapshot:
        fork = copy.copy(base or self.snapshot)
        fork.queues, fork._pending = dict(fork.queues), dict(fork._pending)
        fork.put_queue(queue)
        return fork

    def without_workloads(self, gone: Iterable[str]) -> Snapshot:
        facts, names = self.snapshot.facts(), set(gone)
        running = tuple(each for each in facts.running if each.workload.key not in names)
        return build(dataclasses.replace(facts, running=running), self.snapshot.history)

    def with_nodes(self, names: Iterable[str]) -> Snapshot:
        facts, wanted = self.snapshot.facts(), set(names)
        nodes = tuple(
            dataclasses.replace(node, ready_in=0.0) if node.name in wanted else node
            for node in facts.nodes
        )
        return build(dataclasses.replace(facts, nodes=nodes), self.snapshot.history)

    def with_moved(self, moves: Iterable[Relocation]) -> Snapshot:
        facts, pods = self.snapshot.facts(), {each.workload: each.pods for each in moves}
        running = tuple(
            dataclasses.replace(each, pods=pods.get(each.workload.key, each.pods))
            for each in facts.running
        )
        return build(dataclasses.replace(facts, running=running), self.snapshot.history)

    def largest(self, most: int, variant: Callable[[int], Workload]) -> int:
        """The largest number below or at `most` with which the workload starts, by halving; 0:
        none."""
        low, high = 0, most
        while low < high and self.tries > 0:
            middle = (low + high + 1) // 2
            if self.starts(self.with_workload(variant(middle))):
                low = middle
            else:
                high = middle - 1
        return low


def with_own_line(snapshot: Snapshot) -> Snapshot:
    """A copy of the world whose waiting workloads can be changed without changing the original."""
    fork = copy.copy(snapshot)
    fork.waiting = dict(snapshot.waiting)
    fork._pending = {name: list(line) for name, line in snapshot._pending.items()}
    fork.demand, fork.user_quotas = snapshot.demand.copy(), snapshot.user_quotas.fork()
    return fork


def nearest(lab: Lab, verdict: Verdict, wanted: Sequence[str]) -> Iterator[Change]:
    """Changes of the workload, then of its queue, then of the cluster."""
    if verdict.reason is Reason.WAITING_FOR_QUOTA:
        yield from _more_quota(lab, verdict)
    yield from _looser_topology(lab)
    yield from _looser_bundle(lab)
    yield from _fewer_members(lab)
    yield from _fewer_devices(lab)
    yield from _other_models(lab)
    if verdict.reason is Reason.WAITING_FOR_QUOTA:
        yield from _after(lab, _quota_holders(lab, verdict))
    elif verdict.reason is not Reason.IMPOSSIBLE:
        yield from _after(lab, first_ends(lab))
    if wanted and lab.tries > 0 and lab.starts(lab.with_nodes(wanted)):
        names = ", ".join(wanted)
        yield Change("nodes", f"it would start if {names} were there", tuple(wanted))


# --- of the workload
# --------------------------------------------------------------------------------


def _looser_topology(lab: Lab) -> Iterator[Change]:
    topology, levels = lab.workload.topology, lab.snapshot.levels
    if topology is None or not topology.required:
        return
    at = levels.index(topology.level) if topology.level in levels else len(levels)
    looser = [Topology(level, required=True) for level in reversed(levels[:at])]
    for other in (*looser, Topology(topology.level)):
        if lab.tries <= 0:
            return
        if lab.starts(lab.with_workload(dataclasses.replace(lab.workload, topology=other))):
            condition = (
                f"within one {other.level} instead of one {topology.level}"
                if other.required
                else f"with {topology.level} preferred instead of required"
            )
            yield Change("topology", f"it would start {condition}", (other.level,))
            return


def _looser_bundle(lab: Lab) -> Iterator[Change]:
    """Of all roles: a Run asks for one bundle."""
    asked = {role.bundle for role in lab.workload.roles}
    looser: list[Literal["", "numa"]] = ["numa", ""] if "pcie" in asked else [""]
    for other in looser if asked != {""} else ():
        if lab.tries <= 0:
            return
        roles = tuple(
            dataclasses.replace(role, bundle=other if role.bundle else "")
            for role in lab.workload.roles
        )
        if lab.starts(lab.with_workload(dataclasses.replace(lab.workload, roles=roles))):
            place = "on one NUMA node" if other else "anywhere on a node"
            condition = f"it would start with its devices, CPU and memory {place}"
            yield Change("bundle", condition, (other,) if other else ())
            return


def _fewer_members(lab: Lab) -> Iterator[Change]:
    if not lab.workload.gang:
        return
    for role in lab.workload.roles:
        if role.min_count < 2 or lab.tries <= 0:
            continue

        def variant(count: int, role: Role = role) -> Workload:
            most = count if role.max_count == role.min_count else role.max_count
            return _with_role(
                lab.workload, dataclasses.replace(role, min_count=count, max_count=most)
            )

        fits = lab.largest(role.min_count - 1, variant)
        if fits:
            yield Change(
                "members",
                f"it would start with {formatting.count(fits, role.name)} instead of "
                f"{role.min_count}",
                (role.name,), fits, role.name,
            )  # fmt: skip


def _fewer_devices(lab: Lab) -> Iterator[Change]:
    for role in lab.workload.roles:
        for at, request in enumerate(role.devices):
            if request.form != "whole" or request.count < 2 or lab.tries <= 0:
                continue

            def variant(count: int, role: Role = role, at: int = at) -> Workload:
                asked = dataclasses.replace(role.devices[at], count=count)
                return _with_role(lab.workload, _with_request(role, at, asked))

            fits = lab.largest(request.count - 1, variant)
            if fits:
                yield Change(
                    "devices",
                    f"it would start with {fits} {request.kind} per {role.name} instead of "
                    f"{request.count}",
                    (request.kind,), fits, role.name, request.kind,
                )  # fmt: skip


def _other_models(lab: Lab) -> Iterator[Change]:
    for role in lab.workload.roles:
        for at, request in enumerate(role.devices):
            if not request.models:
                continue
            for model in _models(lab, request):
                if lab.tries <= 0:
                    return
                asked = dataclasses.replace(request, models=(*request.models, model))
                workload = _with_role(lab.workload, _with_request(role, at, asked))
                if lab.starts(lab.with_workload(workload)):
                    condition = (
                        f"it would start if it accepted {model} besides {request.models[-1]}"
                    )
                    yield Change("model", condition, (model,), 0, role.name, request.kind)


def _models(lab: Lab, request: DeviceRequest) -> list[str]:
    names = (name.partition("/") for name in sorted(lab.snapshot.tree.capacity))
    return [m for kind, _, m in names if kind == request.kind and m and m not in request.models]


def _with_role(workload: Workload, role: Role) -> Workload:
    roles = tuple(role if each.name == role.name else each for each in workload.roles)
    return dataclasses.replace(workload, roles=roles)


def _with_request(role: Role, at: int, request: DeviceRequest) -> Role:
    devices = (*role.devices[:at], request, *role.devices[at + 1 :])
    return dataclasses.replace(role, devices=devices)


# --- of its queue -------------------------------------------------------------------------------


def _more_quota(lab: Lab, verdict: Verdict) -> Iterator[Change]:
    """Raises what stands in the way, queue by queue, each time by just what is missing."""
    world, raised = lab.snapshot, list[tuple[str, Rule, str, int]]()
    current: Verdict | None = verdict
    while current is not None and current.reason is Reason.WAITING_FOR_QUOTA and lab.tries > 0:
        if not current.queue:
            return  # a quota of its namespace: no queue can help
        rule = _rule(world, current)
        if (
            raised and raised[-1][:3] == (current.queue, rule, current.resource)
        ) or not current.deficit:
            return  # more of it does not help
        raised.append((current.queue, rule, current.resource, current.deficit))
        queue = _raised(world.queues[current.queue], *raised[-1][1:], lab.workload.user)
        world = lab.with_queue(queue, world)
        if world.tree.is_overcommitted and not lab.snapshot.tree.is_overcommitted:
            return  # it would be taken from what other queues are guaranteed
        current = lab.outcome(world)
    if current is None and len(raised) == 1:
        name, rule, resource, amount = raised[0]
        more = _more(resource, amount, rule, name)
        yield Change("quota", f"it would start with {more}", (name,), amount, "", resource, rule)
    elif current is None:
        parts = [_more(resource, n, rule, name) for name, rule, resource, n in raised]
        yield Change(
            "quota", f"it would start with {' and '.join(parts)}", tuple(r[0] for r in raised)
        )


def _rule(world: Snapshot, current: Verdict) -> Rule:
    if current.user is not None:
        return "user limit"
    return "limit" if current.resource in world.queues[current.queue].limit else "guarantee"


def _more(resource: str, amount: int, rule: Rule, queue: str) -> str:
    if rule == "user limit" and resource in _COUNTED:
        return f"a user limit of {amount} more {resource} in queue {queue}"
    return f"{formatting.amount(resource, amount)} more {rule} in queue {queue}"


def _raised(queue: Queue, rule: str, resource: str, amount: int, user: str) -> Queue:
    if rule == "user limit":
        return user_limits.raised(queue, user, resource, amount)
    amounts = queue.limit if rule == "limit" else queue.guarantee
    more = {**amounts, resource: amounts.get(resource, 0) + amount}
    if rule == "limit":
        return dataclasses.replace(queue, limit=more)
    return dataclasses.replace(queue, guarantee=more)


# --- running workloads --------------------------------------------------------------------------


def _after(lab: Lab, ends: Sequence[Running]) -> Iterator[Change]:
    if ends and lab.tries > 0 and lab.starts(lab.without_workloads(r.workload.key for r in ends)):
        names = tuple(each.workload.key for each in ends)
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        verb = "ends" if len(names) == 1 else "end"
        yield Change("ends", f"it would start when {shown} {verb}", names)


def _by_end(running: Iterable[Running]) -> list[Running]:
    """Running workloads by their probable end: those with a stated or predicted end, then the
    oldest. Pods that other schedulers placed are left out."""
    return sorted(
        (each for each in running if each.workload.history_key is not None),
        key=lambda r: (
            r.expected_end is None,
            r.started if r.expected_end is None else r.expected_end,
            r.workload.key,
        ),
    )[:MOST_ENDS]


def _quota_holders(lab: Lab, verdict: Verdict) -> list[Running]:
    """The first workloads to end that hold enough of what the queue, or the namespace, is short
    of."""
    needed, missing = list[Running](), verdict.deficit
    for running in _by_end(counted_workloads(lab.snapshot, lab.workload, verdict)):
        released = lab.snapshot.usage[running.workload.key].get(verdict.resource, 0)
        if verdict.resource == "pods":
            released = len(running.pods)
        elif verdict.user is not None and verdict.resource in _COUNTED:
            released = int(running.workload.history_key is not None)
        if not released:
            continue
        needed.append(running)
        missing -= released
        if missing <= 0:
            return needed
    return []


def counted_workloads(
    snapshot: Snapshot, workload: Workload, verdict: Verdict
) -> Iterator[Running]:
    """Running workloads that count against the quota in the way: of a queue and all below it, of
    one user there, or of the workload's namespace."""
    for running in snapshot.running.values():
        if verdict.user is not None and running.workload.user != verdict.user:
            continue
        if verdict.queue:
            if verdict.queue in snapshot.tree.path(running.workload.queue):
                yield running
        elif running.workload.namespace == workload.namespace:
            yield running


def first_ends(lab: Lab) -> list[Running]:
    """The first running workloads, in the order of their ends, that must end before the workload
    fits."""
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
    """A quick check of capacity alone; the full cycle confirms what it finds."""
    cluster, pod_index = lab.snapshot.cluster.fork(()), lab.snapshot.pod_index.fork()
    for running in gone:
        roles = {role.name: role for role in running.workload.roles}
        pod_index.remove(running)
        for pod in running.pods:
            if pod.role in roles:
                cluster.release(roles[pod.role], pod)
    context = PlacementContext(cluster, Work(lab.policy.operations), pod_index)
    return not isinstance(
        gang_placement.place(context, lab.workload, pod_sets.minimum(lab.workload)),
        PlacementFailure,
    )
