"""The quota tree over the platform API: the present one, and the effect of another one.

    GET  /apis/platform.windlass.dev/v1alpha1/queues          for callers who may list queues
    POST /apis/platform.windlass.dev/v1alpha1/queues/plan     {"queues": [Queue], "prune": false}

A plan writes nothing; it is for callers who may update queues. Amounts and counts are visible to
every user; the name of a run only to users who may read the run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from windlass.kinds import codec, quota_tree_file, validate
from windlass.kinds.types import queue
from windlass.kinds.types.run import Run
from windlass.server.auth.authorization import Rights
from windlass.server.auth.identity import Attributes, Identity
from windlass.server.http import bodies
from windlass.server.http.responses import json_response
from windlass.server.platform import paths
from windlass.server.platform.call import PlatformCall
from windlass.store import errors, interface

if TYPE_CHECKING:
    from windlass.control.explain.service import Explainer

MOST_QUEUES = 10_000
ExplainerFactory = Callable[[], "Awaitable[Explainer]"]


class QueueService:
    def __init__(self, store: interface.Store, rights: Rights, explain: ExplainerFactory) -> None:
        self._store = store
        self._rights = rights
        self._explainer = explain

    async def tree(self, call: PlatformCall) -> web.Response:
        from windlass.control.explain import quota_tree

        explainer = await self._explainer()
        run_name = await self._run_names(call.identity)
        return _response(
            "QueueTree",
            await explainer.read(
                lambda snapshot, now, policy: quota_tree.tree(snapshot, now, policy, run_name)
            ),
        )

    async def plan(self, call: PlatformCall) -> web.Response:
        """What another tree would change. Nothing is written."""
        from windlass.control.convert import run_workloads
        from windlass.control.explain import quota_tree

        body = await bodies.read_object(call.request)
        current = {each.name: each for each in (await self._store.list(queue.Queue)).items}
        wanted = _read(body)
        if not body.get("prune"):
            wanted = {**current, **wanted}
        problems = quota_tree_file.problems(wanted)
        if problems:
            return _response("QueuePlan", {"problems": problems})
        explainer = await self._explainer()
        run_name = await self._run_names(call.identity)
        changes = await explainer.read(
            lambda snapshot, now, policy: quota_tree.changed(
                snapshot, now, policy, run_workloads.read_queues(wanted.values()), run_name
            )
        )
        return _response("QueuePlan", {"problems": [], **changes})

    async def _run_names(self, identity: Identity) -> Callable[[str], str]:
        """From a Run's uid to its name; "" if the caller may not read the Run."""
        explainer = await self._explainer()
        readable = set()
        for namespace in explainer.namespaces():
            resource = Run.resource
            right = Attributes("get", resource.group, resource.plural, "", namespace, "-")
            if await self._rights.allowed(identity, right):
                readable.add(namespace)

        def name(uid: str) -> str:
            found = explainer.run(uid)
            return (
                f"{found.namespace}/{found.name}" if found and found.namespace in readable else ""
            )

        return name


def _response(kind: str, content: dict[str, Any]) -> web.Response:
    head = {"kind": kind, "apiVersion": f"{paths.GROUP}/{paths.VERSION}"}
    return json_response({**head, **content})


def _read(body: dict[str, Any]) -> dict[str, queue.Queue]:
    """The queues of a request, each checked as if it were created."""
    given = body.get("queues")
    if not isinstance(given, list) or len(given) > MOST_QUEUES:
        raise errors.BadRequest(f"queues must be a list of at most {MOST_QUEUES} Queues")
    found: dict[str, queue.Queue] = {}
    for value in given:
        made = _one(value)
        if made.name in found:
            raise errors.BadRequest(f"queue {made.name} is in the list twice")
        found[made.name] = made
    return found


def _one(value: Any) -> queue.Queue:
    if not isinstance(value, dict):
        raise errors.BadRequest("each of queues must be a Queue")
    head = {"apiVersion": queue.Queue.resource.api_version, "kind": "Queue"}
    value = validate.defaulted(queue.Queue, {**value, **head})
    faults: Iterable[Any] = validate.validate(queue.Queue, value)
    causes = tuple(errors.Cause(fault.path, fault.message) for fault in faults)
    if causes:
        name = str((value.get("metadata") or {}).get("name", ""))[:80]
        raise errors.Invalid(f'Queue "{name}" is invalid', causes=causes)
    try:
        return codec.from_dict(queue.Queue, value)
    except msgspec.ValidationError as problem:
        raise errors.BadRequest(f"a queue cannot be read: {problem}") from problem
