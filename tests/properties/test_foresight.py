"""Looking at everybody at once decides as asking one by one does.

`core.foresight` spares those a turn of whom arrays tell that they surely wait. It is meant for
thousands; here it looks at the few of a small world. Each decision of a history is made twice, with
everybody in arrays and with nobody, so that victims are on their way and promises are out.
"""

from __future__ import annotations

import dataclasses
from unittest import mock

from hypothesis import given, note
from hypothesis import strategies as st

from tests.properties import carry, generators, test_alike
from tests.properties.settings import CAMPAIGN, cases
from tests.unit.core import test_preempt_laws
from windlass.core import cycle, foresight, state
from windlass.core.facts import Decision, Facts, Policy

pytestmark = CAMPAIGN
NOW = 100.0
ROUNDS = 3
ENOUGH = 10**9
"""Work that no decision here comes near: a look at all spends another part of it."""


def full() -> st.SearchStrategy[Facts]:
    """A cluster in pieces, and many in front of it with different rights."""
    return st.builds(_full, st.integers(0, 1 << 32), st.integers(2, 5), st.integers(4, 12))


def _full(seed: int, nodes: int, running: int) -> Facts:
    return test_preempt_laws.Crowd(seed, nodes, running, 14).world.snapshot.facts()


@cases(400, 8000)
@given(st.one_of(full(), full(), generators.facts(), test_alike.worlds()), generators.policies)
def test_looking_at_everybody_at_once_decides_as_asking_one_by_one(
    facts: Facts, policy: Policy
) -> None:
    policy = dataclasses.replace(policy, operations=ENOUGH)
    for number in range(ROUNDS):
        now = NOW + 10 * number
        at_once, one_by_one = (_decided(facts, now, policy, many) for many in (0, 1 << 30))
        note(f"at once: {at_once}\none by one: {one_by_one}")
        assert test_alike.outcome(at_once) == test_alike.outcome(one_by_one)
        facts = carry.carry_out(facts, at_once, now)


def _decided(facts: Facts, now: float, policy: Policy, many: int) -> Decision:
    with mock.patch.object(foresight, "MANY", many):
        return cycle.decide(state.build(facts), now, policy)
