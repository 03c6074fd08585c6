"""What nodes and pods use: the agents' own pages through the node's proxy path, and
`metrics.k8s.io`, which `kubectl top` reads.

    /api/v1/nodes/NAME/proxy/metrics/resource | stats/summary
    /apis/metrics.k8s.io/v1beta1/nodes[/NAME], [namespaces/NS/]pods[/NAME]

Agents count seconds of CPU; a rate needs two looks, so the last look of each node is kept, and the
first question takes a moment longer. The ledger asks once a minute; beside that, nothing is asked
of agents unless somebody wants to know.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
import urllib.parse
from typing import Any, Protocol

import msgspec
from aiohttp import web

from windlass.kinds import kubernetes, times, wire
from windlass.ledger import activity
from windlass.server.access import Access
from windlass.server.identity import Attributes, Identity
from windlass.store import errors
from windlass.store.embedded.api import Api
from windlass.store.embedded.client import EmbeddedStore

GROUP, VERSION = "metrics.k8s.io", "v1beta1"
_ROOT = f"/apis/{GROUP}/{VERSION}/"
_PAGES = ("metrics/resource", "stats/summary")
_SHORTEST_WINDOW, _LONGEST_WINDOW = 0.3, 90.0
"""Seconds between two looks. The ledger asks every minute: that minute is one window."""


Rated = list[tuple[dict[str, Any], dict[str, Any]]]
"""Nodes' metadata, and what they and their pods use."""


class Reaching(Protocol):
    """A gateway that reaches agents' own pages."""

    async def usage(self, node: dict[str, Any], path: str) -> tuple[int, str, bytes]: ...


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """What a path asks: a page of a node's agent, or metrics of `nodes` or `pods`."""

    what: str
    namespace: str = ""
    name: str = ""
    page: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class _Look:
    """One node's summary at one moment."""

    at: float
    told: dict[str, Any]


def match(raw_path: str) -> Question | None:
    """The question that a path asks, if it is one of ours."""
    parts = [urllib.parse.unquote(part) for part in raw_path.split("/")[1:]]
    if raw_path.startswith("/api/v1/nodes/") and len(parts) == 7 and parts[4] == "proxy":
        page = "/".join(parts[5:])
        return Question("proxy", "", parts[3], page) if page in _PAGES else None
    if not raw_path.startswith(_ROOT):
        return None
    match parts[3:]:
        case ["nodes"]:
            return Question("nodes")
        case ["nodes", name]:
            return Question("nodes", "", name)
        case ["pods"]:
            return Question("pods")
        case ["namespaces", namespace, "pods"]:
            return Question("pods", namespace)
        case ["namespaces", namespace, "pods", name]:
            return Question("pods", namespace, name)
    return None


class Usage:
    """Answers them, with the caller's rights."""

    def __init__(self, api: Api, access: Access, gateway: Any) -> None:
        self._store = EmbeddedStore(api)
        self._access = access
        self._gateway: Reaching | None = gateway if hasattr(gateway, "usage") else None
        self._looks: dict[str, _Look] = {}

    async def answer(
        self, request: web.BaseRequest, identity: Identity, asked: Question
    ) -> web.Response:
        if request.method not in ("GET", "HEAD"):
            raise errors.MethodNotAllowed("metrics are read only")
        if asked.what == "proxy":
            # It tells about everybody's pods, as the server's own metrics do.
            self._access.authorize_path(identity, "/metrics")
            return await self._page(asked)
        verb = "get" if asked.name else "list"
        wanted = Attributes(verb, "", asked.what, "", asked.namespace, asked.name)
        await self._access.authorize(identity, wanted)
        selector = request.rel_url.query.get("labelSelector", "")
        return _json(await self._metrics(asked, selector))

    async def _page(self, asked: Question) -> web.Response:
        if self._gateway is None:
            raise errors.Unavailable("nothing reaches the nodes here")
        node = wire.to_dict(await self._store.get(kubernetes.Node, asked.name))
        status, kind, body = await self._gateway.usage(node, asked.page)
        return web.Response(status=status, body=body, headers={"Content-Type": kind})

    async def measured(self) -> activity.Measured:
        """What all nodes and pods use, for the ledger."""
        looks = await self._looked()
        nodes = {"items": _nodes(looks, "")}
        return activity.read(nodes, {"items": await self._pods(Question("pods"), "", looks)})

    async def _metrics(self, asked: Question, selector: str) -> dict[str, Any]:
        looks = await self._looked()
        if asked.what == "nodes":
            items = _nodes(looks, asked.name)
        else:
            items = await self._pods(asked, selector, looks)
        if asked.name:
            if not items:
                raise errors.NotFound(f'{asked.what}.metrics.k8s.io "{asked.name}" not found')
            return items[0]
        kind = "NodeMetricsList" if asked.what == "nodes" else "PodMetricsList"
        head = {"kind": kind, "apiVersion": f"{GROUP}/{VERSION}", "metadata": {}}
        return {**head, "items": items}

    async def _looked(self) -> Rated:
        """What each node that answers uses now, with its metadata."""
        nodes = [wire.to_dict(node) for node in (await self._store.list(kubernetes.Node)).items]
        looks = await asyncio.gather(*(self._rates(node) for node in nodes))
        return [
            (node["metadata"], rated)
            for node, rated in zip(nodes, looks, strict=True)
            if rated is not None
        ]

    async def _pods(self, asked: Question, selector: str, looks: Rated) -> list[dict[str, Any]]:
        found = await self._store.list(kubernetes.Pod, asked.namespace, label_selector=selector)
        known = {pod.uid: pod for pod in found.items if asked.name in ("", pod.name)}
        items = []
        for _, rated in looks:
            for uid, containers in rated["pods"].items():
                if uid in known:
                    metadata = wire.to_dict(known[uid])["metadata"]
                    items.append(_item("PodMetrics", metadata, rated, {"containers": containers}))
        return items

    async def _rates(self, node: dict[str, Any]) -> dict[str, Any] | None:
        """What a node and its pods use now; None if its agent does not answer."""
        try:
            before = self._looks.get(node["metadata"]["name"])
            if before is None or time.monotonic() - before.at > _LONGEST_WINDOW:
                before = await self._look(node)
            left = _SHORTEST_WINDOW - (time.monotonic() - before.at)
            if left > 0:
                await asyncio.sleep(left)
            return _rated(before, await self._look(node))
        except errors.ApiError:
            return None

    async def _look(self, node: dict[str, Any]) -> _Look:
        if self._gateway is None:
            raise errors.Unavailable("nothing reaches the nodes here")
        status, _, body = await self._gateway.usage(node, "stats/summary")
        if status != 200:
            raise errors.Unavailable("the agent measures nothing")
        look = _Look(time.monotonic(), msgspec.json.decode(body))
        self._looks[node["metadata"]["name"]] = look
        return look


def _rated(before: _Look, after: _Look) -> dict[str, Any]:
    window = max(1e-3, after.at - before.at)
    old = dict(_containers(before.told))
    pods: dict[str, list[dict[str, Any]]] = {}
    for (uid, name), stats in _containers(after.told):
        usage = _usage(old.get((uid, name)), stats, window)
        pods.setdefault(uid, []).append({"name": name, "usage": usage})
    node = _usage(before.told["node"], after.told["node"], window)
    for name, part in after.told["node"].get("windlass", {}).get("devices", {}).items():
        node[activity.key_of(name)] = f"{round(1000 * part)}m"
    return {
        "window": window,
        "node": node,
        "pods": pods,
    }


def _nodes(looks: Rated, name: str) -> list[dict[str, Any]]:
    """NodeMetrics of all nodes, or of one."""
    return [
        _item("NodeMetrics", metadata, rated, {"usage": rated["node"]})
        for metadata, rated in looks
        if name in ("", metadata["name"])
    ]


def _containers(told: dict[str, Any]) -> list[tuple[tuple[str, str], dict[str, Any]]]:
    return [
        ((pod["podRef"]["uid"], container["name"]), container)
        for pod in told["pods"]
        for container in pod["containers"]
    ]


def _usage(old: dict[str, Any] | None, new: dict[str, Any], window: float) -> dict[str, str]:
    key = "usageCoreNanoSeconds"
    spent = new["cpu"][key] - (old["cpu"][key] if old else new["cpu"][key])
    return {
        "cpu": f"{max(0, round(spent / window))}n",
        "memory": f"{new['memory']['workingSetBytes'] // 1024}Ki",
    }


def _item(
    kind: str, metadata: dict[str, Any], rated: dict[str, Any], more: dict[str, Any]
) -> dict[str, Any]:
    kept = ("name", "namespace", "labels", "creationTimestamp")
    return {
        "kind": kind,
        "apiVersion": f"{GROUP}/{VERSION}",
        "metadata": {key: metadata[key] for key in kept if key in metadata},
        "timestamp": times.seconds(times.now()),
        "window": f"{rated['window']:.3f}s",
        **more,
    }


def _json(value: dict[str, Any]) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(value), headers={"Content-Type": "application/json"}
    )
