"""Which epoch counts: only that of a scheduler that is seen to lead."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.control.timers import HandTimers
from windlass.control import wiring
from windlass.control.runtime import epochs, informers, leader_election
from windlass.kinds.types import core, meta
from windlass.kinds.values import times
from windlass.store import errors
from windlass.store.informer import Informer

SILENCE = leader_election.Timing().renew_deadline


class Watcher:
    """An Epoch on a real lease, and what it reported."""

    def __init__(self, store) -> None:
        self.store = store
        self.clock = HandTimers()
        self.woken = 0
        self.seen = asyncio.Event()
        self.lease = Informer(store, core.Lease, informers.NAMESPACE)
        self.epoch = epochs.Epoch(self.lease, self._wake, clock=self.clock.time)
        self.lease.add_handler(lambda *_: self.seen.set())

    async def write(self, holder: str, epoch: int) -> None:
        """The lease says so, and it was seen."""
        self.seen.clear()
        spec = core.LeaseSpec(
            holder_identity=holder,
            lease_transitions=epoch,
            renew_time=times.micros(times.from_unix(self.clock.now)),
        )
        try:
            known = await self.store.get(core.Lease, wiring.Scheduler.lease, informers.NAMESPACE)
            known.spec = spec
            await self.store.replace(known)
        except errors.NotFound:
            name = meta.ObjectMeta(name=wiring.Scheduler.lease, namespace=informers.NAMESPACE)
            await self.store.create(core.Lease(metadata=name, spec=spec))
        await self.seen.wait()

    def _wake(self) -> None:
        self.woken += 1


@pytest.fixture
async def watcher(store):
    await store.create(core.Namespace(metadata=meta.ObjectMeta(name=informers.NAMESPACE)))
    made = Watcher(store)
    async with made.lease:
        await made.lease.synced()
        yield made


async def test_without_a_lease_no_epoch_counts(watcher):
    assert watcher.epoch.current() == epochs.UNKNOWN


async def test_the_epoch_of_the_leader_counts_and_waiting_runs_are_reconciled(watcher):
    await watcher.write("one", 3)
    assert (watcher.epoch.current(), watcher.woken) == (3, 1)


async def test_renewals_wake_no_controller(watcher):
    await watcher.write("one", 3)
    watcher.clock.now += SILENCE / 2
    await watcher.write("one", 3)
    watcher.clock.now += SILENCE / 2
    assert (watcher.epoch.current(), watcher.woken) == (3, 1)


async def test_a_leader_that_fell_silent_does_not_count_until_it_is_heard_of(watcher):
    await watcher.write("one", 3)
    watcher.clock.now += SILENCE
    assert watcher.epoch.current() == epochs.UNKNOWN
    await watcher.write("one", 3)
    assert (watcher.epoch.current(), watcher.woken) == (3, 2)


async def test_a_lease_that_was_released_counts_for_no_leader(watcher):
    await watcher.write("one", 3)
    await watcher.write("", 3)
    assert watcher.epoch.current() == epochs.UNKNOWN


async def test_the_next_leader_counts_at_once(watcher):
    await watcher.write("one", 3)
    await watcher.write("two", 4)
    assert (watcher.epoch.current(), watcher.woken) == (4, 2)
