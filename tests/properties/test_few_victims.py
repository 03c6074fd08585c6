"""Searching among the first few candidates, then among more, decides as searching all at once does.

`core.preemption.victims.victim_selection` takes victims in the order of what they cost and searches
among few of them as long as those are enough. That saves much where thousands may be evicted; here
it begins with single ones.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.properties import equal_decisions, generators, test_batch_bounds
from tests.properties.settings import CAMPAIGN, cases
from windlass.core.model.types import ClusterFacts, Policy
from windlass.core.preemption.victims import victim_selection

pytestmark = CAMPAIGN


@cases(300, 6000)
@given(
    st.one_of(
        test_batch_bounds.full(), generators.facts(), generators.facts(taste=generators.BUNDLED)
    ),
    generators.policies,
)
def test_trying_the_first_few_candidates_gives_the_same_victims(
    facts: ClusterFacts, policy: Policy
) -> None:
    equal_decisions.decide_alike(facts, policy, (victim_selection, "_FEW"), 1, 1 << 30)
