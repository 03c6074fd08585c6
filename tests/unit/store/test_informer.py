"""The informer against a store whose faults are scripted: nothing lost, no event twice."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.kinds.types.core import ConfigMap
from windlass.kinds.types.meta import ObjectMeta
from windlass.store import errors
from windlass.store.informer import Backoff, Informer
from windlass.store.interface import ObjectList, WatchEvent


class World:
    """A store in memory with the faults of a real one: cuts, compaction, refusals."""

    def __init__(self) -> None:
        self.version = 0
        self.objects: dict[str, ConfigMap] = {}
        self.history: list[tuple[int, WatchEvent[ConfigMap]]] = []
        self.compacted = 0
        self.bookmarked = 0
        self.list_errors: list[Exception] = []
        self.watch_errors: list[Exception] = []
        self.extra: list[WatchEvent[ConfigMap]] = []
        """Events that a faulty server sends although they are old."""
        self.page = 0
        self.lists = 0
        self.watched_from: list[str] = []
        self.open_watches = 0
        self._cuts = 0
        self._cut_error: Exception | None = None
        self._changed = asyncio.Event()

    # --- what happens in it

    def write(self, name: str, value: str = "", *, uid: str = "") -> None:
        known = self.objects.get(name)
        self.version += 1
        metadata = ObjectMeta(
            name=name,
            namespace="ns",
            uid=uid or (known.uid if known else f"{name}-{self.version}"),
            resource_version=str(self.version),
        )
        obj = ConfigMap(metadata=metadata, data={"value": value})
        self.objects[name] = obj
        self._record(WatchEvent("MODIFIED" if known else "ADDED", obj))

    def delete(self, name: str) -> None:
        known = self.objects.pop(name, None)
        if known is None:
            return
        self.version += 1
        metadata = msgspec.structs.replace(known.metadata, resource_version=str(self.version))
        self._record(WatchEvent("DELETED", ConfigMap(metadata=metadata, data=known.data)))

    def bookmark(self) -> None:
        self.version += 1
        self.bookmarked = self.version
        metadata = ObjectMeta(resource_version=str(self.version))
        self._record(WatchEvent("BOOKMARK", ConfigMap(metadata=metadata)))

    def cut(self, error: Exception | None = None) -> None:
        """Ends every open watch: cleanly, or with an error."""
        self._cuts += 1
        self._cut_error = error
        self._wake()

    def compact(self) -> None:
        self.compacted = self.version
        self.cut()

    def go_back(self, objects: dict[str, ConfigMap], version: int) -> None:
        """As if restored from a backup."""
        self.objects, self.version, self.history = dict(objects), version, []
        self.watch_errors.append(errors.Gone("the version is from another life"))
        self.cut()

    # --- the Store protocol, as far as an informer uses it

    async def list(self, kind: Any, namespace: str = "", **options: Any) -> ObjectList[ConfigMap]:
        self.lists += 1
        if self.list_errors:
            raise self.list_errors.pop(0)
        everything = list(self.objects.values())
        start = int(options.get("continue_token") or 0)
        limit = options.get("limit") or len(everything) or 1
        token = str(start + limit) if start + limit < len(everything) else ""
        return ObjectList(everything[start : start + limit], str(self.version), token)

    async def watch(
        self,
        kind: Any,
        namespace: str = "",
        *,
        resource_version: str = "",
        opened: Callable[[], None],
        **options: Any,
    ) -> AsyncIterator[WatchEvent[ConfigMap]]:
        self.watched_from.append(resource_version)
        cursor, cuts = int(resource_version), self._cuts
        if self.watch_errors:
            raise self.watch_errors.pop(0)
        if cursor < self.compacted:
            raise errors.Gone("too old resource version")
        self.open_watches += 1
        opened()
        try:
            for event in self.extra:
                yield event
            while self._cuts == cuts:
                pending = [(v, event) for v, event in self.history if v > cursor]
                if not pending:
                    await self._changed.wait()
                    continue
                cursor, event = pending[0]
                yield event
            if self._cut_error is not None:
                raise self._cut_error
        finally:
            self.open_watches -= 1

    def _record(self, event: WatchEvent[ConfigMap]) -> None:
        self.history.append((self.version, event))
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class Story:
    """The events that handlers got; replayed, it must give the same objects."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.versions: dict[str, int] = {}
        self.objects: dict[str, ConfigMap] = {}
        self.pauses: list[float] = []

    def __call__(self, change: str, old: ConfigMap | None, new: ConfigMap | None) -> None:
        obj = new or old
        assert obj is not None
        self.told.append(f"{change} {obj.name}")
        if new is None:
            assert change == "DELETED"
            assert self.objects.pop(obj.name).uid == obj.uid
            return
        known = self.objects.get(obj.name)
        assert (change == "ADDED") == (known is None)
        assert old is known
        version = int(obj.metadata.resource_version)
        assert version > self.versions.get(obj.uid, 0), "told twice, or out of order"
        self.versions[obj.uid] = version
        self.objects[obj.name] = obj

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0)


def reflect(world: World, story: Story, **options: Any) -> Informer[ConfigMap]:
    options.setdefault("rng", random.Random(1))
    options.setdefault("sleep", story.sleep)
    return Informer(world, ConfigMap, on_event=story, **options)


async def caught_up(informer: Informer[ConfigMap], world: World) -> None:
    async with asyncio.timeout(20):
        while informer.position != str(world.version) or not world.open_watches:
            await asyncio.sleep(0)
    assert {obj.name: obj for obj in informer} == world.objects


async def test_the_index_follows_what_happens() -> None:
    world, story = World(), Story()
    world.write("a")
    async with reflect(world, story) as informer:
        await informer.synced()
        assert story.told == ["ADDED a"]
        world.write("a", "new")
        world.write("b")
        world.delete("a")
        await caught_up(informer, world)
        assert story.told == ["ADDED a", "MODIFIED a", "ADDED b", "DELETED a"]
        assert informer.get("a", "ns") is None
        assert informer.get("b", "ns") is world.objects["b"]
        assert (len(informer), world.lists) == (1, 1)


@pytest.mark.parametrize("error", [None, errors.Unavailable("cut")], ids=["clean end", "broken"])
async def test_a_cut_watch_is_resumed_where_it_stopped(error: Exception | None) -> None:
    world, story = World(), Story()
    async with reflect(world, story) as informer:
        await informer.synced()
        world.write("a")
        await caught_up(informer, world)
        world.cut(error)
        world.write("b")
        world.delete("a")
        await caught_up(informer, world)
        assert story.told == ["ADDED a", "ADDED b", "DELETED a"]
        assert world.lists == 1
        assert (informer.metrics.relists, informer.metrics.restarts) == (0, 1)


async def test_bookmarks_move_the_position() -> None:
    world, story = World(), Story()
    async with reflect(world, story) as informer:
        await informer.synced()
        world.write("a")
        world.bookmark()
        await caught_up(informer, world)
        world.cut()
        world.write("b")
        await caught_up(informer, world)
        assert world.watched_from[-1] == str(world.bookmarked)
        assert story.told == ["ADDED a", "ADDED b"]


async def test_after_compaction_the_difference_is_delivered() -> None:
    world, story = World(), Story()
    for name in ("stays", "changes", "goes", "is-made-again"):
        world.write(name)
    async with reflect(world, story) as informer:
        await caught_up(informer, world)
        story.told.clear()
        world.watch_errors.append(errors.Unavailable("away"))
        world.cut(errors.Unavailable("cut"))
        world.write("changes", "new")
        world.delete("goes")
        world.delete("is-made-again")
        world.write("is-made-again", "new")
        world.write("comes")
        world.history.clear()
        world.compact()
        await caught_up(informer, world)
        assert sorted(story.told) == [
            "ADDED comes",
            "ADDED is-made-again",
            "DELETED goes",
            "DELETED is-made-again",
            "MODIFIED changes",
        ]
        assert informer.metrics.relists == 1


async def test_old_events_that_a_server_repeats_are_ignored() -> None:
    world, story = World(), Story()
    async with reflect(world, story) as informer:
        await informer.synced()
        world.write("a")
        world.write("a", "2")
        world.write("b")
        world.delete("b")
        await caught_up(informer, world)
        world.extra = [event for _, event in world.history]
        world.cut()
        world.write("c")
        await caught_up(informer, world)
        assert story.told == ["ADDED a", "MODIFIED a", "ADDED b", "DELETED b", "ADDED c"]


async def test_a_store_that_was_restored_from_a_backup_is_believed() -> None:
    world, story, told = World(), Story(), []
    world.write("same")
    world.write("a", "1")
    backup, version = dict(world.objects), world.version
    world.write("a", "2")
    world.write("b")
    async with Informer(world, ConfigMap, sleep=story.sleep) as informer:
        await caught_up(informer, world)
        informer.add_handler(lambda change, old, new: told.append((change, (new or old).name)))
        told.clear()
        world.go_back(backup, version)
        await caught_up(informer, world)
        restored = informer.get("a", "ns")
        assert restored is not None
        assert restored.data == {"value": "1"}
        assert told == [("DELETED", "b"), ("MODIFIED", "a")]


async def test_a_defect_in_an_index_function_does_not_end_it() -> None:
    world, story = World(), Story()
    failures = [KeyError("a defect")]

    def colour(obj: ConfigMap) -> list[str]:
        if obj.name == "b" and failures:
            raise failures.pop()
        return [(obj.data or {})["value"]]

    async with reflect(world, story, indexes={"colour": colour}) as informer:
        await informer.synced()
        world.write("a", "red")
        await caught_up(informer, world)
        world.write("b", "red")
        await caught_up(informer, world)
        assert [obj.name for obj in informer.by("colour", "red")] == ["a", "b"]
        assert world.open_watches == 1
        assert story.told == ["ADDED a", "ADDED b"]


async def test_failures_are_retried_with_growing_pauses_until_it_works() -> None:
    world, story = World(), Story()
    world.write("a")
    world.list_errors = [errors.Unavailable("down")] * 8 + [errors.Forbidden("not yet")]
    backoff = Backoff(first=1.0, longest=60.0)
    async with reflect(world, story, backoff=backoff) as informer:
        await informer.synced()
        ceilings = [1, 2, 4, 8, 16, 32, 60, 60, 60]
        assert len(story.pauses) == len(ceilings)
        assert all(c / 2 <= p <= c for c, p in zip(ceilings, story.pauses, strict=True))
        assert informer.last_error is None
        assert informer.metrics.failures == 9


async def test_a_watch_that_is_open_again_is_no_trouble_though_nothing_happens() -> None:
    """Or a process on a quiet cluster would say for a minute that it is not ready."""
    world, story = World(), Story()
    async with reflect(world, story) as informer:
        await caught_up(informer, world)
        world.watch_errors = [errors.Unavailable("down")] * 3
        world.cut(errors.Unavailable("killed"))
        while informer.metrics.failures < 4 or not world.open_watches:
            await asyncio.sleep(0)
        assert informer.last_error is None


async def test_pauses_are_the_same_for_the_same_seed() -> None:
    pauses = []
    for _ in range(2):
        world, story = World(), Story()
        world.list_errors = [errors.Unavailable("down")] * 5
        async with reflect(world, story, rng=random.Random(7)) as informer:
            await informer.synced()
        pauses.append(story.pauses)
    assert pauses[0] == pauses[1]


async def test_a_server_that_asks_to_wait_is_obeyed() -> None:
    world, story = World(), Story()
    world.watch_errors = [errors.TooManyRequests("slow down", retry_after=17.0)]
    async with reflect(world, story) as informer:
        await caught_up(informer, world)
        assert story.pauses == [17.0]
        assert world.lists == 1


async def test_watches_that_fail_after_each_list_do_not_become_a_hot_loop() -> None:
    world, story = World(), Story()
    world.watch_errors = [errors.Gone("always")] * 5
    async with reflect(world, story, backoff=Backoff(first=1.0)) as informer:
        await caught_up(informer, world)
        assert world.lists == 6
        assert len(story.pauses) == 4, "the first is repeated at once, the others wait"
        assert story.pauses == sorted(story.pauses)


async def test_watches_that_end_at_once_do_not_become_a_hot_loop() -> None:
    class Ending(World):
        ends = 5

        async def watch(self, *args: Any, **options: Any) -> AsyncIterator[WatchEvent[ConfigMap]]:
            if self.ends:
                self.ends -= 1
                return
            async for event in super().watch(*args, **options):
                yield event

    world, story = Ending(), Story()
    async with reflect(world, story, clock=lambda: 0.0) as informer:
        await caught_up(informer, world)
        assert len(story.pauses) == 5
        assert world.lists == 1


async def test_pages_are_read_to_the_end() -> None:
    world, story = World(), Story()
    for i in range(10):
        world.write(f"o{i}")
    async with reflect(world, story, page_size=3) as informer:
        await caught_up(informer, world)
        assert (len(informer), world.lists) == (10, 4)


async def test_pages_that_expire_are_read_again_as_one() -> None:
    class Expiring(World):
        async def list(self, *args: Any, **options: Any) -> ObjectList[ConfigMap]:
            if options.get("continue_token") == "6":
                self.lists += 1
                raise errors.Gone("the continue token is too old")
            return await super().list(*args, **options)

    world, story = Expiring(), Story()
    for i in range(10):
        world.write(f"o{i}")
    async with reflect(world, story, page_size=3) as informer:
        await caught_up(informer, world)
        assert (len(informer), world.lists) == (10, 4)


async def test_a_handler_that_fails_does_not_stop_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world, story = World(), Story()

    def fail(*_: Any) -> None:
        raise KeyError("a defect")

    informer: Informer[ConfigMap] = Informer(world, ConfigMap, on_event=fail)
    informer.add_handler(story)
    async with informer:
        with caplog.at_level(logging.ERROR):
            world.write("a")
            await caught_up(informer, world)
    assert story.told == ["ADDED a"]
    assert informer.metrics.handler_errors == 1
    assert "ConfigMap ns/a" in caplog.text


async def test_a_handler_added_late_gets_existing_objects() -> None:
    world, first, second = World(), Story(), Story()
    world.write("a")
    async with reflect(world, first) as informer:
        await informer.synced()
        informer.add_handler(second)
        world.write("b")
        await caught_up(informer, world)
    assert second.told == ["ADDED a", "ADDED b"]


async def test_secondary_indexes_follow_changes() -> None:
    world, story = World(), Story()
    world.write("a", "red")
    world.write("b", "red")
    index = {"colour": lambda obj: [obj.data["value"]]}
    async with reflect(world, story, indexes=index) as informer:
        await caught_up(informer, world)

        def names(colour: str) -> list[str]:
            return sorted(obj.name for obj in informer.by("colour", colour))

        assert names("red") == ["a", "b"]
        world.write("a", "blue")
        world.delete("b")
        await caught_up(informer, world)
        assert (names("red"), names("blue")) == ([], ["a"])


async def test_stopping_closes_the_watch_and_tells_nothing_more() -> None:
    world, story = World(), Story()
    informer = reflect(world, story)
    informer.start()
    await informer.synced()
    await caught_up(informer, world)
    await informer.stop()
    assert world.open_watches == 0
    world.write("a")
    await asyncio.sleep(0)
    assert story.told == []


async def test_waiting_for_an_informer_that_is_stopped_first_is_an_error() -> None:
    world, story = World(), Story()
    world.list_errors = [errors.Forbidden("no")] * 1000
    informer = reflect(world, story, sleep=asyncio.sleep)
    informer.start()
    waiting = asyncio.create_task(informer.synced())
    while informer.last_error is None:
        await asyncio.sleep(0)
    await informer.stop()
    with pytest.raises(errors.Unavailable, match="before it was in sync"):
        await waiting


async def test_other_tasks_run_while_a_flood_is_applied() -> None:
    world, story = World(), Story()
    async with reflect(world, story) as informer:
        await caught_up(informer, world)
        turns: list[int] = []

        async def count() -> None:
            while len(informer) < 2000:
                turns.append(len(informer))
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        await asyncio.sleep(0)
        for i in range(2000):
            world.write(f"o{i}")
        await caught_up(informer, world)
        await counting
        assert len(set(turns)) > 5


NAMES = st.sampled_from("abcde")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), NAMES, st.text("xyz", max_size=2)),
        st.tuples(st.just("delete"), NAMES),
        st.tuples(st.sampled_from(["bookmark", "compact", "cut", "break", "refuse", "settle"])),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(steps=STEPS, page_size=st.sampled_from([0, 2]))
def test_whatever_happens_nothing_is_lost_and_nothing_is_delivered_twice(
    steps: list[tuple[str, ...]], page_size: int
) -> None:
    async def follow() -> None:
        world, story = World(), Story()
        world.version = 1
        async with reflect(world, story, page_size=page_size) as informer:
            for step in steps:
                await act(world, informer, step)
            world.write("last")
            await caught_up(informer, world)
            assert story.objects == world.objects

    asyncio.run(follow())


async def act(world: World, informer: Informer[ConfigMap], step: tuple[str, ...]) -> None:
    match step:
        case ("break",):
            world.cut(errors.Unavailable("broken"))
        case ("refuse",):
            world.watch_errors.append(errors.ApiError("internal error"))
            world.list_errors.append(errors.Unavailable("down"))
            world.cut()
        case ("settle",):
            await caught_up(informer, world)
        case (method, *arguments):
            getattr(world, method)(*arguments)
