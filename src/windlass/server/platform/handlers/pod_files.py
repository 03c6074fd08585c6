"""Files of a Run's replicas that have ended, where the node keeps them with the pod.

    GET .../runs/NAME/files?pod=POD&path=PATH                     what is there, and below it
    GET .../runs/NAME/files/content?pod=POD&path=PATH&offset=&size=

The route table gives both to callers who may run commands in the namespace's pods: they could read
the same files while the replica ran.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any, Protocol

import msgspec
from aiohttp import web

from windlass.kinds import codec
from windlass.kinds.types import core
from windlass.kinds.types.run import LABEL_RUN, Run
from windlass.server.http.responses import json_response
from windlass.server.http.streams import Streams
from windlass.server.platform import paths
from windlass.server.platform.call import PlatformCall
from windlass.store import errors, interface

_FIRST_BYTE_SECONDS = 5.0
_NUMBER = re.compile(r"[0-9]{1,18}")


class _Listing(msgspec.Struct):
    """The answer of an agent, whose items may be very many: they are passed on as they are."""

    items: msgspec.Raw


class FileGateway(Protocol):
    """Reads files of pods on their nodes."""

    async def files(self, pod: dict[str, Any], path: str, *, owner: bool) -> bytes: ...

    def file_content(
        self, pod: dict[str, Any], path: str, offset: int, size: int, *, owner: bool
    ) -> AsyncIterator[bytes]: ...


class PodFileService:
    def __init__(self, objects: interface.Store, streams: Streams, gateway: Any) -> None:
        self._objects = objects
        self._streams = streams
        self._gateway: FileGateway | None = gateway if hasattr(gateway, "files") else None

    async def list(self, call: PlatformCall) -> web.Response:
        pod = await self._pod(call)
        path, owner = call.query.get("path", ""), call.identity.is_master
        answer = await self._nodes().files(pod, path, owner=owner)
        found = await asyncio.to_thread(msgspec.json.decode, answer, type=_Listing)
        head = {"kind": "FileList", "apiVersion": f"{paths.GROUP}/{paths.VERSION}"}
        return json_response({**head, "items": found.items})

    async def content(self, call: PlatformCall) -> web.StreamResponse:
        pod, path = await self._pod(call), call.query.get("path", "")
        offset, size = (_number(call, name) for name in ("offset", "size"))
        owner = call.identity.is_master
        pieces = self._nodes().file_content(pod, path, offset, size, owner=owner)
        return await self._streams.serve(
            call.request, pieces, "application/octet-stream", first_timeout=_FIRST_BYTE_SECONDS
        )

    def _nodes(self) -> FileGateway:
        if self._gateway is None:
            raise errors.Unavailable("this server has no connection to agents")
        return self._gateway

    async def _pod(self, call: PlatformCall) -> dict[str, Any]:
        """The pod, which belongs to the Run of the path."""
        owner = await self._objects.get(Run, call.parameters["run"], call.namespace)
        name = call.query.get("pod", "")
        if not name:
            raise errors.BadRequest("the parameter pod must name a pod of the run")
        pod = await self._objects.get(core.Pod, name, call.namespace)
        owners = pod.metadata.owner_references or ()
        labelled = (pod.metadata.labels or {}).get(LABEL_RUN) == owner.name
        if not labelled or owner.uid not in {each.uid for each in owners}:
            raise errors.BadRequest(f"pod {name} is not of run {owner.name}")
        return codec.to_dict(pod)


def _number(call: PlatformCall, name: str) -> int:
    text = call.query.get(name, "0")
    if not _NUMBER.fullmatch(text):
        raise errors.BadRequest(f"the parameter {name} must be a number of bytes")
    return int(text)
