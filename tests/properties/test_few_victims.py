"""Looking at the first few who may go, then at more, decides as looking at all of them at once.

`core.freeing` takes victims in the order of what they cost and looks at few of them as long as
those are enough. That saves much where thousands may go; here single ones are looked at first.
"""

from __future__ import annotations

import dataclasses
from unittest import mock

from hypothesis import given, note
from hypothesis import strategies as st

from tests.properties import carry, generators, test_alike, test_foresight
from tests.properties.settings import CAMPAIGN, cases
from windlass.core import cycle, freeing, state
from windlass.core.facts import Decision, Facts, Policy

pytestmark = CAMPAIGN
NOW = 100.0
ROUNDS = 3


@cases(300, 6000)
@given(st.one_of(test_foresight.full(), generators.facts()), generators.policies)
def test_the_first_few_who_may_go_are_enough_to_look_at(facts: Facts, policy: Policy) -> None:
    policy = dataclasses.replace(policy, operations=test_foresight.ENOUGH)
    for number in range(ROUNDS):
        now = NOW + 10 * number
        few, all_of_them = (_decided(facts, now, policy, most) for most in (1, 1 << 30))
        note(f"few: {few}\nall: {all_of_them}")
        assert test_alike.outcome(few) == test_alike.outcome(all_of_them)
        facts = carry.carry_out(facts, few, now)


def _decided(facts: Facts, now: float, policy: Policy, few: int) -> Decision:
    with mock.patch.object(freeing, "_FEW", few):
        return cycle.decide(state.build(facts), now, policy)
