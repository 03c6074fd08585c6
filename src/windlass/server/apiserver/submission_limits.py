"""Limits on how many runs a user may have submitted in a queue: a run beyond one is refused.

As a cluster refuses what exceeds a ResourceQuota: 403, with the numbers. Requests of one user are
answered one after another where such a limit binds, so that two at once do not both get the last
place. On Kubernetes no admission policy can count: there such a run is accepted and waits with the
same words (`core.userlimits`).
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

from windlass.kinds import queue
from windlass.server.identity import Identity
from windlass.store import client, errors
from windlass.store.reflector import Change, Reflector

if TYPE_CHECKING:
    from windlass.control.explainer import Explainer

_SHOWN_WITHIN = 2.0
"""Seconds in which a run that was created is seen by whoever counts."""


class Submissions:
    def __init__(self, store: client.Store, explainer: Callable[[], Awaitable[Explainer]]) -> None:
        self._explainer = explainer
        self._queues = Reflector(store, queue.Queue)
        self._queues.add_handler(self._queue_changed)
        self._limited: set[str] = set()
        """Queues that limit how many runs a user may submit."""
        self._starting: asyncio.Task[None] | None = None
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    async def stop(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
            await self._queues.stop()

    async def binding(self) -> bool:
        """Whether any queue has such a limit."""
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        if not self._starting.done():
            await asyncio.shield(self._starting)
        return bool(self._limited)

    @contextlib.asynccontextmanager
    async def admitted(
        self, identity: Identity, namespace: str, body: dict[str, Any], created: Callable[[], str]
    ) -> AsyncIterator[None]:
        """Create the run inside: Forbidden if its user has as many as the limit already. `created`:
        its name afterwards; empty: nothing was written."""
        spec = body.get("spec")
        spec = spec if isinstance(spec, dict) else {}
        user = str(spec.get("user") or identity.user)
        limits = self._limits(str(spec.get("queue") or ""), namespace, user)
        if not limits:
            yield
            return
        lock = self._locks.get(user)
        if lock is None:
            lock = self._locks[user] = asyncio.Lock()
        async with lock:
            explainer = await self._explainer()
            mine = explainer.unfinished_of(user)
            for name, most in limits:
                count = sum(name in self._path(each) for each, _ in mine)
                if count >= most:
                    raise _refusal(body, user, name, count, most)
            yield
            if name := created():
                await explainer.shows(
                    lambda: any(
                        (run.namespace, run.name) == (namespace, name)
                        for _, run in explainer.unfinished_of(user)
                    ),
                    _SHOWN_WITHIN,
                )

    def _limits(self, named: str, namespace: str, user: str) -> list[tuple[str, int]]:
        """The queues whose limits count for a run, and how many runs each lets the user have."""
        from windlass.control import snapshots

        name = named or snapshots.homes(self._queues).get(namespace, snapshots.DEFAULT_QUEUE)
        found = []
        for above in self._path(name):
            each = self._queues.get(above)
            limits = snapshots.read_queue(each).user_limits if each is not None else None
            most = limits.of(user).submitted if limits is not None else None
            if most is not None:
                found.append((above, most))
        return found

    def _path(self, name: str) -> list[str]:
        """The queue and those above it."""
        path: list[str] = []
        while name not in path and (each := self._queues.get(name)) is not None:
            path.append(name)
            name = each.spec.parent or ""
        return path

    async def _start(self) -> None:
        self._queues.start()
        await self._queues.synced()

    def _queue_changed(
        self, _: Change, before: queue.Queue | None, after: queue.Queue | None
    ) -> None:
        if before is not None:
            self._limited.discard(before.name)
        limits = after.spec.user_limits if after is not None else None
        if after is None or limits is None:
            return
        listed = (limits, *(limits.users or {}).values())
        if any(each.submitted is not None for each in listed):
            self._limited.add(after.name)


def _refusal(body: dict[str, Any], user: str, name: str, count: int, most: int) -> errors.Forbidden:
    metadata = body.get("metadata")
    named = str(metadata.get("name") or "") if isinstance(metadata, dict) else ""
    return errors.Forbidden(
        f'runs.windlass.dev "{named}" is forbidden: exceeded user limit: user {user} has {count} '
        f"runs in queue {name} that have not ended, of at most {most} submitted; wait until one "
        "ends, or stop one with `windlass stop`"
    )
