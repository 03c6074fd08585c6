"""Questions about runs that no object answers: why, ps and plan.

    GET  /apis/platform.windlass.dev/v1alpha1/namespaces/NS/runs/NAME/why
    GET  /apis/platform.windlass.dev/v1alpha1[/namespaces/NS]/ps?limit=&finished=&user=&queue=
    POST /apis/platform.windlass.dev/v1alpha1/namespaces/NS/plan      a Run

An answer has the names of other runs only where the caller may read them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from aiohttp import web

from windlass.kinds import codec
from windlass.kinds.types import core
from windlass.kinds.types import run as kinds_run
from windlass.kinds.types.run import Run
from windlass.kinds.values import index_set, times
from windlass.server.apiserver import admission
from windlass.server.auth import privileges
from windlass.server.auth.authorization import Rights
from windlass.server.auth.identity import Attributes, Identity
from windlass.server.http import bodies, queries
from windlass.server.http.responses import json_response
from windlass.server.platform import paths
from windlass.server.platform.call import PlatformCall
from windlass.server.platform.parameters import MOST_ROWS
from windlass.store import errors, interface
from windlass.store.embedded import strategy

if TYPE_CHECKING:
    from windlass.control.explain.service import Explainer, Waiting

_LISTED = 3
FIRST_WAITING, LAST_FINISHED = 50, 10


class Costs(Protocol):
    async def estimate(self, planned: Run) -> dict[str, Any] | None: ...

    async def cost_of(self, owner: Run) -> str: ...


class RunService:
    """The explainer, and what it imports, is loaded with the first request."""

    def __init__(self, store: interface.Store, rights: Rights, costs: Costs | None = None) -> None:
        self._store = store
        self._rights = rights
        self._explainer: Explainer | None = None
        self.costs = costs
        """What Runs cost; None without a ledger."""

    async def stop(self) -> None:
        if self._explainer is not None:
            await self._explainer.stop()

    async def why(self, call: PlatformCall) -> web.Response:
        """Why a run waits, when it ends, or how it ended."""
        await self._store.get(core.Namespace, call.namespace)
        run = await self._store.get(Run, call.parameters["run"], call.namespace)
        index = number(call.query, "arrayIndex", -1, index_set.HIGHEST_INDEX)
        if index >= 0:
            return _response("Why", await self._why_index(call, run, index))
        return _response("Why", await self._why(call, run))

    async def _why_index(self, call: PlatformCall, array: Run, index: int) -> dict[str, Any]:
        """Of its Run, if one exists at present; else of the record of the array."""
        from windlass.control.explain import arrays

        named: dict[str, Any] = {"run": array.name, "namespace": array.namespace}
        named |= {"array": array.name, "index": index}
        try:
            found = arrays.of_index(array, index)
        except ValueError as problem:
            raise errors.NotFound(str(problem)) from problem
        if found["phase"] == "Pending":
            labels = (
                f"{kinds_run.LABEL_ARRAY_UID}={array.uid},{kinds_run.LABEL_ARRAY_INDEX}={index}"
            )
            listed = await self._store.list(Run, array.namespace, label_selector=labels)
            for child in listed.items:
                return await self._why(call, child) | named
        return named | found

    async def _why(self, call: PlatformCall, run: Run) -> dict[str, Any]:
        from windlass.control.explain import narrative

        explainer = await self.explainer()
        answer: dict[str, Any] = {
            "run": run.name,
            "namespace": run.namespace,
            "phase": run.status.phase,
            "attempt": run.status.attempt,
        }
        found = None
        if run.status.phase == "Queued" and await explainer.seen(run):
            found = await explainer.waiting(run)
        preempted = await self._preempted(call, run, explainer)
        if found is not None:
            explained = await self.explained(call, found, explainer)
            awaited = await self._dependencies(explainer, run)
            explained["sentences"] = [*preempted, *explained["sentences"], *awaited]
            return answer | explained
        known = await explainer.ends(run) if run.status.phase == "Running" else (None, "")
        answer |= narrative.of_other(run, *known, times.now())
        if run.status.phase == "Queued":
            answer["sentences"] += await self._dependencies(explainer, run)
        answer["sentences"] = [*preempted, *answer["sentences"], *_about_outputs(run)]
        cost = await self.costs.cost_of(run) if self.costs else ""
        if cost:
            answer["cost"] = cost
            verb = "has cost" if run.finished else "has cost so far"
            answer["sentences"] = [*answer.get("sentences", ()), f"It {verb} {cost}."]
        return answer

    async def _dependencies(self, explainer: Explainer, run: Run) -> list[str]:
        """The runs that it waits for: their phases, and when they should end."""
        from windlass.control.explain import narrative

        found = []
        known = {each.run: each for each in run.status.after or ()}
        for after in run.spec.after or ():
            if after.run in known and known[after.run].outcome != "Waiting":
                continue
            awaited = explainer.named(run.namespace, after.run)
            end = None if awaited is None else (await explainer.ends(awaited))[0]
            found.append(narrative.dependency(after, awaited, end, times.now()))
        return found

    async def ps(self, call: PlatformCall) -> web.Response:
        """The runs of a namespace, or of all that the caller may see: active, waiting, and the last
        finished ones."""
        from windlass.control.explain import narrative

        if call.namespace:
            await self._store.get(core.Namespace, call.namespace)
        query = call.query
        explainer = await self.explainer()
        user, queue = query.get("user", ""), query.get("queue", "")

        seen = None if call.namespace else await self._listed(call.identity, explainer)

        def wanted(run: Run) -> bool:
            if seen is not None and run.namespace not in seen:
                return False
            return (not user or run.spec.user == user) and (not queue or run.spec.queue == queue)

        page = await explainer.page(
            call.namespace,
            waiting=number(query, "limit", FIRST_WAITING),
            finished=number(query, "finished", LAST_FINISHED),
            wanted=wanted if user or queue or seen is not None else None,
        )
        return _response(
            "RunPage",
            {
                "items": [narrative.row(each) for each in page.rows],
                "active": page.active,
                "waiting": page.waiting,
                "finished": page.finished,
            },
        )

    async def plan(self, call: PlatformCall) -> web.Response:
        """When and where a Run would start, and what it would cost. Nothing is created."""
        await self._store.get(core.Namespace, call.namespace)
        body = await bodies.read_object(call.request)
        admission.admit_create(call.identity, Run.resource, body)
        drafted = await self._draft(call.namespace, body)
        spec = drafted["spec"]
        await privileges.check(
            self._rights, call.identity, call.namespace, drafted["metadata"]["name"],
            high=spec["priority"] > privileges.HIGHEST, firm=not spec["preemptible"],
        )  # fmt: skip
        explainer = await self.explainer()
        planned = codec.from_dict(Run, drafted)
        # It is placed as if its dependencies were met: what they hide would be found too late.
        found = await explainer.plan(msgspec.structs.replace(
            planned, spec=msgspec.structs.replace(planned.spec, after=None)
        ))  # fmt: skip
        answer = await self.explained(call, found, explainer, planned=True)
        awaited = await self._dependencies(explainer, planned)
        if awaited and not answer["reason"]:
            answer["sentences"] = ["Its size fits the present nodes."]
        answer["sentences"] = [*awaited, *answer["sentences"]]
        cost = await self.costs.estimate(codec.from_dict(Run, drafted)) if self.costs else None
        if cost is not None:
            answer["cost"] = cost
            answer["sentences"] = [*answer.get("sentences", ()), cost["sentence"]]
        for key in ("uid", "creationTimestamp", "resourceVersion", "generation"):
            drafted["metadata"].pop(key, None)
        return _response("Plan", {"object": drafted, **answer})

    # --- parts

    async def _draft(self, namespace: str, body: dict[str, Any]) -> dict[str, Any]:
        """The object as it would be created: validated and with its defaults."""
        options = queries.writing({"dryRun": "All", "fieldValidation": "Strict"}, "")
        checked = strategy.checked_body(Run, body, namespace, options)
        made: dict[str, Any] = strategy.new_object(Run, checked, times.now().timestamp())
        name = made["metadata"]["name"]
        with contextlib.suppress(errors.NotFound):
            await self._store.get(Run, name, namespace)
            raise errors.AlreadyExists(
                f'{Run.resource.plural}.{Run.resource.group} "{name}" already exists'
            )
        return made

    async def explainer(self) -> Explainer:
        if self._explainer is None:
            from windlass.control.explain.service import Explainer

            self._explainer = Explainer(self._store)
        await self._explainer.ready()
        return self._explainer

    async def explained(
        self, call: PlatformCall, found: Waiting, explainer: Explainer, *, planned: bool = False
    ) -> dict[str, Any]:
        """An explanation in the words and with the names that the caller may read."""
        from windlass.control.explain import narrative

        keys = [holder.workload for holder in found.explanation.holders]
        keys += [name for change in found.explanation.fits_if for name in change.names]
        runs = [run for key in keys if (run := explainer.run(key)) is not None]
        readable = await self._readable(call.identity, {run.namespace for run in runs})
        describe = narrative.of_planned if planned else narrative.of_waiting
        return describe(found, times.now(), explainer.run, readable.__contains__)

    async def _preempted(self, call: PlatformCall, run: Run, explainer: Explainer) -> list[str]:
        """By which run it was preempted, as far as the caller may know."""
        from windlass.control.explain import preemptions

        by = explainer.run(preemptions.preemptor(run))
        seen = await self._readable(call.identity, {by.namespace} if by is not None else ())
        return preemptions.sentences(run, explainer.run, seen.__contains__, times.now())

    async def _listed(self, identity: Identity, explainer: Explainer) -> set[str] | None:
        """The namespaces whose runs the caller may list; None if it may list those of all."""
        resource = Run.resource

        async def may(namespace: str) -> bool:
            wanted = Attributes("list", resource.group, resource.plural, "", namespace)
            return await self._rights.allowed(identity, wanted)

        if await may(""):
            return None
        return {namespace for namespace in explainer.namespaces() if await may(namespace)}

    async def _readable(self, identity: Identity, namespaces: Iterable[str]) -> set[str]:
        """The namespaces among these whose runs the caller may read."""
        found = set()
        for namespace in namespaces:
            wanted = Attributes("get", Run.resource.group, Run.resource.plural, "", namespace, "-")
            if await self._rights.allowed(identity, wanted):
                found.add(namespace)
        return found


def _about_outputs(run: Run) -> list[str]:
    """Which outputs were not collected, and why."""
    problems = [
        f"Outputs of {replica}: {found.message}."
        for replica, found in sorted((run.status.outputs or {}).items())
        if found.message
    ]
    more = len(problems) - _LISTED
    return problems[:_LISTED] + ([f"{more} more replicas have such problems."] if more > 0 else [])


def _response(kind: str, content: dict[str, Any]) -> web.Response:
    if "sentences" in content:
        content["summary"] = " ".join(content["sentences"])
    return json_response({"kind": kind, "apiVersion": f"{paths.GROUP}/{paths.VERSION}", **content})


def number(query: Any, name: str, default: int, most: int = MOST_ROWS) -> int:
    """A parameter that is a number."""
    text = query.get(name, "")
    if not text:
        return default
    if not text.isdecimal() or len(text) > len(str(most)) or int(text) > most:
        raise errors.BadRequest(f"{name} must be a number from 0 to {most}")
    return int(text)
