"""What weights promise over time: sentences S5, S6, R3 and T5 of docs/reference/sharing.md."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from windlass.core.model.types import (
    ClusterFacts,
    Device,
    DeviceRequest,
    Node,
    Queue,
    Role,
    Workload,
)
from windlass.sim import engine
from windlass.sim.policy_grid import Variant
from windlass.sim.scenario import Job, Scenario

HOUR = 3600.0


def nodes(count: int) -> tuple[Node, ...]:
    devices = tuple(Device(f"g{j}", "gpu") for j in range(8))
    return tuple(Node(f"n{i:02}", {"cpu": 64_000}, devices) for i in range(count))


def jobs(
    queue: str, count: int, hours: float, gpus: int = 8, pods: int = 1, at: float = 0.0
) -> Iterator[Job]:
    role = Role("worker", pods, pods, {"cpu": 1000}, (DeviceRequest("gpu", gpus),))
    for number in range(count):
        seconds = hours * HOUR + number % 7 * 60
        key = f"{queue}-{number:04}"
        yield Job(Workload(key, queue, (role,), at * HOUR, expected=seconds), seconds)


class Played:
    """A scenario until a moment, with the device-seconds of each queue since another."""

    def __init__(
        self, queues: list[Queue], work: list[Job], hours: float, since: float = 0.0, size: int = 8
    ) -> None:
        facts = ClusterFacts(nodes=nodes(size), queues=tuple(queues))
        self.simulation = engine.Simulation(Scenario("shares", facts, tuple(work)), Variant())
        self._seconds = dict.fromkeys((queue.name for queue in queues), 0.0)
        before, moving = 0.0, True
        while moving and self.simulation.now < hours * HOUR:
            tree = self.simulation.snapshot.tree
            held = {name: tree.used[name].get("gpu", 0) for name in self._seconds}
            moving = self.simulation.step()
            for name, amount in held.items() if before >= since * HOUR else ():
                self._seconds[name] += amount * (self.simulation.now - before)
            before = self.simulation.now

    def share(self, name: str) -> float:
        roots = [q.name for q in self.simulation.snapshot.queues.values() if not q.parent]
        return self._seconds[name] / sum(self._seconds[root] for root in roots)


def test_weights_divide_a_saturated_cluster_with_default_reservations() -> None:
    """Equal sizes, good estimates: 9 to 1, although one workload is more than a tenth."""
    work = [*jobs("a", 250, 2), *jobs("b", 40, 2)]
    found = Played([Queue("a", weight=9), Queue("b")], work, 48, since=6)
    assert found.share("a") == pytest.approx(0.9, abs=0.02)


def test_a_branch_gets_its_share_however_many_queues_are_below_it() -> None:
    children = [Queue(f"c{i}", parent="p") for i in range(4)]
    work = [job for name in ("c0", "c1", "c2", "c3") for job in jobs(name, 40, 2)]
    work += jobs("s", 120, 2)
    found = Played([Queue("p"), Queue("s"), *children], work, 48)
    assert found.share("s") == pytest.approx(0.5, abs=0.02)
    assert found.share("c0") == pytest.approx(0.125, abs=0.02)


def test_long_workloads_do_not_crowd_out_short_ones() -> None:
    work = [*jobs("long", 12, 48, gpus=4), *jobs("short", 220, 1, gpus=4)]
    found = Played([Queue("long"), Queue("short")], work, 50, size=4)
    assert found.share("short") == pytest.approx(0.5, abs=0.02)


def test_gangs_of_the_whole_cluster_and_small_workloads_share_over_time() -> None:
    work = [*jobs("gangs", 20, 2, pods=4), *jobs("small", 300, 1, gpus=4)]
    found = Played([Queue("gangs"), Queue("small")], work, 60, size=4)
    assert found.share("gangs") == pytest.approx(0.5, abs=0.05)


def test_small_workloads_do_not_keep_nodes_in_pieces_for_ever() -> None:
    """Only `tiny` can use what comes free one device at a time; the others wait for whole nodes."""
    queues = [Queue("tiny"), Queue("whole", weight=3)]
    work = [*jobs("tiny", 150, 2, gpus=2), *jobs("whole", 200, 1)]
    found = Played(queues, work, 48, size=4)
    assert found.share("tiny") == pytest.approx(0.25, abs=0.03)


def test_gangs_far_above_the_share_of_their_queue_get_no_more_than_its_weight_says() -> None:
    """Each takes three of five nodes for four hours; its queue is entitled to one node."""
    queues = [Queue("gangs", weight=1), Queue("small", weight=4)]
    work = [*jobs("gangs", 30, 4, pods=3), *jobs("small", 1300, 1, gpus=4)]
    found = Played(queues, work, 144, size=5)
    assert found.share("gangs") == pytest.approx(0.2, rel=0.06)


def test_small_workloads_below_a_branch_leave_its_gangs_their_share() -> None:
    """The branch is ahead and behind in turns; the queues below it are compared at all times."""
    queues = [Queue("p"), Queue("s"), Queue("few", parent="p", weight=3)]
    queues += [Queue("whole", parent="p", weight=5)]
    work = [*jobs("few", 80, 16, gpus=4), *jobs("whole", 160, 4), *jobs("s", 120, 8)]
    found = Played(queues, work, 600, size=2)
    assert found.share("whole") == pytest.approx(5 / 16, rel=0.05)


def test_gangs_of_two_and_of_three_nodes_get_equal_shares_beside_guarantees() -> None:
    """Gangs leave one node idle or none in turns, and the queue of the short gangs of two nodes
    falls behind whenever a start that was given to another queue takes what comes free."""
    queues = [
        Queue("threes", guarantee={"gpu": 8000}),
        Queue("long", guarantee={"gpu": 16_000}),
        Queue("pairs"),
    ]
    work = [*jobs("threes", 200, 0.25, pods=3), *jobs("long", 100, 0.5, pods=3)]
    found = Played(queues, [*work, *jobs("pairs", 300, 0.25, pods=2)], 40, size=6)
    assert found.share("pairs") == pytest.approx(found.share("threes"), rel=0.03)


def test_a_late_team_preempts_where_its_queue_says_so() -> None:
    """Otherwise it waits until 100-hour workloads end."""
    work = [*jobs("first", 64, 100, gpus=1), *jobs("late", 64, 100, gpus=1, at=10)]
    waits = Played([Queue("first"), Queue("late")], work, 40, since=10)
    assert waits.share("late") == 0.0
    queues = [Queue("first"), Queue("late", fair_share_preemption=HOUR)]
    takes = Played(queues, work, 120)
    started = [record.first_start for record in takes.simulation.records.values()]
    late = [at for at in started if at is not None and 10 * HOUR < at < 20 * HOUR]
    assert len(late) == 32, "half of the 64 GPUs"
    assert max(late) < 12 * HOUR
    assert sum(record.preempted for record in takes.simulation.records.values()) == 32
