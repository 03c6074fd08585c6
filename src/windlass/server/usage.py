"""What nodes and pods use, for people and the ledger: `windlass top`, `kubectl top`, the fleet.

    /apis/platform.windlass.dev/v1alpha1/nodemetrics[/NAME], [namespaces/NS/]podmetrics[/NAME]
    /apis/metrics.k8s.io/v1beta1/nodes[/NAME], [namespaces/NS/]pods[/NAME]           embedded
    /api/v1/nodes/NAME/proxy/metrics/resource | stats/summary                         embedded

Both families answer in the words of metrics.k8s.io. Whoever knows what is used is a `Source`:
embedded, agents are asked (`server.looking`); on a cluster they tell (`server.nodereports`), and
what its metrics-server knows of nodes without an agent of ours is put beside that.
"""

from __future__ import annotations

import dataclasses
import urllib.parse
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec
from aiohttp import web

from windlass.agent.rates import Rates
from windlass.kinds import kubernetes, times, wire
from windlass.ledger import activity
from windlass.server import platformpaths
from windlass.server.identity import Attributes, Identity
from windlass.server.rights import Rights
from windlass.store import client, errors

GROUP, VERSION = "metrics.k8s.io", "v1beta1"
_ROOT = f"/apis/{GROUP}/{VERSION}/"
_PAGES = ("metrics/resource", "stats/summary")

Json = dict[str, Any]
Others = Callable[[str], Awaitable[list[Json]]]
"""Metrics that somebody else has, at a path below metrics.k8s.io."""


class Source(Protocol):
    async def rates(self) -> dict[str, Rates]:
        """By node: those that are known."""
        ...


class Told(Source, Protocol):
    """A source that agents tell."""

    async def take(self, identity: Identity, node: str, body: bytes) -> float:
        """What a node's agent tells; the seconds until it should tell again."""
        ...


async def nobody(_: str) -> list[Json]:
    return []


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """What a path asks: a page of a node's agent, or metrics of `nodes` or `pods`."""

    what: str
    namespace: str = ""
    name: str = ""
    page: str = ""


def match(raw_path: str) -> Question | None:
    """The question that a path asks, if it is one of ours."""
    parts = [urllib.parse.unquote(part) for part in raw_path.split("/")[1:]]
    if raw_path.startswith("/api/v1/nodes/") and len(parts) == 7 and parts[4] == "proxy":
        page = "/".join(parts[5:])
        return Question("proxy", "", parts[3], page) if page in _PAGES else None
    if raw_path.startswith(_ROOT):
        nodes, pods = "nodes", "pods"
    elif raw_path.startswith(platformpaths.ROOT + "/"):
        nodes, pods = "nodemetrics", "podmetrics"
    else:
        return None
    match parts[3:]:
        case [word] if word in (nodes, pods):
            return Question("nodes" if word == nodes else "pods")
        case [word, name] if word == nodes:
            return Question("nodes", "", name)
        case ["namespaces", namespace, word] if word == pods:
            return Question("pods", namespace)
        case ["namespaces", namespace, word, name] if word == pods:
            return Question("pods", namespace, name)
    return None


class Usage:
    """Answers them, with the caller's rights."""

    def __init__(
        self,
        store: client.Store,
        rights: Rights,
        source: Source,
        told: Told | None = None,
        others: Others = nobody,
    ) -> None:
        self._store = store
        self._rights = rights
        self._source = source
        self._told = told
        self._others = others

    async def answer(
        self, request: web.BaseRequest, identity: Identity, asked: Question
    ) -> web.Response:
        if request.method == "PUT" and asked.what == "nodes" and asked.name:
            return await self._take(request, identity, asked.name)
        if request.method not in ("GET", "HEAD"):
            raise errors.MethodNotAllowed("metrics are read, or put by agents")
        verb = "get" if asked.name else "list"
        wanted = Attributes(verb, "", asked.what, "", asked.namespace, asked.name)
        await self._rights.authorize(identity, wanted)
        selector = request.rel_url.query.get("labelSelector", "")
        return _json(await self._metrics(asked, selector))

    async def measured(self) -> activity.Measured:
        """What all nodes and pods use, for the ledger."""
        nodes, pods = {}, {}
        for node, rates in (await self._source.rates()).items():
            nodes[node] = activity.use([rates.node])
            for pod in rates.pods.values():
                used = (container.usage for container in pod.containers)
                pods[pod.namespace, pod.name] = activity.use(used, node)
        theirs = activity.read(
            {"items": await self._others("nodes")}, {"items": await self._others("pods")}
        )
        return activity.Measured({**theirs.nodes, **nodes}, {**theirs.pods, **pods})

    async def _take(self, request: web.BaseRequest, identity: Identity, node: str) -> web.Response:
        """A right that no person's role has: whoever may ask the platform API anything, as people
        may, must not say what nodes do."""
        await self._rights.authorize(
            identity, Attributes("create", "windlass.dev", "nodes", "metrics", "", node)
        )
        if self._told is None:
            raise errors.MethodNotAllowed("agents of this engine are asked what they use")
        after = await self._told.take(identity, node, await request.read())
        return _json({"nextSeconds": after})

    async def _metrics(self, asked: Question, selector: str) -> Json:
        if asked.what == "nodes":
            items = await self._nodes(asked.name)
        else:
            items = await self._pods(asked, selector)
        if asked.name:
            if not items:
                raise errors.NotFound(f'{asked.what}.metrics.k8s.io "{asked.name}" not found')
            return items[0]
        kind = "NodeMetricsList" if asked.what == "nodes" else "PodMetricsList"
        head = {"kind": kind, "apiVersion": f"{GROUP}/{VERSION}", "metadata": {}}
        return {**head, "items": items}

    async def _nodes(self, name: str) -> list[Json]:
        known = {node.name: node for node in (await self._store.list(kubernetes.Node)).items}
        ours = [
            _item("NodeMetrics", known[node], rates, {"usage": rates.node})
            for node, rates in (await self._source.rates()).items()
            if node in known
        ]
        return [each for each in _with(ours, await self._others("nodes")) if _is(each, name)]

    async def _pods(self, asked: Question, selector: str) -> list[Json]:
        found = await self._store.list(kubernetes.Pod, asked.namespace, label_selector=selector)
        known = {pod.uid: pod for pod in found.items}
        ours = []
        for node, rates in (await self._source.rates()).items():
            for uid, rate in rates.pods.items():
                pod = known.get(uid)
                if pod is not None and pod.spec.node_name in ("", node):
                    used = msgspec.to_builtins(rate.containers)
                    ours.append(_item("PodMetrics", pod, rates, {"containers": used}))
        place = f"namespaces/{asked.namespace}/pods" if asked.namespace else "pods"
        chosen = f"?labelSelector={urllib.parse.quote(selector)}" if selector else ""
        return [
            each for each in _with(ours, await self._others(place + chosen))
            if _is(each, asked.name)
        ]  # fmt: skip


def _with(ours: list[Json], others: list[Json]) -> list[Json]:
    """What both tell is told by our own agents: they know of devices."""
    told = {_key(item) for item in ours}
    return ours + [item for item in others if _key(item) not in told]


def _key(item: Json) -> tuple[str, str]:
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]


def _is(item: Json, name: str) -> bool:
    return name in ("", item["metadata"]["name"])


def _item(kind: str, about: kubernetes.Node | kubernetes.Pod, rates: Rates, more: Json) -> Json:
    metadata = wire.to_dict(about)["metadata"]
    kept = ("name", "namespace", "labels", "creationTimestamp")
    return {
        "kind": kind,
        "apiVersion": f"{GROUP}/{VERSION}",
        "metadata": {key: metadata[key] for key in kept if key in metadata},
        "timestamp": times.seconds(times.now()),
        "window": f"{rates.window:.3f}s",
        **more,
    }


def _json(value: Json) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(value), headers={"Content-Type": "application/json"}
    )
