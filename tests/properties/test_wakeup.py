"""`wake_at` is the next moment at which time alone changes the answer: until then it stays."""

from __future__ import annotations

import dataclasses

from hypothesis import assume, given, note
from hypothesis import strategies as st

from tests.properties import carry, generators
from tests.properties.settings import CAMPAIGN, cases
from windlass.core.cycle import cycle
from windlass.core.model.types import ClusterFacts, Decision, Order, Policy
from windlass.core.snapshot.snapshot import Event, QueuePut, Snapshot, apply, build

pytestmark = CAMPAIGN
NOW = 100.0
LONG = 1e7
ROUNDS = 8


@cases(250, 4000)
@given(
    st.data(),
    generators.facts(),
    st.lists(st.sampled_from((0.0, 90.0, 700.0, 5000.0, 60_000.0)), min_size=1, max_size=4),
    st.floats(0.001, 0.999),
)
def test_until_it_wakes_nothing_starts_or_stops_by_itself(
    data: st.DataObject, facts: ClusterFacts, pauses: list[float], part: float
) -> None:
    """Under the order `attained` ranks follow what units have had, which never stands still. Once
    what was decided is carried out, the same facts give the same answer until `wake_at`."""
    facts = _attained(facts)
    snapshot, now = build(facts), NOW
    for pause in pauses:
        now += pause
        event = generators.event(facts, data.draw(st.integers(0, 1 << 32)))
        facts, decision = _settled(_attained(carry.after(facts, [event])), snapshot, event, now)
    assume(not decision.placements and not decision.evictions)
    later = now + part * (LONG if decision.wake_at is None else decision.wake_at - now)
    note(f"{now} {later} {decision}")
    again = cycle.decide(snapshot, later)
    assert (again.placements, again.evictions) == ((), ())
    assert again.nominations == decision.nominations


@cases(250, 4000)
@given(
    st.data(),
    generators.facts(most_nodes=3, taste=generators.NodeScores(terms=False, odd=False)),
    st.sampled_from((None, "fifo", "shortest")),
    st.lists(st.sampled_from((0.0, 20.0, 90.0, 250.0, 700.0)), min_size=1, max_size=4),
    st.floats(0.001, 0.999),
    generators.policies,
)
def test_until_it_wakes_reservations_hold_though_workloads_overrun(
    data: st.DataObject,
    facts: ClusterFacts,
    order: Order | None,
    pauses: list[float],
    part: float,
    policy: Policy,
) -> None:
    """Units that should have ended, and did not, are believed to end later and later. So are those
    that say nothing about their end. Until `wake_at` the same is believed of all of them, so that
    the same is reserved, and no workload passes that could not before. A delay ends at a moment
    that is named, too."""
    facts = _promising(facts, order)
    snapshot, now = build(facts), NOW
    for pause in pauses:
        now += pause
        event = generators.event(facts, data.draw(st.integers(0, 1 << 32)))
        facts = _promising(carry.after(facts, [event]), order)
        facts, decision = _settled(facts, snapshot, event, now, policy)
    assume(not decision.placements and not decision.evictions)
    later = now + part * (LONG if decision.wake_at is None else decision.wake_at - now)
    note(f"{now} {later} {decision}")
    again = cycle.decide(snapshot, later, policy)
    assert (again.placements, again.evictions) == ((), ())
    assert again.nominations == decision.nominations
    assert again.reservations == decision.reservations


def _promising(facts: ClusterFacts, order: Order | None) -> ClusterFacts:
    """All queues in this order, with as many reservations as suits it; None: as they are."""
    if order is None:
        return facts
    queues = (
        dataclasses.replace(q, order=order, reserve=None, strict=False, paused=None, lend={})
        for q in facts.queues
    )
    return dataclasses.replace(facts, queues=tuple(queues))


def _attained(facts: ClusterFacts) -> ClusterFacts:
    queues = (dataclasses.replace(q, order="attained", reserve=0) for q in facts.queues)
    return dataclasses.replace(facts, queues=tuple(queues))


def _settled(
    facts: ClusterFacts,
    snapshot: Snapshot,
    event: Event,
    now: float,
    policy: Policy = Policy(),  # noqa: B008
) -> tuple[ClusterFacts, Decision]:
    """Decided and carried out, again and again, until nothing more starts or stops."""
    if isinstance(event, QueuePut):
        event = QueuePut(next(q for q in facts.queues if q.name == event.queue.name))
    apply(snapshot, [event])
    for _ in range(ROUNDS):
        decision = cycle.decide(snapshot, now, policy)
        done = carry.steps(facts, decision, now)
        facts = carry.after(facts, done)
        left = carry.members_left(facts)
        facts = carry.after(facts, left)
        apply(snapshot, [*done, *left])
        if not (decision.placements or decision.evictions):
            break
    return facts, decision
