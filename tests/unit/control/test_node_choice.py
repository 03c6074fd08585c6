"""From objects to the assignment, by what nodes and runs say."""

from tests.unit.control import build
from tests.unit.control.test_convert import NOW, taken
from windlass.control.convert import node_facts
from windlass.core.cycle import cycle
from windlass.core.snapshot import snapshot
from windlass.kinds.reasons import Reason
from windlass.kinds.types import run


def test_the_scheduler_decides_by_what_nodes_and_runs_say():
    """From objects to the assignment: the preferred node, else the cheaper, never one that lacks a
    capability."""
    price, offers = node_facts.PRICE, {node_facts.CAPABILITIES: "shares"}
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
    requests = [*runs.items(), ("able", build.a_run("likes", placement=run.Placement(nodes=liked)))]
    for expected, owner in requests:
        told = taken([build.in_phase(owner, "Queued")], nodes=nodes)
        (placement,) = cycle.decide(snapshot.build(told), NOW).placements
        assert [pod.node for pod in placement.pods] == [expected]
    lacking = run.NodeChoice(capabilities=["partitions"])
    owner = build.a_run("lacks", placement=run.Placement(nodes=lacking))
    told = taken([build.in_phase(owner, "Queued")], nodes=nodes)
    (verdict,) = cycle.decide(snapshot.build(told), NOW).verdicts
    assert (verdict.reason, verdict.resource) == (Reason.UNSUPPORTED, "partitions")
