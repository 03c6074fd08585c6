"""The engine against a model: any history of writes, read at any revision, after any restart."""

from __future__ import annotations

import asyncio
import dataclasses
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.store import errors
from windlass.store.embedded import backup, migrations
from windlass.store.embedded.mvcc import (
    ADDED,
    DELETED,
    MODIFIED,
    Key,
    MvccStore,
    Revision,
    Transaction,
)

RESOURCE = "pods"
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "put", "delete", "compact", "reopen", "refused"]),
        st.sampled_from(["a", "b"]),
        st.sampled_from(["x", "y", "z"]),
    ),
    max_size=25,
)


def write(key: Key) -> Callable[[Transaction], int]:
    def request(t: Transaction) -> int:
        previous = t.get(key)
        return t.put(key, f"{key.namespace}/{key.name}", f'"{t.next_rv()}"'.encode(), previous)

    return request


def delete(key: Key) -> Callable[[Transaction], int]:
    def request(t: Transaction) -> int:
        previous = t.get(key)
        if previous is None:
            raise errors.NotFound(key.name)
        return t.remove(key, f'"{t.next_rv()}"'.encode(), previous)

    return request


def refused(key: Key) -> Callable[[Transaction], int]:
    def request(t: Transaction) -> int:
        write(key)(t)
        raise errors.Conflict("changed its mind after writing")

    return request


@dataclasses.dataclass
class Model:
    """What the store should hold, in plain Python."""

    states: list[dict[Key, bytes]] = dataclasses.field(default_factory=lambda: [{}])
    log: list[tuple[int, Key, int]] = dataclasses.field(default_factory=list)
    compacted: int = 0

    def record(self, key: Key, event: int) -> None:
        rv = len(self.states)
        state = dict(self.states[-1])
        if event == DELETED:
            del state[key]
        else:
            state[key] = f'"{rv}"'.encode()
        self.states.append(state)
        self.log.append((rv, key, event))


async def apply(mvcc: MvccStore, model: Model, action: str, key: Key) -> None:
    alive = key in model.states[-1]
    if action == "put":
        await mvcc.write(write(key))
        model.record(key, MODIFIED if alive else ADDED)
    elif action == "delete" and alive:
        await mvcc.write(delete(key))
        model.record(key, DELETED)
    elif action == "refused":
        with pytest.raises(errors.Conflict):
            await mvcc.write(refused(key))
    elif action == "compact":
        model.compacted = max(model.compacted, (len(model.states) - 1) // 2)
        await mvcc.compact(model.compacted, slice_size=3)


async def check(mvcc: MvccStore, model: Model) -> None:
    latest = len(model.states) - 1
    assert mvcc.last_rv == latest
    for at in range(max(model.compacted, 1), latest + 1):
        assert await pages(mvcc, "", 2, at) == sorted_states(model, "", at)
        assert await pages(mvcc, "a", 0, at) == sorted_states(model, "a", at)
    for after in range(model.compacted, latest + 1):
        found = await mvcc.history(RESOURCE, after, 1000)
        assert [(c.rv, c.key, c.event) for c in found] == [e for e in model.log if e[0] > after]
        for change in found:
            before = model.states[change.rv - 1].get(change.key)
            assert change.previous == before
    if model.compacted:
        with pytest.raises(errors.Gone):
            await mvcc.history(RESOURCE, model.compacted - 1, 10)


async def pages(mvcc: MvccStore, namespace: str, limit: int, at: int) -> list[bytes]:
    """The whole list as of a revision, read page by page."""
    parts: list[bytes] = []
    after = ("", "")
    while True:
        page = await mvcc.page(RESOURCE, namespace, after, limit, at)
        assert page.rv == at
        parts += page.body.split(b",") if page.body else []
        if page.last is None:
            assert page.remaining == 0
            return parts
        after = page.last


def sorted_states(model: Model, namespace: str, at: int) -> list[bytes]:
    state = model.states[at]
    keys = sorted(
        (k for k in state if namespace in ("", k.namespace)), key=lambda k: (k.namespace, k.name)
    )
    return [state[key] for key in keys]


@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
def test_every_revision_reads_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, steps: list
) -> None:
    path = tmp_path_factory.mktemp("engine") / "store.db"

    async def story() -> None:
        mvcc, model = MvccStore(path, lambda changes: None), Model()
        for action, namespace, name in steps:
            if action == "reopen":
                await mvcc.close()
                mvcc = MvccStore(path, lambda changes: None)
                continue
            await apply(mvcc, model, action, Key(RESOURCE, namespace, name))
        await check(mvcc, model)
        await mvcc.close()

    asyncio.run(story())


async def test_requests_of_one_moment_share_a_commit_and_keep_their_order(tmp_path: Path) -> None:
    commits: list[list[Revision]] = []
    mvcc = MvccStore(tmp_path / "store.db", commits.append)
    keys = [Key(RESOURCE, "a", f"n{i}") for i in range(50)]
    versions = await asyncio.gather(*(mvcc.write(write(key)) for key in keys))
    assert versions == list(range(1, 51))
    assert [change.rv for commit in commits for change in commit] == versions
    assert len(commits) == 1
    await mvcc.close()


async def test_one_refused_request_does_not_touch_its_neighbours(tmp_path: Path) -> None:
    mvcc = MvccStore(tmp_path / "store.db", lambda changes: None)
    good, bad = Key(RESOURCE, "a", "good"), Key(RESOURCE, "a", "bad")
    outcomes: list[Any] = await asyncio.gather(
        mvcc.write(write(good)), mvcc.write(refused(bad)), mvcc.write(write(good)),
        return_exceptions=True,
    )  # fmt: skip
    assert outcomes[0] == 1
    assert isinstance(outcomes[1], errors.Conflict)
    assert outcomes[2] == 2
    assert mvcc.get(bad) is None
    await mvcc.close()


async def test_a_watcher_gets_the_event_before_the_writer_gets_the_answer(tmp_path: Path) -> None:
    """Otherwise one could write, then list, and find the list older than a watch already showed."""
    seen: list[int] = []
    mvcc = MvccStore(tmp_path / "store.db", lambda changes: seen.extend(c.rv for c in changes))
    rv = await mvcc.write(write(Key(RESOURCE, "a", "x")))
    assert seen == [rv]
    await mvcc.close()


async def test_a_full_disk_refuses_writes_and_recovers(tmp_path: Path) -> None:
    mvcc = MvccStore(tmp_path / "store.db", lambda changes: None)
    await mvcc.write(write(Key(RESOURCE, "a", "x")))
    pages_used = mvcc._writer.execute("PRAGMA page_count").fetchone()[0]
    mvcc._writer.execute(f"PRAGMA max_page_count = {pages_used}")

    def large(t: Transaction) -> int:
        return t.put(Key(RESOURCE, "a", "big"), "big", b'"' + b"x" * 100_000 + b'"', None)

    with pytest.raises(errors.ApiError):
        await mvcc.write(large)
    mvcc._writer.execute("PRAGMA max_page_count = 100000")
    assert await mvcc.write(large) == 2
    await mvcc.close()


@pytest.mark.parametrize(
    ("name", "again"), [("SQLITE_IOERR", "restart Windlass"), ("SQLITE_BUSY", "try again")]
)
async def test_writes_are_refused_when_no_transaction_begins(
    tmp_path: Path, name: str, again: str
) -> None:
    mvcc = MvccStore(tmp_path / "s.db", lambda _: None)
    real = mvcc._writer

    class Writer:
        """Begins nothing."""

        in_transaction = False

        def execute(self, sql: str) -> None:
            problem = sqlite3.OperationalError(sql)
            problem.sqlite_errorname = name
            raise problem

    mvcc._writer = Writer()
    async with asyncio.timeout(30):
        outcomes = await asyncio.gather(
            *(mvcc.write(write(Key(RESOURCE, "a", each))) for each in "xyz"),
            return_exceptions=True,
        )
    assert [again in str(each) for each in outcomes] == [True] * 3
    mvcc._writer = real
    await mvcc.close()


async def test_an_older_store_is_copied_aside_and_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with sqlite3.connect(path) as old:
        old.executescript(migrations.MIGRATIONS[0])
        old.execute("INSERT INTO revision VALUES (7, 'pods', 'a', 'x', 1, NULL, '\"7\"')")
        old.execute("INSERT INTO current VALUES ('pods', 'a', 'x', 'u1', 7)")
        old.execute("PRAGMA user_version = 1")
    old.close()
    mvcc = MvccStore(path, lambda changes: None)
    assert mvcc.get(Key(RESOURCE, "a", "x")) == '"7"'
    assert await mvcc.write(write(Key(RESOURCE, "a", "y"))) == 8
    await mvcc.close()
    kept = tmp_path / "backups" / "store-before-upgrade-from-v1.db"
    assert backup.inspect(kept).objects == 1


def test_a_store_of_a_newer_version_is_refused_with_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with sqlite3.connect(path) as newer:
        newer.execute("PRAGMA user_version = 99")
    newer.close()
    with pytest.raises(migrations.StoreTooNew, match="upgrade Windlass"):
        MvccStore(path, lambda changes: None)


async def test_a_backup_of_a_live_store_restores_with_versions_ahead(tmp_path: Path) -> None:
    path, copy = tmp_path / "store.db", tmp_path / "copy.db"
    mvcc = MvccStore(path, lambda changes: None)
    await mvcc.write(write(Key(RESOURCE, "a", "x")))
    assert backup.backup(path, copy).objects == 1
    await mvcc.write(write(Key(RESOURCE, "a", "later")))
    await mvcc.close()
    _, kept = backup.restore(copy, path)
    assert kept is not None
    assert backup.inspect(kept).objects == 2
    mvcc = MvccStore(path, lambda changes: None)
    assert mvcc.get(Key(RESOURCE, "a", "later")) is None
    assert await mvcc.write(write(Key(RESOURCE, "a", "new"))) > backup.VERSION_GAP
    with pytest.raises(errors.Gone):
        await mvcc.history(RESOURCE, 1, 10)
    await mvcc.close()


def test_what_is_no_store_is_not_restored(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not a database at all")
    with pytest.raises(backup.NotAStore):
        backup.restore(tmp_path / "text", tmp_path / "store.db")
    assert not (tmp_path / "store.db").exists()
