"""From objects to what the core decides on: nodes, queues, who waits, who holds what.

Used = the union, by member key, of assignments and pods: a Run holds what its assignment says;
a pod that no assignment of today covers (of an earlier attempt, of a Run that ended, of somebody
else) holds its room by itself until it is gone. So a new leader knows everything after listing
nodes, pods, Runs and Queues.

Pure: one function per kind of object. `control.picture` calls them for what changed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from windlass.control import engine as engines
from windlass.control import (
    members,
    nodefacts,
    podrender,
    retrying,
    runtimeclasses,
    runview,
    volumes,
)
from windlass.core import facts, nominations, predict, repair, specs
from windlass.core.constraints import NAME_FIELD
from windlass.kinds import duration, kubernetes, quantity, queue, run, times
from windlass.kinds.reasons import Reason

DEFAULT_QUEUE = "default"
TRIED_LAST = -1_000_000
"""Points of a node that failed a Run: more than all that its user may like about it."""
HeldBack = Callable[[facts.Role], frozenset[str]]
"""Nodes that lately refused members of a role."""


# --- queues ---------------------------------------------------------------------------------------


def read_queue(each: queue.Queue, *, is_parent: bool = False) -> facts.Queue:
    """`is_parent`: other queues are below it; then it takes nobody's runs but those it names."""
    spec = each.spec
    named = frozenset(spec.namespaces or ())
    return facts.Queue(
        name=each.name,
        parent=spec.parent or "",
        guarantee=read_amounts(spec.guarantee),
        limit=read_amounts(spec.limit),
        lend=read_amounts(spec.lend),
        weight=spec.weight,
        order=spec.order,
        strict=spec.strict,
        reserve=spec.reserve,
        min_runtime=_seconds(spec.min_runtime) or 0.0,
        max_priority=spec.max_priority,
        half_life=_seconds(spec.half_life),
        fair_share_preemption=_seconds(spec.fair_share_preemption),
        user_fair=spec.user_fair,
        user_limits=_user_limits(spec.user_limits),
        held=_paused(each),
        namespaces=named if named or is_parent else None,
    )


def _user_limits(limits: queue.UserLimits | None) -> facts.UserLimits | None:
    if limits is None:
        return None
    own = {name: _user_limit(each) for name, each in (limits.users or {}).items()}
    every = _user_limit(limits)
    return facts.UserLimits(every.resources, every.running, every.submitted, own)


def _user_limit(limit: queue.UserLimit) -> facts.UserLimit:
    return facts.UserLimit(read_amounts(limit.resources), limit.running, limit.submitted)


def read_queues(listed: Iterable[queue.Queue]) -> list[facts.Queue]:
    """A whole tree."""
    found = list(listed)
    parents = {each.spec.parent for each in found}
    return [read_queue(each, is_parent=each.name in parents) for each in found]


def is_drained(each: queue.Queue) -> bool:
    """Whether what runs in it is stopped, too."""
    budget = each.status.budget
    used_up = each.spec.budget is not None and budget is not None and budget.state == "Stopped"
    return each.spec.stop == "drain" or used_up


def _paused(each: queue.Queue) -> tuple[Reason, str] | None:
    budget = each.status.budget if each.spec.budget is not None else None
    if each.spec.stop is None and budget is not None and budget.state in ("Held", "Stopped"):
        return Reason.BUDGET_EXHAUSTED, f"queue {each.name}: {budget.message}"
    if each.spec.stop is None:
        return None
    word = "paused" if each.spec.stop == "hold" else "being drained"
    return Reason.QUEUE_PAUSED, f"queue {each.name} is {word}: nothing new starts in it"


def homes(queues: Iterable[queue.Queue]) -> dict[str, str]:
    """Namespace -> the queue that owns it; the first by name if several claim it."""
    found: dict[str, str] = {}
    for each in sorted(queues, key=lambda q: q.name):
        for namespace in each.spec.namespaces or ():
            found.setdefault(namespace, each.name)
    return found


def queue_of(owner: run.Run, owners: Mapping[str, str]) -> str:
    return owner.spec.queue or owners.get(owner.namespace, DEFAULT_QUEUE)


# --- Runs ---------------------------------------------------------------------------------------


def waits(owner: run.Run) -> bool:
    """Has no room and is not going away; held ones wait, too, with a word why."""
    return (
        owner.status.phase == "Queued"
        and not owner.metadata.deletion_timestamp
        and not owner.spec.stop
        and not holds_assignment(owner)
    )


def holds_assignment(owner: run.Run) -> bool:
    """Its assignment is for the attempt that is current, and it has not ended; or it starts again
    at another size and takes its room along."""
    assignment = owner.status.assignment
    if assignment is None or owner.finished:
        return False
    return assignment.attempt == owner.status.attempt or _takes_along(owner, assignment)


def _takes_along(owner: run.Run, assignment: run.Assignment) -> bool:
    history = owner.status.history or []
    return (
        owner.status.phase == "Queued"
        and assignment.attempt == owner.status.attempt - 1
        and bool(history)
        and history[-1].reason == Reason.RESIZED
        and not (owner.spec.suspend or owner.spec.stop or owner.metadata.deletion_timestamp)
    )


def kept_room(owner: run.Run) -> dict[str, list[run.Member]]:
    """The room that a Run which has not started holds: no more than it may keep, and wants."""
    assignment = owner.status.assignment
    assert assignment is not None, "the caller looked: holds_assignment"  # noqa: S101
    keep = runview.kept_members(owner) if assignment.attempt != owner.status.attempt else {}
    sizes = {role.name: role.replicas for role in owner.spec.roles}
    return {
        role: listed[: min(sizes.get(role, 0), keep.get(role, len(listed)))]
        for role, listed in assignment.members.items()
    }


def read_unit(
    owner: run.Run,
    queue_name: str,
    levels: nodefacts.Levels = nodefacts.LEVELS,
    engine: engines.Engine | None = None,
    reach: volumes.Reach = volumes.Reach(),  # noqa: B008 (immutable)
    held_back: HeldBack | None = None,
    runtime: runtimeclasses.Addition = runtimeclasses.NOTHING,
) -> facts.Unit:
    """`engine`: what it cannot do holds the Run; None: nobody knows. `reach`: what its claims
    mean. `held_back`: nodes that lately refused such members. `runtime`: what its class adds."""
    spec, topology = owner.spec, owner.spec.placement.topology
    created = owner.metadata.creation_timestamp
    return facts.Unit(
        key=owner.uid,
        queue=queue_name,
        roles=tuple(
            _bounded(role_of(role, owner, runtime), reach, held_back) for role in spec.roles
        ),
        submitted=times.parse(created).timestamp() if created else 0.0,
        user=spec.user or "",
        namespace=owner.namespace,
        priority=spec.priority,
        gang=spec.placement.gang,
        pack=spec.placement.pack,
        topology=facts.Topology(topology.level, topology.mode == "required") if topology else None,
        preemptible=spec.preemptible,
        expected=_seconds(spec.duration.expected) if spec.duration else None,
        max_runtime=_seconds(spec.duration.max) if spec.duration else None,
        grace=_seconds(spec.checkpoint.grace) or 0.0,
        attained=_ran_before(owner),
        preemptions=_preempted_before(owner),
        kin=f"{owner.namespace}/{spec.user or ''}",
        not_before=retrying.retry_at(owner),
        held=_held(spec, levels, engine, reach, runtime),
        lately=retrying.lately(owner),
        # Who would not be tried again after a preemption would fail by a move.
        movable=spec.placement.movable and "Preempted" in spec.retries.causes,
        moved=tuple(
            (times.parse(each.at).timestamp(), each.by) for each in owner.status.moves or ()
        ),
    )


def in_time(
    unit: facts.Unit, owner: run.Run, now: float, before: facts.Unit | facts.Running | None
) -> facts.Unit:
    """Whose failure is told for a time to come was told by another clock, or ours was set back: it
    has just happened. `before`: as it was known; the moment that was found at first stays."""
    latest = now + retrying.rest(owner)
    if unit.not_before <= latest:
        return unit
    known = before.not_before if isinstance(before, facts.Unit) else 0.0
    return dataclasses.replace(unit, not_before=known if 0.0 < known <= latest else latest)


def read_running(
    owner: run.Run,
    unit: facts.Unit,
    now: float,
    *,
    min_runtime: float = 0.0,
    ended: Collection[tuple[str, int]] = (),
    history: predict.History | None = None,
) -> facts.Running:
    """A Run that holds the room of its assignment; `now` is when it starts if nobody knows yet.

    `history`: tells how far the Run's estimate is believed.
    `ended`: members that have ended and whose room is free, because the others do not need them.
    """
    held, seats, roles = kept_room(owner), [], []
    if owner.status.phase != "Queued" and owner.status.assignment is not None:
        held = owner.status.assignment.members
    for role in unit.roles:
        done = sum(name == role.name for name, _ in ended)
        most = max(0, role.most - done)
        roles.append(dataclasses.replace(role, least=min(role.least, most), most=most))
        seats += [
            facts.Seat(role.name, index, member.node, read_grants(role.devices, member.devices))
            for index, member in enumerate(held.get(role.name, ()))
            if (role.name, index) not in ended
        ]
    started = _started(owner)
    started = now if started is None else started
    estimate = unit.expected if history is None else history.estimate(unit)
    return facts.Running(
        unit=dataclasses.replace(unit, roles=tuple(roles), not_before=0.0, held=None),
        seats=tuple(seats),
        started=started,
        expected_end=None if estimate is None else started + estimate,
        protected_until=started + min_runtime if min_runtime else 0.0,
        leaving=tuple((s.role, s.index) for s in seats if _leaves(owner, s.role, s.index)),
        shrunk_at=_shrunk_at(owner),
        checkpoint_at=_checkpoint_at(owner, now),
    )


def _checkpoint_at(owner: run.Run, now: float) -> float | None:
    """When it last said that it saved its state; not later than now, whatever its clock says."""
    told = owner.status.progress.checkpoint if owner.status.progress is not None else None
    return None if told is None else min(now, times.parse(told).timestamp())


def _shrunk_at(owner: run.Run) -> float | None:
    held = owner.status.assignment
    shrunk = held.shrunk_at if held is not None else None
    return None if shrunk is None else times.parse(shrunk).timestamp()


def read_nomination(owner: run.Run, fact: facts.Unit | facts.Running) -> facts.Nomination | None:
    """Room that is being freed for a Run that waits or for the missing members of its gang, or
    that a Run moves to."""
    nomination = owner.status.nomination
    if nomination is None or nomination.attempt != nominated_attempt(owner):
        return None
    indexes: Mapping[str, Sequence[int]]
    unit = fact if isinstance(fact, facts.Unit) else fact.unit
    if isinstance(fact, facts.Running) and not nominations.leaves_whole(fact):
        indexes = repair.missing_members(fact)
    else:
        indexes = {role.name: range(role.most) for role in unit.roles}
    seats = tuple(
        facts.Seat(role.name, index, member.node, read_grants(role.devices, member.devices))
        for role in unit.roles
        for index, member in zip(
            indexes.get(role.name, ()), nomination.members.get(role.name, ()), strict=False
        )
    )
    return facts.Nomination(unit.key, seats) if seats else None


def nominated_attempt(owner: run.Run) -> int:
    """The attempt that room is nominated for: the next one of a Run that is moved elsewhere."""
    moves = holds_assignment(owner) and owner.status.phase != "Queued" and not is_incomplete(owner)
    return owner.status.attempt + 1 if moves else owner.status.attempt


def is_incomplete(owner: run.Run) -> bool:
    """Whether a gang that runs has room for fewer members than its minimum."""
    held = owner.status.assignment
    if not owner.spec.placement.gang or owner.status.phase != "Running" or held is None:
        return False
    return any(
        len(held.members.get(role.name, ())) < (role.min_replicas or role.replicas)
        for role in owner.spec.roles
    )


def _leaves(owner: run.Run, role: str, index: int) -> bool:
    """Whether a member that holds room was told to go, or will be."""
    spec, status = owner.spec, owner.status
    if status.phase == "Queued":
        return False
    if status.phase == "Stopping" or spec.suspend or spec.stop or owner.metadata.deletion_timestamp:
        return True
    if status.eviction is not None and status.eviction.keep_members is None:
        return True
    sizes = {each.name: each.replicas for each in spec.roles}
    return index >= min(sizes[role], runview.kept_members(owner).get(role, index + 1))


def rests_until(owner: run.Run, rest: float) -> float:
    """Unix time before which it should not grow beyond its least, because it would have to start
    again; 0: it may at once."""
    held, started = owner.status.assignment, _started(owner)
    if held is None or started is None or owner.status.phase != "Running":
        return 0.0
    for role in owner.spec.roles:
        size = len(held.members.get(role.name, ()))
        if size < (role.min_replicas or role.replicas):
            return 0.0
    live = all(runview.resizes_live(owner, role.name) for role in owner.spec.roles)
    return 0.0 if live else started + rest


def ran(owner: run.Run) -> float | None:
    """Seconds that a Run took which ended by itself, and well; else None."""
    if owner.status.phase != "Succeeded":
        return None
    return sum(end - start for start, end in _spells(owner))


# --- pods that no assignment covers ---------------------------------------------------------------


def is_covered(pod: kubernetes.Pod, owner: run.Run | None) -> bool:
    """Whether the assignment of its Run counts for the pod."""
    key = members.key_of(pod)
    if owner is None or key is None or not holds_assignment(owner):
        return False
    assignment = owner.status.assignment
    return (
        assignment is not None
        and key.attempt == assignment.attempt
        and key.index < len(assignment.members.get(key.role, ()))
    )


def read_pod(pod: kubernetes.Pod, owner: run.Run | None, queue_name: str) -> facts.Running | None:
    """What a pod holds by itself, in the queue of its Run if it has one; None: nothing. Devices
    that it does not name are given to it by `fill_in`."""
    if not pod.spec.node_name or not members.is_active(pod):
        return None
    amounts = members.pod_amounts(pod)
    counts: dict[str, int] = {}
    for resource, count in amounts.items():
        kind = members.device_kind(resource)
        if kind and count:
            counts[kind] = min(nodefacts.MOST_DEVICES, counts.get(kind, 0) + count)
    requests = tuple(facts.DeviceRequest(kind, count) for kind, count in sorted(counts.items()))
    needs = {name: n for name, n in amounts.items() if not members.device_kind(name)}
    grants = _pod_grants(pod, owner)
    created = pod.metadata.creation_timestamp
    going = owner is not None or pod.metadata.deletion_timestamp is not None
    return facts.Running(
        unit=facts.Unit(
            key=f"pod/{pod.uid}",
            queue=queue_name,
            roles=(facts.Role("pod", 1, 1, needs, requests),),
            user=(owner.spec.user or "") if owner is not None else "",
            namespace=pod.namespace,
            preemptible=owner is not None and owner.spec.preemptible,
            # How long it stays says nothing about Runs: it is somebody else's, or on its way out.
            kin=None,
        ),
        seats=(facts.Seat("pod", 0, pod.spec.node_name, grants),),
        started=times.parse(created).timestamp() if created else 0.0,
        leaving=(("pod", 0),) if going else (),
    )


def fill_in(
    node: facts.Node | None, taken: Collection[str], pods: Sequence[facts.Running]
) -> list[facts.Running]:
    """Pods of one node that hold devices without naming them, each with devices that nobody else
    names. The node's own plug-in chose others perhaps; what counts is how many are left."""
    left: dict[str, list[str]] = {}
    for device in node.devices if node else ():
        if device.id not in taken:
            left.setdefault(device.kind, []).append(device.id)
    filled = []
    for each in sorted(pods, key=lambda pod: pod.unit.key):
        grants = []
        for request in each.unit.roles[0].devices:
            free = left.get(request.kind, [])
            grants += [facts.Grant(free.pop()) for _ in range(min(request.count, len(free)))]
        seat = dataclasses.replace(each.seats[0], grants=tuple(grants))
        filled.append(dataclasses.replace(each, seats=(seat,)))
    return filled


# --- devices of members ---------------------------------------------------------------------------


def read_grants(
    requests: Iterable[facts.DeviceRequest], names: Iterable[str] | None
) -> tuple[facts.Grant, ...]:
    """From the names in an assignment, which come in the order of the requests."""
    ids = iter([name.partition(":")[0] for name in names or ()])
    grants = []
    for request in requests:
        for _, device in zip(range(request.count), ids, strict=False):
            grants.append(_grant(request, device))
    return tuple(grants)


def device_names(grants: Iterable[facts.Grant]) -> list[str]:
    """`gpu/0`, or a share in thousandths, and in memory if it was asked for: `gpu/0:250`,
    `gpu/0:0:8192Mi`. Whoever grants it on the node holds it to that; 0 is no limit."""
    return [_device_name(grant) for grant in grants]


def _device_name(grant: facts.Grant) -> str:
    if grant.form == "whole":
        return grant.device
    by_memory = f":{grant.memory}Mi" if grant.form == "share" and grant.memory else ""
    return f"{grant.device}:{grant.compute}{by_memory}"


def _pod_grants(pod: kubernetes.Pod, owner: run.Run | None) -> tuple[facts.Grant, ...]:
    """Of what a pod says that it was given: of which form a share is, its Run knows."""
    names, key = members.device_names(pod), members.key_of(pod)
    if any(":" in name for name in names):
        for role in owner.spec.roles if owner and key else ():
            if key and role.name == key.role:
                return read_grants(
                    [specs.device_request(each) for each in role.devices or ()], names
                )
    return tuple(_named(name) for name in names)


def _named(name: str) -> facts.Grant:
    """What a name says by itself."""
    device, *parts = name.split(":")
    compute, memory = [*parts, "", ""][:2]
    if not compute.isdecimal():
        return facts.Grant(device)
    mebibytes = quantity.whole(memory) >> 20 if quantity.is_valid(memory) else 0
    return facts.Grant(device, "share", min(facts.WHOLE, int(compute)), mebibytes)


def _grant(request: facts.DeviceRequest, device: str) -> facts.Grant:
    if request.form == "ratio":
        return facts.Grant(device, "ratio", facts.WHOLE // request.ratio, 0, request.ratio)
    if request.form == "share":
        return facts.Grant(device, "share", request.compute, request.memory)
    return facts.Grant(device)


# --- parts ----------------------------------------------------------------------------------------


def read_amounts(amounts: queue.Amounts | None) -> dict[str, int]:
    """Bytes of memory, whole pods, thousandths of everything else, devices too."""
    return {
        name: min(
            members.MOST,
            quantity.whole(value) if members.is_whole(name) else quantity.milli(value),
        )
        for name, value in (amounts or {}).items()
    }


def role_of(
    role: run.Role, owner: run.Run, runtime: runtimeclasses.Addition = runtimeclasses.NOTHING
) -> facts.Role:
    """What members of a role need and like, whatever else is going on."""
    placement = owner.spec.placement
    requests = tuple(specs.device_request(device) for device in role.devices or ())
    within = placement.bundle.within if placement.bundle and requests else ""
    least = role.min_replicas or role.replicas
    made = facts.Role(
        name=role.name,
        least=least if placement.gang else min(1, role.replicas),
        most=role.replicas,
        needs=members.needs(role),
        devices=requests,
        # `socket` never gets here: podrender.unsupported holds such a Run.
        bundle="" if within == "socket" else within,
        constraint=constraint_of(owner),
        prefers=(
            *specs.preferences(placement.nodes or run.NodeChoice()),
            *_dislikes(owner.status.avoid),
        ),
    )
    return runtime.to(made)


def _bounded(
    role: facts.Role,
    reach: volumes.Reach,
    held_back: HeldBack | None,
) -> facts.Role:
    """The role with what volumes and nodes have to say."""
    not_now = held_back(role) if held_back else frozenset()
    if not_now:
        constraint = dataclasses.replace(role.constraint, not_now=not_now)
        role = dataclasses.replace(role, constraint=constraint)
    return role if reach == volumes.Reach() else reach.bounds(role)


def constraint_of(owner: run.Run) -> facts.Constraint:
    """Which nodes its user accepts."""
    nodes = owner.spec.placement.nodes or run.NodeChoice()
    return specs.constraint(nodes, (facts.Toleration(members.OWN_NODES, "Exists"),))


def _dislikes(avoid: Iterable[str] | None) -> tuple[facts.Preference, ...]:
    """Nodes that failed it are tried last, whatever else it likes."""
    names = tuple(sorted(avoid or ()))
    if not names:
        return ()
    match = (facts.Requirement(NAME_FIELD, "In", names),)
    return (facts.Preference(match, TRIED_LAST),)


def _held(
    spec: run.RunSpec,
    levels: nodefacts.Levels,
    engine: engines.Engine | None,
    reach: volumes.Reach,
    runtime: runtimeclasses.Addition,
) -> tuple[Reason, str] | None:
    if spec.suspend:
        return Reason.SUSPENDED, "held by spec.suspend"
    problem = podrender.unsupported(spec, engine)
    topology = spec.placement.topology
    if not problem and topology and topology.mode == "required":
        known = (*levels, "node")
        if topology.level not in known:
            problem = (
                f"spec.placement.topology.level {topology.level}: nodes here are known by "
                f"{', '.join(known)}; name one of these"
            )
    if problem:
        return Reason.UNSUPPORTED, problem
    if runtime.problem:
        return Reason.ADMISSION_REFUSED, runtime.problem
    return (Reason.WAITING_FOR_DATA, reach.problem) if reach.problem else None


def _started(owner: run.Run) -> float | None:
    """When the attempt that holds room began; None: its first step is not written down yet."""
    found = None
    for step in owner.status.history or ():
        if step.to_phase == "Queued":
            found = None
        elif step.to_phase in ("Starting", "Running"):
            found = times.parse(step.at).timestamp()
    return found


def _ran_before(owner: run.Run) -> float:
    """Seconds that earlier attempts ran."""
    return sum(end - start for start, end in _spells(owner))


def _preempted_before(owner: run.Run) -> int:
    """Attempts that ended because others needed the capacity, as far as the history goes back."""
    steps = owner.status.history or ()
    return sum(step.to_phase == "Queued" and step.reason == Reason.PREEMPTED for step in steps)


def _spells(owner: run.Run) -> list[tuple[float, float]]:
    """From when to when attempts ran that have ended, oldest first."""
    found: list[tuple[float, float]] = []
    since: float | None = None
    for step in owner.status.history or ():
        at = times.parse(step.at).timestamp()
        if since is not None:
            found.append((since, max(since, at)))
        since = at if step.to_phase == "Running" else None
    return found


def _seconds(text: str | None) -> float | None:
    return None if text is None else duration.milliseconds(text) / 1000
