"""Looking at everybody at once decides as asking one by one does.

`core.foresight` spares those a turn of whom arrays tell that they surely wait. It is meant for
thousands; here it looks at the few of a small world. Each decision of a history is made twice, with
everybody in arrays and with nobody, so that victims are on their way and promises are out.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.properties import bothways, generators, test_alike
from tests.properties.settings import CAMPAIGN, cases
from tests.unit.core import test_preempt_laws
from windlass.core import foresight
from windlass.core.facts import Facts, Policy

pytestmark = CAMPAIGN


def full() -> st.SearchStrategy[Facts]:
    """A cluster in pieces, and many in front of it with different rights."""
    return st.builds(_full, st.integers(0, 1 << 32), st.integers(2, 5), st.integers(4, 12))


def _full(seed: int, nodes: int, running: int) -> Facts:
    return test_preempt_laws.Crowd(seed, nodes, running, 14).world.snapshot.facts()


@cases(400, 8000)
@given(
    st.one_of(
        full(), full(), generators.facts(), generators.facts(taste=generators.BUNDLED),
        test_alike.worlds(), test_alike.pressed(),
    ),
    generators.policies,
)  # fmt: skip
def test_looking_at_everybody_at_once_decides_as_asking_one_by_one(
    facts: Facts, policy: Policy
) -> None:
    bothways.decide_alike(facts, policy, (foresight, "MANY"), 0, 1 << 30)
