"""Logs of a Run's members whose pods are gone.

    GET /apis/platform.windlass.dev/v1alpha1/namespaces/NS/runs/NAME/logs         which there are
    GET .../runs/NAME/logs/LOG      one of them as text, with the query of pods/log

For whoever may get pods/log in that namespace. `agent.kept` keeps them.
"""

from __future__ import annotations

import dataclasses
import urllib.parse
from collections.abc import AsyncIterator
from typing import Any, Protocol

import msgspec
from aiohttp import web

from windlass.kinds.run import Run
from windlass.server import nodes, platform
from windlass.server.access import Access
from windlass.server.identity import Attributes, Identity
from windlass.server.streams import Streams
from windlass.store import errors
from windlass.store.embedded.api import Api

_PATIENCE = 5.0


class Keeping(Protocol):
    """A gateway that has kept logs."""

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
    if not raw_path.startswith(platform.ROOT + "/"):
        return None
    match [urllib.parse.unquote(part) for part in raw_path[len(platform.ROOT) + 1 :].split("/")]:
        case ["namespaces", namespace, "runs", name, "logs", *log] if len(log) < 2:
            return Question(namespace, name, *log)
    return None


class KeptLogs:
    """Answers, with the caller's rights."""

    def __init__(self, api: Api, access: Access, streams: Streams, gateway: Any) -> None:
        self._api = api
        self._access = access
        self._streams = streams
        self._gateway: Keeping | None = gateway if hasattr(gateway, "kept_log") else None

    async def answer(
        self, request: web.BaseRequest, identity: Identity, asked: Question
    ) -> web.StreamResponse:
        if request.method != "GET":
            raise errors.MethodNotAllowed("logs are read only")
        await self._access.authorize(
            identity, Attributes("get", "", "pods", "log", asked.namespace, "")
        )
        data = await self._api.get(Run.resource, asked.namespace, asked.run)
        uid = msgspec.json.decode(data)["metadata"]["uid"]
        if asked.log:
            if self._gateway is None:
                raise errors.NotFound("no logs are kept here")
            options = nodes.log_options(request.rel_url.query)
            pieces = self._gateway.kept_log(asked.namespace, uid, asked.log, options)
            return await self._streams.serve(request, pieces, "text/plain", patience=_PATIENCE)
        found = [] if self._gateway is None else await self._gateway.kept(asked.namespace, uid)
        version = f"{platform.GROUP}/{platform.VERSION}"
        told = {"kind": "KeptLogs", "apiVersion": version, "items": found}
        return web.Response(
            body=msgspec.json.encode(told), headers={"Content-Type": "application/json"}
        )
