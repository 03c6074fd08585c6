"""Rendezvous: the addresses of the pods of a run's attempt.

    GET /apis/platform.windlass.dev/v1alpha1/namespaces/NS/runs/NAME/addresses?attempt=N&wait=S

    {"complete": true, "members": {"worker": ["10.1.2.3", "10.1.2.4"]}}

in the order of the replicas' indexes, "" for pods without an address. With `wait` the answer comes
when all addresses are known, at the latest after so many seconds: pods find each other without DNS
and without a Service. For callers who may get the run, and for the run's own pods.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
from collections.abc import Iterator

from aiohttp import web

from windlass.control.model import members, pod_indexes
from windlass.kinds.types import core, run
from windlass.server.http import queries
from windlass.server.http.responses import json_response
from windlass.server.platform.call import PlatformCall
from windlass.store import errors, interface
from windlass.store.informer import Change, Informer

LONGEST_WAIT = 25


class RendezvousService:
    """Reads an informer of all runs' pods, which starts with the first request."""

    def __init__(self, store: interface.Store) -> None:
        self._store = store
        self._pods = Informer(
            store,
            core.Pod,
            label_selector=run.LABEL_RUN,
            on_event=self._on_pod,
            indexes={pod_indexes.BY_RUN: pod_indexes.run_uid},
        )
        self._started = False
        self._waiting: collections.Counter[str] = collections.Counter()
        """By uid of a Run, how many requests wait for its addresses."""
        self._changed: dict[str, asyncio.Event] = {}
        self._stopping = asyncio.Event()

    async def addresses(self, call: PlatformCall) -> web.Response:
        owner = call.run or await self._store.get(run.Run, call.parameters["run"], call.namespace)
        attempt = queries.integer(call.query, "attempt")
        wait = min(max(queries.integer(call.query, "wait") or 0, 0), LONGEST_WAIT)
        attempt = owner.status.attempt if attempt is None else attempt
        return json_response(await self._until_complete(owner, attempt, wait))

    async def stop(self) -> None:
        """Ends the requests that wait."""
        self._stopping.set()
        for event in self._changed.values():
            event.set()
        if self._started:
            await self._pods.stop()

    async def _until_complete(self, owner: run.Run, attempt: int, wait: int) -> dict[str, object]:
        if not self._started:
            self._started = True
            self._pods.start()
        await self._pods.synced()
        deadline = asyncio.get_running_loop().time() + wait
        with self._subscribed(owner.uid) as changed:
            while True:
                changed.clear()
                found = self._known(owner, attempt)
                left = deadline - asyncio.get_running_loop().time()
                if found["complete"] or left <= 0 or self._stopping.is_set():
                    return found
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await changed.wait()

    def _known(self, owner: run.Run, attempt: int) -> dict[str, object]:
        assignment = owner.status.assignment
        if assignment is None or assignment.attempt != attempt:
            raise errors.Gone(
                f"run {owner.name} is at attempt {owner.status.attempt}; attempt {attempt} has no "
                "assignment"
            )
        found = {role: [""] * len(listed) for role, listed in assignment.members.items()}
        # A replica that was restarted may have two pods: the later one counts.
        for pod in sorted(self._pods.by(pod_indexes.BY_RUN, owner.uid), key=members.restart_of):
            key = members.key_of(pod)
            if key is None or key.attempt != attempt or pod.metadata.deletion_timestamp:
                continue
            listed = found.get(key.role, [])
            if key.index < len(listed):
                listed[key.index] = pod.status.pod_ip or ""
        complete = all(all(listed) for listed in found.values())
        return {"complete": complete, "members": found}

    @contextlib.contextmanager
    def _subscribed(self, uid: str) -> Iterator[asyncio.Event]:
        self._waiting[uid] += 1
        try:
            yield self._changed.setdefault(uid, asyncio.Event())
        finally:
            self._waiting[uid] -= 1
            if not self._waiting[uid]:
                del self._waiting[uid], self._changed[uid]

    def _on_pod(self, _: Change, before: core.Pod | None, after: core.Pod | None) -> None:
        for pod in (before, after):
            for uid in pod_indexes.run_uid(pod) if pod is not None else ():
                if uid in self._changed:
                    self._changed[uid].set()
