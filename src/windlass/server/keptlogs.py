"""Logs of a Run's members whose pods are gone.

    GET /apis/platform.windlass.dev/v1alpha1/namespaces/NS/runs/NAME/logs         which there are
    GET .../runs/NAME/logs/LOG      one of them as text, with the query of pods/log

For whoever may get pods/log in that namespace. `agent.kept` keeps them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from typing import Any, Protocol

import msgspec
from aiohttp import web

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


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    namespace: str
    run: str
    log: str = ""


def match(raw_path: str) -> Question | None:
    """The question that a path asks, if it is one of ours."""
    match platformpaths.parts(raw_path):
        case ["namespaces", namespace, "runs", name, "logs", *log] if len(log) < 2:
            return Question(namespace, name, *log)
    return None


class KeptLogs:
    """Answers, with the caller's rights."""

    def __init__(
        self, store: client.Store, rights: Rights, streams: Streams, kept: Keeping
    ) -> None:
        self._store = store
        self._rights = rights
        self._streams = streams
        self._kept = kept

    async def answer(
        self, request: web.BaseRequest, identity: Identity, asked: Question
    ) -> web.StreamResponse:
        if request.method != "GET":
            raise errors.MethodNotAllowed("logs are read only")
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
