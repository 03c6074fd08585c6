"""Why a unit waits, in one sentence with numbers: the cheap verdict that every unit gets.

Names only queues and amounts, which everybody may see; who holds what is told by `core.explain`,
to those who may know. Amounts are rounded so that a sentence never promises more than there is.
"""

from __future__ import annotations

import dataclasses
import datetime
import difflib
import functools
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from windlass.core import amounts, closed_by, together, ungranted
from windlass.core.cluster import Cluster
from windlass.core.facts import WHOLE, Constraint, Queue, Role, Unit, Verdict
from windlass.core.place import Failure, Wish
from windlass.core.queues import Shortage
from windlass.core.shapes import Shape
from windlass.core.together import Apart
from windlass.kinds.reasons import Reason

if TYPE_CHECKING:
    from windlass.core.cycle import Cycle
    from windlass.core.shadows import Held

_WITHIN = {"numa": "on one NUMA node", "pcie": "under one PCIe switch"}
_BINARY = (("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10))


def being_freed(unit: Unit) -> Verdict:
    return Verdict(unit.key, Reason.WAITING_FOR_CAPACITY, "its room is being freed by others")


def not_yet(unit: Unit) -> Verdict:
    if unit.lately is None:
        message = "waits a while before it is tried again"
        return Verdict(unit.key, Reason.WAITING_TO_RETRY, message)
    reason, words = unit.lately
    return Verdict(unit.key, reason, f"{words}; it is tried again at {moment(unit.not_before)}")


def behind(unit: Unit) -> Verdict:
    message = f"queue {unit.queue} is strict and a unit before it waits for the same resources"
    return Verdict(unit.key, Reason.BEHIND_IN_QUEUE, message, queue=unit.queue)


def over_share(unit: Unit, queue: str) -> Verdict:
    message = (
        f"queue {queue} used more than its share lately, and others wait below theirs; "
        "it starts as that evens out"
    )
    return Verdict(unit.key, Reason.WAITING_FOR_SHARE, message, queue=queue)


def over_user_share(unit: Unit) -> Verdict:
    message = (
        f"user {unit.user} used more than an equal share of queue {unit.queue} lately, and other "
        "users wait below theirs; it starts as that evens out"
    )
    return Verdict(
        unit.key, Reason.WAITING_FOR_SHARE, message, queue=unit.queue, user=unit.user
    )  # fmt: skip


def no_members(unit: Unit) -> Verdict:
    message = "asks for no members: none of its roles must have any"
    return Verdict(unit.key, Reason.IMPOSSIBLE, message, "members", 1)


def no_such_queue(unit: Unit, queues: Iterable[str]) -> Verdict:
    near = difflib.get_close_matches(unit.queue, list(queues), n=1)
    hint = f"did you mean {near[0]}?" if near else "have it created or name another one"
    message = f"queue {unit.queue} does not exist; {hint}"
    return Verdict(unit.key, Reason.NO_SUCH_QUEUE, message, queue=unit.queue)


def not_yours(unit: Unit, queue: Queue) -> Verdict:
    """A queue that is for others, or only for the queues below it."""
    allowed = ", ".join(sorted(queue.namespaces or ())[:5])
    whose = f"is for the namespaces {allowed}, not for {unit.namespace}"
    whose = whose if allowed else "takes no runs, it only holds queues together"
    message = f"queue {queue.name} {whose}; name another one"
    return Verdict(unit.key, Reason.QUEUE_NOT_YOURS, message, queue=queue.name)


def promised(verdict: Verdict, held: Held) -> Verdict:
    """A head that waits, and knows until when at the latest if others end when they should; where
    another queue may take its place, when it is likely to start."""
    words = f"it starts by {moment(held.given)} if others end in time"
    if not held.firm:
        words = f"tentatively from {moment(held.given)} on: queues below their share come first"
    return dataclasses.replace(verdict, message=f"{verdict.message}; {words}")


def over_quota(unit: Unit, shortage: Shortage) -> Verdict:
    resource, queue = shortage.resource, shortage.queue
    need, left = told(resource, shortage.need), told(resource, shortage.left)
    whole = told(resource, shortage.bound)
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
    return Verdict(unit.key, Reason.WAITING_FOR_QUOTA, sentence, resource, shortage.deficit, queue)


def over_user_limit(unit: Unit, shortage: Shortage) -> Verdict:
    """Against a limit of its user in a queue."""
    resource, queue, bound = shortage.resource, shortage.queue, shortage.bound
    user = f"user {unit.user}" if unit.user else "workloads without a user"
    if resource == "running":
        sentence = f"{user} may run {_workloads(bound)} at a time in queue {queue}"
    elif resource == "submitted":
        sentence = (
            f"{user} may have {_workloads(bound)} submitted in queue {queue}, and has as many that "
            "were submitted before this one and have not ended"
        )
    else:
        need, left = told(resource, shortage.need), told(resource, shortage.left)
        sentence = f"needs {need}; {user} may hold {left} more of at most "
        sentence += f"{told(resource, bound)} in queue {queue}"
    return Verdict(
        unit.key, Reason.WAITING_FOR_QUOTA, sentence, resource, shortage.deficit, queue,
        user=unit.user,
    )  # fmt: skip


def behind_own(unit: Unit) -> Verdict:
    message = (
        f"queue {unit.queue} is strict and a workload of the same user before it waits for the "
        "user's limit"
    )
    return Verdict(unit.key, Reason.BEHIND_IN_QUEUE, message, queue=unit.queue, user=unit.user)


def _workloads(count: int) -> str:
    return f"{count} workload{'s' if count != 1 else ''}"


def over_space(unit: Unit, shortage: Shortage) -> Verdict:
    """Against a quota of its namespace, which the cluster itself enforces."""
    resource = shortage.resource
    need, left = told(resource, shortage.need), told(resource, shortage.left)
    sentence = (
        f"needs {need}; ResourceQuota {shortage.queue} leaves {left} of "
        f"{told(resource, shortage.bound)}"
    )
    return Verdict(unit.key, Reason.WAITING_FOR_QUOTA, sentence, resource, shortage.deficit)


def no_room(cycle: Cycle, unit: Unit, failure: Failure, remark: str = "") -> Verdict:
    """From what `place` missed to a sentence: impossible, too little in all, or not together; with
    a remark on why nobody was stopped for it."""
    if len(unit.roles) > 1:
        return _no_room(cycle, unit, failure, remark)
    # Thousands miss the same: the sentence is made once.
    (asked,), shape_of = unit.roles, cycle.scene.cluster.shape_of
    shape = missing = original = shape_of(asked).id
    waits = cycle.snapshot.waiting.get(unit.key, unit)
    if waits is not unit:
        original = shape_of(waits.roles[0]).id
    if failure.role is not asked:
        missing = shape_of(failure.role).id
    near = unit.topology and (unit.topology.level, unit.topology.required)
    key = (
        shape, original, missing, asked.least, unit.gang, near, failure.wanted, failure.room,
        failure.topology, failure.resolved, failure.reserved_until, remark,
    )  # fmt: skip
    known = cycle.sentences.get(key)
    if known is None:
        known = cycle.sentences[key] = _no_room(cycle, unit, failure, remark)
    return addressed(known, unit.key)


def addressed(verdict: Verdict, key: str) -> Verdict:
    """The same, said to another unit."""
    if verdict.unit == key:
        return verdict
    return Verdict(
        key, verdict.reason, verdict.message, verdict.resource, verdict.deficit, verdict.queue,
        verdict.resolved, verdict.user,
    )  # fmt: skip


def _no_room(cycle: Cycle, unit: Unit, failure: Failure, remark: str) -> Verdict:
    known = _impossible(cycle, unit) or closed_by.verdict(cycle, unit)
    if known is not None:
        return known
    role, remark = failure.role, f"; {remark}" if remark else ""
    if failure.reserved_until is not None:
        return _kept_for_others(cycle, unit, failure.reserved_until, role, remark)
    asks = _asks(cycle, role, failure.wanted)
    missing = max(0, failure.wanted - failure.room)
    if not failure.resolved:
        message = f"{asks}; no arrangement was found in the time a decision may take{remark}"
        return Verdict(unit.key, Reason.WAITING_FOR_CAPACITY, message, resolved=False)
    if failure.topology and unit.topology is not None:
        level = unit.topology.level
        message = f"{asks} in one {level}; the best {level} has room for {failure.room} now{remark}"
        return Verdict(unit.key, Reason.WAITING_FOR_TOPOLOGY, message, level, missing)
    shape = cycle.scene.cluster.shape_of(role)
    if shape.id not in cycle.closed:
        cycle.closed[shape.id] = _closed(cycle.scene.cluster, shape)
    remark = cycle.closed[shape.id] + remark
    message = f"{asks}; room for {failure.room} now"
    if shape.bundle:
        apart = _not_together(cycle, shape)
        if apart.members >= failure.wanted:
            message += f", enough is free on nodes but {_lacks(shape.bundle, apart)}{remark}"
            resource, short = apart.resource or shape.bundle, apart.missing or missing
            return Verdict(unit.key, Reason.WAITING_FOR_TOPOLOGY, message, resource, short)
    if shape.id not in cycle.scarce:
        cycle.scarce[shape.id] = _scarcest(cycle, role)
    resource, members, per_member = cycle.scarce[shape.id]
    short = max(0, failure.wanted - members) * per_member
    if short:
        message += f", short of {told(resource, short)}"
    elif resource:
        message += ", too little of everything together on one node"
    message += remark
    return Verdict(unit.key, Reason.WAITING_FOR_CAPACITY, message, resource, short or missing)


def _kept_for_others(cycle: Cycle, unit: Unit, until: float, role: Role, remark: str) -> Verdict:
    message = (
        f"there is room for {_each(cycle, role)}, held from {moment(until)} on for who waits "
        f"longer; it would still run then{remark}"
    )
    return Verdict(unit.key, Reason.RESERVED_UNTIL, message)


def _not_together(cycle: Cycle, shape: Shape) -> Apart:
    found = cycle.apart.get(shape.id)
    if found is None:
        found = cycle.apart[shape.id] = together.now(cycle.scene.cluster, shape)
    return found


def _lacks(bundle: str, apart: Apart) -> str:
    if not apart.resource:
        return f"none has its devices {_WITHIN[bundle]}"
    short = told(apart.resource, apart.missing)
    return f"the nearest NUMA node with its devices is short of {short}"


def _closed(cluster: Cluster, shape: Shape) -> str:
    """How many nodes that could hold it take nobody now: whoever opens one may help."""
    could = (cluster.capacity_of(shape) > 0) & ~cluster.open
    count = sum(not cluster.nodes[i].ready for i in np.flatnonzero(could))
    if not count:
        return ""
    those = (
        "1 node that could hold it is" if count == 1 else f"{count} nodes that could hold it are"
    )
    return f"; {those} cordoned or not ready"


def _asks(cycle: Cycle, role: Role, count: int) -> str:
    each = _each(cycle, role)
    return f"needs {count} x {each}" if count > 1 else f"needs {each}"


def _each(cycle: Cycle, role: Role) -> str:
    """What one member asks for, told once."""
    shape = cycle.scene.cluster.shape_of(role).id
    each = cycle.words.get(shape)
    if each is None:
        each = cycle.words[shape] = told_role(role)
    return each


# --- impossible: with the certificate -----------------------------------------------------------


def _impossible(cycle: Cycle, unit: Unit) -> Verdict | None:
    """What even empty nodes could not hold, by a bound that no arrangement can pass."""
    cluster = cycle.scene.cluster
    if not len(cluster):
        message = "no node has joined yet"
        return Verdict(unit.key, Reason.WAITING_FOR_CAPACITY, message, "nodes", 1)
    # As it was asked for: quotas may have narrowed the models, but quotas change.
    asked = cycle.snapshot.waiting.get(unit.key, unit)
    level = asked.topology.level if asked.topology and asked.topology.required else ""
    if level and level not in ("node", *cluster.levels):
        known = ", ".join((*cluster.levels, "node"))
        message = f"must be in one {level}, but nodes are known by {known} only"
        return Verdict(unit.key, Reason.IMPOSSIBLE, message, level, 1)
    told = cycle.asked(asked)
    for wish, shape in zip(told.wishes, told.shapes, strict=True):
        if not shape.is_counted_exactly:
            continue
        most = cycle.most_when_empty(shape)
        if most < wish.count:
            return _too_little(cycle, unit, wish, most)
        if level:
            within = cycle.most_in_one(shape, level)
            if within < wish.count:
                asks = _asks(cycle, wish.role, wish.count)
                message = f"{asks} in one {level}; the largest {level} holds {within} even if empty"
                missing = wish.count - within
                return Verdict(unit.key, Reason.IMPOSSIBLE, message, level, missing)
    return None


def _too_little(cycle: Cycle, unit: Unit, wish: Wish, most: int) -> Verdict:
    cluster, role = cycle.scene.cluster, wish.role
    allowed = cluster.mask(role.constraint)
    if not allowed.any():
        lacks = _not_offered(cluster, role.constraint)
        if lacks:
            message = f"needs nodes that offer {lacks}; none of those it may use does"
            return Verdict(unit.key, Reason.UNSUPPORTED, message, lacks, wish.count)
        those = f", with those of RuntimeClass {role.runtime.name}" if role.runtime else ""
        message = f"no node has the labels and taints it asks for{those}"
        return Verdict(unit.key, Reason.IMPOSSIBLE, message, "nodes", wish.count)
    if most:
        message = f"{_asks(cycle, role, wish.count)}; all nodes together hold {most} even if empty"
        return Verdict(unit.key, Reason.IMPOSSIBLE, message, "members", wish.count - most)
    for name, need in sorted(role.needs.items()):
        column = cluster.resources.get(name)
        largest = int(cluster.capacity[column, allowed].max()) if column is not None else 0
        if need > largest:
            own = told_overhead(role, name)
            message = f"needs {told(name, need)} on one node{own}; the largest has "
            message += told(name, largest)
            return Verdict(unit.key, Reason.IMPOSSIBLE, message, name, need - largest)
    for request in role.devices:
        nodes = (cluster.nodes[i] for i in np.flatnonzero(allowed))
        there = [each for node in nodes for each in node.devices if each.kind == request.kind]
        why = ungranted.why(request, there)
        if why:
            return Verdict(unit.key, Reason.IMPOSSIBLE, why, request.kind, WHOLE)
        have = int(cluster.bank.eligible(request)[allowed].sum(axis=1).max(initial=0))
        if have < request.count:
            asks = told_role(dataclasses.replace(role, needs={}, devices=(request,), bundle=""))
            message = f"needs {asks} on one node; the node with most of them has {have}"
            missing = request.count - have
            return Verdict(unit.key, Reason.IMPOSSIBLE, message, request.kind, missing * WHOLE)
    if role.bundle:
        apart = together.when_empty(cluster, cluster.shape_of(role))
        if apart.members:
            return _never_together(unit, role, apart)
    message = f"needs {told_role(role)} on one node; no node has all of it, even if empty"
    return Verdict(unit.key, Reason.IMPOSSIBLE, message, "node", 1)


def _never_together(unit: Unit, role: Role, apart: Apart) -> Verdict:
    message = f"needs {told_role(role)}; even of empty nodes {_lacks(role.bundle, apart)}"
    resource, short = apart.resource or role.bundle, apart.missing or 1
    return Verdict(unit.key, Reason.IMPOSSIBLE, message, resource, short)


def _not_offered(cluster: Cluster, constraint: Constraint) -> str:
    """The capabilities that keep it from all nodes that it could use otherwise; "" if none do."""
    asked = sorted(constraint.capabilities)
    if not asked:
        return ""
    usable = cluster.mask(dataclasses.replace(constraint, capabilities=frozenset()))
    offers = [cluster.nodes[i].capabilities for i in np.flatnonzero(usable)]
    nowhere = [name for name in asked if not any(name in offered for offered in offers)]
    return " and ".join(nowhere or asked) if offers else ""


def _scarcest(cycle: Cycle, role: Role) -> tuple[str, int, int]:
    """The resource of which the fewest members could be had, were it the only one needed: its
    name, so many members, and what each needs of it."""
    cluster = cycle.scene.cluster
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
        fit = cluster.bank.fit_request(request, slice(None))
        name = f"{request.kind}/{request.models[0]}" if len(request.models) == 1 else request.kind
        found.append((members(fit), name, amounts.charge(cluster, request)))
    if not found:
        return "", 0, 0
    most, name, need = min(found)
    return name, most, need


# --- amounts in words ---------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def moment(seconds: float) -> str:
    """Rounded up to the second: the words never promise more than the number."""
    last = datetime.datetime.max.replace(microsecond=0, tzinfo=datetime.UTC).timestamp()
    moment = datetime.datetime.fromtimestamp(math.ceil(min(seconds, last)), datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def told(resource: str, amount: int) -> str:
    """`1.5 cpu`, `0.25 gpu`, exact; `32Gi memory`: rounded down to tenths."""
    if resource == "memory":
        return f"{_bytes(amount)} memory"
    if resource in ("pods", "members", "nodes") or resource.startswith("attach:"):
        return f"{amount} {resource}"
    return f"{_thousandths(amount)} {resource}"


def told_role(role: Role) -> str:
    """What one member asks for."""
    parts = []
    for request in role.devices:
        model = f" ({' or '.join(request.models)})" if request.models else ""
        if request.form == "whole":
            parts.append(f"{request.count} {request.kind}{model}")
        elif request.form == "ratio":
            parts.append(f"1/{request.ratio} {request.kind}{model}")
        elif request.form == "partition":
            parts.append(f"{request.profile} of a {request.kind}{model}")
        else:
            size = [f"{request.memory}Mi"] if request.memory else []
            size += [f"{request.compute / 10:g}%"] if request.compute else []
            parts.append(f"{' and '.join(size)} of a {request.kind}{model}")
    parts += [told(name, amount) for name, amount in sorted(_shown(role.needs).items())]
    within = f" {_WITHIN[role.bundle]}" if role.bundle else ""
    return (", ".join(parts) or "a place") + told_overhead(role) + within


def told_overhead(role: Role, only: str = "") -> str:
    """What of the needs nobody asked for, but the runtime takes; `only` of one resource."""
    if role.runtime is None:
        return ""
    shown = _shown(dict(role.runtime.overhead))
    parts = [told(n, amount) for n, amount in sorted(shown.items()) if only in ("", n)]
    return f" ({', '.join(parts)} of it for RuntimeClass {role.runtime.name})" if parts else ""


def _shown(needs: Mapping[str, int]) -> dict[str, int]:
    return {name: amount for name, amount in needs.items() if amount and name != "pods"}


def _bytes(value: int) -> str:
    for suffix, bits in _BINARY:
        if value >= 1 << bits:
            whole, tenth = divmod(value * 10 >> bits, 10)
            return f"{whole}.{tenth}{suffix}" if tenth else f"{whole}{suffix}"
    return str(value)


def _thousandths(value: int) -> str:
    if 0 < value < 100:
        return f"{value}m"
    whole, rest = divmod(value, 1000)
    return f"{whole}.{rest:03}".rstrip("0") if rest else str(whole)
