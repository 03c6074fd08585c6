"""Bounds for all waiting workloads at once decide as considering them one by one does.

`core.preemption.batch_bounds` refuses workloads that surely wait, by arrays. It is meant for
thousands; here it works on the few of a small world. Each decision of a history is made twice, with
all workloads in arrays and with none, so that victims terminate and reservations are out.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.properties import equal_decisions, generators, test_equivalence_classes
from tests.properties.settings import CAMPAIGN, cases
from tests.unit.core import test_preemption_properties
from windlass.core.model.types import ClusterFacts, Policy
from windlass.core.preemption import batch_bounds

pytestmark = CAMPAIGN


def full() -> st.SearchStrategy[ClusterFacts]:
    """A cluster in pieces, and many in front of it with different rights."""
    return st.builds(_full, st.integers(0, 1 << 32), st.integers(2, 5), st.integers(4, 12))


def _full(seed: int, nodes: int, running: int) -> ClusterFacts:
    return test_preemption_properties.CrowdedCluster(
        seed, nodes, running, 14
    ).world.snapshot.facts()


@cases(400, 8000)
@given(
    st.one_of(
        full(), full(), generators.facts(), generators.facts(taste=generators.BUNDLED),
        test_equivalence_classes.worlds(), test_equivalence_classes.pressed(),
    ),
    generators.policies,
)  # fmt: skip
def test_batch_bounds_decide_as_considering_one_by_one(facts: ClusterFacts, policy: Policy) -> None:
    equal_decisions.decide_alike(facts, policy, (batch_bounds, "MANY"), 0, 1 << 30)
