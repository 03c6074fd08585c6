"""What must hold after every decision, counted in plain Python from the facts alone.

Nothing here uses the core's arrays, indexes or sums: two ways of counting must agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from tests.properties import carry
from windlass.core.cluster import constraints
from windlass.core.model.types import (
    WHOLE,
    ClusterFacts,
    Decision,
    Device,
    DeviceRequest,
    Grant,
    Node,
    PodAssignment,
    Queue,
    Role,
    Workload,
)

Sums = Counter[str]


def check(before: ClusterFacts, decision: Decision, after: ClusterFacts) -> None:
    """All laws that one decision must obey; `after` is what carrying it out leads to."""
    nodes_are_not_overdrawn(after, decision)
    members_sit_where_they_may(before, decision)
    gangs_are_whole(before, after)
    required_domains_are_kept(before, after)
    limits_are_kept(before, decision)
    namespaces_keep_their_quotas(before, decision)
    users_keep_their_limits(before, decision)
    firm_workloads_leave_the_guarantees_of_others(before, decision)
    evictions_have_preemptors(before, decision)
    everybody_who_waits_is_told_why(before, decision)
    only_who_waits_is_promised_a_start(before, decision)


# --- I1: capacity -------------------------------------------------------------------------------


def nodes_are_not_overdrawn(facts: ClusterFacts, decision: Decision) -> None:
    """Where members go, of what they use: a node may have shrunk under the pods on it."""
    roles = {(key, role.name): role for key, u in _workloads(facts).items() for role in u.roles}
    used: dict[str, set[str]] = {}
    given_now: set[tuple[str, str]] = set()
    for placement in decision.placements:
        for pod in placement.pods:
            role = roles[placement.workload, pod.role]
            names = {name for name, amount in role.needs.items() if amount}
            names |= {"pods", *(f"attach:{driver}" for driver, _ in role.attach)}
            used.setdefault(pod.node, set()).update(names)
            given_now |= {(pod.node, grant.device) for grant in pod.grants}
    for node in facts.nodes:
        fresh = used.get(node.name)
        if fresh is None:
            continue
        held: Sums = Counter()
        grants: dict[str, list[Grant]] = {}
        ports: Counter[int] = Counter()
        for role, pod in _sitting(facts, node.name):
            held.update(dict(role.needs))
            held["pods"] += 0 if "pods" in role.needs else 1
            held.update({f"attach:{driver}": count for driver, count in role.attach})
            ports.update(role.ports)
            for grant in pod.grants:
                grants.setdefault(grant.device, []).append(grant)
        has = dict(node.allocatable)
        has.update({f"attach:{driver}": most for driver, most in node.attach_limits.items()})
        for resource, amount in held.items():
            if resource not in fresh or (resource == "pods" and "pods" not in has):
                continue
            assert amount <= has.get(resource, 0), f"{node.name}: {amount} {resource} of {has}"
        assert all(count == 1 for count in ports.values()), f"{node.name}: a host port twice"
        numa_nodes_are_not_overdrawn(facts, node, fresh, given_now)
        devices = {device.id: device for device in node.devices}
        for name, given in grants.items():
            if name in devices and (node.name, name) in given_now:
                _device_is_sound(devices[name], given)


def numa_nodes_are_not_overdrawn(
    facts: ClusterFacts, node: Node, fresh: set[str], given_now: set[tuple[str, str]]
) -> None:
    """What bundles hold on a NUMA node where a workload got devices now."""
    places = {device.id: device.numa for device in node.devices}
    changed = {places[device] for where, device in given_now if where == node.name}
    for domain in node.numa:
        held: Sums = Counter()
        for role, pod in _sitting(facts, node.name):
            if role.bundle and {places.get(grant.device) for grant in pod.grants} == {domain.id}:
                held.update(dict(role.needs))
        for name, most in domain.allocatable.items() if domain.id in changed else ():
            if name in fresh:
                assert held[name] <= most, f"{node.name}/{domain}: bundles hold {held}"


def _device_is_sound(device: Device, grants: list[Grant]) -> None:
    forms = {grant.form for grant in grants}
    assert len(forms) == 1, f"{device.id} is given out as {forms}"
    assert sum(grant.compute for grant in grants) <= device.compute, device.id
    assert sum(grant.memory for grant in grants) <= device.memory, device.id
    match grants[0].form:
        case "whole":
            assert len(grants) == 1, f"{device.id} is given out whole {len(grants)} times"
        case "ratio":
            assert len({grant.ratio for grant in grants}) == 1, f"{device.id} in two ratios"
            assert len(grants) <= grants[0].ratio, f"{device.id} has more parts than 1:ratio"
        case "partition":
            profiles = {profile.name: profile for profile in device.profiles}
            taken: list[int] = []
            for grant in grants:
                profile = profiles[grant.profile]
                assert grant.start in profile.starts
                taken += range(grant.start, grant.start + profile.slices)
            assert len(taken) == len(set(taken)), f"{device.id}: partitions overlap"
            assert max(taken) < device.slices


# --- what a member was given is what it asked for ----------------------------------------------


def members_sit_where_they_may(before: ClusterFacts, decision: Decision) -> None:
    nodes = {node.name: node for node in before.nodes}
    workloads = _workloads(before)
    for placement in decision.placements:
        workload = workloads[placement.workload]
        roles = {role.name: role for role in workload.roles}
        for pod in placement.pods:
            node, role = nodes[pod.node], roles[pod.role]
            assert node.ready, f"{workload.key} goes to {node.name}, which takes nobody"
            assert node.ready_in <= 0, (
                f"{workload.key} goes to {node.name}, which does not exist yet"
            )
            assert constraints.feasible(role.constraint, node), f"{workload.key} on {node.name}"
            assert node.name not in role.constraint.not_now, f"{node.name} is held back"
            _grants_answer(role, node, pod)


def _grants_answer(role: Role, node: Node, pod: PodAssignment) -> None:
    devices = {device.id: device for device in node.devices}
    left = list(pod.grants)
    used: list[Device] = []
    for request in role.devices:
        mine = left[: request.count]
        del left[: request.count]
        assert len(mine) == request.count, f"{pod} lacks {request}"
        for grant in mine:
            _grant_answers(request, devices[grant.device], grant)
        used += [devices[grant.device] for grant in mine]
        models = {devices[grant.device].model for grant in mine}
        assert not request.models or len(models) == 1, "devices of one member are of one model"
    assert not left, f"{pod} got more than it asked for"
    # Where a node does not say where its devices are, the choice is its own.
    if role.bundle and used and any(device.numa != -1 for device in node.devices):
        assert len({device.numa for device in used}) == 1
        assert used[0].numa != -1
    if role.bundle == "pcie" and used and any(device.switch for device in node.devices):
        assert len({device.switch for device in used}) == 1
        assert used[0].switch


def _grant_answers(request: DeviceRequest, device: Device, grant: Grant) -> None:
    strength = ("none", "soft", "hard").index
    assert device.healthy
    assert device.kind == request.kind
    assert grant.form == request.form
    assert request.form in device.forms
    assert not request.models or device.model in request.models
    if request.form != "whole":
        assert strength(device.isolation) >= strength(request.isolation)
    if request.form == "share":
        assert (grant.compute, grant.memory) == (request.compute, request.memory)
    assert (grant.ratio, grant.profile) == (request.ratio, request.profile)


# --- I2, I3: gangs and their domains ------------------------------------------------------------


def gangs_are_whole(before: ClusterFacts, after: ClusterFacts) -> None:
    """All of the minimum, or no pod; a gang that had lost members is completed, or left as it is
    but for surplus that others need."""
    had = {each.workload.key: each for each in before.running}
    for running in after.running:
        workload = running.workload
        stay = Counter(pod.role for pod in carry.staying(running))
        if not workload.gang or not stay:
            continue
        old = had.get(workload.key)
        if old is not None and carry.staying(old) == carry.staying(running):
            continue
        shrinks = old is not None and set(carry.staying(running)) <= set(carry.staying(old))
        had_of = Counter(pod.role for pod in carry.staying(old)) if old and shrinks else None
        for role in workload.roles:
            least = role.min_count if had_of is None else min(role.min_count, had_of[role.name])
            assert stay[role.name] >= least, f"{workload.key}: {stay[role.name]} of {role}"
            assert stay[role.name] <= role.max_count, f"{workload.key}: {stay[role.name]} of {role}"
        numbers = [(pod.role, pod.index) for pod in running.pods]
        assert len(numbers) == len(set(numbers)), f"{workload.key}: a member is there twice"


def required_domains_are_kept(before: ClusterFacts, after: ClusterFacts) -> None:
    had = {each.workload.key: each for each in before.running}
    for running in after.running:
        topology = running.workload.topology
        if topology is None or not topology.required:
            continue
        old = had.get(running.workload.key)
        if old is not None and len(_domains(before, old.pods, topology.level)) > 1:
            continue  # nodes moved under it
        domains = _domains(after, carry.staying(running), topology.level)
        assert len(domains) <= 1, f"{running.workload.key} is in {domains}"


def _domains(facts: ClusterFacts, pods: Iterable[PodAssignment], level: str) -> set[object]:
    nodes = {node.name: node for node in facts.nodes}
    found: set[object] = set()
    for pod in pods:
        node = nodes.get(pod.node)
        if node is None:
            continue
        depth = facts.levels.index(level) if level in facts.levels else len(facts.levels)
        inside = level != "node" and len(node.path) > depth
        found.add(node.path[: depth + 1] if inside else node.name)
    return found


# --- I4: quotas ---------------------------------------------------------------------------------


def limits_are_kept(before: ClusterFacts, decision: Decision) -> None:
    """No workload starts above a limit of its queue or of a queue above it."""
    queues = {queue.name: queue for queue in before.queues}
    used = {name: Counter[str]() for name in queues}
    for running in before.running:
        _charge(before, queues, used, running.workload, carry.staying(running))
    gone = _evicted(before, decision)
    for workload, pods in gone:
        _charge(before, queues, used, workload, pods, sign=-1)
    workloads = _workloads(before)
    touched: dict[str, Sums] = {name: Counter() for name in queues}
    for placement in decision.placements:
        _charge(before, queues, used, workloads[placement.workload], placement.pods)
        _charge(before, queues, touched, workloads[placement.workload], placement.pods)
    for name, queue in queues.items():
        for resource, limit in queue.limit.items():
            if touched[name][resource]:
                assert used[name][resource] <= limit, f"{name}: {used[name]} above {queue.limit}"


def namespaces_keep_their_quotas(before: ClusterFacts, decision: Decision) -> None:
    """No workload starts or grows beyond the quota of its namespace; terminating pods count, as the
    cluster itself counts."""
    workloads = _workloads(before)
    used = {quota.namespace: Counter[str]() for quota in before.quotas}
    given = {quota.namespace: Counter[str]() for quota in before.quotas}
    for running in before.running:
        if running.workload.namespace in used:
            used[running.workload.namespace] += _space(before, running.workload, running.pods)
    for placement in decision.placements:
        workload = workloads[placement.workload]
        if workload.namespace in given:
            given[workload.namespace] += _space(before, workload, placement.pods)
    for quota in before.quotas:
        for resource, hard in quota.hard.items():
            more = given[quota.namespace][resource]
            held = used[quota.namespace][resource] + more
            assert not more or held <= hard, f"{quota}: {held} {resource}"


def users_keep_their_limits(before: ClusterFacts, decision: Decision) -> None:
    """No workload starts or grows beyond what its user may hold, or run at a time, in its queue and
    in those above it; what was submitted beyond the limit does not start."""
    workloads, running = _workloads(before), {each.workload.key for each in before.running}
    parents = {queue.name: queue.parent for queue in before.queues}
    for queue in before.queues:
        for user in {each.user for each in workloads.values()} if queue.user_limits else ():
            limit = queue.user_limits.of(user)
            mine = {
                key
                for key, each in workloads.items()
                if each.user == user and queue.name in _path(parents, each.queue)
            }
            held, given, started = Counter[str](), Counter[str](), 0
            runs = sum(
                each.history_key is not None
                for key, each in workloads.items()
                if key in mine & running
            )
            for each in before.running:
                if each.workload.key in mine:
                    held += _cost(before, each.workload, each.pods)
            for placement in decision.placements:
                if placement.workload in mine:
                    given += _cost(before, workloads[placement.workload], placement.pods)
                    new = placement.workload not in running
                    started += new and workloads[placement.workload].history_key is not None
            for resource, bound in limit.resources.items():
                more = given[resource]
                assert not more or held[resource] + more <= bound, (queue.name, user, resource)
            if limit.running is not None:
                assert not started or runs + started <= limit.running, (queue.name, user)
            if limit.submitted is not None:
                assert not started or started <= max(0, limit.submitted - runs), (queue.name, user)


def _path(parents: Mapping[str, str], name: str) -> Iterator[str]:
    while name in parents:
        yield name
        name = parents[name]


def _space(facts: ClusterFacts, workload: Workload, pods: tuple[PodAssignment, ...]) -> Sums:
    return _cost(facts, workload, pods) + Counter(pods=len(pods))


def firm_workloads_leave_the_guarantees_of_others(before: ClusterFacts, decision: Decision) -> None:
    """What must not be preempted starts only where the guarantees of others still fit beside it.
    Guarantees that add up to more than there is shrink, so such worlds are left out."""
    queues = {queue.name: queue for queue in before.queues}
    direct = {name: Counter[str]() for name in queues}
    workloads, capacity = _workloads(before), _capacity(before)
    for running in before.running:
        if not running.workload.preemptible and running.workload.queue in queues:
            direct[running.workload.queue].update(_cost(before, running.workload, running.pods))
    then = _committed(queues, direct)
    for placement in decision.placements:
        workload = workloads[placement.workload]
        if not workload.preemptible and workload.queue in queues:
            direct[workload.queue].update(_cost(before, workload, placement.pods))
    now = _committed(queues, direct)
    promised = _committed(queues, {})
    for resource in promised:
        if promised[resource] <= capacity[resource]:
            most = max(then[resource], capacity[resource])
            assert now[resource] <= most, f"{now[resource]} {resource} of {most} are committed"


def _committed(queues: dict[str, Queue], direct: dict[str, Sums]) -> Sums:
    """The guarantee of each queue, or what it and those below it hold firmly if that is more."""

    def of(name: str) -> Sums:
        load: Sums = Counter(direct.get(name, {}))
        for child in queues.values():
            if child.parent == name:
                load.update(of(child.name))
        return load | Counter(queues[name].guarantee)

    total: Sums = Counter()
    for queue in queues.values():
        if queue.parent not in queues:
            total.update(of(queue.name))
    guaranteed = {r for q in queues.values() for r, amount in q.guarantee.items() if amount}
    return Counter({r: total[r] for r in guaranteed})


def _capacity(facts: ClusterFacts) -> Sums:
    """What there is on nodes that count."""
    found: Sums = Counter()
    for node in facts.nodes:
        if not node.ready or node.ready_in > 0:
            continue
        found.update(dict(node.allocatable))
        for device in node.devices:
            if device.healthy:
                found[device.kind] += WHOLE
                if device.model:
                    found[f"{device.kind}/{device.model}"] += WHOLE
    return found


def _charge(
    facts: ClusterFacts,
    queues: dict[str, Queue],
    used: dict[str, Sums],
    workload: Workload,
    pods: Iterable[PodAssignment],
    sign: int = 1,
) -> None:
    cost = _cost(facts, workload, pods)
    name, seen = workload.queue, set[str]()
    while name in queues and name not in seen:
        seen.add(name)
        for resource, amount in cost.items():
            used[name][resource] += sign * amount
        name = queues[name].parent


def _cost(facts: ClusterFacts, workload: Workload, pods: Iterable[PodAssignment]) -> Sums:
    """What members count for; shares by their larger part of the smallest device that serves."""
    roles = {role.name: role for role in workload.roles}
    models = {(n.name, d.id): d.model for n in facts.nodes for d in n.devices}
    kinds = {(n.name, d.id): d.kind for n in facts.nodes for d in n.devices}
    sums: Sums = Counter()
    for pod in pods:
        role = roles[pod.role]
        sums.update(dict(role.needs))
        for request in role.devices:
            part = _part(facts, request)
            sums[request.kind] += part
            mine = [g for g in pod.grants if kinds.get((pod.node, g.device)) == request.kind]
            model = models.get((pod.node, mine[0].device)) if mine else ""
            if model:
                sums[f"{request.kind}/{model}"] += part
    return sums


def _part(facts: ClusterFacts, request: DeviceRequest) -> int:
    if request.form == "whole":
        return WHOLE * request.count
    if request.form == "ratio":
        return -(-WHOLE // request.ratio)
    serving = [d for n in facts.nodes for d in n.devices if _could_serve(d, request)]
    if request.form == "partition":
        found = [p.compute for d in serving for p in d.profiles if p.name == request.profile]
        return found[0] if found else WHOLE
    smallest = min((device.memory for device in serving), default=0)
    by_memory = -(-request.memory * WHOLE // smallest) if smallest else 0
    return max(request.compute, by_memory)


def _could_serve(device: Device, request: DeviceRequest) -> bool:
    strength = ("none", "soft", "hard").index
    return (
        device.healthy
        and device.kind == request.kind
        and request.form in device.forms
        and (not request.models or device.model in request.models)
        and strength(device.isolation) >= strength(request.isolation)
        and (not request.profile or any(p.name == request.profile for p in device.profiles))
        and (request.form != "share" or device.memory >= request.memory)
    )


# --- I5, I8: evictions --------------------------------------------------------------------------


def evictions_have_preemptors(before: ClusterFacts, decision: Decision) -> None:
    running = {each.workload.key: each for each in before.running}
    waiting = {workload.key for workload in before.waiting}
    waiting |= {each.workload.key for each in before.running if carry.is_incomplete(each)}
    nominated = {each.workload for each in decision.nominations}
    moved = {each.workload for each in decision.evictions if each.move}
    moved |= {each.workload.key for each in before.running if not carry.staying(each)}
    assert {each.workload for each in decision.evictions if each.move} <= nominated
    placed = {each.workload for each in decision.placements}
    for eviction in decision.evictions:
        victim = running[eviction.workload]
        if not eviction.reservation:
            assert eviction.preemptor in waiting, f"{eviction} is for somebody who does not wait"
            assert eviction.preemptor in nominated | placed, f"{eviction} is for nobody"
        assert eviction.workload not in placed, f"{eviction}, and it is given room"
        assert victim.workload.preemptible, f"{eviction} stops what must not be preempted"
        members = {(pod.role, pod.index) for pod in victim.pods}
        assert eviction.pods, eviction
        assert set(eviction.pods) <= members, eviction
        assert not set(eviction.pods) & set(victim.leaving), f"{eviction} leaves already"
    for nomination in decision.nominations:
        assert nomination.workload in waiting | moved
        assert nomination.workload not in placed


def _evicted(
    before: ClusterFacts, decision: Decision
) -> Iterator[tuple[Workload, tuple[PodAssignment, ...]]]:
    running = {each.workload.key: each for each in before.running}
    for eviction in decision.evictions:
        victim = running[eviction.workload]
        yield (
            victim.workload,
            tuple(s for s in victim.pods if (s.role, s.index) in eviction.pods),
        )


# --- verdicts -----------------------------------------------------------------------------------


def everybody_who_waits_is_told_why(before: ClusterFacts, decision: Decision) -> None:
    placed = {each.workload for each in decision.placements}
    told = [verdict.workload for verdict in decision.verdicts]
    assert len(told) == len(set(told)), "somebody has two verdicts"
    waiting = {workload.key for workload in before.waiting}
    waiting |= {each.workload.key for each in before.running if carry.is_incomplete(each)}
    assert set(told) == waiting - placed
    for verdict in decision.verdicts:
        assert verdict.message, verdict
        assert verdict.deficit >= 0, verdict


# --- shared -------------------------------------------------------------------------------------


def only_who_waits_is_promised_a_start(before: ClusterFacts, decision: Decision) -> None:
    """Once, and not if it starts or waiting for preempted workloads to exit."""
    promised = [reservation.workload for reservation in decision.reservations]
    coming = {each.workload for each in decision.placements}
    coming |= {each.workload for each in decision.nominations}
    assert len(promised) == len(set(promised))
    assert set(promised) <= {workload.key for workload in before.waiting} - coming


def _workloads(facts: ClusterFacts) -> dict[str, Workload]:
    found = {workload.key: workload for workload in facts.waiting}
    found.update({running.workload.key: running.workload for running in facts.running})
    return found


def _sitting(facts: ClusterFacts, node: str) -> Iterator[tuple[Role, PodAssignment]]:
    for running in facts.running:
        roles = {role.name: role for role in running.workload.roles}
        for pod in running.pods:
            if pod.node == node:
                yield roles[pod.role], pod


def held_by(facts: ClusterFacts, queue: str) -> Sums:
    """What the units of one queue, and of those below it, count for."""
    queues = {each.name: each for each in facts.queues}
    used = {name: Counter[str]() for name in queues}
    for running in facts.running:
        _charge(facts, queues, used, running.workload, running.pods)
    return used[queue]
