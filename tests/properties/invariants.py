"""What must hold after every decision, counted in plain Python from the facts alone.

Nothing here uses the core's arrays, indexes or sums: two ways of counting must agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from tests.properties import carry
from windlass.core import constraints
from windlass.core.facts import (
    WHOLE,
    Decision,
    Device,
    DeviceRequest,
    Facts,
    Grant,
    Node,
    Queue,
    Role,
    Seat,
    Unit,
)

Sums = Counter[str]


def check(before: Facts, decision: Decision, after: Facts) -> None:
    """All laws that one decision must obey; `after` is what carrying it out leads to."""
    nodes_are_not_overdrawn(after, decision)
    members_sit_where_they_may(before, decision)
    gangs_are_whole(before, after)
    required_domains_are_kept(before, after)
    limits_are_kept(before, decision)
    namespaces_keep_their_quotas(before, decision)
    users_keep_their_limits(before, decision)
    firm_units_leave_the_guarantees_of_others(before, decision)
    evictions_have_gainers(before, decision)
    everybody_who_waits_is_told_why(before, decision)
    only_who_waits_is_promised_a_start(before, decision)


# --- I1: capacity -------------------------------------------------------------------------------


def nodes_are_not_overdrawn(facts: Facts, decision: Decision) -> None:
    """Where members go, of what they use: a node may have shrunk under those who are there."""
    roles = {(key, role.name): role for key, u in _units(facts).items() for role in u.roles}
    used: dict[str, set[str]] = {}
    given_now: set[tuple[str, str]] = set()
    for placement in decision.placements:
        for seat in placement.seats:
            role = roles[placement.unit, seat.role]
            names = {name for name, amount in role.needs.items() if amount}
            names |= {"pods", *(f"attach:{driver}" for driver, _ in role.attach)}
            used.setdefault(seat.node, set()).update(names)
            given_now |= {(seat.node, grant.device) for grant in seat.grants}
    for node in facts.nodes:
        fresh = used.get(node.name)
        if fresh is None:
            continue
        held: Sums = Counter()
        grants: dict[str, list[Grant]] = {}
        ports: Counter[int] = Counter()
        for role, seat in _sitting(facts, node.name):
            held.update(dict(role.needs))
            held["pods"] += 0 if "pods" in role.needs else 1
            held.update({f"attach:{driver}": count for driver, count in role.attach})
            ports.update(role.ports)
            for grant in seat.grants:
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
    facts: Facts, node: Node, fresh: set[str], given_now: set[tuple[str, str]]
) -> None:
    """What bundles hold on a NUMA node where somebody got devices now."""
    places = {device.id: device.numa for device in node.devices}
    changed = {places[device] for where, device in given_now if where == node.name}
    for domain in node.numa:
        held: Sums = Counter()
        for role, seat in _sitting(facts, node.name):
            if role.bundle and {places.get(grant.device) for grant in seat.grants} == {domain.id}:
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


def members_sit_where_they_may(before: Facts, decision: Decision) -> None:
    nodes = {node.name: node for node in before.nodes}
    units = _units(before)
    for placement in decision.placements:
        unit = units[placement.unit]
        roles = {role.name: role for role in unit.roles}
        for seat in placement.seats:
            node, role = nodes[seat.node], roles[seat.role]
            assert node.ready, f"{unit.key} goes to {node.name}, which takes nobody"
            assert node.ready_in <= 0, f"{unit.key} goes to {node.name}, which does not exist yet"
            assert constraints.accepts(role.constraint, node), f"{unit.key} on {node.name}"
            assert node.name not in role.constraint.not_now, f"{node.name} is held back"
            _grants_answer(role, node, seat)


def _grants_answer(role: Role, node: Node, seat: Seat) -> None:
    devices = {device.id: device for device in node.devices}
    left = list(seat.grants)
    used: list[Device] = []
    for request in role.devices:
        mine = left[: request.count]
        del left[: request.count]
        assert len(mine) == request.count, f"{seat} lacks {request}"
        for grant in mine:
            _grant_answers(request, devices[grant.device], grant)
        used += [devices[grant.device] for grant in mine]
        models = {devices[grant.device].model for grant in mine}
        assert not request.models or len(models) == 1, "devices of one member are of one model"
    assert not left, f"{seat} got more than it asked for"
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


def gangs_are_whole(before: Facts, after: Facts) -> None:
    """All of the least, or nobody; a gang that had lost members is completed or left as it is."""
    had = {each.unit.key: each for each in before.running}
    for running in after.running:
        unit = running.unit
        stay = Counter(seat.role for seat in carry.staying(running))
        if not unit.gang or not stay:
            continue
        old = had.get(unit.key)
        if old is not None and carry.staying(old) == carry.staying(running):
            continue
        for role in unit.roles:
            assert stay[role.name] >= role.least, f"{unit.key}: {stay[role.name]} of {role}"
            assert stay[role.name] <= role.most, f"{unit.key}: {stay[role.name]} of {role}"
        numbers = [(seat.role, seat.index) for seat in running.seats]
        assert len(numbers) == len(set(numbers)), f"{unit.key}: a member is there twice"


def required_domains_are_kept(before: Facts, after: Facts) -> None:
    had = {each.unit.key: each for each in before.running}
    for running in after.running:
        topology = running.unit.topology
        if topology is None or not topology.required:
            continue
        old = had.get(running.unit.key)
        if old is not None and len(_domains(before, old.seats, topology.level)) > 1:
            continue  # nodes moved under it
        domains = _domains(after, carry.staying(running), topology.level)
        assert len(domains) <= 1, f"{running.unit.key} is in {domains}"


def _domains(facts: Facts, seats: Iterable[Seat], level: str) -> set[object]:
    nodes = {node.name: node for node in facts.nodes}
    found: set[object] = set()
    for seat in seats:
        node = nodes.get(seat.node)
        if node is None:
            continue
        depth = facts.levels.index(level) if level in facts.levels else len(facts.levels)
        inside = level != "node" and len(node.path) > depth
        found.add(node.path[: depth + 1] if inside else node.name)
    return found


# --- I4: quotas ---------------------------------------------------------------------------------


def limits_are_kept(before: Facts, decision: Decision) -> None:
    """Nobody starts above a limit of its queue or of a queue above it."""
    queues = {queue.name: queue for queue in before.queues}
    used = {name: Counter[str]() for name in queues}
    for running in before.running:
        _charge(before, queues, used, running.unit, carry.staying(running))
    gone = _evicted(before, decision)
    for unit, seats in gone:
        _charge(before, queues, used, unit, seats, sign=-1)
    units = _units(before)
    touched: dict[str, Sums] = {name: Counter() for name in queues}
    for placement in decision.placements:
        _charge(before, queues, used, units[placement.unit], placement.seats)
        _charge(before, queues, touched, units[placement.unit], placement.seats)
    for name, queue in queues.items():
        for resource, limit in queue.limit.items():
            if touched[name][resource]:
                assert used[name][resource] <= limit, f"{name}: {used[name]} above {queue.limit}"


def namespaces_keep_their_quotas(before: Facts, decision: Decision) -> None:
    """Nobody starts or grows where its namespace may hold no more; who leaves still counts, as the
    cluster itself counts."""
    units = _units(before)
    used = {quota.namespace: Counter[str]() for quota in before.quotas}
    given = {quota.namespace: Counter[str]() for quota in before.quotas}
    for running in before.running:
        if running.unit.namespace in used:
            used[running.unit.namespace] += _space(before, running.unit, running.seats)
    for placement in decision.placements:
        unit = units[placement.unit]
        if unit.namespace in given:
            given[unit.namespace] += _space(before, unit, placement.seats)
    for quota in before.quotas:
        for resource, hard in quota.hard.items():
            more = given[quota.namespace][resource]
            held = used[quota.namespace][resource] + more
            assert not more or held <= hard, f"{quota}: {held} {resource}"


def users_keep_their_limits(before: Facts, decision: Decision) -> None:
    """Nobody starts or grows beyond what its user may hold, or run at a time, in its queue and in
    those above it; what was submitted beyond the limit does not start."""
    units, running = _units(before), {each.unit.key for each in before.running}
    parents = {queue.name: queue.parent for queue in before.queues}
    for queue in before.queues:
        for user in {each.user for each in units.values()} if queue.user_limits else ():
            limit = queue.user_limits.of(user)
            mine = {
                key
                for key, each in units.items()
                if each.user == user and queue.name in _path(parents, each.queue)
            }
            held, given, started = Counter[str](), Counter[str](), 0
            runs = sum(each.kin is not None for key, each in units.items() if key in mine & running)
            for each in before.running:
                if each.unit.key in mine:
                    held += _cost(before, each.unit, each.seats)
            for placement in decision.placements:
                if placement.unit in mine:
                    given += _cost(before, units[placement.unit], placement.seats)
                    new = placement.unit not in running
                    started += new and units[placement.unit].kin is not None
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


def _space(facts: Facts, unit: Unit, seats: tuple[Seat, ...]) -> Sums:
    return _cost(facts, unit, seats) + Counter(pods=len(seats))


def firm_units_leave_the_guarantees_of_others(before: Facts, decision: Decision) -> None:
    """What must not be preempted starts only where the guarantees of others still fit beside it.
    Guarantees that add up to more than there is shrink, so such worlds are left out."""
    queues = {queue.name: queue for queue in before.queues}
    direct = {name: Counter[str]() for name in queues}
    units, capacity = _units(before), _capacity(before)
    for running in before.running:
        if not running.unit.preemptible and running.unit.queue in queues:
            direct[running.unit.queue].update(_cost(before, running.unit, running.seats))
    then = _committed(queues, direct)
    for placement in decision.placements:
        unit = units[placement.unit]
        if not unit.preemptible and unit.queue in queues:
            direct[unit.queue].update(_cost(before, unit, placement.seats))
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


def _capacity(facts: Facts) -> Sums:
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
    facts: Facts,
    queues: dict[str, Queue],
    used: dict[str, Sums],
    unit: Unit,
    seats: Iterable[Seat],
    sign: int = 1,
) -> None:
    cost = _cost(facts, unit, seats)
    name, seen = unit.queue, set[str]()
    while name in queues and name not in seen:
        seen.add(name)
        for resource, amount in cost.items():
            used[name][resource] += sign * amount
        name = queues[name].parent


def _cost(facts: Facts, unit: Unit, seats: Iterable[Seat]) -> Sums:
    """What members count for; shares by their larger part of the smallest device that serves."""
    roles = {role.name: role for role in unit.roles}
    models = {(n.name, d.id): d.model for n in facts.nodes for d in n.devices}
    kinds = {(n.name, d.id): d.kind for n in facts.nodes for d in n.devices}
    sums: Sums = Counter()
    for seat in seats:
        role = roles[seat.role]
        sums.update(dict(role.needs))
        for request in role.devices:
            part = _part(facts, request)
            sums[request.kind] += part
            mine = [g for g in seat.grants if kinds.get((seat.node, g.device)) == request.kind]
            model = models.get((seat.node, mine[0].device)) if mine else ""
            if model:
                sums[f"{request.kind}/{model}"] += part
    return sums


def _part(facts: Facts, request: DeviceRequest) -> int:
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


def evictions_have_gainers(before: Facts, decision: Decision) -> None:
    running = {each.unit.key: each for each in before.running}
    waiting = {unit.key for unit in before.waiting}
    waiting |= {each.unit.key for each in before.running if carry.is_incomplete(each)}
    nominated = {each.unit for each in decision.nominations}
    moved = {each.unit for each in decision.evictions if each.move}
    moved |= {each.unit.key for each in before.running if not carry.staying(each)}
    assert {each.unit for each in decision.evictions if each.move} <= nominated
    placed = {each.unit for each in decision.placements}
    for eviction in decision.evictions:
        victim = running[eviction.unit]
        if not eviction.reservation:
            assert eviction.gainer in waiting, f"{eviction} is for somebody who does not wait"
            assert eviction.gainer in nominated | placed, f"{eviction} is for nobody"
        assert eviction.unit not in placed, f"{eviction}, and it is given room"
        assert victim.unit.preemptible, f"{eviction} stops what must not be preempted"
        members = {(seat.role, seat.index) for seat in victim.seats}
        assert eviction.seats, eviction
        assert set(eviction.seats) <= members, eviction
        assert not set(eviction.seats) & set(victim.leaving), f"{eviction} leaves already"
    for nomination in decision.nominations:
        assert nomination.unit in waiting | moved
        assert nomination.unit not in placed


def _evicted(before: Facts, decision: Decision) -> Iterator[tuple[Unit, tuple[Seat, ...]]]:
    running = {each.unit.key: each for each in before.running}
    for eviction in decision.evictions:
        victim = running[eviction.unit]
        yield (
            victim.unit,
            tuple(s for s in victim.seats if (s.role, s.index) in eviction.seats),
        )


# --- verdicts -----------------------------------------------------------------------------------


def everybody_who_waits_is_told_why(before: Facts, decision: Decision) -> None:
    placed = {each.unit for each in decision.placements}
    told = [verdict.unit for verdict in decision.verdicts]
    assert len(told) == len(set(told)), "somebody has two verdicts"
    waiting = {unit.key for unit in before.waiting}
    waiting |= {each.unit.key for each in before.running if carry.is_incomplete(each)}
    assert set(told) == waiting - placed
    for verdict in decision.verdicts:
        assert verdict.message, verdict
        assert verdict.deficit >= 0, verdict


# --- shared -------------------------------------------------------------------------------------


def only_who_waits_is_promised_a_start(before: Facts, decision: Decision) -> None:
    """Once, and not if it starts or its room is being freed."""
    promised = [reservation.unit for reservation in decision.reservations]
    coming = {each.unit for each in (*decision.placements, *decision.nominations)}
    assert len(promised) == len(set(promised))
    assert set(promised) <= {unit.key for unit in before.waiting} - coming


def _units(facts: Facts) -> dict[str, Unit]:
    found = {unit.key: unit for unit in facts.waiting}
    found.update({running.unit.key: running.unit for running in facts.running})
    return found


def _sitting(facts: Facts, node: str) -> Iterator[tuple[Role, Seat]]:
    for running in facts.running:
        roles = {role.name: role for role in running.unit.roles}
        for seat in running.seats:
            if seat.node == node:
                yield roles[seat.role], seat


def held_by(facts: Facts, queue: str) -> Sums:
    """What the units of one queue, and of those below it, count for."""
    queues = {each.name: each for each in facts.queues}
    used = {name: Counter[str]() for name in queues}
    for running in facts.running:
        _charge(facts, queues, used, running.unit, running.seats)
    return used[queue]
