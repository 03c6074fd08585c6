"""Many objects and watchers, one of which never reads: the others and the memory do not care."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bench import load as bench_load
from tests.faults.seeds import SOAK
from tests.harness.embedded import EmbeddedServer

OBJECTS = 50_000 if SOAK else 400
WATCHERS = 200 if SOAK else 10
CHANGES = 6000 if SOAK else 4000
SIZE = 10_000
MIB = 1 << 20

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800 if SOAK else 240)]


@pytest.fixture
async def load(tmp_path: Path) -> AsyncIterator[bench_load.Load]:
    with EmbeddedServer.start(tmp_path / "state") as server:
        async with bench_load.session() as session:
            yield bench_load.Load(server, session)


async def test_a_stuck_watcher_neither_delays_the_others_nor_grows_the_server(
    load: bench_load.Load,
) -> None:
    """Connections cost what they cost once; after that, what the stuck one misses costs nothing.

    So memory is compared between two equal rounds of changes, not with a server without watchers:
    were the missed changes kept for it, the second round would add all of them.
    """
    await load.create(OBJECTS, 600)
    await load.change(2500, OBJECTS, SIZE, "warm")  # what is kept of recent changes is full now
    version = await load.version()
    unwatched = load.rss()
    stuck = await load.watch(version)
    following = [await load.watch(version) for _ in range(WATCHERS)]
    seen: list[str] = []
    memory = []
    for round_name in ("first", "second"):
        told = [asyncio.create_task(bench_load.marks(r, CHANGES)) for r in following]
        await load.change(CHANGES, OBJECTS, SIZE, round_name)
        sequences = await asyncio.gather(*told)
        assert sorted(sequences[0]) == sorted(f"{round_name}-{i}" for i in range(CHANGES))
        assert all(sequence == sequences[0] for sequence in sequences)
        seen += sequences[0]
        memory.append(load.rss())
    print("MiB:", [round(bytes_ / MIB, 1) for bytes_ in (unwatched, *memory)])
    missed = CHANGES * SIZE
    assert memory[1] - memory[0] < missed / 2, [unwatched, *memory]

    # The stuck one wakes up: it missed nothing, because what it did not read is in the store.
    assert await bench_load.marks(stuck, 2 * CHANGES) == seen
    for response in (stuck, *following):
        response.close()


async def test_many_watchers_that_ask_for_everything_and_stop_reading_cost_little(
    load: bench_load.Load,
) -> None:
    """Initial events are sent in slices: a reader that stops holds one, not the whole list."""
    objects = 3000
    await load.create(objects, SIZE)
    before = load.rss()
    stuck = [await load.watch("0") for _ in range(20)]
    for response in stuck:
        assert (await response.content.readline()).startswith(b'{"type":"ADDED"')
    whole = objects * SIZE
    grown = load.rss() - before
    assert grown < len(stuck) * whole / 3, f"{grown / MIB:.0f} MiB of {whole * 20 / MIB:.0f}"
    for response in stuck:
        response.close()


async def test_reads_and_writes_go_on_while_everything_is_listed(load: bench_load.Load) -> None:
    """One after another, many requests are answered while a few lists are: a server that works on
    one list at a time would answer about one request for each list."""
    await load.create(2000, SIZE)
    # In threads that do not parse what they get, so that it is the server that is waited for.
    clients = [load.server.rest() for _ in range(5)]
    lists = [
        asyncio.create_task(asyncio.to_thread(each.get, bench_load.COLLECTION)) for each in clients
    ]
    answered = 0
    while not all(each.done() for each in lists):
        await load.read(1, 2000)
        await load.change(1, 2000, 600, f"beside-{answered}")
        answered += 1
    assert answered > 2 * len(lists)
    assert [len((await each).json["items"]) for each in lists] == [2000] * len(lists)
    for client in clients:
        client.close()
