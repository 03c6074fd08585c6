"""The `fair` order: users take turns by the dominant share of all that they hold together."""

from tests.unit.core.preempting import World, node, workload
from windlass.core.model.types import Policy, Queue


def waiting(*users):
    return [workload(f"of-{user}", "q", gpus=1, user=user, submitted=1.0) for user in users]


def test_a_user_s_share_is_the_dominant_part_of_sums_not_the_sum_of_dominant_parts():
    """Ann holds half of all CPU in one run and half of all GPUs in another: one half. Bob holds
    five eighths of the GPUs."""
    world = World([node("n1", 16, cpu=64)], [Queue("q", order="fair", reserve=0)], Policy())
    world.run(workload("ann1", "q", gpus=0, cpu=32, user="ann"), "n1")
    world.run(workload("ann2", "q", gpus=6, cpu=1, user="ann"), "n1")
    world.run(workload("bob1", "q", gpus=9, cpu=1, user="bob"), "n1")
    world.wait(*waiting("ann", "bob")).decide()
    assert [each.workload for each in world.decision.placements] == ["of-ann"]


def test_so_it_is_with_what_stands_before_in_the_line():
    """Ann's two runs need CPU and GPUs; together they are a quarter of each. Bob's one run is
    three eighths of the GPUs, so Ann's second turn comes before it has twice a quarter."""
    world = World([node("n1", 16, cpu=64)], [Queue("q", order="fair", reserve=0)], Policy())
    world.wait(
        workload("ann1", "q", gpus=0, cpu=16, user="ann", submitted=1.0),
        workload("ann2", "q", gpus=4, cpu=0, user="ann", submitted=2.0),
        workload("ann3", "q", gpus=1, cpu=0, user="ann", submitted=3.0),
        workload("bob1", "q", gpus=6, cpu=0, user="bob", submitted=4.0),
        workload("bob2", "q", gpus=1, cpu=0, user="bob", submitted=5.0),
    ).decide()
    order = [each.workload for each in world.decision.placements]
    assert order == ["ann1", "bob1", "ann2", "ann3", "bob2"]
