"""Looking at the first few who may go, then at more, decides as looking at all of them at once.

`core.freeing` takes victims in the order of what they cost and looks at few of them as long as
those are enough. That saves much where thousands may go; here single ones are looked at first.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.properties import bothways, generators, test_foresight
from tests.properties.settings import CAMPAIGN, cases
from windlass.core import freeing
from windlass.core.facts import Facts, Policy

pytestmark = CAMPAIGN


@cases(300, 6000)
@given(
    st.one_of(
        test_foresight.full(), generators.facts(), generators.facts(taste=generators.BUNDLED)
    ),
    generators.policies,
)
def test_the_first_few_who_may_go_are_enough_to_look_at(facts: Facts, policy: Policy) -> None:
    bothways.decide_alike(facts, policy, (freeing, "_FEW"), 1, 1 << 30)
