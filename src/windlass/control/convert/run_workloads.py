"""Converts objects for the core: queues, waiting Runs and running Runs.

Usage is the union, by replica key, of assignments and pods: a Run uses what its assignment has. A
pod without a current assignment (of an earlier attempt, of a finished Run, of another owner) uses
its capacity until it is deleted. So a new leader knows everything after listing nodes, pods, Runs
and Queues.

Pure: one function per kind of object. `control.scheduler.cache` calls them for what changed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from windlass.control.convert import node_facts, runtime_classes
from windlass.control.model import capabilities as engines
from windlass.control.model import dependencies, members, retry, run_view, unsupported
from windlass.control.volumes.topology import Reach
from windlass.core.cluster.constraints import NAME_FIELD
from windlass.core.model import gangs, run_spec, types
from windlass.core.prediction import predictor
from windlass.kinds.reasons import Reason
from windlass.kinds.types import core, queue, run
from windlass.kinds.values import duration, quantity, times

DEFAULT_QUEUE = "default"
TRIED_LAST = -1_000_000
"""The score of a node on which a Run failed: below the sum of all preferences of a user."""
Avoided = Callable[[types.Role], frozenset[str]]
"""Nodes that recently refused replicas of a role."""


# --- queues ---------------------------------------------------------------------------------------


def read_queue(each: queue.Queue, *, is_parent: bool = False) -> types.Queue:
    """`is_parent`: it has child queues; then it accepts only the namespaces that it names."""
    spec = each.spec
    named = frozenset(spec.namespaces or ())
    return types.Queue(
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
        paused=_paused(each),
        namespaces=named if named or is_parent else None,
    )


def _user_limits(limits: queue.UserLimits | None) -> types.UserLimits | None:
    if limits is None:
        return None
    own = {name: _user_limit(each) for name, each in (limits.users or {}).items()}
    every = _user_limit(limits)
    return types.UserLimits(every.resources, every.running, every.submitted, own)


def _user_limit(limit: queue.UserLimit) -> types.UserLimit:
    return types.UserLimit(read_amounts(limit.resources), limit.running, limit.submitted)


def read_queues(listed: Iterable[queue.Queue]) -> list[types.Queue]:
    """A whole quota tree."""
    found = list(listed)
    parents = {each.spec.parent for each in found}
    return [read_queue(each, is_parent=each.name in parents) for each in found]


def is_drained(each: queue.Queue) -> bool:
    """Whether running workloads are stopped, too."""
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
    """It has no assignment and is not being deleted; gated ones wait, too, with a reason. Of an
    array the Runs of its indices wait, and not the array itself."""
    return (
        owner.status.phase == "Queued"
        and owner.spec.array is None
        and not owner.metadata.deletion_timestamp
        and not owner.spec.stop
        and not holds_assignment(owner)
    )


def holds_assignment(owner: run.Run) -> bool:
    """Its assignment is for the current attempt, and it has not ended; or it restarts at another
    size and keeps its assignment."""
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


def kept_assignment(owner: run.Run) -> dict[str, list[run.Member]]:
    """The assignment of a Run that has not started: no more than it may keep, and requests."""
    assignment = owner.status.assignment
    assert assignment is not None, "the caller checked holds_assignment"  # noqa: S101
    keep = run_view.kept_members(owner) if assignment.attempt != owner.status.attempt else {}
    sizes = {role.name: role.replicas for role in owner.spec.roles}
    return {
        role: listed[: min(sizes.get(role, 0), keep.get(role, len(listed)))]
        for role, listed in assignment.members.items()
    }


def read_workload(
    owner: run.Run,
    queue_name: str,
    levels: node_facts.Levels = node_facts.LEVELS,
    engine: engines.Engine | None = None,
    reach: Reach = Reach(),  # noqa: B008 (immutable)
    avoided: Avoided | None = None,
    runtime: runtime_classes.Addition = runtime_classes.NOTHING,
) -> types.Workload:
    """`engine`: what it does not support gates the Run; None: unknown. `reach`: the constraints of
    its claims. `avoided`: nodes that recently refused such replicas. `runtime`: the addition of its
    class."""
    spec, topology = owner.spec, owner.spec.placement.topology
    created = owner.metadata.creation_timestamp
    return types.Workload(
        key=owner.uid,
        queue=queue_name,
        roles=tuple(_bounded(role_of(role, owner, runtime), reach, avoided) for role in spec.roles),
        submitted=times.parse(created).timestamp() if created else 0.0,
        user=spec.user or "",
        namespace=owner.namespace,
        priority=spec.priority,
        gang=spec.placement.gang,
        pack=spec.placement.pack,
        topology=types.Topology(topology.level, topology.mode == "required") if topology else None,
        preemptible=spec.preemptible,
        expected=_seconds(spec.duration.expected) if spec.duration else None,
        max_runtime=_seconds(spec.duration.max) if spec.duration else None,
        grace=_seconds(spec.checkpoint.grace) or 0.0,
        attained=_ran_before(owner),
        preemptions=_preempted_before(owner),
        history_key=f"{owner.namespace}/{spec.user or ''}",
        not_before=retry.retry_at(owner),
        hold_reason=_hold_reason(owner, levels, engine, reach, runtime),
        lately=retry.lately(owner),
        # A run without retries after a preemption would fail by a move.
        movable=spec.placement.movable and "Preempted" in spec.retries.causes,
        moved=tuple(
            (times.parse(each.at).timestamp(), each.by) for each in owner.status.moves or ()
        ),
    )


def in_time(
    workload: types.Workload,
    owner: run.Run,
    now: float,
    before: types.Workload | types.Running | None,
) -> types.Workload:
    """A failure in the future comes from another clock, or the local clock was set back: it counts
    as just now. `before`: the previous fact; its first moment stays."""
    latest = now + retry.rest(owner)
    if workload.not_before <= latest:
        return workload
    known = before.not_before if isinstance(before, types.Workload) else 0.0
    return dataclasses.replace(workload, not_before=known if 0.0 < known <= latest else latest)


def read_running(
    owner: run.Run,
    workload: types.Workload,
    now: float,
    *,
    min_runtime: float = 0.0,
    ended: Collection[tuple[str, int]] = (),
    history: predictor.History | None = None,
) -> types.Running:
    """A Run with an assignment; `now` is its start if that is not written yet.

    `history`: corrects the estimate of the Run.
    `ended`: replicas that have ended and whose capacity is free, because the others do not need
    them.
    """
    places, pods, roles = kept_assignment(owner), [], []
    if owner.status.phase != "Queued" and owner.status.assignment is not None:
        places = owner.status.assignment.members
    for role in workload.roles:
        done = sum(name == role.name for name, _ in ended)
        most = max(0, role.max_count - done)
        roles.append(dataclasses.replace(role, min_count=min(role.min_count, most), max_count=most))
        pods += [
            types.PodAssignment(
                role.name, index, member.node, read_grants(role.devices, member.devices)
            )
            for index, member in enumerate(places.get(role.name, ()))
            if (role.name, index) not in ended
        ]
    started = _started(owner)
    started = now if started is None else started
    estimate = workload.expected if history is None else history.estimate(workload)
    return types.Running(
        workload=dataclasses.replace(
            workload, roles=tuple(roles), not_before=0.0, hold_reason=None
        ),
        pods=tuple(pods),
        started=started,
        expected_end=None if estimate is None else started + estimate,
        protected_until=started + min_runtime if min_runtime else 0.0,
        leaving=tuple((s.role, s.index) for s in pods if _leaves(owner, s.role, s.index)),
        shrunk_at=_shrunk_at(owner),
        checkpoint_at=_checkpoint_at(owner, now),
    )


def _checkpoint_at(owner: run.Run, now: float) -> float | None:
    """When it last reported a checkpoint; not later than now, whatever its clock."""
    saved = owner.status.progress.checkpoint if owner.status.progress is not None else None
    return None if saved is None else min(now, times.parse(saved).timestamp())


def _shrunk_at(owner: run.Run) -> float | None:
    assignment = owner.status.assignment
    shrunk = assignment.shrunk_at if assignment is not None else None
    return None if shrunk is None else times.parse(shrunk).timestamp()


def read_nomination(
    owner: run.Run, fact: types.Workload | types.Running
) -> types.Nomination | None:
    """Capacity that is being freed for a waiting Run or for the missing replicas of its gang, or to
    which a Run moves."""
    nomination = owner.status.nomination
    if nomination is None or nomination.attempt != nominated_attempt(owner):
        return None
    indexes: Mapping[str, Sequence[int]]
    workload = fact if isinstance(fact, types.Workload) else fact.workload
    if isinstance(fact, types.Running) and not gangs.leaves_whole(fact):
        indexes = gangs.missing_pods(fact)
    else:
        indexes = {role.name: range(role.max_count) for role in workload.roles}
    pods = tuple(
        types.PodAssignment(
            role.name, index, member.node, read_grants(role.devices, member.devices)
        )
        for role in workload.roles
        for index, member in zip(
            indexes.get(role.name, ()), nomination.members.get(role.name, ()), strict=False
        )
    )
    return types.Nomination(workload.key, pods) if pods else None


def nominated_attempt(owner: run.Run) -> int:
    """The attempt of the nomination: the next one of a Run that moves."""
    moves = holds_assignment(owner) and owner.status.phase != "Queued" and not is_incomplete(owner)
    return owner.status.attempt + 1 if moves else owner.status.attempt


def is_incomplete(owner: run.Run) -> bool:
    """Whether a running gang has fewer assigned replicas than its minimum."""
    assignment = owner.status.assignment
    if not owner.spec.placement.gang or owner.status.phase != "Running" or assignment is None:
        return False
    return any(
        len(assignment.members.get(role.name, ())) < (role.min_replicas or role.replicas)
        for role in owner.spec.roles
    )


def _leaves(owner: run.Run, role: str, index: int) -> bool:
    """Whether an assigned replica is leaving, or will be."""
    spec, status = owner.spec, owner.status
    if status.phase == "Queued":
        return False
    if status.phase == "Stopping" or spec.suspend or spec.stop or owner.metadata.deletion_timestamp:
        return True
    if status.eviction is not None and status.eviction.keep_members is None:
        return True
    sizes = {each.name: each.replicas for each in spec.roles}
    return index >= min(sizes[role], run_view.kept_members(owner).get(role, index + 1))


def rests_until(owner: run.Run, rest: float) -> float:
    """Unix time before which it should not grow beyond its minimum, because it would have to
    restart; 0: at once."""
    assignment, started = owner.status.assignment, _started(owner)
    if assignment is None or started is None or owner.status.phase != "Running":
        return 0.0
    for role in owner.spec.roles:
        size = len(assignment.members.get(role.name, ()))
        if size < (role.min_replicas or role.replicas):
            return 0.0
    live = all(run_view.resizes_live(owner, role.name) for role in owner.spec.roles)
    return 0.0 if live else started + rest


def ran(owner: run.Run) -> float | None:
    """The seconds of a Run that succeeded; else None."""
    if owner.status.phase != "Succeeded":
        return None
    return sum(end - start for start, end in _spells(owner))


# --- pods without an assignment -------------------------------------------------------------------


def is_covered(pod: core.Pod, owner: run.Run | None) -> bool:
    """Whether the assignment of its Run covers the pod."""
    key = members.key_of(pod)
    if owner is None or key is None or not holds_assignment(owner):
        return False
    assignment = owner.status.assignment
    return (
        assignment is not None
        and key.attempt == assignment.attempt
        and key.index < len(assignment.members.get(key.role, ()))
    )


def read_pod(pod: core.Pod, owner: run.Run | None, queue_name: str) -> types.Running | None:
    """The usage of a pod by itself, in the queue of its Run if it has one; None: none. `fill_in`
    assigns devices that it does not name."""
    if not pod.spec.node_name or not members.is_active(pod):
        return None
    amounts = members.pod_amounts(pod)
    counts: dict[str, int] = {}
    for resource, count in amounts.items():
        kind = members.device_kind(resource)
        if kind and count:
            counts[kind] = min(node_facts.MOST_DEVICES, counts.get(kind, 0) + count)
    requests = tuple(types.DeviceRequest(kind, count) for kind, count in sorted(counts.items()))
    needs = {name: n for name, n in amounts.items() if not members.device_kind(name)}
    grants = _pod_grants(pod, owner)
    created = pod.metadata.creation_timestamp
    going = owner is not None or pod.metadata.deletion_timestamp is not None
    return types.Running(
        workload=types.Workload(
            key=f"pod/{pod.uid}",
            queue=queue_name,
            roles=(types.Role("pod", 1, 1, needs, requests),),
            user=(owner.spec.user or "") if owner is not None else "",
            namespace=pod.namespace,
            preemptible=owner is not None and owner.spec.preemptible,
            # Its duration predicts nothing about Runs: it is external, or about to end.
            history_key=None,
        ),
        pods=(types.PodAssignment("pod", 0, pod.spec.node_name, grants),),
        started=times.parse(created).timestamp() if created else 0.0,
        leaving=(("pod", 0),) if going else (),
    )


# --- devices of replicas --------------------------------------------------------------------------


def read_grants(
    requests: Iterable[types.DeviceRequest], names: Iterable[str] | None
) -> tuple[types.Grant, ...]:
    """From the names in an assignment, which are in the order of the requests."""
    ids = iter([name.partition(":")[0] for name in names or ()])
    grants = []
    for request in requests:
        for _, device in zip(range(request.count), ids, strict=False):
            grants.append(_grant(request, device))
    return tuple(grants)


def device_names(grants: Iterable[types.Grant]) -> list[str]:
    """`gpu/0`, or a share in thousandths, and in memory if it was requested: `gpu/0:250`,
    `gpu/0:0:8192Mi`. The agent on the node enforces it; 0 is no limit."""
    return [_device_name(grant) for grant in grants]


def _device_name(grant: types.Grant) -> str:
    if grant.form == "whole":
        return grant.device
    by_memory = f":{grant.memory}Mi" if grant.form == "share" and grant.memory else ""
    return f"{grant.device}:{grant.compute}{by_memory}"


def _pod_grants(pod: core.Pod, owner: run.Run | None) -> tuple[types.Grant, ...]:
    """The devices that a pod names; its Run has the form of a share."""
    names, key = members.device_names(pod), members.key_of(pod)
    if any(":" in name for name in names):
        for role in owner.spec.roles if owner and key else ():
            if key and role.name == key.role:
                return read_grants(
                    [run_spec.device_request(each) for each in role.devices or ()], names
                )
    return tuple(_named(name) for name in names)


def _named(name: str) -> types.Grant:
    """The grant from a name alone."""
    device, *parts = name.split(":")
    compute, memory = [*parts, "", ""][:2]
    if not compute.isdecimal():
        return types.Grant(device)
    mebibytes = quantity.whole(memory) >> 20 if quantity.is_valid(memory) else 0
    return types.Grant(device, "share", min(types.WHOLE, int(compute)), mebibytes)


def _grant(request: types.DeviceRequest, device: str) -> types.Grant:
    if request.form == "ratio":
        return types.Grant(device, "ratio", types.WHOLE // request.ratio, 0, request.ratio)
    if request.form == "share":
        return types.Grant(device, "share", request.compute, request.memory)
    return types.Grant(device)


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
    role: run.Role, owner: run.Run, runtime: runtime_classes.Addition = runtime_classes.NOTHING
) -> types.Role:
    """The requests and preferences of replicas of a role, independent of other objects."""
    placement = owner.spec.placement
    requests = tuple(run_spec.device_request(device) for device in role.devices or ())
    within = placement.bundle.within if placement.bundle and requests else ""
    least = role.min_replicas or role.replicas
    made = types.Role(
        name=role.name,
        min_count=least if placement.gang else min(1, role.replicas),
        max_count=role.replicas,
        needs=members.needs(role),
        devices=requests,
        # `socket` never gets here: `unsupported` gates such a Run.
        bundle="" if within == "socket" else within,
        constraint=constraint_of(owner),
        prefers=(
            *run_spec.preferences(placement.nodes or run.NodeChoice()),
            *_dislikes(owner.status.avoid),
        ),
    )
    return runtime.to(made)


def _bounded(
    role: types.Role,
    reach: Reach,
    avoided: Avoided | None,
) -> types.Role:
    """The role with the constraints of volumes and nodes."""
    not_now = avoided(role) if avoided else frozenset()
    if not_now:
        constraint = dataclasses.replace(role.constraint, not_now=not_now)
        role = dataclasses.replace(role, constraint=constraint)
    return role if reach == Reach() else reach.bounds(role)


def constraint_of(owner: run.Run) -> types.Constraint:
    """The nodes that its user accepts."""
    nodes = owner.spec.placement.nodes or run.NodeChoice()
    return run_spec.constraint(nodes, (types.Toleration(members.OWN_NODES, "Exists"),))


def _dislikes(avoid: Iterable[str] | None) -> tuple[types.Preference, ...]:
    """Nodes on which it failed are tried last, before all other preferences."""
    names = tuple(sorted(avoid or ()))
    if not names:
        return ()
    match = (types.Requirement(NAME_FIELD, "In", names),)
    return (types.Preference(match, TRIED_LAST),)


def _hold_reason(
    owner: run.Run,
    levels: node_facts.Levels,
    engine: engines.Engine | None,
    reach: Reach,
    runtime: runtime_classes.Addition,
) -> tuple[Reason, str] | None:
    spec = owner.spec
    if spec.suspend:
        return Reason.SUSPENDED, "suspended by spec.suspend"
    problem = unsupported.unsupported(spec, engine)
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
    if (held := dependencies.hold(owner)) is not None:
        return held
    return (Reason.WAITING_FOR_DATA, reach.problem) if reach.problem else None


def _started(owner: run.Run) -> float | None:
    """When the assigned attempt began; None: its first step is not written yet."""
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
    """Attempts that ended by preemption, as far as the history goes back."""
    steps = owner.status.history or ()
    return sum(step.to_phase == "Queued" and step.reason == Reason.PREEMPTED for step in steps)


def _spells(owner: run.Run) -> list[tuple[float, float]]:
    """The intervals of finished attempts, oldest first."""
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
