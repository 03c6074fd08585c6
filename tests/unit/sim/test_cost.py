"""What jobs cost: node-seconds times price, by the part of a node that they hold."""

from __future__ import annotations

import dataclasses

import pytest

from tests.unit.sim.building import job, outcome, scenario
from windlass.core.model.types import Grant, Node, PodAssignment, Role, Running, Workload
from windlass.sim import compare
from windlass.sim.cost import Prices
from windlass.sim.inputs import builders
from windlass.sim.metrics import metrics
from windlass.sim.scenario import Outage, Scenario

SECOND = 10**9
"""A price of 1 a second."""


def priced(played: Scenario, price: int = SECOND) -> Scenario:
    nodes = tuple(dataclasses.replace(node, price=price) for node in played.facts.nodes)
    return dataclasses.replace(played, facts=dataclasses.replace(played.facts, nodes=nodes))


def node() -> Node:
    """Eight GPUs of 81920 MiB, 128 cores."""
    return dataclasses.replace(builders.NodeForm().node("n"), price=8 * SECOND)


@pytest.mark.parametrize(
    ("cpu", "grants", "fee"),
    [
        (0, (), 0),
        (32_000, (), 2),
        (1000, (Grant("gpu0"), Grant("gpu1")), 2),
        (64_000, (Grant("gpu0"),), 4),
        (0, (Grant("gpu0", "share", 250, 40960),), 0.5),
        (0, (Grant("gpu0", "ratio", 250, 0, 4),), 0.25),
        (999_000, tuple(Grant(f"gpu{n}") for n in range(8)), 8),
    ],
)
def test_a_job_pays_for_the_largest_part_of_a_node_that_it_holds(cpu, grants, fee) -> None:
    workload = Workload("u", "q", (Role("w", 1, 1, {"cpu": cpu}),))
    pods = (PodAssignment("w", 0, "n", grants),)
    assert Prices([node()]).fee(workload, pods) == pytest.approx(fee)
    assert Prices([dataclasses.replace(node(), price=0)]).fee(workload, pods) == 0


def test_members_on_one_node_pay_together_and_on_several_one_by_one() -> None:
    workload = Workload("u", "q", (Role("w", 1, 1, {"cpu": 16_000}),))
    nodes = [node(), dataclasses.replace(node(), name="m")]
    pods = (
        PodAssignment("w", 0, "n", (Grant("gpu0"),)),
        PodAssignment("w", 1, "n"),
        PodAssignment("w", 2, "m"),
    )
    assert Prices(nodes).fee(workload, pods) == pytest.approx(2 + 1)


def cost(played: Scenario) -> dict[str, object]:
    found = metrics.summary(outcome(played))["cost"]
    assert isinstance(found, dict)
    return found


def test_costs_add_up_by_queue_and_leave_out_idle_capacity() -> None:
    played = priced(scenario(job("a", 0, 100, gpus=4), job("b", 50, 100, gpus=2)))
    assert cost(played) == {"jobs": 75.0, "nodes": 150.0, "queues": {"default": 75.0}}


def test_work_that_is_lost_and_done_again_is_paid_twice() -> None:
    calm = priced(scenario(job("a", 0, 100)))
    assert cost(calm)["jobs"] == 100
    name = calm.facts.nodes[0].name
    hit = dataclasses.replace(calm, outages=(Outage(name, 50, 70),))
    # 50 s before the loss, 60 s to load its state again, and all 100 s of work.
    assert cost(hit)["jobs"] == 210


def test_an_elastic_job_pays_for_the_members_it_has() -> None:
    played = priced(scenario(job("a", 0, 100, gpus=4, members=1, most=2)))
    assert cost(played)["jobs"] == 50


def test_initial_workloads_pay_from_the_beginning_and_endless_ones_until_the_end() -> None:
    workload = job("svc", gpus=8, expected=None).workload
    played = priced(scenario(job("a", 100, 40, gpus=8), nodes=2))
    first = played.facts.nodes[0].name
    grants = tuple(Grant(f"gpu{n}") for n in range(8))
    running = Running(workload, (PodAssignment("worker", 0, first, grants),), -1000.0)
    facts = dataclasses.replace(played.facts, running=(running,))
    jobs = (*played.jobs, dataclasses.replace(job("svc"), workload=workload, duration=float("inf")))
    played = dataclasses.replace(played, facts=facts, jobs=jobs, start=0.0)
    assert cost(played) == {"jobs": 180.0, "nodes": 280.0, "queues": {"default": 180.0}}


def test_the_column_is_there_only_where_nodes_have_prices() -> None:
    free = compare.compare(scenario(job("a")), [compare.Variant()])
    assert "cost" not in compare.columns(free)
    paid = compare.compare(priced(scenario(job("a", lasts=1500))), [compare.Variant()])
    assert (compare.columns(paid)[-1], compare.rows(paid)[0][-1]) == ("cost", "1,500")
    for found in (free, paid):
        assert [len(row) for row in compare.rows(found)] == [len(compare.columns(found))]
    assert "as-is: jobs paid 1,500 of the 1,500 that the nodes cost" in compare.remarks(paid)
