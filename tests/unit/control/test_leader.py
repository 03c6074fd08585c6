import asyncio

import pytest

from windlass.control.runtime import leader_election
from windlass.kinds.types import core, meta
from windlass.store import errors


class Clock:
    """Monotonic time that moves when a task sleeps on it; other tasks run in between."""

    def __init__(self) -> None:
        self.now = 50.0
        self._waiting: list[tuple[float, asyncio.Event]] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        for when, reached in self._waiting:
            if self.now >= when:
                reached.set()
        for _ in range(20):
            await asyncio.sleep(0)

    async def until(self, when: float) -> None:
        reached = asyncio.Event()
        self._waiting.append((when, reached))
        await reached.wait()


class Unreliable:
    """The real store, with the API server away on command."""

    def __init__(self, store) -> None:
        self._store = store
        self.away = False

    def __getattr__(self, name):
        real = getattr(self._store, name)

        async def call(*args, **kwargs):
            if self.away:
                raise errors.Unavailable("nobody answers")
            return await real(*args, **kwargs)

        return call


def candidate(store, identity: str, clock: Clock) -> leader_election.Election:
    return leader_election.Election(
        store, "scheduler", "team", identity, clock=clock, sleep=clock.sleep
    )  # fmt: skip


async def lease(store) -> core.LeaseSpec:
    return (await store.get(core.Lease, "scheduler", "team")).spec


async def test_the_first_candidate_creates_the_lease_with_epoch_one(store):
    async with candidate(store, "a", Clock()).term() as term:
        assert term.epoch == 1
        record = await lease(store)
        assert (record.holder_identity, record.lease_transitions) == ("a", 1)
        assert record.lease_duration_seconds == 15


class Overtaken:
    """The real store; a renewal that was on its way arrives when the lease is being given back."""

    def __init__(self, store) -> None:
        self._store = store
        self.on_its_way = False

    def __getattr__(self, name):
        return getattr(self._store, name)

    async def replace(self, obj):
        if self.on_its_way:
            self.on_its_way = False
            renewed = await self._store.get(type(obj), obj.name, obj.namespace)
            renewed.spec.renew_time = "2026-01-01T10:20:00.000000Z"
            await self._store.replace(renewed)
        return await self._store.replace(obj)


async def test_a_renewal_that_was_on_its_way_does_not_keep_the_lease(store):
    overtaken = Overtaken(store)
    async with candidate(overtaken, "a", Clock()).term():
        overtaken.on_its_way = True
    assert not overtaken.on_its_way
    assert (await lease(store)).holder_identity == ""


async def test_giving_it_back_lets_the_next_one_begin_at_once_in_a_new_epoch(store):
    async with candidate(store, "a", Clock()).term():
        pass
    clock = Clock()
    async with candidate(store, "b", clock).term() as term:
        assert term.epoch == 2
        assert clock.now == 50.0


async def test_a_held_lease_is_taken_only_after_its_whole_duration_unchanged(store):
    async with candidate(store, "a", Clock()).term():
        clock = Clock()
        taker = candidate(store, "b", clock)
        assert await taker._try_acquire() is None
        clock.now += 14.9
        assert await taker._try_acquire() is None
        clock.now += 0.2
        term = await taker._try_acquire()
        assert term is not None
        assert term.epoch == 2


async def test_a_renewal_starts_the_wait_anew(store):
    clock = Clock()
    async with candidate(store, "a", Clock()).term():
        taker = candidate(store, "b", clock)
        await taker._try_acquire()
        clock.now += 14
        await store.patch(
            core.Lease, "scheduler", "team",
            patch={"spec": {"renewTime": "2031-01-01T00:00:00.000000Z"}},
        )  # fmt: skip
        assert await taker._try_acquire() is None
        clock.now += 14
        assert await taker._try_acquire() is None


def dead_leader() -> core.Lease:
    """Its holder will never renew it again."""
    return core.Lease(
        metadata=meta.ObjectMeta(name="scheduler", namespace="team"),
        spec=core.LeaseSpec(
            holder_identity="a", lease_duration_seconds=15, lease_transitions=4,
            renew_time="2031-01-01T00:00:00.000000Z",
        ),
    )  # fmt: skip


async def test_it_is_taken_the_moment_it_has_run_out(store):
    await store.create(dead_leader())
    clock = Clock()
    async with candidate(store, "b", clock).term() as term:
        assert (term.epoch, clock.now) == (5, 65.0)


async def test_a_renewal_is_seen_when_it_happens_and_not_when_we_next_look(store):
    await store.create(dead_leader())
    clock, never = Clock(), asyncio.Event()
    taker = leader_election.Election(
        store, "scheduler", "team", "b", clock=clock, sleep=lambda _: never.wait()
    )
    waiting = asyncio.create_task(taker._acquire())
    while not taker._seen:
        await asyncio.sleep(0)
    first, clock.now = taker._seen, clock.now + 1.5
    renewed = {"renewTime": "2031-01-01T00:00:02.000000Z"}
    while taker._seen == first:
        await store.patch(core.Lease, "scheduler", "team", patch={"spec": renewed})
        await asyncio.sleep(0)
    assert taker._free_at == 50.0 + 1.5 + 15.0
    await store.patch(core.Lease, "scheduler", "team", patch={"spec": {"holderIdentity": ""}})
    assert (await waiting).epoch == 5, "it was given back, and nobody slept over it"


@pytest.mark.parametrize("written", ["1999-01-01T00:00:00.000000Z", "2099-01-01T00:00:00.000000Z"])
async def test_the_wall_clock_of_others_is_never_believed(store, written):
    spec = core.LeaseSpec(
        holder_identity="skewed", lease_duration_seconds=15, renew_time=written,
        acquire_time=written, lease_transitions=7,
    )  # fmt: skip
    name = meta.ObjectMeta(name="scheduler", namespace="team")
    await store.create(core.Lease(metadata=name, spec=spec))
    clock = Clock()
    taker = candidate(store, "b", clock)
    assert await taker._try_acquire() is None
    clock.now += 15
    term = await taker._try_acquire()
    assert term is not None
    assert term.epoch == 8


async def test_of_two_that_try_at_once_one_gets_it(store):
    async with candidate(store, "old", Clock()).term():
        clocks = [Clock(), Clock()]
        takers = [candidate(store, n, clock) for n, clock in zip("bc", clocks, strict=True)]
        for taker, clock in zip(takers, clocks, strict=True):
            await taker._try_acquire()
            clock.now += 16
        results = await asyncio.gather(
            *(taker._try_acquire() for taker in takers), return_exceptions=True
        )
        won = [r for r in results if isinstance(r, leader_election.Term)]
        lost = [r for r in results if isinstance(r, errors.Conflict) or r is None]
        assert (len(won), len(lost)) == (1, 1)


async def test_a_leader_that_cannot_renew_stops_before_its_lease_can_be_taken(store):
    api, clock = Unreliable(store), Clock()
    async with candidate(api, "a", clock).term() as term:
        began = clock.now
        api.away = True
        await term.lost.wait()
        assert clock.now - began <= leader_election.Timing().renew_deadline + 0.001
        with pytest.raises(leader_election.LeadershipLostError):
            async with term.limit():
                pytest.fail("the term is over")


async def test_a_leader_survives_failures_shorter_than_the_deadline(store):
    api, clock = Unreliable(store), Clock()
    async with candidate(api, "a", clock).term() as term:
        api.away = True
        await clock.until(50.0 + 6)
        api.away = False
        await clock.until(50.0 + 60)
        assert not term.lost.is_set()
        assert (await lease(store)).holder_identity == "a"


async def test_a_leader_that_lost_the_lease_notices_at_the_next_renewal(store):
    clock = Clock()
    async with candidate(store, "a", clock).term() as term:
        await store.patch(
            core.Lease, "scheduler", "team",
            patch={"spec": {"holderIdentity": "b", "leaseTransitions": 2}},
        )  # fmt: skip
        await term.lost.wait()
    assert (await lease(store)).holder_identity == "b"


async def test_run_leads_again_with_a_higher_epoch_after_losing(store):
    api, clock = Unreliable(store), Clock()
    epochs: list[int] = []
    second = asyncio.Event()

    async def lead(term: leader_election.Term) -> None:
        epochs.append(term.epoch)
        if len(epochs) == 2:
            second.set()
        else:
            api.away = True
        await term.lost.wait()
        api.away = False
        await asyncio.Event().wait()

    running = asyncio.create_task(candidate(api, "a", clock).run(lead))
    await second.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert epochs == [1, 2]
    assert (await lease(store)).holder_identity in ("", None)


async def test_a_guarded_store_writes_only_while_the_term_lasts(store):
    clock = Clock()
    term = leader_election.Term(1, clock.now + 10, clock)
    guarded = leader_election.Guarded(store, term)
    config = core.ConfigMap(metadata=meta.ObjectMeta(name="a", namespace="team"))
    await guarded.create(config)
    clock.now += 10
    for write in (
        guarded.create(config),
        guarded.replace(config),
        guarded.patch(core.ConfigMap, "a", "team", patch={"data": {"x": "y"}}),
        guarded.delete(core.ConfigMap, "a", "team"),
    ):
        with pytest.raises(leader_election.LeadershipLostError):
            await write
    assert (await guarded.get(core.ConfigMap, "a", "team")).data is None


async def test_a_write_that_hangs_is_given_up_when_the_term_ends():
    class Hanging:
        get = list = watch = close = None

        async def create(self, *_, **__):
            await asyncio.Event().wait()

    clock = Clock()
    guarded = leader_election.Guarded(Hanging(), leader_election.Term(1, clock.now + 0.01, clock))
    with pytest.raises(leader_election.LeadershipLostError):
        await guarded.create(core.ConfigMap())


@pytest.mark.parametrize("timing", [(15, 15, 2), (15, 10, 10), (15, 10, 0)])
def test_timings_without_a_safety_margin_are_refused(timing):
    with pytest.raises(ValueError, match="renew_deadline"):
        leader_election.Timing(*timing)
