"""What `explain` says would start a unit does start it, and what it says of now is what happens."""

from __future__ import annotations

import dataclasses

from hypothesis import given, note
from hypothesis import strategies as st

from tests.properties import generators
from tests.properties.settings import CAMPAIGN, cases
from windlass.core.cycle import cycle
from windlass.core.explain import explain
from windlass.core.explain.counterfactuals import Change
from windlass.core.model.types import ClusterFacts, Queue, Role, Topology, Workload
from windlass.core.quota import user_limits
from windlass.core.snapshot.snapshot import build

pytestmark = CAMPAIGN
NOW = 100.0


@cases(150, 3000)
@given(
    st.one_of(
        generators.facts(most_nodes=4, most_workloads=8),
        generators.facts(most_nodes=4, most_workloads=8, taste=generators.BUNDLED),
    )
)
def test_every_change_that_is_named_starts_the_workload(facts: ClusterFacts) -> None:
    snapshot = build(facts)
    decision = cycle.decide(snapshot, NOW)
    for workload in facts.waiting:
        found = explain.explain(snapshot, workload.key, NOW)
        verdicts = {verdict.workload: verdict for verdict in decision.verdicts}
        assert found.verdict == verdicts.get(workload.key)
        assert len(found.sentences()) >= 1
        for change in found.fits_if:
            if change.action == "quota" and len(change.names) > 1:
                continue  # several at once: the amounts are in the words only
            note(f"{workload.key}: {change}")
            world = changed(facts, workload, change)
            then = cycle.decide(build(world, snapshot.history), NOW)
            assert workload.key in {placement.workload for placement in then.placements}, (
                change.message
            )


def changed(facts: ClusterFacts, workload: Workload, change: Change) -> ClusterFacts:
    """The facts with the change made, by its fields alone."""
    if change.action == "ends":
        stay = tuple(r for r in facts.running if r.workload.key not in change.names)
        return dataclasses.replace(facts, running=stay)
    if change.action == "moves":
        return elsewhere(facts, change)
    if change.action == "nodes":
        nodes = tuple(
            dataclasses.replace(n, ready_in=0.0) if n.name in change.names else n
            for n in facts.nodes
        )
        return dataclasses.replace(facts, nodes=nodes)
    if change.action == "quota":
        queues = tuple(
            raised(queue, change, workload.user) if queue.name in change.names else queue
            for queue in facts.queues
        )
        return dataclasses.replace(facts, queues=queues)
    other = less(workload, change)
    waiting = tuple(other if each.key == workload.key else each for each in facts.waiting)
    return dataclasses.replace(facts, waiting=waiting)


def elsewhere(facts: ClusterFacts, change: Change) -> ClusterFacts:
    pods = {each.workload: each.pods for each in change.moves}
    running = tuple(
        dataclasses.replace(each, pods=pods.get(each.workload.key, each.pods))
        for each in facts.running
    )
    return dataclasses.replace(facts, running=running)


def raised(queue: Queue, change: Change, user: str) -> Queue:
    if change.rule == "user limit":
        return user_limits.raised(queue, user, change.resource, change.amount)
    amounts = dict(queue.limit if change.rule == "limit" else queue.guarantee)
    amounts[change.resource] = amounts.get(change.resource, 0) + change.amount
    if change.rule == "limit":
        return dataclasses.replace(queue, limit=amounts)
    return dataclasses.replace(queue, guarantee=amounts)


def less(workload: Workload, change: Change) -> Workload:
    if change.action == "topology":
        (level,) = change.names
        required = "preferred" not in change.message
        return dataclasses.replace(workload, topology=Topology(level, required))
    if change.action == "bundle":
        looser = change.names[0] if change.names else ""
        roles = tuple(
            dataclasses.replace(role, bundle=role.bundle and looser) for role in workload.roles
        )
        return dataclasses.replace(workload, roles=roles)
    roles = tuple(
        role_of(role, change) if role.name == change.role else role for role in workload.roles
    )
    return dataclasses.replace(workload, roles=roles)


def role_of(role: Role, change: Change) -> Role:
    if change.action == "members":
        most = change.amount if role.max_count == role.min_count else role.max_count
        return dataclasses.replace(role, min_count=change.amount, max_count=most)
    devices = tuple(
        request
        if request.kind != change.resource
        else dataclasses.replace(request, count=change.amount)
        if change.action == "devices"
        else dataclasses.replace(request, models=(*request.models, *change.names))
        for request in role.devices
    )
    return dataclasses.replace(role, devices=devices)
