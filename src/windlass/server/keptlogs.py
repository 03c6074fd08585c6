"""Logs of a Run's members whose pods are gone.

    GET /apis/platform.windlass.dev/v1alpha1/namespaces/NS/runs/NAME/logs         which there are
    GET .../runs/NAME/logs/LOG      one of them as text, with the query of pods/log
    PUT .../runs/NAME/logs/LOG/CONTAINER/NUMBER?run=UID      a piece of one, by a node's agent
    PUT .../runs/NAME/logs/LOG?run=UID                       and its record, which makes it whole

Reading is for whoever may get pods/log in that namespace; writing for whoever may create runs/logs
there, which agents on a cluster's nodes may and no person's role does. `agent.kept` keeps them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from typing import Any, Protocol

import msgspec
from aiohttp import web

from windlass.agent import kept as keeping
from windlass.kinds.run import Run
from windlass.server import nodes, platformpaths
from windlass.server.identity import Attributes, Identity
from windlass.server.rights import Rights
from windlass.server.streams import Streams
from windlass.store import client, errors

_PATIENCE = 5.0


class Keeping(Protocol):
    """Where kept logs are read."""

    async def kept(self, namespace: str, run_uid: str) -> list[dict[str, Any]]: ...

    def kept_log(
        self, namespace: str, run_uid: str, name: str, options: nodes.LogOptions
    ) -> AsyncIterator[bytes]: ...

    async def take_segment(self, place: keeping.Segment, data: bytes) -> None: ...

    async def take_record(self, namespace: str, run_uid: str, name: str, data: bytes) -> None: ...


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    namespace: str
    run: str
    log: str = ""
    container: str = ""
    number: str = ""


def match(raw_path: str) -> Question | None:
    """The question that a path asks, if it is one of ours."""
    match platformpaths.parts(raw_path):
        case ["namespaces", namespace, "runs", name, "logs", *log] if len(log) in (0, 1, 3):
            return Question(namespace, name, *log)
    return None


class KeptLogs:
    """Answers, with the caller's rights."""

    def __init__(
        self, store: client.Store, rights: Rights, streams: Streams, files: Keeping
    ) -> None:
        self._store = store
        self._rights = rights
        self._streams = streams
        self._kept = files

    async def answer(
        self, request: web.BaseRequest, identity: Identity, asked: Question
    ) -> web.StreamResponse:
        if request.method == "PUT" and asked.log:
            return await self._take(request, identity, asked)
        if request.method != "GET" or asked.container:
            raise errors.MethodNotAllowed("logs are read, or put by agents")
        await self._rights.authorize(
            identity, Attributes("get", "", "pods", "log", asked.namespace, "")
        )
        uid = (await self._store.get(Run, asked.run, asked.namespace)).uid
        if asked.log:
            options = nodes.log_options(request.rel_url.query)
            pieces = self._kept.kept_log(asked.namespace, uid, asked.log, options)
            return await self._streams.serve(request, pieces, "text/plain", patience=_PATIENCE)
        found = await self._kept.kept(asked.namespace, uid)
        version = f"{platformpaths.GROUP}/{platformpaths.VERSION}"
        told = {"kind": "KeptLogs", "apiVersion": version, "items": found}
        return web.Response(
            body=msgspec.json.encode(told), headers={"Content-Type": "application/json"}
        )

    async def _take(
        self, request: web.BaseRequest, identity: Identity, asked: Question
    ) -> web.Response:
        """What an agent held of a pod that is gone. A right on the runs themselves: whoever may
        ask the platform API anything, as people may, must not write what others said."""
        group = Run.resource.group
        await self._rights.authorize(
            identity, Attributes("create", group, "runs", "logs", asked.namespace, asked.run)
        )
        owner = await self._store.get(Run, asked.run, asked.namespace)
        if owner.uid != request.rel_url.query.get("run"):
            raise errors.Conflict(f"run {asked.run} is another one by now")
        data = await request.read()
        try:
            if asked.container:
                place = keeping.Segment(
                    asked.namespace, owner.uid, asked.log, asked.container, int(asked.number)
                )
                await self._kept.take_segment(place, data)
            else:
                await self._kept.take_record(asked.namespace, owner.uid, asked.log, data)
        except ValueError as problem:
            raise errors.BadRequest(f"this is no log of a member: {problem}") from problem
        return web.Response(status=204)
