"""Every path beside the objects, in one table, with who may use it.

A path that is not here is not served, whatever handlers there are: `is_listed` is asked first. So
whoever adds one must say here for whom it is, and the tenancy test tries it as everybody else.

    team      who has a right in the namespace that it names
    platform  who has a right everywhere: it tells about all teams
    everyone  every caller who is known; the answer holds only what he may see
    box       whoever has the token of that very mailbox
"""

from __future__ import annotations

import dataclasses
import functools
import urllib.parse
from typing import Literal

from windlass.server.platformpaths import ROOT

Who = Literal["team", "platform", "everyone", "box"]
_NAMESPACE = f"{ROOT}/namespaces/{{namespace}}"
_RUN = f"{_NAMESPACE}/runs/{{run}}"
_BOX = f"{_NAMESPACE}/mailboxes/{{box}}"
_METRICS = "/apis/metrics.k8s.io/v1beta1"


@dataclasses.dataclass(frozen=True, slots=True)
class Route:
    template: str
    methods: tuple[str, ...]
    who: Who
    why: str = ""
    """For `everyone`: why that is right."""


ROUTES: tuple[Route, ...] = (
    Route(f"{ROOT}/ps", ("GET",), "platform"),
    Route(f"{_NAMESPACE}/ps", ("GET",), "team"),
    Route(f"{_NAMESPACE}/plan", ("POST",), "team"),
    Route(f"{ROOT}/usage", ("GET",), "platform"),
    Route(f"{_NAMESPACE}/usage", ("GET",), "team"),
    Route(f"{_NAMESPACE}/statement", ("GET",), "team"),
    Route(f"{ROOT}/fleet", ("GET",), "platform"),
    Route(f"{ROOT}/verify", ("GET",), "platform"),
    Route(f"{_RUN}/why", ("GET",), "team"),
    Route(f"{_RUN}/logs", ("GET",), "team"),
    # Node agents put them, which serve all teams.
    Route(f"{_RUN}/logs/{{log}}", ("GET", "PUT"), "team"),
    Route(f"{_RUN}/logs/{{log}}/{{container}}/{{number}}", ("PUT",), "platform"),
    Route(f"{_RUN}/addresses", ("GET",), "team"),
    Route(f"{_NAMESPACE}/blobs/{{digest}}", ("HEAD", "GET", "PATCH"), "team"),
    Route(f"{_NAMESPACE}/mailboxes", ("POST",), "team"),
    Route(_BOX, ("DELETE",), "team"),
    Route(f"{_BOX}/events", ("GET",), "team"),
    Route(f"{_BOX}/calls/{{key}}", ("PUT", "DELETE"), "team"),
    Route(f"{_BOX}/results/{{key}}", ("GET",), "team"),
    Route(f"{_BOX}/worker/take", ("POST",), "box"),
    Route(f"{_BOX}/worker/calls/{{key}}", ("GET",), "box"),
    Route(f"{_BOX}/worker/results/{{key}}", ("PUT",), "box"),
    Route(f"{ROOT}/queues", ("GET",), "everyone", "amounts are public; names of runs are filtered"),
    Route(f"{ROOT}/queues/plan", ("POST",), "platform"),
    Route(f"{ROOT}/tokens", ("GET",), "everyone", "one's own tokens"),
    Route(f"{ROOT}/tokens", ("POST",), "platform"),
    Route(f"{ROOT}/tokens/{{token}}", ("DELETE",), "platform"),
    Route("/api/v1/nodes/{node}/proxy/metrics/resource", ("GET",), "platform"),
    Route("/api/v1/nodes/{node}/proxy/stats/summary", ("GET",), "platform"),
    Route(f"{ROOT}/nodemetrics", ("GET",), "everyone", "nodes are public, and how full they are"),
    # Node agents put them, each of its own node; `usage.Usage` refuses everybody else.
    Route(f"{ROOT}/nodemetrics/{{node}}", ("GET",), "everyone", "the same"),
    Route(f"{ROOT}/nodemetrics/{{node}}", ("PUT",), "platform"),
    Route(f"{ROOT}/podmetrics", ("GET",), "platform"),
    Route(f"{_NAMESPACE}/podmetrics", ("GET",), "team"),
    Route(f"{_NAMESPACE}/podmetrics/{{pod}}", ("GET",), "team"),
    Route(f"{_METRICS}/nodes", ("GET",), "everyone", "nodes are public, and how full they are"),
    Route(f"{_METRICS}/nodes/{{node}}", ("GET",), "everyone", "the same"),
    Route(f"{_METRICS}/pods", ("GET",), "platform"),
    Route(f"{_METRICS}/namespaces/{{namespace}}/pods", ("GET",), "team"),
    Route(f"{_METRICS}/namespaces/{{namespace}}/pods/{{pod}}", ("GET",), "team"),
)


def is_listed(raw_path: str) -> bool:
    """Whether a path, as it came over the wire, is one of the table; whatever the method."""
    parts = raw_path.split("/")
    return any(_fits(template, parts) for template in _by_length().get(len(parts), ()))


@functools.cache
def _by_length() -> dict[int, list[list[str]]]:
    found: dict[int, list[list[str]]] = {}
    for template in dict.fromkeys(route.template for route in ROUTES):
        parts = template.split("/")
        found.setdefault(len(parts), []).append(parts)
    return found


def _fits(template: list[str], parts: list[str]) -> bool:
    return all(
        bool(part) if wanted.startswith("{") else wanted in (part, urllib.parse.unquote(part))
        for wanted, part in zip(template, parts, strict=True)
    )
