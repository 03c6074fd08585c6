"""The log lines of a run's replicas, in the order of their arrival.

It follows pods before they exist, across restarts of the run and lost connections. For deleted pods
it reads the archived logs.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Mapping, Sequence
from typing import Literal, Protocol

from windlass.kinds.types import core, run
from windlass.sdk import platform_api, run_builder, watching
from windlass.store import errors
from windlass.store.interface import Store

_RETRY = 0.3
_ARCHIVE_ATTEMPTS = 3
"""How often an unfinished log is looked up in the archive: a node archives the log of an ended pod
shortly after the pod is deleted."""
_DRAIN_TIMEOUT = 30.0
"""How long readers may continue after the end of the run. They end with the log; only an
unreachable node makes them wait."""


class LogStore(Store, Protocol):
    """A store that can also read the logs of pods."""

    def logs(
        self,
        pod: str,
        namespace: str,
        *,
        follow: bool = False,
        tail_lines: int | None = None,
        since_seconds: int | None = None,
    ) -> AsyncGenerator[bytes, None]: ...

    def text(
        self, path: str, query: Sequence[tuple[str, str]] = ()
    ) -> AsyncGenerator[bytes, None]: ...

    async def raw(self, method: str, path: str) -> tuple[int, Mapping[str, str], bytes]: ...


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """One line of one replica, without its line end."""

    role: str
    index: int
    text: str
    attempt: int = 0
    array_index: int | None = None
    """The index of the array, if the run is one."""


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """Selects replicas of a run and a part of their logs."""

    run: str
    namespace: str
    role: str = ""
    index: int | None = None
    attempt: int | Literal["all"] | None = None
    """None: the last attempt (and, when following, later ones)."""
    tail: int | None = None
    since: int | None = None
    """Only lines of the last N seconds."""
    array: bool = False
    """The run is an array."""
    array_index: int | None = None
    """One index of the array; None: all that run."""

    @property
    def labels(self) -> str:
        parts = [f"{run.LABEL_ARRAY if self.array else run.LABEL_RUN}={self.run}"]
        if self.array_index is not None:
            parts.append(f"{run.LABEL_ARRAY_INDEX}={self.array_index}")
        parts += [f"{run.LABEL_ROLE}={self.role}"] if self.role else []
        parts += [f"{run.LABEL_INDEX}={self.index}"] if self.index is not None else []
        parts += [f"{run.LABEL_ATTEMPT}={self.attempt}"] if isinstance(self.attempt, int) else []
        return ",".join(parts)

    def has(self, replica: _ReplicaLog) -> bool:
        return (
            self.role in ("", replica.role)
            and self.index in (None, replica.index)
            and self.attempt in (None, "all", replica.attempt)
        )


@dataclasses.dataclass(frozen=True, slots=True)
class _ReplicaLog:
    """One pod of a run: existing, or deleted with an archived log."""

    attempt: int
    role: str
    index: int
    pod: str
    uid: str
    kept: str = ""
    """The name of its archived log; empty if the pod exists."""
    array_index: int | None = None


Sink = Callable[[Line], None]


async def read(store: LogStore, choice: Choice, sink: Sink) -> int:
    """Reads the present logs, replica by replica; returns the number of replicas."""
    pods = (await store.list(core.Pod, choice.namespace, label_selector=choice.labels)).items
    # Listed after the pods: the log of a pod that was deleted meanwhile is in the archive.
    kept = await _kept(store, choice)
    gone = {replica.uid for replica in kept}
    chosen = kept + [replica for replica in map(_replica_log, pods) if replica.uid not in gone]
    if choice.attempt is None:
        last = max((replica.attempt for replica in chosen), default=0)
        chosen = [replica for replica in chosen if replica.attempt == last]
    for replica in sorted(
        chosen, key=lambda replica: (replica.attempt, replica.role, replica.index)
    ):
        cursor = _Cursor(choice.tail, choice.since)
        try:
            await _copy(store, choice, replica, sink, cursor)
        except errors.BadRequest:
            pass  # not started yet: nothing to read
        except errors.NotFound:
            await _rest(store, choice, replica, sink, cursor)
    return len(chosen)


async def follow(
    store: LogStore,
    choice: Choice,
    sink: Sink,
    on_change: Callable[[run.Run], None] = lambda _run: None,
    on_trouble: Callable[[str], None] = lambda _text: None,
    made: run.Run | None = None,
) -> run.Run:
    """Reads all lines until the run ends; returns the ended run.

    `on_trouble` is called for each replica whose log could not be read to its end. `made`: the run
    as just created.
    """
    readers = _Readers(store, choice, sink)
    if made is None or made.status.phase:
        await readers.read_past()
    watcher = asyncio.create_task(readers.watch())
    try:
        on_the_way = _unless_finished(on_change)
        waiting = run_builder.wait(
            store, choice.run, choice.namespace, on_the_way, made, choice.array_index
        )
        ending = asyncio.create_task(waiting)
        try:
            ends = (ending, watcher, readers.sink_failed)
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            readers.check_sink()
            if not ending.done():
                watcher.result()
            ended = await ending
        finally:
            ending.cancel()
        await readers.meet_all()
        await readers.report_last(on_trouble)
        on_change(ended)
        return ended
    finally:
        tasks = (watcher, *readers.tasks.values())
        for task in tasks:
            task.cancel()
        readers.sink_failed.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def stream(
    store: LogStore, choice: Choice, *, following: bool = False
) -> AsyncGenerator[Line, None]:
    """The lines as a stream; with `following` until the run ends."""
    lines: asyncio.Queue[Line | None] = asyncio.Queue()

    async def work() -> None:
        try:
            await (follow if following else read)(store, choice, lines.put_nowait)
        finally:
            lines.put_nowait(None)

    task = asyncio.create_task(work())
    try:
        while (line := await lines.get()) is not None:
            yield line
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _unless_finished(on_change: Callable[[run.Run], None]) -> Callable[[run.Run], None]:
    """Reports the end of the run after its last log line."""
    return lambda current: None if current.finished else on_change(current)


class _Readers:
    """One task for each replica of a followed run."""

    def __init__(self, store: LogStore, choice: Choice, sink: Sink) -> None:
        self._store = store
        self._choice = choice
        self._sink = self._guarded(sink)
        self.sink_failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Has the exception of the sink once it raised one: no further line can be delivered."""
        self.sink_failed.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._past: set[str] = set()
        """Replicas whose pods were deleted before."""
        self.tasks: dict[_ReplicaLog, asyncio.Task[None]] = {}

    def _guarded(self, sink: Sink) -> Sink:
        def deliver(line: Line) -> None:
            try:
                sink(line)
            except Exception as problem:
                if not self.sink_failed.done():
                    self.sink_failed.set_exception(problem)
                raise

        return deliver

    def check_sink(self) -> None:
        """Raises what the sink raised."""
        if self.sink_failed.done():
            self.sink_failed.result()

    async def read_past(self) -> None:
        """Reads replicas whose pods are deleted, of the last attempt or as chosen."""
        kept = await _kept(self._store, self._choice)
        last = max((replica.attempt for replica in kept), default=0)
        if self._choice.attempt is None and kept:
            last = max(last, await self._current())
        for replica in kept:
            self._past.add(replica.uid)
            if self._choice.attempt is not None or replica.attempt == last:
                await _rest(self._store, self._choice, replica, self._sink, self._cursor())

    async def _current(self) -> int:
        choice = self._choice
        found = await self._store.get(run.Run, choice.run, choice.namespace)
        return found.status.attempt

    async def watch(self) -> None:
        choice = self._choice
        stream = watching.changes(
            self._store, core.Pod, choice.namespace, label_selector=choice.labels
        )
        async with contextlib.aclosing(stream) as changes:
            async for change, pod in changes:
                if change != "DELETED":
                    self._meet_pod(pod)

    async def meet_all(self) -> None:
        """Reads pods that were created, or created and deleted, just before the end."""
        choice = self._choice
        found = await self._store.list(core.Pod, choice.namespace, label_selector=choice.labels)
        for pod in found.items:
            self._meet_pod(pod)
        for replica in await _kept(self._store, choice):
            self._meet(replica)

    def _meet_pod(self, pod: core.Pod) -> None:
        """Starts to read a pod when it has started: before, it has no log, and polling would delay
        its first line."""
        if pod.status.phase not in ("", "Pending"):
            self._meet(_replica_log(pod))

    def _meet(self, replica: _ReplicaLog) -> None:
        key = dataclasses.replace(replica, kept="")
        if key not in self.tasks and replica.uid not in self._past:
            self.tasks[key] = asyncio.create_task(self._read_to_end(replica))

    async def report_last(self, on_trouble: Callable[[str], None]) -> None:
        """Waits for the readers to end; reports those that cannot."""
        if not self.tasks:
            return
        _, unfinished = await asyncio.wait(self.tasks.values(), timeout=_DRAIN_TIMEOUT)
        self.check_sink()
        for replica, reader in self.tasks.items():
            if reader in unfinished:
                on_trouble(f"The log of {replica.pod} could not be read to its end.")
            elif problem := reader.exception():
                on_trouble(f"The log of {replica.pod} could not be read: {problem}")

    async def _read_to_end(self, replica: _ReplicaLog) -> None:
        """Reads one replica's log to its end; after a lost connection it continues behind the lines
        already read.

        With a tail or a start time the position in the log is unknown: it continues by time, and
        may repeat a second.
        """
        cursor, looks = self._cursor(), _ARCHIVE_ATTEMPTS
        while not replica.kept:
            try:
                await _copy(self._store, self._choice, replica, self._sink, cursor, follow=True)
            except errors.NotFound:
                break
            except errors.PASSING:
                # The server or the node is unreachable, or has too many of our streams; the log
                # still exists.
                await asyncio.sleep(_RETRY)
                continue
            except errors.BadRequest:
                pass  # not started yet; and if it has ended, it never will
            else:
                looks = 1
            state = await self._state(replica)
            if state == "ended" or (state == "gone" and cursor.by_time):
                return
            if state == "gone":
                break
            await asyncio.sleep(_RETRY)
        while looks:
            with contextlib.suppress(*errors.PASSING):
                if await _rest(self._store, self._choice, replica, self._sink, cursor):
                    return
                looks -= 1
            if looks:
                await asyncio.sleep(_RETRY)

    async def _state(self, replica: _ReplicaLog) -> Literal["there", "ended", "gone"]:
        try:
            current = await self._store.get(core.Pod, replica.pod, self._choice.namespace)
        except errors.NotFound:
            return "gone"
        except errors.PASSING:
            return "there"
        if current.uid != replica.uid:
            return "gone"
        return "ended" if current.status.phase in ("Succeeded", "Failed") else "there"

    def _cursor(self) -> _Cursor:
        return _Cursor(self._choice.tail, self._choice.since)


@dataclasses.dataclass(slots=True)
class _Cursor:
    """The position up to which a pod's log was read."""

    tail: int | None = None
    since: int | None = None
    seen: int = 0
    heard_at: float = 0.0

    @property
    def by_time(self) -> bool:
        return self.tail is not None or self.since is not None

    def query(self) -> tuple[int, int | None, int | None]:
        """Bytes to skip, tail lines and seconds back, for the next request."""
        if not self.by_time:
            return self.seen, None, None
        if not self.seen:
            return 0, self.tail, self.since
        return 0, None, int(time.monotonic() - self.heard_at) + 1


async def _rest(
    store: LogStore, choice: Choice, replica: _ReplicaLog, sink: Sink, cursor: _Cursor
) -> bool:
    """Reads the archived log of a replica beyond the cursor; False if there is none."""
    mine = dataclasses.replace(choice, array_index=replica.array_index)
    found = [replica] if replica.kept else await _kept(store, mine)
    for each in found:
        if each.uid == replica.uid:
            with contextlib.suppress(errors.NotFound):  # deleted at this moment
                await _copy(store, choice, each, sink, cursor)
                return True
    return False


async def _kept(store: LogStore, choice: Choice) -> list[_ReplicaLog]:
    """Replicas with archived logs, oldest first; empty if the engine archives no logs, and of a
    whole array: its logs are archived by index."""
    if choice.array and choice.array_index is None:
        return []
    query = f"?arrayIndex={choice.array_index}" if choice.array else ""
    status, _, body = await store.raw("GET", f"{_path(choice)}{query}")
    if status in (403, 404):
        return []
    if status >= 300:
        raise errors.from_status({}, status)
    found = [
        _ReplicaLog(entry["attempt"], entry["role"], entry["index"], entry["pod"], entry["uid"],
                entry["name"], choice.array_index)
        for entry in json.loads(body)["items"]
    ]  # fmt: skip
    return [replica for replica in found if choice.has(replica)]


def _path(choice: Choice) -> str:
    return f"{platform_api.PATH}/namespaces/{choice.namespace}/runs/{choice.run}/logs"


async def _copy(
    store: LogStore,
    choice: Choice,
    replica: _ReplicaLog,
    sink: Sink,
    cursor: _Cursor,
    *,
    follow: bool = False,
) -> None:
    """Passes each line to the sink and moves the cursor."""
    skip, tail, since = cursor.query()
    if replica.kept:
        asked = (
            ("tailLines", tail), ("sinceSeconds", since), ("arrayIndex", replica.array_index),
        )  # fmt: skip
        query = [(name, str(value)) for name, value in asked if value is not None]
        stream = store.text(f"{_path(choice)}/{replica.kept}", query)
    else:
        stream = store.logs(
            replica.pod, choice.namespace, follow=follow, tail_lines=tail, since_seconds=since
        )
    # Closed also if the sink fails, as with `| head`.
    async with contextlib.aclosing(stream) as chunks:
        await _lines(chunks, skip, replica, sink, cursor)


async def _lines(
    chunks: AsyncIterable[bytes], skip: int, replica: _ReplicaLog, sink: Sink, cursor: _Cursor
) -> None:
    rest = b""
    async for chunk in chunks:
        fresh, skip = chunk[skip:], max(0, skip - len(chunk))
        cursor.heard_at = time.monotonic()
        *lines, rest = (rest + fresh).split(b"\n")
        for line in lines:
            # A line that is cut off by a lost connection is read again.
            cursor.seen += len(line) + 1
            sink(_line(replica, line))
    if rest:
        cursor.seen += len(rest)
        sink(_line(replica, rest))


def _line(replica: _ReplicaLog, line: bytes) -> Line:
    return Line(replica.role, replica.index, _text(line), replica.attempt, replica.array_index)


def _text(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\r")


def _replica_log(pod: core.Pod) -> _ReplicaLog:
    labels = pod.metadata.labels or {}
    role = labels.get(run.LABEL_ROLE, pod.name)
    attempt, index = (_number(labels.get(key, "")) for key in (run.LABEL_ATTEMPT, run.LABEL_INDEX))
    array_index = labels.get(run.LABEL_ARRAY_INDEX)
    return _ReplicaLog(
        attempt, role, index, pod.name, pod.uid,
        array_index=None if array_index is None else _number(array_index),
    )  # fmt: skip


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
