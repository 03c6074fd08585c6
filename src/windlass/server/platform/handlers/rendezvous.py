"""The address book: where the members of a run's attempt are reached.

    GET /apis/platform.windlass.dev/v1alpha1/namespaces/NS/runs/NAME/addresses?attempt=N&wait=S

    {"complete": true, "members": {"worker": ["10.1.2.3", "10.1.2.4"]}}

in the order of the members' indexes, "" for those that are not known yet. With `wait` the answer
comes when the book is complete, at the latest after so many seconds: pods need neither DNS nor a
Service to find each other. For whoever may get the run, and for the run's own pods.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
from collections.abc import Iterator

import msgspec
from aiohttp import web

from windlass.control import members, runs
from windlass.kinds import kubernetes, run
from windlass.server import platformpaths, queries
from windlass.server.identity import Attributes, Identity
from windlass.server.podrights import PodRights
from windlass.server.rights import Rights, refusal
from windlass.store import client, errors
from windlass.store.reflector import Change, Reflector

LONGEST_WAIT = 25


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    namespace: str
    run: str


def match(raw_path: str) -> Question | None:
    """The question that a path asks, if it is one of ours."""
    match platformpaths.parts(raw_path):
        case ["namespaces", namespace, "runs", name, "addresses"]:
            return Question(namespace, name)
    return None


class Addresses:
    """Answers from a copy of all runs' pods, which is kept from the first question on."""

    def __init__(self, store: client.Store, rights: Rights, pods: PodRights) -> None:
        self._store = store
        self._rights = rights
        self._pod_rights = pods
        self._pods = Reflector(
            store,
            kubernetes.Pod,
            label_selector=run.LABEL_RUN,
            on_event=self._see,
            indexes={runs.POD_INDEX: runs.pod_index},
        )
        self._started = False
        self._waiting: collections.Counter[str] = collections.Counter()
        """By uid of a Run, how many wait for its book."""
        self._news: dict[str, asyncio.Event] = {}
        self._stopping = asyncio.Event()

    async def answer(
        self, request: web.BaseRequest, identity: Identity, asked: Question
    ) -> web.Response:
        if request.method != "GET":
            raise errors.MethodNotAllowed("addresses are read only")
        owner = await self._run(identity, asked)
        query = request.rel_url.query
        attempt = queries.integer(query, "attempt")
        wait = min(max(queries.integer(query, "wait") or 0, 0), LONGEST_WAIT)
        book = await self._book(owner, owner.status.attempt if attempt is None else attempt, wait)
        return web.Response(
            body=msgspec.json.encode(book), headers={"Content-Type": "application/json"}
        )

    async def stop(self) -> None:
        """Lets everybody who waits go."""
        self._stopping.set()
        for event in self._news.values():
            event.set()
        if self._started:
            await self._pods.stop()

    async def _run(self, identity: Identity, asked: Question) -> run.Run:
        wanted = Attributes(
            "get", run.Run.resource.group, run.Run.resource.plural, "", asked.namespace, asked.run
        )
        if identity.pod is None:
            await self._rights.authorize(identity, wanted)
            return await self._store.get(run.Run, asked.run, asked.namespace)
        owner = await self._pod_rights.run_of(identity.pod)
        if owner is None or (owner.namespace, owner.name) != (asked.namespace, asked.run):
            raise refusal(identity, wanted)
        return owner

    async def _book(self, owner: run.Run, attempt: int, wait: int) -> dict[str, object]:
        if not self._started:
            self._started = True
            self._pods.start()
        await self._pods.synced()
        deadline = asyncio.get_running_loop().time() + wait
        with self._listening(owner.uid) as news:
            while True:
                news.clear()
                book = self._known(owner, attempt)
                left = deadline - asyncio.get_running_loop().time()
                if book["complete"] or left <= 0 or self._stopping.is_set():
                    return book
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await news.wait()

    def _known(self, owner: run.Run, attempt: int) -> dict[str, object]:
        room = owner.status.assignment
        if room is None or room.attempt != attempt:
            raise errors.Gone(
                f"run {owner.name} is at attempt {owner.status.attempt}; attempt {attempt} has no "
                "room, or none any more"
            )
        found = {role: [""] * len(listed) for role, listed in room.members.items()}
        # Of a member that was started again there may be two: the later one counts.
        for pod in sorted(self._pods.by(runs.POD_INDEX, owner.uid), key=members.restart_of):
            key = members.key_of(pod)
            if key is None or key.attempt != attempt or pod.metadata.deletion_timestamp:
                continue
            listed = found.get(key.role, [])
            if key.index < len(listed):
                listed[key.index] = pod.status.pod_ip or ""
        complete = all(all(listed) for listed in found.values())
        return {"complete": complete, "members": found}

    @contextlib.contextmanager
    def _listening(self, uid: str) -> Iterator[asyncio.Event]:
        self._waiting[uid] += 1
        try:
            yield self._news.setdefault(uid, asyncio.Event())
        finally:
            self._waiting[uid] -= 1
            if not self._waiting[uid]:
                del self._waiting[uid], self._news[uid]

    def _see(self, _: Change, before: kubernetes.Pod | None, after: kubernetes.Pod | None) -> None:
        for pod in (before, after):
            for uid in runs.pod_index(pod) if pod is not None else ():
                if uid in self._news:
                    self._news[uid].set()
