"""A small world for tests about pods that are created on their node, on a real control plane."""

from __future__ import annotations

import itertools
import json
from typing import Any

from tests.harness import players, rest, waiting

Json = dict[str, Any]
PATIENCE = 90
_NUMBERS = itertools.count(1)


class Case:
    """A namespace and nodes of a test's own."""

    def __init__(self, client: rest.Rest) -> None:
        self.rest = client
        self.name = f"case-{next(_NUMBERS)}"
        post(client, "/api/v1/namespaces", {"metadata": {"name": self.name}})
        account = f"/api/v1/namespaces/{self.name}/serviceaccounts/default"
        waiting.until(lambda: client.get(account).status == 200, "its service account exists")

    def node(self, name: str, *, taints: list[Json] | None = None, cordoned: bool = False,
             labels: Json | None = None, **amounts: str) -> str:  # fmt: skip
        has = {"cpu": "4", "memory": "16Gi", "pods": "20"}
        has |= {key.replace("__", "/").replace("_", "."): n for key, n in amounts.items()}
        ready = {"type": "Ready", "status": "True"}
        full = f"{self.name}-{name}"
        post(self.rest, "/api/v1/nodes", {
            "metadata": {"name": full, "labels": {"case": self.name, **(labels or {})}},
            "spec": {"taints": taints or [], "unschedulable": cordoned},
            "status": {"capacity": has, "allocatable": has, "conditions": [ready]},
        })  # fmt: skip
        return full

    def submit(
        self,
        name: str,
        replicas: int = 1,
        *,
        run_for: str | None = "0.2",
        nodes: Json | None = None,
        role: Json | None = None,
        **spec: Any,
    ) -> None:
        annotations = {} if run_for is None else {players.RUN_FOR: run_for}
        worker = {
            "command": ["true"], "replicas": replicas,
            "resources": {"cpu": "1", "memory": "64Mi"}, **(role or {}),
        }  # fmt: skip
        overrides = {"annotations": annotations, **spec.pop("overrides", {})}
        chosen = {"nodes": {"selector": {"case": self.name}, **(nodes or {})}}
        placement = spec.pop("placement", chosen)
        post(self.rest, self.runs, {
            "apiVersion": "windlass.dev/v1alpha1", "kind": "Run", "metadata": {"name": name},
            "spec": {"roles": [worker], "placement": placement, "overrides": overrides, **spec},
        })  # fmt: skip

    @property
    def runs(self) -> str:
        return f"/apis/windlass.dev/v1alpha1/namespaces/{self.name}/runs"

    def status(self, name: str) -> Json:
        found: Json = self.rest.get(f"{self.runs}/{name}").json.get("status", {})
        return found

    def pods(self, name: str = "") -> list[Json]:
        path = f"/api/v1/namespaces/{self.name}/pods"
        selector = f"windlass.dev/run={name}" if name else None
        found: list[Json] = self.rest.get(path, labelSelector=selector).json["items"]
        return found

    def reaches(self, name: str, phase: str) -> Json:
        return self.comes(name, lambda status: status.get("phase") == phase, phase)

    def waits(self, name: str, reason: str, *words: str) -> Json:
        def told(status: Json) -> bool:
            message = status.get("message", "")
            return status.get("reason") == reason and all(word in message for word in words)

        return self.comes(name, told, f"{reason} {words}")

    def comes(self, name: str, holds: Any, what: str) -> Json:
        try:
            waiting.until(lambda: holds(self.status(name)), what, PATIENCE)
        except AssertionError as never:
            raise AssertionError(f"{never}; {name} is {json.dumps(self.status(name))}") from None
        return self.status(name)

    def nodes_of(self, name: str) -> set[str]:
        listed = self.status(name)["assignment"]["members"]["worker"]
        return {member["node"].removeprefix(f"{self.name}-") for member in listed}


def post(client: rest.Rest, path: str, body: Json) -> None:
    answer = client.post(path, body)
    assert answer.status == 201, answer.summary
