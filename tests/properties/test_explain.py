"""What `explain` says would start a unit does start it, and what it says of now is what happens."""

from __future__ import annotations

import dataclasses

from hypothesis import given, note
from hypothesis import strategies as st

from tests.properties import generators
from tests.properties.settings import CAMPAIGN, cases
from windlass.core import cycle, explain, state, userlimits
from windlass.core.changes import Change
from windlass.core.facts import Facts, Queue, Role, Topology, Unit

pytestmark = CAMPAIGN
NOW = 100.0


@cases(150, 3000)
@given(
    st.one_of(
        generators.facts(most_nodes=4, most_units=8),
        generators.facts(most_nodes=4, most_units=8, taste=generators.BUNDLED),
    )
)
def test_every_change_that_is_named_starts_the_unit(facts: Facts) -> None:
    snapshot = state.build(facts)
    decision = cycle.decide(snapshot, NOW)
    for unit in facts.waiting:
        found = explain.explain(snapshot, unit.key, NOW)
        verdicts = {verdict.unit: verdict for verdict in decision.verdicts}
        assert found.verdict == verdicts.get(unit.key)
        assert len(found.sentences()) >= 1
        for change in found.fits_if:
            if change.kind == "quota" and len(change.names) > 1:
                continue  # several at once: the amounts are in the words only
            note(f"{unit.key}: {change}")
            world = changed(facts, unit, change)
            then = cycle.decide(state.build(world, snapshot.history), NOW)
            assert unit.key in {placement.unit for placement in then.placements}, change.message


def changed(facts: Facts, unit: Unit, change: Change) -> Facts:
    """The facts with the change made, by its fields alone."""
    if change.kind == "ends":
        stay = tuple(r for r in facts.running if r.unit.key not in change.names)
        return dataclasses.replace(facts, running=stay)
    if change.kind == "moves":
        return elsewhere(facts, change)
    if change.kind == "nodes":
        nodes = tuple(
            dataclasses.replace(n, ready_in=0.0) if n.name in change.names else n
            for n in facts.nodes
        )
        return dataclasses.replace(facts, nodes=nodes)
    if change.kind == "quota":
        queues = tuple(
            raised(queue, change, unit.user) if queue.name in change.names else queue
            for queue in facts.queues
        )
        return dataclasses.replace(facts, queues=queues)
    other = less(unit, change)
    waiting = tuple(other if each.key == unit.key else each for each in facts.waiting)
    return dataclasses.replace(facts, waiting=waiting)


def elsewhere(facts: Facts, change: Change) -> Facts:
    seats = {each.unit: each.seats for each in change.moves}
    running = tuple(
        dataclasses.replace(each, seats=seats.get(each.unit.key, each.seats))
        for each in facts.running
    )
    return dataclasses.replace(facts, running=running)


def raised(queue: Queue, change: Change, user: str) -> Queue:
    if change.rule == "user limit":
        return userlimits.raised(queue, user, change.resource, change.amount)
    amounts = dict(queue.limit if change.rule == "limit" else queue.guarantee)
    amounts[change.resource] = amounts.get(change.resource, 0) + change.amount
    if change.rule == "limit":
        return dataclasses.replace(queue, limit=amounts)
    return dataclasses.replace(queue, guarantee=amounts)


def less(unit: Unit, change: Change) -> Unit:
    if change.kind == "topology":
        (level,) = change.names
        required = "preferred" not in change.message
        return dataclasses.replace(unit, topology=Topology(level, required))
    if change.kind == "bundle":
        looser = change.names[0] if change.names else ""
        roles = tuple(
            dataclasses.replace(role, bundle=role.bundle and looser) for role in unit.roles
        )
        return dataclasses.replace(unit, roles=roles)
    roles = tuple(
        role_of(role, change) if role.name == change.role else role for role in unit.roles
    )
    return dataclasses.replace(unit, roles=roles)


def role_of(role: Role, change: Change) -> Role:
    if change.kind == "members":
        most = change.amount if role.most == role.least else role.most
        return dataclasses.replace(role, least=change.amount, most=most)
    devices = tuple(
        request
        if request.kind != change.resource
        else dataclasses.replace(request, count=change.amount)
        if change.kind == "devices"
        else dataclasses.replace(request, models=(*request.models, *change.names))
        for request in role.devices
    )
    return dataclasses.replace(role, devices=devices)
