"""Rules that no decision may break, counted again from the facts by other means than the core's.

`broken` is cheap enough for the live scheduler, which counts what it finds as a metric;
`sim.checks.invariants` checks every decision of a simulation, with more rules. The numbers are
those of the scheduling notes: capacity (I1), gangs whole or absent (I2), required topology (I3),
limits (I4), no eviction without a preemptor (I5), no queue taken below its guarantee (I8), advance
reservations (I15).
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

from windlass.core.invariants import advance_reservations, reclaim
from windlass.core.invariants.advance_reservations import Broken as Broken
from windlass.core.model.types import (
    WHOLE,
    Decision,
    Device,
    Grant,
    Node,
    PodAssignment,
    Running,
    Workload,
)
from windlass.core.quota import usage
from windlass.core.snapshot.snapshot import Snapshot

Members = list[tuple[Workload, PodAssignment]]


def broken(snapshot: Snapshot, decision: Decision, now: float) -> list[tuple[str, str]]:
    """(rule, what is wrong) for every rule that a decision breaks; checks only what it touches."""
    found = []
    for rule, check in _LIVE.items():
        try:
            check(snapshot, decision, now)
        except Broken as problem:
            found.append((rule, str(problem)))
    return found


def no_orphan_evictions(snapshot: Snapshot, decision: Decision, now: float) -> None:
    """I5: every victim is evicted for a preemptor that gets the capacity in the same decision, or
    leaves the capacity of an advance reservation (`reservations_hold`)."""
    preemptors = {nomination.workload for nomination in decision.nominations}
    for eviction in decision.evictions:
        if eviction.move and eviction.workload not in preemptors:
            raise Broken(f"I5 at {now}: {eviction.workload} is moved but gets no other place")
    preemptors |= {placement.workload for placement in decision.placements}
    for eviction in decision.evictions:
        if eviction.preemptor not in preemptors and not eviction.reservation:
            raise Broken(
                f"I5 at {now}: {eviction.workload} must go for {eviction.preemptor}, "
                "which gets nothing"
            )
        if eviction.workload not in snapshot.running:
            raise Broken(f"I5 at {now}: {eviction.workload} must go but does not run")


def within_capacity(
    nodes: Mapping[str, Node],
    members: Members,
    now: float,
    rule: str = "I1",
    given: Members | None = None,
) -> None:
    """I1: on every node and device no more is allocated than there is. With `given`, these pods
    hold capacity, too, and only what they use is checked: a node may have shrunk under running
    pods."""
    needs, grants = _held(members)
    if given is not None:
        used, taken = _held(given)
        needs = {place: amount + needs.get(place, 0) for place, amount in used.items()}
        grants = {place: [*grants.get(place, ()), *allocated] for place, allocated in taken.items()}
    for (where, name), amount in needs.items():
        node = nodes.get(where)
        if node is not None and amount > node.allocatable.get(name, 0):
            raise Broken(
                f"{rule} at {now}: {where} has {node.allocatable.get(name, 0)} {name}, "
                f"{amount} are held"
            )
    devices = {(n.name, d.id): d for n in nodes.values() for d in n.devices}
    for place, allocated in grants.items():
        device = devices.get(place)
        problem = None if device is None else overdrawn(device, allocated)
        if problem:
            raise Broken(f"{rule} at {now}: device {place[1]} of {place[0]}: {problem}")
    _within_domains(nodes, members, now, rule, given)


def _within_domains(
    nodes: Mapping[str, Node], members: Members, now: float, rule: str, given: Members | None
) -> None:
    """What bundles hold on a NUMA node is not more than it has; with `given`, where these are."""
    allocated = _held_in_domains(nodes, members)
    if given is not None:
        used = _held_in_domains(nodes, given)
        allocated = {place: amount + allocated.get(place, 0) for place, amount in used.items()}
    for (where, numa, name), amount in allocated.items():
        has = next(each.allocatable for each in nodes[where].numa if each.id == numa)
        if amount > has.get(name, amount):
            raise Broken(
                f"{rule} at {now}: NUMA node {numa} of {where} has {has[name]} {name}, "
                f"bundles hold {amount}"
            )


def _held_in_domains(
    nodes: Mapping[str, Node], members: Members
) -> dict[tuple[str, int, str], int]:
    """By node, NUMA node and resource: pods with a bundle whose devices are all in one place."""
    found: dict[tuple[str, int, str], int] = collections.defaultdict(int)
    for workload, pod in members:
        node = nodes.get(pod.node)
        if node is None or not node.numa:
            continue
        role = next((each for each in workload.roles if each.name == pod.role), None)
        if role is None or not role.bundle:
            continue
        mine = {grant.device for grant in pod.grants}
        places = {device.numa for device in node.devices if device.id in mine}
        for numa in places - {-1} if len(places) == 1 else ():
            for name, amount in role.needs.items():
                found[pod.node, numa, name] += amount
    return found


def _held(
    members: Members,
) -> tuple[dict[tuple[str, str], int], dict[tuple[str, str], list[Grant]]]:
    """By node and resource, and by node and device."""
    needs: dict[tuple[str, str], int] = collections.defaultdict(int)
    grants: dict[tuple[str, str], list[Grant]] = collections.defaultdict(list)
    for workload, pod in members:
        for role in workload.roles:
            if role.name == pod.role:
                for name, amount in role.needs.items():
                    if amount:
                        needs[pod.node, name] += amount
                break
        for grant in pod.grants:
            grants[pod.node, grant.device].append(grant)
    return needs, grants


def overdrawn(device: Device, allocated: list[Grant]) -> str | None:
    """What is wrong with these grants of one device together; None if nothing is."""
    forms = {(grant.form, grant.ratio) for grant in allocated}
    if len(forms) > 1:
        return f"forms are mixed: {sorted(forms)}"
    if allocated[0].form == "whole":
        return f"given out whole {len(allocated)} times" if len(allocated) > 1 else None
    if allocated[0].form == "ratio":
        ratio = allocated[0].ratio
        return f"{len(allocated)} parts of 1:{ratio}" if len(allocated) > ratio else None
    if allocated[0].form == "partition":
        return _overlap(device, allocated)
    compute, memory = sum(g.compute for g in allocated), sum(g.memory for g in allocated)
    if compute > device.compute or memory > device.memory:
        return f"{compute} of {device.compute} compute, {memory} of {device.memory} MiB are held"
    return None


def whole_gangs(changed: Iterable[Running], now: float) -> None:
    """I2: every workload that was started, grown or shrunk has its minimum in every role, or is
    stopped as a whole."""
    for running in changed:
        workload = running.workload
        stays = [s for s in running.pods if (s.role, s.index) not in running.leaving]
        if not workload.gang or not stays:
            continue
        for role in workload.roles:
            count = sum(pod.role == role.name for pod in stays)
            if not role.min_count <= count <= role.max_count:
                raise Broken(
                    f"I2 at {now}: {workload.key} has {count} of {role.name}, "
                    f"{role.min_count} to {role.max_count} are a gang"
                )


def in_one_domain(
    levels: Sequence[str], nodes: Mapping[str, Node], changed: Iterable[Running], now: float
) -> None:
    """I3: a required level holds for all pods together."""
    for running in changed:
        topology = running.workload.topology
        if topology is None or not _needs_one_domain(running.workload):
            continue
        places = [nodes[pod.node] for pod in running.pods if pod.node in nodes]
        if topology.level in levels:
            depth = levels.index(topology.level) + 1
            domains = {node.path[:depth] for node in places}
        else:
            domains = {(node.name,) for node in places}
        if len(domains) > 1:
            raise Broken(
                f"I3 at {now}: {running.workload.key} must be in one {topology.level}, "
                f"it is in {sorted(domains)}"
            )


def _needs_one_domain(workload: Workload) -> bool:
    return workload.topology is not None and workload.topology.required


def _overlap(device: Device, allocated: list[Grant]) -> str | None:
    slices = {profile.name: profile.slices for profile in device.profiles}
    taken: set[int] = set()
    for grant in allocated:
        own = set(range(grant.start, grant.start + slices.get(grant.profile, WHOLE)))
        if own & taken or max(own) >= device.slices:
            return f"slice {grant.profile} at {grant.start} does not fit"
        taken |= own
    return None


# --- the same for one decision that is not carried out yet ----------------------------------------


def _has_capacity(snapshot: Snapshot, decision: Decision, now: float) -> None:
    given = [(_workload(snapshot, p.workload), pod) for p in decision.placements for pod in p.pods]
    nodes = {pod.node: snapshot.cluster.nodes[snapshot.cluster.index[pod.node]] for _, pod in given}
    keys = dict.fromkeys(key for node in nodes for key in snapshot.workloads_on.get(node, ()))
    there = [
        (running.workload, pod)
        for running in (snapshot.running[key] for key in keys)
        for pod in running.pods
        if pod.node in nodes
    ]
    within_capacity(nodes, there, now, given=given)


def _gangs_are_whole(snapshot: Snapshot, decision: Decision, now: float) -> None:
    whole_gangs(_changed(snapshot, decision), now)


def _domains_hold(snapshot: Snapshot, decision: Decision, now: float) -> None:
    changed = [
        running
        for running in _changed(snapshot, decision, _needs_one_domain)
        if not running.leaving
    ]
    nodes = {
        pod.node: snapshot.cluster.nodes[snapshot.cluster.index[pod.node]]
        for running in changed
        for pod in running.pods
        if pod.node in snapshot.cluster.index
    }
    in_one_domain(snapshot.levels, nodes, changed, now)


def _limits_hold(snapshot: Snapshot, decision: Decision, now: float) -> None:
    """I4, by the tree's own sums and what is given out now."""
    added: dict[str, dict[str, int]] = {}
    tree, limited = snapshot.tree, dict[str, list[str]]()
    for placement in decision.placements:
        workload = _workload(snapshot, placement.workload)
        if workload.queue not in limited:
            above = tree.path(workload.queue)
            limited[workload.queue] = [name for name in above if tree.queues[name].limit]
        if not limited[workload.queue]:
            continue
        allocated = usage.of_pods(snapshot.cluster, workload.roles, placement.pods)
        for name in limited[workload.queue]:
            sums = added.setdefault(name, {})
            for resource, amount in allocated.items():
                sums[resource] = sums.get(resource, 0) + amount
    for name, sums in sorted(added.items()):
        for resource, limit in tree.queues[name].limit.items():
            used = tree.used[name].get(resource, 0) + sums.get(resource, 0)
            if sums.get(resource) and used > limit:
                raise Broken(
                    f"I4 at {now}: queue {name} holds {used} {resource}, its limit is {limit}"
                )


def _spaces_hold(snapshot: Snapshot, decision: Decision, now: float) -> None:
    """I4 for namespaces: no quota is exceeded by what is given out now."""
    namespace_quotas = snapshot.namespace_quotas.fork()
    given: set[str] = set()
    for placement in decision.placements if namespace_quotas.quotas else ():
        workload = _workload(snapshot, placement.workload)
        allocated = usage.of_pods(snapshot.cluster, workload.roles, placement.pods)
        namespace_quotas.add(workload.namespace, allocated, len(placement.pods))
        given.add(workload.namespace)
    for quota in namespace_quotas.quotas.values():
        used, before = (
            namespace_quotas.used[quota.namespace],
            snapshot.namespace_quotas.used[quota.namespace],
        )
        for resource, hard in quota.hard.items() if quota.namespace in given else ():
            if used.get(resource, 0) > max(hard, before.get(resource, 0)):
                raise Broken(
                    f"I4 at {now}: namespace {quota.namespace} holds {used[resource]} {resource}, "
                    f"its quota {quota.name} is {hard}"
                )


def _user_limits_hold(snapshot: Snapshot, decision: Decision, now: float) -> None:
    """I4 for users: no limit of a user is exceeded by what is given out now."""
    quotas, given = snapshot.user_quotas.fork(), set[tuple[str, str]]()
    for placement in decision.placements if quotas else ():
        workload = _workload(snapshot, placement.workload)
        allocated = usage.of_pods(snapshot.cluster, workload.roles, placement.pods)
        quotas.add(workload, allocated, is_member=placement.workload in snapshot.running)
        given.update(quotas.keys(workload))
    for key in sorted(given & quotas.used.keys()):
        queue, user = key
        limit, used, before = (
            quotas.limit(*key),
            quotas.used[key],
            snapshot.user_quotas.used.get(key),
        )
        for resource, bound in limit.resources.items():
            most = max(bound, before.amounts.get(resource, 0) if before else 0)
            if used.amounts.get(resource, 0) > most:
                raise Broken(
                    f"I4 at {now}: user {user} holds {used.amounts[resource]} {resource} in queue "
                    f"{queue}, the limit is {bound}"
                )
        if limit.running is not None:
            most = max(limit.running, before.running if before else 0)
            if used.running > most:
                raise Broken(
                    f"I4 at {now}: user {user} runs {used.running} workloads in queue {queue}, the "
                    f"limit is {limit.running}"
                )


def queues_keep_their_guarantees(snapshot: Snapshot, decision: Decision, now: float) -> None:
    """I8: what queues take from each other."""
    for problem in reclaim.problems(snapshot, decision, now):
        raise Broken(problem)


_LIVE: Mapping[str, Callable[[Snapshot, Decision, float], None]] = {
    "I1": _has_capacity,
    "I2": _gangs_are_whole,
    "I3": _domains_hold,
    "I4": _limits_hold,
    "I4 of namespaces": _spaces_hold,
    "I4 of users": _user_limits_hold,
    "I5": no_orphan_evictions,
    "I15": advance_reservations.hold,
    "I8": queues_keep_their_guarantees,
}


def _changed(
    snapshot: Snapshot, decision: Decision, counts: Callable[[Workload], bool] = lambda _: True
) -> list[Running]:
    """Workloads as they will be: with their placements, and without their evicted pods."""
    found: dict[str, Running] = {}
    for placement in decision.placements:
        known = snapshot.running.get(placement.workload)
        workload = snapshot.waiting[placement.workload] if known is None else known.workload
        if counts(workload):
            found[placement.workload] = (
                Running(workload, placement.pods, 0.0)
                if known is None
                else dataclasses.replace(known, pods=(*known.pods, *placement.pods))
            )
    for eviction in decision.evictions:
        running = found.get(eviction.workload) or snapshot.running.get(eviction.workload)
        if running is not None and counts(running.workload):
            leaving = tuple({*running.leaving, *eviction.pods})
            found[eviction.workload] = dataclasses.replace(running, leaving=leaving)
    return list(found.values())


def _workload(snapshot: Snapshot, key: str) -> Workload:
    running = snapshot.running.get(key)
    return snapshot.waiting[key] if running is None else running.workload
