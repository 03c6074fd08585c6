"""Small worlds for tests of preemption: who runs, who waits, and rounds of deciding."""

import dataclasses
from collections import Counter

from windlass.core import cycle, roster, state
from windlass.core.facts import (
    Device,
    DeviceRequest,
    Facts,
    Grant,
    Node,
    Policy,
    Queue,
    Role,
    Running,
    Seat,
    Unit,
)

NOW = 10_000.0


def node(name: str, gpus: int = 8, rack: str = "r0", cpu: int = 64) -> Node:
    devices = tuple(Device(f"g{i}", "gpu", memory=80, forms=FORMS) for i in range(gpus))
    return Node(name, {"cpu": cpu * 1000}, devices, path=(rack,))


FORMS = frozenset(("whole", "share"))


def role(members: int = 1, gpus: int = 1, most: int | None = None, cpu: int = 1, **more) -> Role:
    devices = (DeviceRequest("gpu", gpus),) if gpus else ()
    return Role("w", members, most or members, {"cpu": cpu * 1000}, devices, **more)


def unit(key: str, queue: str, members: int = 1, gpus: int = 1, **more) -> Unit:
    of_role = {
        name: more.pop(name) for name in ("most", "cpu", "constraint", "ports") if name in more
    }
    return Unit(key, queue, (role(members, gpus, **of_role),), **more)


class World:
    """Facts that follow decisions: what is decided happens, victims go and queue again."""

    def __init__(self, nodes, queues, policy=Policy(), levels=("rack",)):  # noqa: B008
        self.snapshot = state.build(Facts(tuple(nodes), tuple(queues), levels=levels))
        self.policy, self.now = policy, NOW
        self.decision = None

    def wait(self, *units: Unit) -> "World":
        state.apply(self.snapshot, [state.Waits(each) for each in units])
        return self

    def start(self, *units: Unit, **more) -> "World":
        """They run, wherever the core itself puts them."""
        for each in units:
            self.wait(each)
            found = cycle.decide(self.snapshot, self.now, Policy(preempt=False, reclaim=False))
            seats = {p.unit: p.seats for p in found.placements}[each.key]
            facts = {"started": self.now - 3600, **more}
            state.apply(self.snapshot, [state.Holds(Running(each, seats, **facts))])
        return self

    def run(self, each: Unit, *where: str, **more) -> "World":
        """It runs on these nodes, on the first devices that nobody holds there."""
        seats = []
        for index, name in enumerate(where):
            held = {
                (s.node, g.device)
                for r in self.snapshot.running.values()
                for s in r.seats
                for g in s.grants
            } | {(s.node, g.device) for s in seats for g in s.grants}
            host = self.snapshot.cluster.nodes[self.snapshot.cluster.index[name]]
            free = [d for d in host.devices if (name, d.id) not in held]
            count = sum(request.count for request in each.roles[0].devices)
            assert len(free) >= count
            grants = tuple(Grant(d.id, memory=d.memory) for d in free[:count])
            seats.append(Seat("w", index, name, grants))
        facts = {"started": self.now - 3600, **more}
        state.apply(self.snapshot, [state.Holds(Running(each, tuple(seats), **facts))])
        return self

    def decide(self):
        before = self.snapshot.facts()
        self.decision = cycle.decide(self.snapshot, self.now, self.policy)
        fresh = cycle.decide(state.build(before), self.now, self.policy)
        assert fresh == self.decision  # what an index remembers never changes an answer
        return self.decision

    def happen(self) -> "World":
        """The decision is carried out; victims are told to go and still hold their room."""
        running = dict(self.snapshot.running)
        events = []
        for placement in self.decision.placements:
            if placement.unit in running:
                old = running[placement.unit]
                new = dataclasses.replace(old, seats=(*old.seats, *placement.seats))
            else:
                who = self.snapshot.waiting[placement.unit]
                new = Running(who, placement.seats, self.now)
                events.append(state.NominationGone(placement.unit))
            events.append(state.Holds(new))
        events += [state.Nominated(each) for each in self.decision.nominations]
        for eviction in self.decision.evictions:
            old = running[eviction.unit]
            told = (*old.leaving, *eviction.seats)
            running[eviction.unit] = dataclasses.replace(old, leaving=told)
            events.append(state.Holds(running[eviction.unit]))
        events.append(state.Promised(self.decision.reservations))
        state.apply(self.snapshot, events)
        return self

    def go(self) -> "World":
        """Who was told to go is gone, and queues again if nothing of it is left."""
        self.now += 30
        for key, old in sorted(self.snapshot.running.items()):
            if not old.leaving:
                continue
            left = tuple(s for s in old.seats if (s.role, s.index) not in old.leaving)
            had = old.unit.attained + self.now - old.started
            state.apply(
                self.snapshot,
                [
                    state.Holds(dataclasses.replace(old, seats=left, leaving=()))
                    if left
                    else state.Waits(dataclasses.replace(old.unit, attained=had))
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
            found[eviction.unit] += len(eviction.seats)
        return dict(found)

    def runs(self, key: str) -> bool:
        return key in self.snapshot.running


def two_queues(guarantee_a=8, guarantee_b=8, **more) -> list[Queue]:
    return [
        Queue("a", guarantee={"gpu": guarantee_a * 1000}, **more),
        Queue("b", guarantee={"gpu": guarantee_b * 1000}),
    ]


def settles(world: World, gainer: str) -> None:
    """The gainer gets its room, and five more rounds bring no new eviction."""
    assert world.decision.evictions
    assert gainer in {each.unit for each in world.decision.nominations}
    world.happen()
    assert world.decide().evictions == ()  # nothing new happened: nothing new is decided
    world.happen().go()
    assert gainer in {each.unit for each in world.decide().placements}
    assert world.decision.evictions == ()
    world.happen()
    assert world.rounds(5) == []
    assert world.runs(gainer)


def takes_surplus(snapshot, eviction) -> bool:
    """Whether only members above the minimum of a workload go."""
    surplus = {(seat.role, seat.index) for seat in roster.surplus(snapshot.running[eviction.unit])}
    return set(eviction.seats) <= surplus
