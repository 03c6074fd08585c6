"""Small builders of objects and paths, and the two ways an answer is checked."""

from __future__ import annotations

from typing import Any

from tests.harness.rest import Answer, Rest

Json = dict[str, Any]

OWN_GROUP = "windlass.dev"
OWN_VERSION = "windlass.dev/v1alpha1"


def ok(answer: Answer, status: int = 200) -> Any:
    """The body of an answer that must be a success."""
    assert answer.status == status, answer.summary
    return answer.json


def refused(answer: Answer, code: int, reason: str = "", *, field: str = "") -> Json:
    """The Status of an answer that must be a refusal, about this field if one is named."""
    assert answer.status == code, answer.summary
    status: Json = answer.json
    assert status["kind"] == "Status", answer.summary
    assert status["status"] == "Failure", answer.summary
    assert status["code"] == code, answer.summary
    if reason:
        assert status["reason"] == reason, answer.summary
    if field:
        assert field in causes(status), answer.summary
    return status


def causes(status: Json) -> list[str]:
    """The fields that a Status complains about."""
    return [cause.get("field", "") for cause in status.get("details", {}).get("causes", [])]


# --- paths --------------------------------------------------------------------------------------


def core(namespace: str, plural: str, name: str = "", subresource: str = "") -> str:
    return _path("/api/v1", namespace, plural, name, subresource)


def own(namespace: str, plural: str, name: str = "", subresource: str = "") -> str:
    return _path(f"/apis/{OWN_VERSION}", namespace, plural, name, subresource)


def leases(namespace: str, name: str = "") -> str:
    return _path("/apis/coordination.k8s.io/v1", namespace, "leases", name, "")


def _path(root: str, namespace: str, plural: str, name: str, subresource: str) -> str:
    parts = [root, f"namespaces/{namespace}" if namespace else "", plural, name, subresource]
    return "/".join(part for part in parts if part)


# --- objects ------------------------------------------------------------------------------------


def meta(name: str, **fields: Any) -> Json:
    return {"name": name, **fields}


def config_map(name: str, data: dict[str, str] | None = None, **metadata: Any) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": meta(name, **metadata),
        "data": {"key": "value"} if data is None else data,
    }


def secret(name: str, **metadata: Any) -> Json:
    """What lists and watches are tried on: a namespace has none until a case makes one."""
    return {"apiVersion": "v1", "kind": "Secret", "metadata": meta(name, **metadata)}


def pod(name: str, *, node: str = "", **metadata: Any) -> Json:
    container = {"name": "main", "image": "example/image:1", "command": ["sleep", "1000"]}
    spec: Json = {"containers": [container]}
    if node:
        spec["nodeName"] = node
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta(name, **metadata), "spec": spec}


def run(name: str, spec: Json | None = None, **metadata: Any) -> Json:
    roles = [{"name": "worker", "command": ["python", "train.py"]}]
    return {
        "apiVersion": OWN_VERSION,
        "kind": "Run",
        "metadata": meta(name, **metadata),
        "spec": {"roles": roles} | (spec or {}),
    }


def reservation(name: str, spec: Json) -> Json:
    """Of one node, for eight hours from a day far ahead; a field that is None is left away."""
    whole = {"from": "2036-01-01T20:00:00Z", "duration": "8h", "nodes": {"names": ["n"]}} | spec
    return {
        "apiVersion": "windlass.dev/v1alpha1", "kind": "Reservation", "metadata": {"name": name},
        "spec": {key: value for key, value in whole.items() if value is not None},
    }  # fmt: skip


def queue(name: str, spec: Json | None = None, **metadata: Any) -> Json:
    return {
        "apiVersion": OWN_VERSION,
        "kind": "Queue",
        "metadata": meta(name, **metadata),
        "spec": spec or {},
    }


def cron_run(name: str, spec: Json | None = None, **metadata: Any) -> Json:
    template = {"spec": run("unused")["spec"]}
    return {
        "apiVersion": OWN_VERSION,
        "kind": "CronRun",
        "metadata": meta(name, **metadata),
        "spec": {"schedule": "0 3 * * *", "template": template} | (spec or {}),
    }


def lease(name: str, **metadata: Any) -> Json:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": meta(name, **metadata),
        "spec": {"holderIdentity": "one", "leaseDurationSeconds": 15},
    }


def binding(pod_name: str, node: str, **metadata: Any) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": meta(pod_name, **metadata),
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }


def owned_by(owner: Json, **fields: Any) -> Json:
    """An owner reference to an object as the server answered it."""
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        **fields,
    }


# --- short ways ---------------------------------------------------------------------------------


def create_secrets(api: Rest, namespace: str, *names: str, **metadata: Any) -> list[Json]:
    return [ok(api.post(core(namespace, "secrets"), secret(n, **metadata)), 201) for n in names]


def names(listing: Json) -> list[str]:
    return [item["metadata"]["name"] for item in listing["items"]]


def version_of(obj: Json) -> str:
    return str(obj["metadata"]["resourceVersion"])
