"""What the members of a run print, as lines in the order in which they arrive.

Follows pods before they exist, over restarts of the run and over broken connections. Needs a store
with `logs`, which reads a pod's log as a stream of bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncGenerator, Callable
from typing import Protocol

from windlass.kinds import kubernetes, run
from windlass.sdk import runs, watching
from windlass.store import errors
from windlass.store.client import Store

_RETRY = 0.3
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


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """One line of one member, without its line end."""

    role: str
    index: int
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """Which members of a run, and how much of what they printed."""

    run: str
    namespace: str
    role: str = ""
    index: int | None = None
    attempt: int | None = None
    """None: the last one (and, when following, those after it)."""
    tail: int | None = None
    since: int | None = None
    """Only what was printed in the last so many seconds."""

    @property
    def labels(self) -> str:
        parts = [f"{run.LABEL_RUN}={self.run}"]
        parts += [f"{run.LABEL_ROLE}={self.role}"] if self.role else []
        parts += [f"{run.LABEL_INDEX}={self.index}"] if self.index is not None else []
        parts += [f"{run.LABEL_ATTEMPT}={self.attempt}"] if self.attempt is not None else []
        return ",".join(parts)


Sink = Callable[[Line], None]


async def read(store: LogStore, choice: Choice, sink: Sink) -> int:
    """What is there now, member by member; returns of how many members."""
    pods = (await store.list(kubernetes.Pod, choice.namespace, label_selector=choice.labels)).items
    last = max((_attempt(pod) for pod in pods), default=0)
    chosen = [pod for pod in pods if choice.attempt is not None or _attempt(pod) == last]
    for pod in sorted(chosen, key=_order):
        with contextlib.suppress(errors.BadRequest, errors.NotFound):
            # Not started yet, or just gone: nothing to read.
            await _copy(store, pod, sink, _Cursor(choice.tail, choice.since), follow=False)
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
    readers: dict[str, asyncio.Task[None]] = {}
    watcher = asyncio.create_task(_watch_pods(store, choice, sink, readers))
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
        # Pods that appeared just before the end may not have been seen yet.
        await _meet_all(store, choice, sink, readers)
        await _last_words(readers, on_trouble)
        on_change(ended)
        return ended
    finally:
        for task in (watcher, *readers.values()):
            task.cancel()
        await asyncio.gather(watcher, *readers.values(), return_exceptions=True)


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


async def _last_words(
    readers: dict[str, asyncio.Task[None]], on_trouble: Callable[[str], None]
) -> None:
    """Lets the readers come to their end; tells of those that cannot."""
    if not readers:
        return
    _, unfinished = await asyncio.wait(readers.values(), timeout=_LAST_WORDS)
    for pod, reader in readers.items():
        if reader in unfinished:
            on_trouble(f"The log of {pod} could not be read to its end.")
        elif problem := reader.exception():
            on_trouble(f"The log of {pod} could not be read: {problem}")


async def _watch_pods(
    store: LogStore, choice: Choice, sink: Sink, readers: dict[str, asyncio.Task[None]]
) -> None:
    stream = watching.changes(store, kubernetes.Pod, choice.namespace, label_selector=choice.labels)
    async with contextlib.aclosing(stream) as changes:
        async for change, pod in changes:
            if change != "DELETED":
                _meet(store, choice, sink, readers, pod)


async def _meet_all(
    store: LogStore, choice: Choice, sink: Sink, readers: dict[str, asyncio.Task[None]]
) -> None:
    found = await store.list(kubernetes.Pod, choice.namespace, label_selector=choice.labels)
    for pod in found.items:
        _meet(store, choice, sink, readers, pod)


def _meet(
    store: LogStore,
    choice: Choice,
    sink: Sink,
    readers: dict[str, asyncio.Task[None]],
    pod: kubernetes.Pod,
) -> None:
    """Begins to read a pod the first time it is seen to have started: before, there is nothing, and
    asking again and again would cost the first line a pause."""
    if pod.name not in readers and pod.status.phase not in ("", "Pending"):
        readers[pod.name] = asyncio.create_task(_read_to_end(store, choice, pod, sink))


async def _read_to_end(store: LogStore, choice: Choice, pod: kubernetes.Pod, sink: Sink) -> None:
    """One pod's log until it ends; a broken connection resumes after what was already read.

    Of a tail, or of what is younger than some time, the place in the log is not known: it resumes
    by time, and may repeat a second of it.
    """
    cursor = _Cursor(choice.tail, choice.since)
    while True:
        try:
            await _copy(store, pod, sink, cursor, follow=True)
        except errors.NotFound:
            return
        except errors.Unavailable:
            # The server or the node is away for a moment; the log is not.
            pass
        except errors.BadRequest:
            # Not started yet; and if it has ended, it never will.
            if await _ended(store, pod):
                return
        else:
            if await _ended(store, pod):
                return
        await asyncio.sleep(_RETRY)


async def _ended(store: LogStore, pod: kubernetes.Pod) -> bool:
    try:
        current = await store.get(kubernetes.Pod, pod.name, pod.namespace)
    except errors.NotFound:
        return True
    except errors.Unavailable:
        return False
    return current.uid != pod.uid or current.status.phase in ("Succeeded", "Failed")


@dataclasses.dataclass(slots=True)
class _Cursor:
    """How far a pod's log was read."""

    tail: int | None = None
    since: int | None = None
    seen: int = 0
    heard_at: float = 0.0

    def query(self) -> tuple[int, int | None, int | None]:
        """Bytes to pass over, lines of tail, seconds to look back, for the next request."""
        if self.tail is None and self.since is None:
            return self.seen, None, None
        if not self.seen:
            return 0, self.tail, self.since
        return 0, None, int(time.monotonic() - self.heard_at) + 1


async def _copy(
    store: LogStore, pod: kubernetes.Pod, sink: Sink, cursor: _Cursor, *, follow: bool
) -> None:
    """Hands each line to the sink and moves the cursor."""
    role, index = _member(pod)
    skip, tail, since = cursor.query()
    rest = b""
    stream = store.logs(
        pod.name, pod.namespace, follow=follow, tail_lines=tail, since_seconds=since
    )
    # Closed also when the sink fails, as with `| head`.
    async with contextlib.aclosing(stream) as chunks:
        async for chunk in chunks:
            fresh, skip = chunk[skip:], max(0, skip - len(chunk))
            cursor.seen += len(fresh)
            cursor.heard_at = time.monotonic()
            *lines, rest = (rest + fresh).split(b"\n")
            for line in lines:
                sink(Line(role, index, _text(line)))
    if rest:
        sink(Line(role, index, _text(rest)))


def _text(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\r")


def _attempt(pod: kubernetes.Pod) -> int:
    value = (pod.metadata.labels or {}).get(run.LABEL_ATTEMPT, "0")
    return int(value) if value.isdigit() else 0


def _member(pod: kubernetes.Pod) -> tuple[str, int]:
    labels = pod.metadata.labels or {}
    value = labels.get(run.LABEL_INDEX, "0")
    return labels.get(run.LABEL_ROLE, pod.name), int(value) if value.isdigit() else 0


def _order(pod: kubernetes.Pod) -> tuple[int, str, int]:
    return (_attempt(pod), *_member(pod))
