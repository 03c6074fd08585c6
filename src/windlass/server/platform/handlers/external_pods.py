"""Questions about external pods: which there are, and why one waits.

    GET  /apis/platform.windlass.dev/v1alpha1[/namespaces/NS]/externalpods?limit=&queue=
    GET  /apis/platform.windlass.dev/v1alpha1/namespaces/NS/externalpods/NAME/why

The explainer of the runs answers: external pods wait in the same queues.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from windlass.kinds.types import core
from windlass.kinds.values import times
from windlass.server.http.responses import json_response
from windlass.server.platform import paths
from windlass.server.platform.call import PlatformCall
from windlass.server.platform.handlers import runs
from windlass.store import interface


class ExternalPodService:
    def __init__(self, store: interface.Store, explained: runs.RunService) -> None:
        self._store, self._runs = store, explained

    async def list(self, call: PlatformCall) -> web.Response:
        """Placed ones, the latest first, then those that wait, the oldest first."""
        from windlass.control.explain import external_pods

        if call.namespace:
            await self._store.get(core.Namespace, call.namespace)
        most = runs.number(call.query, "limit", runs.FIRST_WAITING)
        wanted = call.query.get("queue", "")
        explainer = await self._runs.explainer()
        found: dict[bool, list[tuple[core.Pod, str]]] = {True: [], False: []}
        for pod, queue in await explainer.external_pods(call.namespace):
            phase = external_pods.phase(pod)
            if phase in ("Succeeded", "Failed", external_pods.ENDED) or wanted not in ("", queue):
                continue
            found[phase in (external_pods.QUEUED, external_pods.GATED)].append((pod, queue))
        placed = sorted(found[False], key=lambda each: external_pods.newest_first(each[0]))
        waiting = sorted(found[True], key=lambda each: external_pods.newest_first(each[0]))[::-1]
        content = {
            "items": [external_pods.row(*each) for each in (*placed[:most], *waiting[:most])],
            "placed": len(placed),
            "waiting": len(waiting),
        }
        return _response("ExternalPodPage", content)

    async def why(self, call: PlatformCall) -> web.Response:
        """Why a pod waits, or where it is."""
        from windlass.control.convert import external_pods as convert
        from windlass.control.explain import external_pods

        await self._store.get(core.Namespace, call.namespace)
        pod = await self._store.get(core.Pod, call.parameters["pod"], call.namespace)
        answer: dict[str, Any] = {
            "pod": pod.name, "namespace": pod.namespace, "phase": external_pods.phase(pod),
        }  # fmt: skip
        explainer = await self._runs.explainer()
        found = await explainer.pod_waiting(pod) if convert.waits(pod) else None
        if found is not None:
            return _response("Why", answer | await self._runs.explained(call, found, explainer))
        answer["sentences"] = external_pods.describe(pod, times.now())
        return _response("Why", answer)


def _response(kind: str, content: dict[str, Any]) -> web.Response:
    if "sentences" in content:
        content["summary"] = " ".join(content["sentences"])
    return json_response({"kind": kind, "apiVersion": f"{paths.GROUP}/{paths.VERSION}", **content})
