"""What the members of a run print, as lines in the order in which they arrive.

Follows pods before they exist, over restarts of the run and over broken connections. Of pods that
are gone it reads what the engine has kept of their logs.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Mapping, Sequence
from typing import Literal, Protocol

from windlass.kinds import kubernetes, run
from windlass.sdk import runs, watching
from windlass.store import errors
from windlass.store.client import Store

PLATFORM = "/apis/platform.windlass.dev/v1alpha1"
_RETRY = 0.3
_LOOKS = 3
"""How often a log that was not read to its end is looked for among the kept ones: of a pod that had
ended, its node keeps it a moment after it is gone."""
_LAST_WORDS = 30.0
"""How long readers may go on after the run has ended. They end with the log; only a node that
cannot be reached makes them wait."""


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
    """One line of one member, without its line end."""

    role: str
    index: int
    text: str
    attempt: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """Which members of a run, and how much of what they printed."""

    run: str
    namespace: str
    role: str = ""
    index: int | None = None
    attempt: int | Literal["all"] | None = None
    """None: the last one (and, when following, those after it)."""
    tail: int | None = None
    since: int | None = None
    """Only what was printed in the last so many seconds."""

    @property
    def labels(self) -> str:
        parts = [f"{run.LABEL_RUN}={self.run}"]
        parts += [f"{run.LABEL_ROLE}={self.role}"] if self.role else []
        parts += [f"{run.LABEL_INDEX}={self.index}"] if self.index is not None else []
        parts += [f"{run.LABEL_ATTEMPT}={self.attempt}"] if isinstance(self.attempt, int) else []
        return ",".join(parts)

    def has(self, member: _Member) -> bool:
        return (
            self.role in ("", member.role)
            and self.index in (None, member.index)
            and self.attempt in (None, "all", member.attempt)
        )


@dataclasses.dataclass(frozen=True, slots=True)
class _Member:
    """One pod of a run: there, or gone and its log kept."""

    attempt: int
    role: str
    index: int
    pod: str
    uid: str
    kept: str = ""
    """The name of its kept log."""


Sink = Callable[[Line], None]


async def read(store: LogStore, choice: Choice, sink: Sink) -> int:
    """What is there now, member by member; returns of how many members."""
    pods = (await store.list(kubernetes.Pod, choice.namespace, label_selector=choice.labels)).items
    # Asked after the pods: what has gone since is kept, and read there.
    kept = await _kept(store, choice)
    gone = {member.uid for member in kept}
    chosen = kept + [member for member in map(_member, pods) if member.uid not in gone]
    if choice.attempt is None:
        last = max((member.attempt for member in chosen), default=0)
        chosen = [member for member in chosen if member.attempt == last]
    for member in sorted(chosen, key=lambda member: (member.attempt, member.role, member.index)):
        cursor = _Cursor(choice.tail, choice.since)
        try:
            await _copy(store, choice, member, sink, cursor)
        except errors.BadRequest:
            pass  # not started yet: nothing to read
        except errors.NotFound:
            await _rest(store, choice, member, sink, cursor)
    return len(chosen)


async def follow(
    store: LogStore,
    choice: Choice,
    sink: Sink,
    on_change: Callable[[run.Run], None] = lambda _run: None,
    on_trouble: Callable[[str], None] = lambda _text: None,
    made: run.Run | None = None,
) -> run.Run:
    """Everything the run prints from now until it ends; returns it as it ended.

    `on_trouble` hears about each member whose log could not be read to its end. `made`: the run as
    it was just written.
    """
    readers = _Readers(store, choice, sink)
    if made is None or made.status.phase:
        await readers.read_past()
    watcher = asyncio.create_task(readers.watch())
    try:
        on_the_way = _unless_finished(on_change)
        waiting = runs.wait(store, choice.run, choice.namespace, on_the_way, made)
        ending = asyncio.create_task(waiting)
        try:
            await asyncio.wait((ending, watcher), return_when=asyncio.FIRST_COMPLETED)
            if not ending.done():
                watcher.result()
            ended = await ending
        finally:
            ending.cancel()
        await readers.meet_all()
        await readers.last_words(on_trouble)
        on_change(ended)
        return ended
    finally:
        tasks = (watcher, *readers.tasks.values())
        for task in tasks:
            task.cancel()
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
    """How it ended is told after the last thing it printed."""
    return lambda current: None if current.finished else on_change(current)


class _Readers:
    """One task for each member of a followed run."""

    def __init__(self, store: LogStore, choice: Choice, sink: Sink) -> None:
        self._store = store
        self._choice = choice
        self._sink = sink
        self._past: set[str] = set()
        """Members that were gone when the following began."""
        self.tasks: dict[_Member, asyncio.Task[None]] = {}

    async def read_past(self) -> None:
        """Members that are gone already, of the last attempt or as chosen."""
        kept = await _kept(self._store, self._choice)
        last = max((member.attempt for member in kept), default=0)
        if self._choice.attempt is None and kept:
            last = max(last, await self._current())
        for member in kept:
            self._past.add(member.uid)
            if self._choice.attempt is not None or member.attempt == last:
                await _rest(self._store, self._choice, member, self._sink, self._cursor())

    async def _current(self) -> int:
        choice = self._choice
        found = await self._store.get(run.Run, choice.run, choice.namespace)
        return found.status.attempt

    async def watch(self) -> None:
        choice = self._choice
        stream = watching.changes(
            self._store, kubernetes.Pod, choice.namespace, label_selector=choice.labels
        )
        async with contextlib.aclosing(stream) as changes:
            async for change, pod in changes:
                if change != "DELETED":
                    self._meet_pod(pod)

    async def meet_all(self) -> None:
        """Pods that appeared, or came and went, just before the end may not have been seen yet."""
        choice = self._choice
        found = await self._store.list(
            kubernetes.Pod, choice.namespace, label_selector=choice.labels
        )
        for pod in found.items:
            self._meet_pod(pod)
        for member in await _kept(self._store, choice):
            self._meet(member)

    def _meet_pod(self, pod: kubernetes.Pod) -> None:
        """Begins to read a pod the first time it is seen to have started: before, there is nothing,
        and asking again and again would cost the first line a pause."""
        if pod.status.phase not in ("", "Pending"):
            self._meet(_member(pod))

    def _meet(self, member: _Member) -> None:
        key = dataclasses.replace(member, kept="")
        if key not in self.tasks and member.uid not in self._past:
            self.tasks[key] = asyncio.create_task(self._read_to_end(member))

    async def last_words(self, on_trouble: Callable[[str], None]) -> None:
        """Lets the readers come to their end; tells of those that cannot."""
        if not self.tasks:
            return
        _, unfinished = await asyncio.wait(self.tasks.values(), timeout=_LAST_WORDS)
        for member, reader in self.tasks.items():
            if reader in unfinished:
                on_trouble(f"The log of {member.pod} could not be read to its end.")
            elif problem := reader.exception():
                on_trouble(f"The log of {member.pod} could not be read: {problem}")

    async def _read_to_end(self, member: _Member) -> None:
        """One member's log until it ends; a broken connection resumes after what was already read.

        Of a tail, or of what is younger than some time, the place in the log is not known: it
        resumes by time, and may repeat a second of it.
        """
        cursor, looks = self._cursor(), _LOOKS
        while not member.kept:
            try:
                await _copy(self._store, self._choice, member, self._sink, cursor, follow=True)
            except errors.NotFound:
                break
            except errors.Unavailable:
                # The server or the node is away for a moment; the log is not.
                await asyncio.sleep(_RETRY)
                continue
            except errors.BadRequest:
                pass  # not started yet; and if it has ended, it never will
            else:
                looks = 1
            state = await self._state(member)
            if state == "ended" or (state == "gone" and cursor.by_time):
                return
            if state == "gone":
                break
            await asyncio.sleep(_RETRY)
        while looks:
            with contextlib.suppress(errors.Unavailable):
                if await _rest(self._store, self._choice, member, self._sink, cursor):
                    return
                looks -= 1
            if looks:
                await asyncio.sleep(_RETRY)

    async def _state(self, member: _Member) -> Literal["there", "ended", "gone"]:
        try:
            current = await self._store.get(kubernetes.Pod, member.pod, self._choice.namespace)
        except errors.NotFound:
            return "gone"
        except errors.Unavailable:
            return "there"
        if current.uid != member.uid:
            return "gone"
        return "ended" if current.status.phase in ("Succeeded", "Failed") else "there"

    def _cursor(self) -> _Cursor:
        return _Cursor(self._choice.tail, self._choice.since)


@dataclasses.dataclass(slots=True)
class _Cursor:
    """How far a pod's log was read."""

    tail: int | None = None
    since: int | None = None
    seen: int = 0
    heard_at: float = 0.0

    @property
    def by_time(self) -> bool:
        return self.tail is not None or self.since is not None

    def query(self) -> tuple[int, int | None, int | None]:
        """Bytes to pass over, lines of tail, seconds to look back, for the next request."""
        if not self.by_time:
            return self.seen, None, None
        if not self.seen:
            return 0, self.tail, self.since
        return 0, None, int(time.monotonic() - self.heard_at) + 1


async def _rest(
    store: LogStore, choice: Choice, member: _Member, sink: Sink, cursor: _Cursor
) -> bool:
    """What is kept of a member's log beyond the cursor; False if nothing is."""
    found = [member] if member.kept else await _kept(store, choice)
    for each in found:
        if each.uid == member.uid:
            with contextlib.suppress(errors.NotFound):  # swept in this moment
                await _copy(store, choice, each, sink, cursor)
                return True
    return False


async def _kept(store: LogStore, choice: Choice) -> list[_Member]:
    """Members that are gone and whose logs are kept, oldest first; none where nobody does."""
    status, _, body = await store.raw("GET", _path(choice))
    if status in (403, 404):
        return []
    if status >= 300:
        raise errors.from_status({}, status)
    found = [
        _Member(told["attempt"], told["role"], told["index"], told["pod"], told["uid"],
                told["name"])
        for told in json.loads(body)["items"]
    ]  # fmt: skip
    return [member for member in found if choice.has(member)]


def _path(choice: Choice) -> str:
    return f"{PLATFORM}/namespaces/{choice.namespace}/runs/{choice.run}/logs"


async def _copy(
    store: LogStore,
    choice: Choice,
    member: _Member,
    sink: Sink,
    cursor: _Cursor,
    *,
    follow: bool = False,
) -> None:
    """Hands each line to the sink and moves the cursor."""
    skip, tail, since = cursor.query()
    if member.kept:
        asked = (("tailLines", tail), ("sinceSeconds", since))
        query = [(name, str(value)) for name, value in asked if value is not None]
        stream = store.text(f"{_path(choice)}/{member.kept}", query)
    else:
        stream = store.logs(
            member.pod, choice.namespace, follow=follow, tail_lines=tail, since_seconds=since
        )
    # Closed also when the sink fails, as with `| head`.
    async with contextlib.aclosing(stream) as chunks:
        await _lines(chunks, skip, member, sink, cursor)


async def _lines(
    chunks: AsyncIterable[bytes], skip: int, member: _Member, sink: Sink, cursor: _Cursor
) -> None:
    rest = b""
    async for chunk in chunks:
        fresh, skip = chunk[skip:], max(0, skip - len(chunk))
        cursor.heard_at = time.monotonic()
        *lines, rest = (rest + fresh).split(b"\n")
        for line in lines:
            # A line that breaks off with the connection is read again.
            cursor.seen += len(line) + 1
            sink(Line(member.role, member.index, _text(line), member.attempt))
    if rest:
        cursor.seen += len(rest)
        sink(Line(member.role, member.index, _text(rest), member.attempt))


def _text(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\r")


def _member(pod: kubernetes.Pod) -> _Member:
    labels = pod.metadata.labels or {}
    role = labels.get(run.LABEL_ROLE, pod.name)
    attempt, index = (_number(labels.get(key, "")) for key in (run.LABEL_ATTEMPT, run.LABEL_INDEX))
    return _Member(attempt, role, index, pod.name, pod.uid)


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
