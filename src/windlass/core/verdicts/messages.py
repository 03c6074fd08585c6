"""Why a workload waits, in one sentence with numbers: the cheap verdict that every workload gets.

It names only queues and amounts, which every user may see. Which workloads hold them is shown by
`core.explain.explain`, to callers that may know. Amounts are rounded so that a sentence never
names more than there is.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from windlass.core.cluster import host_ports
from windlass.core.cluster.cluster import Cluster
from windlass.core.decision.shadows import Reservation
from windlass.core.decision.state import DecisionState
from windlass.core.model.equivalence import Shape
from windlass.core.model.pod_sets import PodSetRequest
from windlass.core.model.types import WHOLE, Constraint, Queue, Role, Verdict, Workload
from windlass.core.placement.placement_context import PlacementFailure
from windlass.core.quota import usage
from windlass.core.quota.quota_tree import Shortage
from windlass.core.verdicts import (
    advance_reservations,
    bundles,
    closed_nodes,
    formatting,
    ungrantable,
)
from windlass.core.verdicts.bundles import Apart
from windlass.kinds.reasons import Reason


def being_freed(workload: Workload) -> Verdict:
    return Verdict(
        workload.key, Reason.WAITING_FOR_CAPACITY, "waiting for preempted workloads to exit"
    )


def not_yet(workload: Workload) -> Verdict:
    if workload.lately is None:
        message = "waits a while before it is tried again"
        return Verdict(workload.key, Reason.WAITING_TO_RETRY, message)
    reason, text = workload.lately
    return Verdict(
        workload.key,
        reason,
        f"{text}; it is tried again at {formatting.moment(workload.not_before)}",
    )


def behind(workload: Workload) -> Verdict:
    message = (
        f"queue {workload.queue} is strict and a workload before it waits for the same resources"
    )
    return Verdict(workload.key, Reason.BEHIND_IN_QUEUE, message, queue=workload.queue)


def over_share(workload: Workload, queue: str) -> Verdict:
    message = (
        f"queue {queue} used more than its share lately, and others wait below theirs; "
        "it starts as that evens out"
    )
    return Verdict(workload.key, Reason.WAITING_FOR_SHARE, message, queue=queue)


def over_user_share(workload: Workload) -> Verdict:
    message = (
        f"user {workload.user} used more than an equal share of queue {workload.queue} lately, "
        "and other users wait below theirs; it starts as that evens out"
    )
    return Verdict(
        workload.key, Reason.WAITING_FOR_SHARE, message, queue=workload.queue, user=workload.user
    )  # fmt: skip


def no_members(workload: Workload) -> Verdict:
    message = "asks for no replicas: every role has a minimum of 0"
    return Verdict(workload.key, Reason.IMPOSSIBLE, message, "members", 1)


def no_such_queue(workload: Workload, queues: Iterable[str]) -> Verdict:
    near = difflib.get_close_matches(workload.queue, list(queues), n=1)
    hint = f"did you mean {near[0]}?" if near else "have it created or name another one"
    message = f"queue {workload.queue} does not exist; {hint}"
    return Verdict(workload.key, Reason.NO_SUCH_QUEUE, message, queue=workload.queue)


def not_yours(workload: Workload, queue: Queue) -> Verdict:
    """A queue that is for others, or only for the queues below it."""
    allowed = ", ".join(sorted(queue.namespaces or ())[:5])
    whose = f"is for the namespaces {allowed}, not for {workload.namespace}"
    whose = whose if allowed else "takes no runs, it only holds queues together"
    message = f"queue {queue.name} {whose}; name another one"
    return Verdict(workload.key, Reason.QUEUE_NOT_YOURS, message, queue=queue.name)


def reserved(verdict: Verdict, reservation: Reservation) -> Verdict:
    """A head that waits, and knows until when at the latest if others end when expected; where
    another queue may take its place, when it is likely to start."""
    start = formatting.moment(reservation.given)
    text = f"it starts by {start} if others end in time"
    if not reservation.firm:
        text = f"tentatively from {start} on: queues below their share come first"
    return dataclasses.replace(verdict, message=f"{verdict.message}; {text}")


def over_quota(workload: Workload, shortage: Shortage) -> Verdict:
    resource, queue = shortage.resource, shortage.queue
    need, left = (
        formatting.amount(resource, shortage.need),
        formatting.amount(resource, shortage.left),
    )
    whole = formatting.amount(resource, shortage.bound)
    if shortage.rule == "limit":
        sentence = f"needs {need}; queue {queue} may use {left} more before its limit of {whole}"
        if shortage.need > shortage.bound:
            sentence = f"needs {need}; the limit of queue {queue} is {whole} in all"
        elif not shortage.left:
            sentence = f"needs {need}; queue {queue} has reached its limit of {whole}"
    elif shortage.rule == "guarantee":
        sentence = (
            f"needs {need} and must not be preempted; non-preemptible workloads of queue {queue} "
            f"may use {left} more of what is not guaranteed to other queues"
        )
    else:
        sentence = f"needs {need}; queue {queue} may borrow {left} now, others keep the rest"
    return Verdict(
        workload.key, Reason.WAITING_FOR_QUOTA, sentence, resource, shortage.deficit, queue
    )


def over_user_limit(workload: Workload, shortage: Shortage) -> Verdict:
    """Against a limit of its user in a queue."""
    resource, queue, bound = shortage.resource, shortage.queue, shortage.bound
    user = f"user {workload.user}" if workload.user else "workloads without a user"
    if resource == "running":
        sentence = f"{user} may run {_workloads(bound)} at a time in queue {queue}"
    elif resource == "submitted":
        sentence = (
            f"{user} may have {_workloads(bound)} submitted in queue {queue}, and has as many that "
            "were submitted before this one and have not ended"
        )
    else:
        need, left = (
            formatting.amount(resource, shortage.need),
            formatting.amount(resource, shortage.left),
        )
        sentence = f"needs {need}; {user} may hold {left} more of at most "
        sentence += f"{formatting.amount(resource, bound)} in queue {queue}"
    return Verdict(
        workload.key, Reason.WAITING_FOR_QUOTA, sentence, resource, shortage.deficit, queue,
        user=workload.user,
    )  # fmt: skip


def behind_own(workload: Workload) -> Verdict:
    message = (
        f"queue {workload.queue} is strict and a workload of the same user before it waits for the "
        "user's limit"
    )
    return Verdict(
        workload.key, Reason.BEHIND_IN_QUEUE, message, queue=workload.queue, user=workload.user
    )


def _workloads(count: int) -> str:
    return f"{count} workload{'s' if count != 1 else ''}"


def over_space(workload: Workload, shortage: Shortage) -> Verdict:
    """Against a quota of its namespace, which the cluster itself enforces."""
    resource = shortage.resource
    need, left = (
        formatting.amount(resource, shortage.need),
        formatting.amount(resource, shortage.left),
    )
    sentence = (
        f"needs {need}; ResourceQuota {shortage.queue} leaves {left} of "
        f"{formatting.amount(resource, shortage.bound)}"
    )
    return Verdict(workload.key, Reason.WAITING_FOR_QUOTA, sentence, resource, shortage.deficit)


HOST_PORTS = "host ports"
"""The resource of a verdict on a workload whose host ports are in use."""


@dataclasses.dataclass(slots=True)
class MessageCache:
    """What messages of one decision repeat. Thousands of workloads miss the same."""

    scarcest: dict[int, tuple[str, int, int]] = dataclasses.field(default_factory=dict)
    """Shape id -> what it was short of when it first did not fit."""
    apart: dict[int, Apart] = dataclasses.field(default_factory=dict)
    """Shape id -> what its bundle was short of then."""
    pods: dict[int, str] = dataclasses.field(default_factory=dict)
    """Shape id -> what one pod asks for."""
    closed: dict[int, str] = dataclasses.field(default_factory=dict)
    """Shape id -> which nodes that could hold it take no pods now."""
    verdicts: dict[object, Verdict] = dataclasses.field(default_factory=dict)
    """What was missing -> the verdict."""


def no_capacity(
    state: DecisionState, workload: Workload, failure: PlacementFailure, remark: str = ""
) -> Verdict:
    """The verdict on a failed placement: impossible, too little in total, or not on one node; with
    a remark on why no workload is preempted for it."""
    if len(workload.roles) > 1:
        return _no_capacity(state, workload, failure, remark)
    # Thousands of workloads miss the same: the message is made once.
    (asked,), shape_of = workload.roles, state.context.cluster.shape_of
    shape = missing = original = shape_of(asked).id
    waits = state.snapshot.waiting.get(workload.key, workload)
    if waits is not workload:
        original = shape_of(waits.roles[0]).id
    if failure.role is not asked:
        missing = shape_of(failure.role).id
    near = workload.topology and (workload.topology.level, workload.topology.required)
    key = (
        shape, original, missing, asked.min_count, workload.gang, near, failure.wanted,
        failure.fitting,
        failure.topology, failure.resolved, failure.reserved_until, failure.rule, remark,
    )  # fmt: skip
    known = state.cache(MessageCache).verdicts.get(key)
    if known is None:
        known = state.cache(MessageCache).verdicts[key] = _no_capacity(
            state, workload, failure, remark
        )
    return addressed(known, workload.key)


def addressed(verdict: Verdict, key: str) -> Verdict:
    """The same verdict on another workload."""
    if verdict.workload == key:
        return verdict
    return Verdict(
        key, verdict.reason, verdict.message, verdict.resource, verdict.deficit, verdict.queue,
        verdict.resolved, verdict.user, verdict.possible,
    )  # fmt: skip


def _no_capacity(
    state: DecisionState, workload: Workload, failure: PlacementFailure, remark: str
) -> Verdict:
    known = _impossible(state, workload) or advance_reservations.verdict(state, workload)
    if known is not None:
        return known
    role, remark = failure.role, f"; {remark}" if remark else ""
    if failure.reserved_until is not None:
        return _kept_for_others(state, workload, failure.reserved_until, role, remark)
    asks, remark = _asks(state, role, failure.wanted), _closed(state, role) + remark
    missing = max(0, failure.wanted - failure.fitting)
    if failure.rule:
        message = f"{asks}; {failure.rule}{remark}"
        return Verdict(workload.key, Reason.WAITING_FOR_TOPOLOGY, message, resolved=False)
    if not failure.resolved:
        message = f"{asks}; no arrangement was found in the time a decision may take{remark}"
        return Verdict(workload.key, Reason.WAITING_FOR_CAPACITY, message, resolved=False)
    if failure.topology and workload.topology is not None:
        level = workload.topology.level
        message = f"{asks} in one {level}; {failure.fitting} fit in the best {level} now{remark}"
        return Verdict(workload.key, Reason.WAITING_FOR_TOPOLOGY, message, level, missing)
    shape = state.context.cluster.shape_of(role)
    message = f"{asks}; {failure.fitting} fit now"
    if shape.bundle:
        apart = _not_together(state, shape)
        if apart.members >= failure.wanted:
            message += f", enough is free on nodes but {_lacks(shape.bundle, apart)}{remark}"
            resource, short = apart.resource or shape.bundle, apart.missing or missing
            return Verdict(workload.key, Reason.WAITING_FOR_TOPOLOGY, message, resource, short)
    words, resource, short = _short_of(state, failure)
    message += words + remark
    return Verdict(workload.key, Reason.WAITING_FOR_CAPACITY, message, resource, short or missing)


def _closed(state: DecisionState, role: Role) -> str:
    """Which nodes that could hold the role take no pods now, found once per shape."""
    shape, known = state.context.cluster.shape_of(role), state.cache(MessageCache).closed
    if shape.id not in known:
        known[shape.id] = closed_nodes.remark(state.context.cluster, shape)
    return known[shape.id]


def _short_of(state: DecisionState, failure: PlacementFailure) -> tuple[str, str, int]:
    """Of which resource how much is missing, and that as the end of a sentence."""
    cluster, role = state.context.cluster, failure.role
    shape, known = cluster.shape_of(role), state.cache(MessageCache).scarcest
    if shape.id not in known:
        known[shape.id] = _scarcest(state, role)
    resource, members, per_member = known[shape.id]
    short = max(0, failure.wanted - members) * per_member
    usable = cluster.usable(role.constraint)
    if usable is not None and not usable.any() and _closed(state, role):
        return "", resource, short  # not an amount is missing, but a node
    if short:
        return f", short of {formatting.amount(resource, short)}", resource, short
    if role.ports and (taken := _ports_taken(state, role)):
        return f", {taken}", HOST_PORTS, short
    if resource:
        return ", too little of everything together on one node", resource, short
    return "", resource, short


def _ports_taken(state: DecisionState, role: Role) -> str:
    """Which host ports of it are in use on nodes that have the capacity; "" if none is."""
    cluster = state.context.cluster
    without = cluster.shape_of(dataclasses.replace(role, ports=()))
    free = set(np.flatnonzero(cluster.pod_capacity_at(without, np.arange(len(cluster)))).tolist())
    taken = {
        wanted: count
        for wanted in role.ports
        if (count := len(free & _holders_of(cluster, wanted)))
    }
    if not taken:
        return ""
    names = ", ".join(str(host_ports.number(port)) for port in taken)
    most = max(taken.values())
    nodes = "the node that has" if len(free) == 1 else f"{most} of {len(free)} nodes that have"
    return f"host port {names} is in use on {nodes} the capacity"


def _holders_of(cluster: Cluster, port: int) -> set[int]:
    """Nodes on which a pod holds a host port that clashes with this one."""
    known = host_ports.clashing((port,), cluster.ports)
    return set[int]().union(*(cluster.ports[each] for each in known))


def _kept_for_others(
    state: DecisionState, workload: Workload, until: float, role: Role, remark: str
) -> Verdict:
    start = formatting.moment(until)
    message = (
        f"{_each(state, role)} fit now, reserved from {start} on for a workload that waits longer; "
        f"it would still run then{remark}"
    )
    return Verdict(workload.key, Reason.RESERVED_UNTIL, message)


def _not_together(state: DecisionState, shape: Shape) -> Apart:
    found = state.cache(MessageCache).apart.get(shape.id)
    if found is None:
        found = state.cache(MessageCache).apart[shape.id] = bundles.now(
            state.context.cluster, shape
        )
    return found


def _lacks(bundle: str, apart: Apart) -> str:
    if not apart.resource:
        return f"none has its devices {formatting.WITHIN[bundle]}"
    short = formatting.amount(apart.resource, apart.missing)
    return f"the nearest NUMA node with its devices is short of {short}"


def _asks(state: DecisionState, role: Role, count: int) -> str:
    each = _each(state, role)
    return f"needs {count} x {each}" if count > 1 else f"needs {each}"


def _each(state: DecisionState, role: Role) -> str:
    """What one pod asks for, formatted once per shape."""
    shape = state.context.cluster.shape_of(role).id
    each = state.cache(MessageCache).pods.get(shape)
    if each is None:
        each = state.cache(MessageCache).pods[shape] = formatting.pod_resources(role)
    return each


# --- impossible: with the certificate -----------------------------------------------------------


def lasting(state: DecisionState, workload: Workload, verdict: Verdict) -> Verdict:
    """A verdict that names what will pass, such as a quota in use; what even empty nodes could not
    hold waits for more than that, and says so."""
    never = _impossible(state, workload)
    return verdict if never is None or never.reason is Reason.WAITING_FOR_CAPACITY else never


def _impossible(state: DecisionState, workload: Workload) -> Verdict | None:
    """What even empty nodes could not hold, by a bound that no arrangement can pass."""
    cluster = state.context.cluster
    if not len(cluster):
        message = "no node has joined yet"
        return Verdict(workload.key, Reason.WAITING_FOR_CAPACITY, message, "nodes", 1)
    # As it was asked for: quotas may have narrowed the models, but quotas change.
    asked = state.snapshot.waiting.get(workload.key, workload)
    level = asked.topology.level if asked.topology and asked.topology.required else ""
    if level and level not in ("node", *cluster.levels):
        known = ", ".join((*cluster.levels, "node"))
        message = f"must be in one {level}, but nodes are known by {known} only"
        return Verdict(workload.key, Reason.IMPOSSIBLE, message, level, 1)
    info = state.info(asked)
    for request, shape in zip(info.requests, info.shapes, strict=True):
        if not shape.is_counted_exactly:
            continue
        most = state.most_when_empty(shape)
        if most < request.count:
            return _too_little(state, workload, request, most)
        if level:
            within = state.most_in_domain(shape, level)
            if within < request.count:
                asks = _asks(state, request.role, request.count)
                message = f"{asks} in one {level}; the largest {level} holds {within} even if empty"
                missing = request.count - within
                return Verdict(
                    workload.key, Reason.IMPOSSIBLE, message, level, missing, possible=within
                )
    return None


def _too_little(
    state: DecisionState, workload: Workload, pod_set: PodSetRequest, most: int
) -> Verdict:
    cluster, role = state.context.cluster, pod_set.role
    allowed = cluster.lasting_mask(role.constraint)
    if not allowed.any():
        lacks = _not_offered(cluster, role.constraint)
        if lacks:
            message = f"needs nodes that offer {lacks}; none of those it may use does"
            return Verdict(workload.key, Reason.UNSUPPORTED, message, lacks, pod_set.count)
        those = f", with those of RuntimeClass {role.runtime.name}" if role.runtime else ""
        message = f"no node has the labels and taints it asks for{those}"
        return Verdict(workload.key, Reason.IMPOSSIBLE, message, "nodes", pod_set.count)
    if most:
        message = (
            f"{_asks(state, role, pod_set.count)}; all nodes together hold {most} even if empty"
        )
        return Verdict(
            workload.key, Reason.IMPOSSIBLE, message, "members", pod_set.count - most, possible=most
        )
    for name, need in sorted(role.needs.items()):
        column = cluster.resources.get(name)
        largest = int(cluster.allocatable[column, allowed].max()) if column is not None else 0
        if need > largest:
            own = formatting.overhead(role, name)
            message = f"needs {formatting.amount(name, need)} on one node{own}; the largest has "
            message += formatting.amount(name, largest)
            return Verdict(
                workload.key, Reason.IMPOSSIBLE, message, name, need - largest, possible=largest
            )
    for request in role.devices:
        nodes = (cluster.nodes[i] for i in np.flatnonzero(allowed))
        there = [each for node in nodes for each in node.devices if each.kind == request.kind]
        why = ungrantable.why(request, there)
        if why:
            return Verdict(workload.key, Reason.IMPOSSIBLE, why, request.kind, WHOLE)
        have = int(cluster.device_table.eligible(request)[allowed].sum(axis=1).max(initial=0))
        if have < request.count:
            asks = formatting.pod_resources(
                dataclasses.replace(role, needs={}, devices=(request,), bundle="")
            )
            message = f"needs {asks} on one node; the node with most of them has {have}"
            missing = request.count - have
            return Verdict(
                workload.key, Reason.IMPOSSIBLE, message, request.kind, missing * WHOLE,
                possible=have * WHOLE,
            )  # fmt: skip
    if role.bundle:
        apart = bundles.when_empty(cluster, cluster.shape_of(role))
        if apart.members:
            return _never_together(workload, role, apart)
    message = (
        f"needs {formatting.pod_resources(role)} on one node; no node has all of it, even if empty"
    )
    return Verdict(workload.key, Reason.IMPOSSIBLE, message, "node", 1)


def _never_together(workload: Workload, role: Role, apart: Apart) -> Verdict:
    message = (
        f"needs {formatting.pod_resources(role)}; even of empty nodes {_lacks(role.bundle, apart)}"
    )
    resource, short = apart.resource or role.bundle, apart.missing or 1
    return Verdict(workload.key, Reason.IMPOSSIBLE, message, resource, short)


def _not_offered(cluster: Cluster, constraint: Constraint) -> str:
    """The capabilities that keep it from all nodes that it could use otherwise; "" if none do."""
    asked = sorted(constraint.capabilities)
    if not asked:
        return ""
    usable = cluster.lasting_mask(dataclasses.replace(constraint, capabilities=frozenset()))
    offers = [cluster.nodes[i].capabilities for i in np.flatnonzero(usable)]
    nowhere = [name for name in asked if not any(name in offered for offered in offers)]
    return " and ".join(nowhere or asked) if offers else ""


def _scarcest(state: DecisionState, role: Role) -> tuple[str, int, int]:
    """The resource of which the fewest members could be had, were it the only one needed: its
    name, so many members, and what each needs of it."""
    cluster = state.context.cluster
    usable = cluster.usable(role.constraint)

    def members(fit: npt.NDArray[np.int64]) -> int:
        return int((fit if usable is None else fit[usable]).sum())

    found: list[tuple[int, str, int]] = []
    for name, need in role.needs.items():
        column = cluster.resources.get(name)
        if column is not None and need:
            fit = np.maximum(cluster.free[column] // need, 0)
            found.append((members(fit), name, need))
    for request in role.devices:
        fit = cluster.device_table.fit_request(request, slice(None))
        name = f"{request.kind}/{request.models[0]}" if len(request.models) == 1 else request.kind
        found.append((members(fit), name, usage.charge(cluster, request)))
    if not found:
        return "", 0, 0
    most, name, need = min(found)
    return name, most, need
