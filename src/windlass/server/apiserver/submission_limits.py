"""Limits on how many runs a user may have submitted in a queue: a run beyond one is refused.

Like a ResourceQuota: 403, with the numbers. Where such a limit binds, requests of one user are
serialised, so that two concurrent requests do not both get the last place. On Kubernetes no
admission policy can count: there such a run is accepted and waits with the same message
(`core.quota.user_limits`).
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

from windlass.kinds.types import queue
from windlass.server.auth.identity import Identity
from windlass.store import errors, interface
from windlass.store.informer import Change, Informer

if TYPE_CHECKING:
    from windlass.control.explain.service import Explainer

_SHOWN_WITHIN = 2.0
"""Seconds in which the informer shows a created run."""


class Submissions:
    def __init__(
        self, store: interface.Store, explainer: Callable[[], Awaitable[Explainer]]
    ) -> None:
        self._explainer = explainer
        self._queues = Informer(store, queue.Queue)
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
        """Create the run inside: Forbidden if its user has reached the limit. `created`: its name
        afterwards; empty: nothing was written."""
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
        """The queues whose limits apply to a run, and the number of runs that each allows the
        user."""
        from windlass.control.convert import run_workloads

        name = named or run_workloads.homes(self._queues).get(
            namespace, run_workloads.DEFAULT_QUEUE
        )
        found = []
        for above in self._path(name):
            each = self._queues.get(above)
            limits = run_workloads.read_queue(each).user_limits if each is not None else None
            most = limits.of(user).submitted if limits is not None else None
            if most is not None:
                found.append((above, most))
        return found

    def _path(self, name: str) -> list[str]:
        """The queue and its ancestors."""
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
