"""One attack as a row of a table: who sends what, and how it must be refused.

Tables are the modules `rows_*.py`; `test_campaign.py` runs every row on each engine to which it
applies. Texts with `$name` are filled in from the world of the engine (`worlds.World.values`).
"""

from __future__ import annotations

import dataclasses
import json
import string
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

API = "/apis/windlass.dev/v1alpha1"
PLATFORM = "/apis/platform.windlass.dev/v1alpha1"
CORE = "/api/v1"
RBAC = "/apis/rbac.authorization.k8s.io/v1"

EMBEDDED: tuple[str, ...] = ("embedded",)
KUBERNETES: tuple[str, ...] = ("kubernetes",)
BOTH = EMBEDDED + KUBERNETES

REFUSED = (403,)
UNKNOWN = (401,)
INVALID = (400, 422)
GONE = 0
"""In place of a status: the server closed the connection without an answer."""

MERGE, JSON_PATCH = "application/merge-patch+json", "application/json-patch+json"
STRATEGIC, YAML = "application/strategic-merge-patch+json", "application/yaml"

Body = Any
"""JSON; bytes, which are sent as they are; or a function that makes either."""


@dataclasses.dataclass(frozen=True)
class Attack:
    what: str
    actor: str
    """A key of `worlds.World.callers`."""
    method: str
    path: str
    body: Body = None
    expected: tuple[int, ...] = REFUSED
    """Statuses. A success is expected where something harmless was asked for: nothing else may
    have changed then."""
    on_kubernetes: tuple[int, ...] = ()
    """The statuses there, where they are others."""
    kind: str = "application/json"
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    engines: tuple[str, ...] = BOTH
    lacks: tuple[str, ...] = ()
    """Texts that the answer must not contain, beside the secrets of the victims."""
    door: Literal["api", "server"] = "api"
    """`server`: past the API server of a cluster, at the server's own port."""
    at_once: int = 1
    """That many connections, each with this request, all open at the same time."""

    def allowed(self, engine: str) -> tuple[int, ...]:
        return (engine == "kubernetes" and self.on_kubernetes) or self.expected


@dataclasses.dataclass(frozen=True)
class Request:
    method: str
    path: str
    body: bytes
    headers: dict[str, str]


def request_of(row: Attack, values: Mapping[str, str]) -> Request:
    body = row.body() if callable(row.body) else row.body
    if body is None:
        data = b""
    elif isinstance(body, bytes):
        data = body
    else:
        data = filled(json.dumps(body), values).encode()
    headers = {"Content-Type": row.kind, "Accept": "application/json"}
    headers |= {name: filled(value, values) for name, value in row.headers.items()}
    return Request(row.method, filled(row.path, values), data, headers)


def filled(text: str, values: Mapping[str, str]) -> str:
    return string.Template(text).safe_substitute(values)


def chosen(rows: Iterable[Attack], engine: str) -> Iterator[Attack]:
    return (row for row in rows if engine in row.engines)


def doubled(rows: Sequence[Attack]) -> list[str]:
    """Names that more than one row has."""
    names = [row.what for row in rows]
    return sorted({name for name in names if names.count(name) > 1})


def of(actors: Mapping[str, str], targets: Iterable[tuple[Any, ...]], **more: Any) -> list[Attack]:
    """Rows for each actor (key, and how the row's name begins) and target: what, method, path and,
    if there is one, the body."""
    return [
        Attack(f"{title} {what}", actor, method, path, *rest, **more)
        for actor, title in actors.items()
        for what, method, path, *rest in targets
    ]


def run(name: str = "hostile-run-$n", /, **spec: Any) -> dict[str, Any]:
    """A Run of one replica."""
    role = {"command": ["true"], "resources": {"cpu": "100m", "memory": "32Mi"}}
    return {
        "apiVersion": "windlass.dev/v1alpha1", "kind": "Run", "metadata": {"name": name},
        "spec": {"roles": [role], "suspend": True} | spec,
    }  # fmt: skip


def cron(name: str = "hostile-cron-$n", /, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "windlass.dev/v1alpha1", "kind": "CronRun", "metadata": {"name": name},
        "spec": {
            "schedule": "0 0 1 1 *", "suspend": True, "template": {"spec": run(**spec)["spec"]},
        },
    }  # fmt: skip


def lazily(make: Callable[..., bytes], *arguments: Any) -> Callable[[], bytes]:
    """A large body, made when it is sent."""
    return lambda: make(*arguments)
