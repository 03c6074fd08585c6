"""Archived logs of a Run's pods that are gone.

    GET /apis/platform.windlass.dev/v1alpha1/namespaces/NS/runs/NAME/logs     the list of them
                                       with ?arrayIndex=7: those of one index of an array
    GET .../runs/NAME/logs/LOG      one of them as text, with the query of pods/log
    PUT .../runs/NAME/logs/LOG/CONTAINER/NUMBER?run=UID      a segment, by a node's agent
    PUT .../runs/NAME/logs/LOG?run=UID                       its record, which completes it

The route table gives reading to callers who may get pods/log in that namespace, and writing to
callers who may create runs/logs there: the agents of a cluster's nodes, and no user's role. An
agent writes logs only of Runs that are on its node or were: its token names the node.
"""

from __future__ import annotations

from aiohttp import web

from windlass.kinds.types.run import Run, known_nodes
from windlass.kinds.values import index_set
from windlass.podlogs import archive
from windlass.server.http import bodies, queries
from windlass.server.http.responses import json_response
from windlass.server.http.streams import Streams
from windlass.server.platform import paths
from windlass.server.platform.call import PlatformCall
from windlass.server.platform.handlers.runs import number
from windlass.server.storage.interfaces import LogStore
from windlass.store import errors, interface

_FIRST_BYTE_SECONDS = 5.0
"""Errors that come within this time are answered with their status."""


class LogService:
    def __init__(self, objects: interface.Store, streams: Streams, logs: LogStore) -> None:
        self._objects = objects
        self._streams = streams
        self._logs = logs

    async def list(self, call: PlatformCall) -> web.Response:
        owner = await self._run(call)
        found = await self._logs.list_logs(owner.namespace, _key(owner, call))
        version = f"{paths.GROUP}/{paths.VERSION}"
        return json_response({"kind": "KeptLogs", "apiVersion": version, "items": found})

    async def read(self, call: PlatformCall) -> web.StreamResponse:
        owner = await self._run(call)
        options = queries.pod_log(call.query)
        key = _key(owner, call)
        pieces = self._logs.read_log(owner.namespace, key, call.parameters["log"], options)
        return await self._streams.serve(
            call.request, pieces, "text/plain", first_timeout=_FIRST_BYTE_SECONDS
        )

    async def put_segment(self, call: PlatformCall) -> web.Response:
        owner = await self._written_run(call)
        log, container = call.parameters["log"], call.parameters["container"]
        data = await bodies.read(call.request)
        try:
            number = int(call.parameters["number"])
            segment = archive.Segment(owner.namespace, call.query["run"], log, container, number)
            await self._logs.put_segment(segment, data)
        except ValueError as problem:
            raise _not_a_log(problem) from problem
        return web.Response(status=204)

    async def put_record(self, call: PlatformCall) -> web.Response:
        owner = await self._written_run(call)
        data = await bodies.read(call.request)
        try:
            key = call.query["run"]
            await self._logs.put_record(owner.namespace, key, call.parameters["log"], data)
        except ValueError as problem:
            raise _not_a_log(problem) from problem
        return web.Response(status=204)

    async def _run(self, call: PlatformCall) -> Run:
        return await self._objects.get(Run, call.parameters["run"], call.namespace)

    async def _written_run(self, call: PlatformCall) -> Run:
        """The Run, if it is still the one whose pod wrote the log, on the node of the caller."""
        owner = await self._run(call)
        if owner.uid != archive.uid_of(call.query.get("run", "")):
            raise errors.Conflict(f"run {owner.name} was deleted and created again")
        node = call.identity.bound_node
        if node not in known_nodes(owner):
            raise errors.Forbidden(
                f"only agents of nodes of run {owner.name} may write its logs: this token belongs "
                f"to {f'a pod on node {node}' if node else 'no node'}"
            )
        return owner


def _key(owner: Run, call: PlatformCall) -> str:
    """The key of the logs that a reader asks for."""
    index = number(call.query, "arrayIndex", -1, index_set.HIGHEST_INDEX)
    return archive.key_of(owner.uid, None if index < 0 else index)


def _not_a_log(problem: ValueError) -> errors.BadRequest:
    return errors.BadRequest(f"not a log of a replica: {problem}")
