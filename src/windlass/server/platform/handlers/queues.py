"""The sharing tree over the platform API: what it is, and what another one would do.

    GET  /apis/platform.windlass.dev/v1alpha1/queues          for everybody who may list queues
    POST /apis/platform.windlass.dev/v1alpha1/queues/plan     {"queues": [Queue], "prune": false}

A plan changes nothing; it is for those who may change queues. Amounts and counts are everybody's to
see; a run's name only theirs who may read it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import msgspec
from aiohttp import web

from windlass.kinds import queue, queuetree, validation, wire
from windlass.kinds.run import Run
from windlass.server import bodies, platform, platformpaths
from windlass.server.identity import Attributes, Identity
from windlass.server.objects import json_response
from windlass.server.rights import Rights
from windlass.store import client, errors

MOST_QUEUES = 10_000


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    plan: bool

    def right(self) -> Attributes:
        resource = queue.Queue.resource
        return Attributes("update" if self.plan else "list", resource.group, resource.plural)


def match(raw_path: str) -> Question | None:
    """The question that a path asks, if it is one of ours."""
    match platformpaths.parts(raw_path):
        case ["queues"]:
            return Question(plan=False)
        case ["queues", "plan"]:
            return Question(plan=True)
    return None


class Sharing:
    """Answers, with the caller's rights."""

    def __init__(self, store: client.Store, rights: Rights, questions: platform.Platform) -> None:
        self._store = store
        self._rights = rights
        self._questions = questions

    async def answer(
        self, request: web.BaseRequest, identity: Identity, asked: Question
    ) -> web.Response:
        wanted = "POST" if asked.plan else "GET"
        if request.method != wanted:
            raise errors.MethodNotAllowed(f"this is asked with {wanted}")
        await self._rights.authorize(identity, asked.right())
        told = await (self._plan(request, identity) if asked.plan else self._tree(identity))
        return json_response(
            {
                "kind": "QueuePlan" if asked.plan else "QueueTree",
                "apiVersion": f"{platformpaths.GROUP}/{platformpaths.VERSION}",
                **told,
            }
        )

    async def _tree(self, identity: Identity) -> dict[str, Any]:
        from windlass.control import sharing

        explainer = await self._questions.explainer()
        shown = await self._shown(identity)
        return await explainer.look(
            lambda snapshot, now, policy: sharing.tree(snapshot, now, policy, shown)
        )

    async def _plan(self, request: web.BaseRequest, identity: Identity) -> dict[str, Any]:
        from windlass.control import sharing, snapshots

        body = await bodies.read_object(request)
        current = {each.name: each for each in (await self._store.list(queue.Queue)).items}
        wanted = _read(body)
        if not body.get("prune"):
            wanted = {**current, **wanted}
        problems = queuetree.problems(wanted)
        if problems:
            return {"problems": problems}
        explainer = await self._questions.explainer()
        shown = await self._shown(identity)
        told = await explainer.look(
            lambda snapshot, now, policy: sharing.changed(
                snapshot, now, policy, snapshots.read_queues(wanted.values()), shown
            )
        )
        return {"problems": [], **told}

    async def _shown(self, identity: Identity) -> Any:
        """What to call a run: its name, if the caller may read it."""
        explainer = await self._questions.explainer()
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
    value = validation.defaulted(queue.Queue, {**value, **head})
    faults: Iterable[Any] = validation.validate(queue.Queue, value)
    causes = tuple(errors.Cause(fault.path, fault.message) for fault in faults)
    if causes:
        name = str((value.get("metadata") or {}).get("name", ""))[:80]
        raise errors.Invalid(f'Queue "{name}" is invalid', causes=causes)
    try:
        return wire.from_dict(queue.Queue, value)
    except msgspec.ValidationError as problem:
        raise errors.BadRequest(f"a queue cannot be read: {problem}") from problem
