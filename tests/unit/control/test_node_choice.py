"""From objects to the assignment, by what nodes and runs say."""

from tests.unit.control import build
from tests.unit.control.test_snapshots import NOW, taken
from windlass.control import nodefacts
from windlass.core import cycle, state
from windlass.kinds import run
from windlass.kinds.reasons import Reason


def test_the_scheduler_decides_by_what_nodes_and_runs_say():
    """From objects to the assignment: the preferred node, else the cheaper, never one that lacks a
    capability."""
    price, offers = nodefacts.PRICE, {nodefacts.CAPABILITIES: "shares"}
    nodes = [
        build.node("dear", annotations={price: "9"}),
        build.node("cheap", annotations={price: "1"}),
        build.node("able", annotations={price: "5", **offers}, labels={"disk": "ssd"}),
    ]
    runs = {
        "cheap": build.a_run("plain"),
        "able": build.a_run("needs", placement=run.Placement(nodes=run.NodeChoice(
            capabilities=["shares"]))),
    }  # fmt: skip
    liked = run.NodeChoice(prefer=[run.NodePreference(selector={"disk": "ssd"})])
    wishes = [*runs.items(), ("able", build.a_run("likes", placement=run.Placement(nodes=liked)))]
    for expected, owner in wishes:
        told = taken([build.in_phase(owner, "Queued")], nodes=nodes)
        (placement,) = cycle.decide(state.build(told), NOW).placements
        assert [seat.node for seat in placement.seats] == [expected]
    lacking = run.NodeChoice(capabilities=["partitions"])
    owner = build.a_run("lacks", placement=run.Placement(nodes=lacking))
    told = taken([build.in_phase(owner, "Queued")], nodes=nodes)
    (verdict,) = cycle.decide(state.build(told), NOW).verdicts
    assert (verdict.reason, verdict.resource) == (Reason.UNSUPPORTED, "partitions")
