"""The platform API: questions that no object answers. why, ps and plan.

    GET  /apis/platform.windlass.dev/v1alpha1/namespaces/NS/runs/NAME/why
    GET  /apis/platform.windlass.dev/v1alpha1[/namespaces/NS]/ps?limit=&finished=&user=&queue=
    POST /apis/platform.windlass.dev/v1alpha1/namespaces/NS/plan      a Run

`server.app` has authenticated the caller; this asks for the right to get, list or create runs,
and shows nobody the names of runs that he may not read. Blobs of the same group are in `blobs`.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from aiohttp import web

from windlass.kinds import kubernetes, times, wire
from windlass.kinds.run import Run
from windlass.server import admission, bodies, platformpaths, queries
from windlass.server.identity import Attributes, Identity
from windlass.server.rights import Rights
from windlass.store import client, errors
from windlass.store.embedded import rules

if TYPE_CHECKING:
    from windlass.control.explainer import Explainer, Waiting

FIRST_WAITING, LAST_FINISHED, MOST = 50, 10, 1000


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """What a path asks."""

    what: str
    namespace: str = ""
    name: str = ""

    @property
    def method(self) -> str:
        return "POST" if self.what == "plan" else "GET"

    def right(self) -> Attributes:
        """What the caller must be allowed to do."""
        verb = {"why": "get", "ps": "list", "plan": "create"}[self.what]
        resource = Run.resource
        return Attributes(verb, resource.group, resource.plural, "", self.namespace, self.name)


def match(raw_path: str) -> Question | None:
    """The question that a path asks, if it is one."""
    match platformpaths.parts(raw_path):
        case ["namespaces", namespace, "runs", name, "why"] if namespace and name:
            return Question("why", namespace, name)
        case ["namespaces", namespace, "ps" | "plan" as what] if namespace:
            return Question(what, namespace)
        case ["ps"]:
            return Question("ps")
    return None


class Costs(Protocol):
    async def estimate(self, planned: Run) -> dict[str, Any] | None: ...

    async def cost_of(self, owner: Run) -> str: ...


class Platform:
    """Answers; what it needs for that is loaded with the first question."""

    def __init__(self, store: client.Store, rights: Rights) -> None:
        self._store = store
        self._rights = rights
        self._explainer: Explainer | None = None
        self.costs: Costs | None = None
        """Who knows what Runs cost."""

    async def stop(self) -> None:
        if self._explainer is not None:
            await self._explainer.stop()

    async def answer(
        self, request: web.BaseRequest, identity: Identity, question: Question
    ) -> web.Response:
        if request.method != question.method:
            raise errors.MethodNotAllowed(f"{question.what} is asked with {question.method}")
        await self._rights.authorize(identity, question.right())
        if question.namespace:
            await self._store.get(kubernetes.Namespace, question.namespace)
        if question.what == "why":
            told = await self._why(identity, question)
        elif question.what == "ps":
            told = await self._ps(request, question)
        else:
            told = await self._plan(request, identity, question)
        kind = {"why": "Why", "ps": "RunPage", "plan": "Plan"}[question.what]
        if "sentences" in told:
            told["summary"] = " ".join(told["sentences"])
        told = {
            "kind": kind,
            "apiVersion": f"{platformpaths.GROUP}/{platformpaths.VERSION}",
            **told,
        }
        return web.Response(
            body=msgspec.json.encode(told), headers={"Content-Type": "application/json"}
        )

    # --- the three questions

    async def _why(self, identity: Identity, question: Question) -> dict[str, Any]:
        from windlass.control import story

        run = await self._store.get(Run, question.name, question.namespace)
        explainer = await self.explainer()
        told: dict[str, Any] = {
            "run": run.name,
            "namespace": run.namespace,
            "phase": run.status.phase,
            "attempt": run.status.attempt,
        }
        found = None
        if run.status.phase == "Queued" and await explainer.seen(run):
            found = await explainer.waiting(run)
        if found is not None:
            return told | await self._told(identity, found, explainer)
        end = await explainer.ends(run) if run.status.phase == "Running" else None
        told |= story.of_other(run, end, times.now())
        cost = await self.costs.cost_of(run) if self.costs else ""
        if cost:
            told["cost"] = cost
            word = "has cost" if run.finished else "has cost so far"
            told["sentences"] = [*told.get("sentences", ()), f"It {word} {cost}."]
        return told

    async def _ps(self, request: web.BaseRequest, question: Question) -> dict[str, Any]:
        from windlass.control import story

        query = request.rel_url.query
        explainer = await self.explainer()
        user, queue = query.get("user", ""), query.get("queue", "")

        def wanted(run: Run) -> bool:
            return (not user or run.spec.user == user) and (not queue or run.spec.queue == queue)

        page = await explainer.page(
            question.namespace,
            waiting=_number(query, "limit", FIRST_WAITING),
            finished=_number(query, "finished", LAST_FINISHED),
            wanted=wanted if user or queue else None,
        )
        return {
            "items": [story.row(each) for each in page.rows],
            "active": page.active,
            "waiting": page.waiting,
            "finished": page.finished,
        }

    async def _plan(
        self, request: web.BaseRequest, identity: Identity, question: Question
    ) -> dict[str, Any]:
        body = await bodies.read_object(request)
        admission.admit_create(identity, Run.resource, body)
        drafted = await self._draft(question.namespace, body)
        explainer = await self.explainer()
        found = await explainer.plan(wire.from_dict(Run, drafted))
        told = await self._told(identity, found, explainer, planned=True)
        cost = await self.costs.estimate(wire.from_dict(Run, drafted)) if self.costs else None
        if cost is not None:
            told["cost"] = cost
            told["sentences"] = [*told.get("sentences", ()), cost["sentence"]]
        for key in ("uid", "creationTimestamp", "resourceVersion", "generation"):
            drafted["metadata"].pop(key, None)
        return {"object": drafted, **told}

    # --- parts

    async def _draft(self, namespace: str, body: dict[str, Any]) -> dict[str, Any]:
        """The object as it would be created: checked and with its defaults. Nothing is written,
        and the right to write is not needed."""
        options = queries.writing({"dryRun": "All", "fieldValidation": "Strict"}, "")
        checked = rules.checked_body(Run, body, namespace, options)
        made: dict[str, Any] = rules.new_object(Run, checked, times.now().timestamp())
        name = made["metadata"]["name"]
        with contextlib.suppress(errors.NotFound):
            await self._store.get(Run, name, namespace)
            raise errors.AlreadyExists(
                f'{Run.resource.plural}.{Run.resource.group} "{name}" already exists'
            )
        return made

    async def explainer(self) -> Explainer:
        if self._explainer is None:
            from windlass.control.explainer import Explainer

            self._explainer = Explainer(self._store)
        await self._explainer.ready()
        return self._explainer

    async def _told(
        self, identity: Identity, found: Waiting, explainer: Explainer, *, planned: bool = False
    ) -> dict[str, Any]:
        from windlass.control import story

        keys = [holder.unit for holder in found.explanation.holders]
        keys += [name for change in found.explanation.fits_if for name in change.names]
        runs = [run for key in keys if (run := explainer.run(key)) is not None]
        seen = await self._readable(identity, {run.namespace for run in runs})
        tell = story.of_planned if planned else story.of_waiting
        return tell(found, times.now(), explainer.run, seen.__contains__)

    async def _readable(self, identity: Identity, namespaces: Iterable[str]) -> set[str]:
        """Of these, the namespaces whose runs the caller may read."""
        found = set()
        for namespace in namespaces:
            wanted = Attributes("get", Run.resource.group, Run.resource.plural, "", namespace, "-")
            if await self._rights.allowed(identity, wanted):
                found.add(namespace)
        return found


def _number(query: Any, name: str, default: int) -> int:
    text = query.get(name, "")
    if not text:
        return default
    if not text.isdigit() or int(text) > MOST:
        raise errors.BadRequest(f"{name} must be a number from 0 to {MOST}")
    return int(text)
