"""The fleet's series: one look at it, what is kept of many samples, and their report."""

from __future__ import annotations

import csv
import dataclasses
import io

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.control import build
from tests.unit.control.conftest import store as store
from tests.unit.ledger.history import CPU, MEMORY, node
from tests.unit.ledger.test_budgets import Clock
from tests.unit.ledger.test_recorder import a_pod, keeping
from windlass.control.runtime import informers
from windlass.kinds.types import core, meta, queue, run
from windlass.kinds.values import times
from windlass.ledger.db import samples, schema
from windlass.ledger.db.repository import LedgerRepository
from windlass.ledger.ingest import fleet_sample, sampler, utilization
from windlass.ledger.ingest.utilization import Measured, Use
from windlass.ledger.model import (
    DAY,
    MACHINE,
    WHOLE,
    FleetSample,
    Hold,
    Member,
    Party,
    QueueAmounts,
)
from windlass.ledger.reports import fleet, fleet_page
from windlass.telemetry import prometheus

START = 1_790_812_800
NODES = {"n1": node("n1"), "n2": node("n2")}


def a_hold(team: str, device: str, part: int = WHOLE, cpu: int = 0) -> Hold:
    what = NODES["n1"].devices[device]
    return Hold(Party(f"uid-{team}", team), Member(), what, START, None, "share", part, cpu=cpu)


def a_queue(name: str, parent: str = "", **status: dict[str, str]) -> queue.Queue:
    return queue.Queue(
        metadata=meta.ObjectMeta(name=name),
        spec=queue.QueueSpec(parent=parent or None, namespaces=[name] if parent else None),
        status=queue.QueueStatus(**status),
    )


def a_sample(**told: object) -> FleetSample:
    usual: dict[str, object] = {
        "nodes": NODES, "pods": (), "holds": (), "queues": (), "runs": (),
        "measured": utilization.NOTHING,
    }  # fmt: skip
    return fleet_sample.sample(**(usual | told))


def a_pod_on(node: str, team: str) -> core.Pod:
    container = core.Container(name="c", image="x")
    return core.Pod(
        metadata=meta.ObjectMeta(name="p", namespace=team),
        spec=core.PodSpec(node_name=node, containers=[container]),
    )


# --- one look -------------------------------------------------------------------------------------


def test_devices_are_counted_by_model_and_unmeasured_ones_are_not_measured():
    found = a_sample()
    assert {key: cell.present for key, cell in found.cells.items()} == {
        ("", "cpu"): 2 * CPU, ("", "gpu/a100"): 4000, ("", MACHINE): 2000,
    }  # fmt: skip
    assert {cell.measured for cell in found.cells.values()} == {0}


def test_utilization_counts_for_the_holders_of_a_device():
    measured = Measured(
        nodes={"n1": Use(CPU // 2, MEMORY // 8, {"gpu/0": 800})},
        pods={("vision", "p"): Use(CPU // 4, 0)},
    )
    found = a_sample(
        holds=[a_hold("vision", "gpu/0", WHOLE // 4), a_hold("language", "gpu/0", WHOLE // 4),
               a_hold("vision", "gpu/1"), a_hold("vision", MACHINE, WHOLE // 2, 4000)],
        pods=[a_pod_on("n1", "vision")],
        measured=measured,
    )  # fmt: skip
    gpus = found.of("", "gpu/a100")
    assert (gpus.held, gpus.used, gpus.measured) == (1500, 800, 1000)  # one of four tells
    mine = found.of("vision", "gpu/a100")
    assert (mine.held, mine.used, mine.measured) == (1250, 400, 250)
    machine = found.of("", MACHINE)
    assert (machine.used, machine.measured) == (500, 1000)  # n2 is not measured
    assert found.of("vision", MACHINE).used == 250
    cores = found.of("vision", "cpu")
    assert (cores.held, cores.used, cores.measured) == (4000, CPU // 4, 4000)


def test_where_nodes_choose_devices_utilization_counts_for_all_holders():
    renamed = {
        name.replace("gpu/", "nvidia.com/gpu/"): dataclasses.replace(
            each, name=each.name.replace("gpu/", "nvidia.com/gpu/")
        )
        for name, each in NODES["n1"].devices.items()
    }
    there = {"n1": dataclasses.replace(NODES["n1"], devices=renamed)}
    first = dataclasses.replace(a_hold("vision", "gpu/0"), device=renamed["nvidia.com/gpu/0"])
    second = dataclasses.replace(a_hold("language", "gpu/1"), device=renamed["nvidia.com/gpu/1"])
    # Whose job the second device works for, only kubelet knows.
    measured = Measured({"n1": Use(0, 0, {"gpu/0": 0, "gpu/1": 900})}, nodes_choose=True)
    alone = a_sample(nodes=there, holds=[first], measured=measured)
    assert alone.of("vision", "gpu/a100").used == 900
    both = a_sample(nodes=there, holds=[first, second], measured=measured)
    assert both.of("vision", "gpu/a100").used == both.of("language", "gpu/a100").used == 450
    assert (both.of("", "gpu/a100").used, both.of("", "gpu/a100").measured) == (900, 2000)


def test_what_a_node_says_of_a_pod_elsewhere_does_not_count():
    pods = {("vision", "p"): Use(CPU // 4, 0, node="n2")}
    measured = Measured({"n1": Use(0, 0), "n2": Use(0, 0)}, pods)
    found = a_sample(pods=[a_pod_on("n1", "vision")], measured=measured)
    assert found.of("vision", "cpu").used == 0


def test_what_is_lent_counts_for_the_team_and_the_model_once():
    found = a_sample(
        queues=[
            a_queue("root", lent={"gpu": "3", "memory": "1Gi"}, borrowed={"gpu": "3"}),
            a_queue("a", "root", lent={"gpu": "3"}),
            a_queue("b", "root", borrowed={"gpu": "3", "gpu/a100": "1"}, used={"cpu": "2"}),
        ]
    )
    assert found.of("a", "gpu/a100").lent == 3000
    assert found.of("b", "gpu/a100").borrowed == 3000  # figures by kind and by model are one
    whole = found.of("", "gpu/a100")
    assert (whole.lent, whole.borrowed) == (3000, 3000)
    assert found.queues["b", "cpu"] == QueueAmounts(used=2000)
    assert not any(resource == "memory" for _, resource in found.queues)


def test_waiting_runs_count_for_the_model_they_ask_for_or_for_the_kind():
    both = NODES | {"n3": node("n3")}
    other = dict(both["n3"].devices)
    for name in ("gpu/0", "gpu/1"):
        other[name] = dataclasses.replace(other[name], model="h100")
    both["n3"] = dataclasses.replace(both["n3"], devices=other)
    runs = [
        build.a_run("any", build.role(replicas=2, devices=[run.Device(kind="gpu", count=4)])),
        build.a_run("one", build.role(devices=[run.Device(kind="gpu", models=["h100"])])),
        build.a_run("part", build.role(devices=[run.Device(kind="gpu", share="1/3")])),
        build.a_run("small", build.role(devices=[run.Device(kind="gpu", compute=25)])),
        build.a_run("away", build.role(devices=[run.Device(kind="npu")])),
        build.a_run("held", build.role(), suspend=True),
    ]
    found = a_sample(nodes=both, runs=runs)
    waiting = {key: cell.waiting for key, cell in found.cells.items() if cell.waiting}
    assert waiting[build.NAMESPACE, "gpu"] == waiting["", "gpu"] == 8000 + 334 + 250
    assert waiting["", "gpu/h100"] == 1000
    assert waiting["", "npu"] == 1000
    assert waiting["", "cpu"] == 6000
    # Where there is only one model, it is that one.
    assert a_sample(runs=runs[:1]).of("", "gpu/a100").waiting == 8000


# --- many looks -----------------------------------------------------------------------------------


def _rows(repository: LedgerRepository) -> dict[str, int]:
    table = schema.fleet_sample
    names = [column.name for column in table.c if not column.primary_key]
    query = sa.select(*(sa.func.sum(table.c[name]) for name in names), sa.func.count())
    with repository.engine.connect() as connection:
        row = connection.execute(query).one()
    return {name: int(value or 0) for name, value in zip([*names, "rows"], row, strict=True)}


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seen=st.lists(st.tuples(st.integers(0, 90 * DAY), st.integers(0, 9)), max_size=12),
    ages=st.lists(st.integers(0, 120 * DAY), max_size=4),
)
def test_samples_that_are_put_together_say_the_same_in_fewer_rows(make, seen, ages):
    repository = make()
    for after, waiting in seen:
        look = a_sample()
        look.of("vision", "cpu").waiting = look.of("", "cpu").waiting = waiting * 1000
        samples.write(repository, look, START + after, 60)
    before = _rows(repository)
    for age in ages:
        samples.compact(repository, START + age)
    after_ = _rows(repository)
    assert {**after_, "rows": 0} == {**before, "rows": 0}
    samples.compact(repository, START + 300 * DAY)
    days = {(START + at) // DAY for at, _ in seen}
    assert _rows(repository)["rows"] == 4 * len(days)  # cpu, machine, gpu; and the team's
    with repository.reading() as connection:
        told = samples.read(connection, START, START + 91 * DAY, DAY)
    for at in told.observed:
        mine = [waiting for after, waiting in seen if (START + after) // DAY * DAY == at]
        average = told.fleet[at]["vision", "cpu"]["waiting"]
        assert average == pytest.approx(sum(mine) / len(mine), abs=0.001)


def test_samples_of_the_first_tables_are_kept(url):
    address = url()
    LedgerRepository.open(address).close()
    engine = sa.create_engine(address.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:  # back to how it was
        connection.exec_driver_sql("DROP TABLE queue_sample")
        connection.exec_driver_sql("DROP TABLE fleet_sample")
        connection.exec_driver_sql("DROP TABLE step_record")
        connection.exec_driver_sql("DROP TABLE step_parts")
        connection.exec_driver_sql("DROP TABLE study")
        connection.exec_driver_sql("DROP TABLE trial")
        connection.exec_driver_sql(
            "CREATE TABLE sample (at BIGINT, queue VARCHAR(256), resource VARCHAR(128), "
            "used BIGINT, borrowed BIGINT, lent BIGINT, waiting BIGINT)"
        )
        connection.exec_driver_sql(f"INSERT INTO sample VALUES ({START}, 'q', 'gpu', 1, 2, 3, 4)")
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0001'")
    engine.dispose()
    repository = LedgerRepository.open(address)
    (told,) = fleet.series(repository, START, START + 600, START + 600, 300).queues
    assert (told.used, told.borrowed, told.lent, told.waiting) == (0.001, 0.002, 0.003, 0.004)
    repository.close()


# --- reports --------------------------------------------------------------------------------------


async def test_the_series_tells_what_was_held_used_lent_and_waited_for(store, repository):
    clock = Clock(
        (int(times.now().timestamp()) // 3600 + 1) * 3600
    )  # within one hour of the series
    await store.create(build.node("n1"))
    await store.create(a_pod("busy"))
    wants = build.a_run("later", build.role(cpu="64"))
    await store.create(wants)
    registry = prometheus.Registry()

    async def meter() -> Measured:
        pods = {(build.NAMESPACE, "busy"): Use(500, 0)}
        return Measured({"n1": Use(1500, 0)}, pods)

    seen = informers.InformerFactory(store)
    watched = (seen.runs, seen.pods, seen.nodes, seen.queues)
    assert watched
    async with keeping(store, repository, clock), seen:
        made = sampler.Sampler(seen, repository, registry, meter, now=clock)
        begun = clock.now
        for _ in range(3):
            await made.step()
            clock.now += 60
    found = fleet.series(repository, begun, clock.now, clock.now, 3600)
    (cores,) = [point for point in found.points if point.device == "cpu"][-1:]
    assert (cores.used, cores.waiting) == (1.5, 64.0)
    mine = cores.teams[build.NAMESPACE]
    assert (mine.held, mine.used, mine.lent, mine.waiting) == (1.0, 0.5, 0.0, 64.0)
    # Asked for a whole month, the report of a young fleet begins when it began.
    month = fleet.series(repository, begun - 30 * DAY, clock.now, clock.now)
    assert month.step_seconds <= 300
    assert [point.present for point in month.points if point.device == MACHINE][-1] == 1.0
    # Asked for a time before it, of nothing.
    assert fleet.series(repository, begun - 30 * DAY, begun - 10 * DAY - 7, clock.now).points == []
    rows = list(csv.DictReader(io.StringIO(fleet_page.as_csv(found))))
    assert {(row["device"], row["team"]) for row in rows} >= {("cpu", ""), ("cpu", build.NAMESPACE)}
    page = fleet_page.as_html(found)
    assert page.count("<svg") >= 2
    assert build.NAMESPACE in page
    text = registry.render()
    assert 'windlass_fleet_devices{device="cpu",state="waiting"} 64' in text
    assert 'windlass_team_devices{team="team",device="cpu",state="used"} 0.5' in text


async def test_unmeasured_devices_are_absent_everywhere_and_never_zero(store, repository):
    clock = Clock(START)
    await store.create(build.node("n1"))
    registry = prometheus.Registry()

    async def silent() -> Measured:
        raise TimeoutError

    seen = informers.InformerFactory(store)
    watched = (seen.runs, seen.pods, seen.nodes, seen.queues)
    assert watched
    async with keeping(store, repository, clock), seen:
        await sampler.Sampler(seen, repository, registry, silent, now=clock).step()
    clock.now += 60
    (point,) = [
        each
        for each in fleet.series(repository, START, clock.now, clock.now).points
        if each.device == MACHINE
    ]
    assert (point.present, point.used, point.waiting) == (1.0, None, 0.0)
    assert 'state="used"' not in registry.render()
    assert "not measured" in fleet_page.as_html(
        fleet.series(repository, START, clock.now, clock.now)
    )


async def test_of_a_time_without_samples_nothing_is_reported(store, repository):
    clock = Clock(START)
    await store.create(build.node("n1"))
    async with keeping(store, repository, clock):
        clock.now += 600
    (point,) = fleet.series(repository, START, START + 60, clock.now).points
    assert (point.device, point.present) == (MACHINE, 1.0)
    assert (point.lent, point.waiting, point.used) == (None, None, None)
