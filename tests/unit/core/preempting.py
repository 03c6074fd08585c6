"""Small worlds for tests of preemption: running and waiting workloads, and rounds of decisions."""

import dataclasses
from collections import Counter

from windlass.core.cycle import cycle
from windlass.core.model.types import (
    ClusterFacts,
    Device,
    DeviceRequest,
    Grant,
    Node,
    PodAssignment,
    Policy,
    Queue,
    Role,
    Running,
    Workload,
)
from windlass.core.snapshot import running_index
from windlass.core.snapshot.snapshot import (
    Nominated,
    NominationGone,
    ReservationsPut,
    RunningPut,
    WaitingPut,
    apply,
    build,
)

NOW = 10_000.0


def node(name: str, gpus: int = 8, rack: str = "r0", cpu: int = 64) -> Node:
    devices = tuple(Device(f"g{i}", "gpu", memory=80, forms=FORMS) for i in range(gpus))
    return Node(name, {"cpu": cpu * 1000}, devices, path=(rack,))


FORMS = frozenset(("whole", "share"))


def role(members: int = 1, gpus: int = 1, most: int | None = None, cpu: int = 1, **more) -> Role:
    devices = (DeviceRequest("gpu", gpus),) if gpus else ()
    return Role("w", members, most or members, {"cpu": cpu * 1000}, devices, **more)


def workload(key: str, queue: str, members: int = 1, gpus: int = 1, **more) -> Workload:
    of_role = {
        name: more.pop(name) for name in ("most", "cpu", "constraint", "ports") if name in more
    }
    return Workload(key, queue, (role(members, gpus, **of_role),), **more)


class World:
    """Facts that follow decisions: what is decided happens, victims go and queue again."""

    def __init__(self, nodes, queues, policy=Policy(), levels=("rack",)):  # noqa: B008
        self.snapshot = build(ClusterFacts(tuple(nodes), tuple(queues), levels=levels))
        self.policy, self.now = policy, NOW
        self.decision = None

    def wait(self, *workloads: Workload) -> "World":
        apply(self.snapshot, [WaitingPut(each) for each in workloads])
        return self

    def start(self, *workloads: Workload, **more) -> "World":
        """They run, wherever the core itself puts them."""
        for each in workloads:
            self.wait(each)
            found = cycle.decide(self.snapshot, self.now, Policy(preempt=False, reclaim=False))
            pods = {p.workload: p.pods for p in found.placements}[each.key]
            facts = {"started": self.now - 3600, **more}
            apply(self.snapshot, [RunningPut(Running(each, pods, **facts))])
        return self

    def run(self, each: Workload, *where: str, **more) -> "World":
        """It runs on these nodes, on the first devices that are free there."""
        pods = []
        for index, name in enumerate(where):
            held = {
                (s.node, g.device)
                for r in self.snapshot.running.values()
                for s in r.pods
                for g in s.grants
            } | {(s.node, g.device) for s in pods for g in s.grants}
            host = self.snapshot.cluster.nodes[self.snapshot.cluster.index[name]]
            free = [d for d in host.devices if (name, d.id) not in held]
            count = sum(request.count for request in each.roles[0].devices)
            assert len(free) >= count
            grants = tuple(Grant(d.id, memory=d.memory) for d in free[:count])
            pods.append(PodAssignment("w", index, name, grants))
        facts = {"started": self.now - 3600, **more}
        apply(self.snapshot, [RunningPut(Running(each, tuple(pods), **facts))])
        return self

    def decide(self):
        before = self.snapshot.facts()
        self.decision = cycle.decide(self.snapshot, self.now, self.policy)
        fresh = cycle.decide(build(before), self.now, self.policy)
        assert fresh == self.decision  # what an index remembers never changes an answer
        return self.decision

    def happen(self) -> "World":
        """The decision is carried out; victims are evicted and still hold their capacity."""
        running = dict(self.snapshot.running)
        events = []
        for placement in self.decision.placements:
            if placement.workload in running:
                old = running[placement.workload]
                new = dataclasses.replace(old, pods=(*old.pods, *placement.pods))
            else:
                who = self.snapshot.waiting[placement.workload]
                new = Running(who, placement.pods, self.now)
                events.append(NominationGone(placement.workload))
            events.append(RunningPut(new))
        events += [Nominated(each) for each in self.decision.nominations]
        for eviction in self.decision.evictions:
            old = running[eviction.workload]
            told = (*old.leaving, *eviction.pods)
            running[eviction.workload] = dataclasses.replace(old, leaving=told)
            events.append(RunningPut(running[eviction.workload]))
        events.append(ReservationsPut(self.decision.reservations))
        apply(self.snapshot, events)
        return self

    def go(self) -> "World":
        """Evicted pods are gone; a workload without any pod left waits again."""
        self.now += 30
        for key, old in sorted(self.snapshot.running.items()):
            if not old.leaving:
                continue
            left = tuple(s for s in old.pods if (s.role, s.index) not in old.leaving)
            had = old.workload.attained + self.now - old.started
            apply(
                self.snapshot,
                [
                    RunningPut(dataclasses.replace(old, pods=left, leaving=()))
                    if left
                    else WaitingPut(dataclasses.replace(old.workload, attained=had))
                ],
            )
            assert left or key in self.snapshot.waiting
        return self

    def rounds(self, count: int) -> list:
        """Evictions of so many rounds in which everything that is decided happens."""
        found = []
        for _ in range(count):
            found += self.decide().evictions
            self.happen().go()
        return found

    @property
    def evicted(self) -> dict[str, int]:
        found = Counter[str]()
        for eviction in self.decision.evictions:
            found[eviction.workload] += len(eviction.pods)
        return dict(found)

    def runs(self, key: str) -> bool:
        return key in self.snapshot.running


def two_queues(guarantee_a=8, guarantee_b=8, **more) -> list[Queue]:
    return [
        Queue("a", guarantee={"gpu": guarantee_a * 1000}, **more),
        Queue("b", guarantee={"gpu": guarantee_b * 1000}),
    ]


def settles(world: World, preemptor: str) -> None:
    """The preemptor gets its capacity, and five more rounds bring no new eviction."""
    assert world.decision.evictions
    assert preemptor in {each.workload for each in world.decision.nominations}
    world.happen()
    assert world.decide().evictions == ()  # nothing new happened: nothing new is decided
    world.happen().go()
    assert preemptor in {each.workload for each in world.decide().placements}
    assert world.decision.evictions == ()
    world.happen()
    assert world.rounds(5) == []
    assert world.runs(preemptor)


def takes_surplus(snapshot, eviction) -> bool:
    """Whether only pods above the minimum of a workload go."""
    surplus = {
        (pod.role, pod.index) for pod in running_index.surplus(snapshot.running[eviction.workload])
    }
    return set(eviction.pods) <= surplus
