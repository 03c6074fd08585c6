"""What nodes and pods use, for users and the ledger: `windlass top`, `kubectl top`, the fleet.

    /apis/platform.windlass.dev/v1alpha1/nodemetrics[/NAME], [namespaces/NS/]podmetrics[/NAME]
    /apis/metrics.k8s.io/v1beta1/nodes[/NAME], [namespaces/NS/]pods[/NAME]           embedded

Both families answer with the objects of metrics.k8s.io. A `Source` has the rates: embedded, the
server pulls them from agents (`metrics_pull`); on a cluster agents push them (`metrics_push`), and
the cluster's metrics-server adds the nodes without an agent of ours.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec
from aiohttp import web

from windlass.kinds import codec
from windlass.kinds.types import core
from windlass.kinds.values import times
from windlass.ledger.ingest import utilization
from windlass.server.auth.identity import Identity
from windlass.server.http import bodies
from windlass.server.http.responses import json_response
from windlass.server.platform.call import PlatformCall
from windlass.store import errors, interface
from windlass.telemetry.usage_rates import Rates

GROUP, VERSION = "metrics.k8s.io", "v1beta1"
Json = dict[str, Any]
ExternalMetrics = Callable[[str], Awaitable[list[Json]]]
"""Items of the cluster's own metrics-server, at a path below metrics.k8s.io."""


class Source(Protocol):
    async def rates(self) -> dict[str, Rates]:
        """By node, for the nodes whose rates are known."""
        ...


class PushSource(Source, Protocol):
    """A source to which agents send their metrics."""

    async def take(self, identity: Identity, node: str, body: bytes) -> float:
        """Takes the report of a node's agent; returns the seconds until its next one."""
        ...


async def no_metrics(_: str) -> list[Json]:
    return []


class MetricsService:
    def __init__(
        self,
        store: interface.Store,
        source: Source,
        push: PushSource | None = None,
        external: ExternalMetrics = no_metrics,
    ) -> None:
        self._store = store
        self._source = source
        self._push = push
        self._external = external

    async def nodes(self, call: PlatformCall) -> web.Response:
        """The metrics of all nodes, or of the node that the path names."""
        name = call.parameters.get("node", "")
        known = {node.name: node for node in (await self._store.list(core.Node)).items}
        ours = [
            _item("NodeMetrics", known[node], rates, {"usage": rates.node})
            for node, rates in (await self._source.rates()).items()
            if node in known
        ]
        items = _merged(ours, await self._external("nodes"))
        return _response("NodeMetricsList", "nodes", items, name)

    async def pods(self, call: PlatformCall) -> web.Response:
        """The metrics of pods in a namespace or in all, or of the pod that the path names."""
        namespace, name = call.namespace, call.parameters.get("pod", "")
        selector = call.query.get("labelSelector", "")
        found = await self._store.list(core.Pod, namespace, label_selector=selector)
        known = {pod.uid: pod for pod in found.items}
        ours = []
        for node, rates in (await self._source.rates()).items():
            for uid, rate in rates.pods.items():
                pod = known.get(uid)
                if pod is not None and pod.spec.node_name in ("", node):
                    used = msgspec.to_builtins(rate.containers)
                    ours.append(_item("PodMetrics", pod, rates, {"containers": used}))
        path = f"namespaces/{namespace}/pods" if namespace else "pods"
        query = f"?labelSelector={urllib.parse.quote(selector)}" if selector else ""
        items = _merged(ours, await self._external(path + query))
        return _response("PodMetricsList", "pods", items, name)

    async def put_node(self, call: PlatformCall) -> web.Response:
        """A report of a node's agent; the answer says when the agent sends the next one."""
        if self._push is None:
            raise errors.MethodNotAllowed("this server asks the agents for their metrics")
        node, body = call.parameters["node"], await bodies.read(call.request)
        return json_response({"nextSeconds": await self._push.take(call.identity, node, body)})

    async def measured(self) -> utilization.Measured:
        """What all nodes and pods use now, for the ledger."""
        nodes, pods = {}, {}
        for node, rates in (await self._source.rates()).items():
            nodes[node] = utilization.use([rates.node])
            for pod in rates.pods.values():
                used = (container.usage for container in pod.containers)
                pods[pod.namespace, pod.name] = utilization.use(used, node)
        external = utilization.read(
            {"items": await self._external("nodes")}, {"items": await self._external("pods")}
        )
        return utilization.Measured({**external.nodes, **nodes}, {**external.pods, **pods})


def _merged(ours: list[Json], external: list[Json]) -> list[Json]:
    """Where both have metrics, those of our own agents: they include devices."""
    known = {_key(item) for item in ours}
    return ours + [item for item in external if _key(item) not in known]


def _key(item: Json) -> tuple[str, str]:
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]


def _response(kind: str, resource: str, items: list[Json], name: str) -> web.Response:
    """The list, or the item of that name."""
    if not name:
        head = {"kind": kind, "apiVersion": f"{GROUP}/{VERSION}", "metadata": {}}
        return json_response({**head, "items": items})
    for item in items:
        if item["metadata"]["name"] == name:
            return json_response(item)
    raise errors.NotFound(f'{resource}.metrics.k8s.io "{name}" not found')


def _item(kind: str, about: core.Node | core.Pod, rates: Rates, more: Json) -> Json:
    metadata = codec.to_dict(about)["metadata"]
    kept = ("name", "namespace", "labels", "creationTimestamp")
    return {
        "kind": kind,
        "apiVersion": f"{GROUP}/{VERSION}",
        "metadata": {key: metadata[key] for key in kept if key in metadata},
        "timestamp": times.seconds(times.now()),
        "window": f"{rates.window:.3f}s",
        **more,
    }
