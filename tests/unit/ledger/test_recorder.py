"""What is written down of a real store: nodes, other people's pods, Runs; and what was missed."""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections.abc import AsyncIterator

import pytest
import sqlalchemy as sa

from tests.unit.control import build
from tests.unit.control.conftest import store as store
from tests.unit.ledger.test_budgets import Clock
from windlass.control.runtime import informers
from windlass.kinds.types import core, meta, run
from windlass.kinds.values import times
from windlass.ledger.accounting import reconciliation, rollups
from windlass.ledger.db.repository import LedgerRepository
from windlass.ledger.ingest import recorder
from windlass.ledger.model import DAY
from windlass.ledger.reports import usage
from windlass.telemetry import prometheus

START = 1_790_812_800


@contextlib.asynccontextmanager
async def keeping(
    store, repository: LedgerRepository, clock: Clock
) -> AsyncIterator[recorder.UsageRecorder]:
    """One life of the ledger, by hand."""
    seen = informers.InformerFactory(store)
    watched = (seen.runs, seen.pods, seen.nodes, seen.queues, seen.prices)
    assert watched
    async with seen:
        made = recorder.UsageRecorder(store, seen, repository, prometheus.Registry(), now=clock)
        made._connect()
        await made._begin()
        await made.step()
        yield made


def a_pod(name: str) -> core.Pod:
    requests = core.ResourceRequirements(requests={"cpu": "1"})
    container = core.Container(name="c", image="x", resources=requests)
    return core.Pod(
        metadata=meta.ObjectMeta(name=name, namespace=build.NAMESPACE),
        spec=core.PodSpec(node_name="n1", containers=[container]),
    )


async def test_a_pod_that_ended_between_samples_counts_until_it_was_last_seen(store, repository):
    clock = Clock(int(times.now().timestamp()) + 100)
    await store.create(build.node("n1"))
    await store.create(a_pod("notebook"))
    async with keeping(store, repository, clock) as made:
        (hold,) = repository.open_holds()
        assert (hold.party.team, hold.party.run, hold.cpu) == (build.NAMESPACE, "", 1000)
        seen = clock.now = clock.now + 60
        await made.step()
    await store.delete(core.Pod, "notebook", build.NAMESPACE, grace_seconds=0)
    clock.now += 1000
    async with keeping(store, repository, clock):
        assert repository.open_holds() == []
        verdict = reconciliation.verify(repository, seen - 500, clock.now, live=[])
        assert verdict.holds
        told = {gap["what"]: gap for gap in verdict.gaps}
        assert set(told) == {"observation", "pod"}
        assert told["pod"]["since"] == times.seconds(times.from_unix(seen))
    with repository.engine.connect() as connection:
        (ended,) = connection.exec_driver_sql("SELECT ended FROM interval").scalars()
    assert ended == seen


async def test_a_pod_from_before_the_ledger_counts_from_its_beginning(store, repository):
    clock = Clock(int(times.now().timestamp()) + 5000)
    await store.create(build.node("n1"))
    await store.create(a_pod("old"))  # created 5000 seconds before the ledger
    began = clock.now
    async with keeping(store, repository, clock) as made:
        (hold,) = repository.open_holds()
        assert hold.started == began
        clock.now += 60
        await made.step()
        verdict = reconciliation.verify(repository, began - 9000, clock.now)
        assert verdict.holds
        assert (verdict.early, verdict.homeless_hours) == ([], 0.0)
        with repository.reading() as connection:
            account = rollups.Account()
            rollups.counted(connection, repository.prices(), began - 9000, clock.now, account)
        (used,) = account.sums.values()
        (there,) = account.hardware.values()
        assert used.held <= there.present * 1_000_000


async def test_usage_before_its_device_is_found_though_nothing_has_a_price(store, repository):
    clock = Clock(int(times.now().timestamp()) + 100)
    await store.create(build.node("n1"))
    await store.create(a_pod("notebook"))
    async with keeping(store, repository, clock) as made:
        clock.now += 60
        await made.step()
        with repository.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE open_interval SET started = started - 3600")
        verdict = reconciliation.verify(repository, clock.now - 9000, clock.now)
        assert (verdict.difference, verdict.holds) == (0, False)
        assert len(verdict.early) == 1
        assert verdict.early[0].startswith(f"{build.NAMESPACE}/pod on n1 machine from ")


async def test_a_node_that_went_meanwhile_was_there_until_it_was_last_seen(store, repository):
    clock = Clock(START)
    await store.create(build.node("n1"))
    async with keeping(store, repository, clock) as made:
        assert {each.device.node for each in repository.present()} == {"n1"}
        clock.now += 60
        await made.step()
    await store.delete(core.Node, "n1")
    clock.now += 5000
    async with keeping(store, repository, clock):
        assert repository.present() == []
    with repository.engine.connect() as connection:
        ends = set(connection.exec_driver_sql("SELECT ended FROM presence").scalars())
    assert ends == {START + 60}


async def test_what_only_one_side_knows_is_shown(store, repository):
    clock = Clock(START)
    await store.create(build.node("n1"))
    await store.create(a_pod("notebook"))
    async with keeping(store, repository, clock):
        stranger = reconciliation.Live("other", 0, "", 0, "team/other")
        verdict = reconciliation.verify(repository, START, START + 1, live=[stranger])
    assert verdict.missing == ["team/other"]
    assert len(verdict.ghosts) == 1


async def test_a_deleted_run_is_let_go_when_it_is_written_down(store, repository):
    clock = Clock(START)
    await store.create(build.node("n1"))
    owner = build.a_run("job", build.role())
    owner.metadata.finalizers = [run.FINALIZER_LEDGER]
    await store.create(owner)
    at = times.seconds(times.from_unix(START))
    held = {"attempt": 0, "role": "worker", "count": 1, "since": at}
    room = {"attempt": 0, "epoch": 1, "members": {"worker": [{"node": "n1"}]}}

    async def tell(**status: object) -> None:
        patch = {"status": status}
        await store.patch(run.Run, "job", build.NAMESPACE, subresource="status", patch=patch)

    await tell(phase="Running", assignment=room, held=[held])
    async with keeping(store, repository, clock):
        assert len(repository.open_holds()) == 1
    await store.delete(run.Run, "job", build.NAMESPACE)
    async with keeping(store, repository, clock):
        assert (await store.get(run.Run, "job", build.NAMESPACE)).metadata.finalizers
    later = times.seconds(times.from_unix(START + 50))
    await tell(phase="Stopped", held=[{**held, "until": later}])
    for _ in range(2):  # once more after it is gone: nothing is written twice
        async with keeping(store, repository, clock):
            found = (await store.list(run.Run, build.NAMESPACE)).items
            assert found == []
    with repository.engine.connect() as connection:
        rows = connection.exec_driver_sql("SELECT started, ended FROM interval").all()
    assert [tuple(row) for row in rows] == [(START, START + 50)]


async def a_run_that_lasted(store, seconds: int, start: int = START) -> run.Run:
    """A Run `job` that has ended."""
    owner = build.a_run("job", build.role())
    owner.metadata.finalizers = [run.FINALIZER_LEDGER]
    made = await store.create(owner)
    since, until = (times.seconds(times.from_unix(start + n)) for n in (0, seconds))
    held = {"attempt": 0, "role": "worker", "count": 1, "since": since, "until": until}
    room = {"attempt": 0, "epoch": 1, "members": {"worker": [{"node": "n1"}]}}
    status = {"phase": "Succeeded", "assignment": room, "held": [held]}
    await store.patch(
        run.Run, "job", build.NAMESPACE, subresource="status", patch={"status": status}
    )
    return made


async def test_a_run_created_again_under_its_name_is_another_run(store, repository):
    clock = Clock(START + 100)
    await store.create(build.node("n1"))
    uids = set()
    for _ in range(2):  # the same name, member, node and second
        uids.add((await a_run_that_lasted(store, 30)).uid)
        async with keeping(store, repository, clock):
            await store.delete(run.Run, "job", build.NAMESPACE)
        async with keeping(store, repository, clock):
            assert (await store.list(run.Run, build.NAMESPACE)).items == []
    query = usage.UsageQuery(START, START + 100, START + 100, by=("run",), team=build.NAMESPACE)
    (row,) = usage.usage(repository, query).rows
    account = rollups.between(repository, START, START + 100, by_run=True)
    assert {who.uid for who, *_ in account.sums} == uids
    each = {total.cpu for total in account.sums.values()}
    assert len(each) == 1
    assert row.cpu_hours == round(2 * each.pop() / 1000 / 3600, 6)
    assert reconciliation.verify(repository, START, START + 100).overlaps == []


@pytest.mark.parametrize("settled", [False, True])
async def test_a_run_of_less_than_a_second_is_recorded_although_it_held_nothing(
    store, repository, settled
):
    clock = Clock(START + 100)
    await store.create(build.node("n1"))
    await a_run_that_lasted(store, 0)
    async with keeping(store, repository, clock):
        pass
    if settled:
        assert rollups.settle(repository, START + DAY) == 1
    query = usage.UsageQuery(START, START + DAY, START + 2 * DAY, by=("run",), team=build.NAMESPACE)
    (row,) = usage.usage(repository, query).rows
    assert (row.labels, row.machine_hours) == ({"run": "job"}, 0)
    assert reconciliation.verify(repository, START, START + DAY).holds


async def test_a_deleted_run_stays_while_the_database_is_away(store, repository, monkeypatch):
    clock = Clock(START + 100)
    await store.create(build.node("n1"))
    await a_run_that_lasted(store, 30)
    await store.delete(run.Run, "job", build.NAMESPACE)

    def away(*_: object) -> int:
        raise sa.exc.OperationalError("INSERT", {}, Exception("the server went away"))

    with monkeypatch.context() as patched:
        patched.setattr(repository, "write", away)
        with pytest.raises(sa.exc.OperationalError):
            async with keeping(store, repository, clock):
                pass
        assert (await store.get(run.Run, "job", build.NAMESPACE)).metadata.finalizers
    # What was written when it died before the Run was let go is not written again.
    real = repository.settle_parties
    monkeypatch.setattr(repository, "settle_parties", away)
    with pytest.raises(sa.exc.OperationalError):
        async with keeping(store, repository, clock):
            pass
    assert (await store.get(run.Run, "job", build.NAMESPACE)).metadata.finalizers
    monkeypatch.setattr(repository, "settle_parties", real)
    async with keeping(store, repository, clock):
        assert (await store.list(run.Run, build.NAMESPACE)).items == []
    with repository.engine.connect() as connection:
        rows = connection.exec_driver_sql("SELECT started, ended FROM interval").all()
    assert [tuple(row) for row in rows] == [(START, START + 30)]


def test_many_may_open_a_new_ledger_at_the_same_time(url):
    address = url()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        books = list(pool.map(lambda _: LedgerRepository.open(address), range(8)))
    for each in books:
        assert each.present() == []
        each.close()


async def test_a_node_was_there_when_runs_held_it_though_the_ledger_looked_later(store, repository):
    begun = int(times.now().timestamp())  # nodes say when they were made by the store's own clock
    clock = Clock(begun + 100)
    await store.create(build.node("n1"))
    await a_run_that_lasted(store, 30, begun + 20)
    async with keeping(store, repository, clock) as made:
        assert {each.started for each in repository.present()} == {begun + 20}
        found = rollups.between(repository, begun, clock.now)
        assert sum(each.homeless for each in found.hardware.values()) == 0
        await made.step()
        clock.now += 5
        await store.create(build.node("n2"))
        made._nodes_changed = True
        await made.step()
    later = {each.device.node: each.started for each in repository.present()}
    assert later["n2"] == begun + 100  # not before the last look
