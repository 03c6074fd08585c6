"""Small objects for store tests: only what a case is about is spelled out."""

from __future__ import annotations

from typing import Any

from windlass.kinds.types import core
from windlass.store.embedded.api import Api
from windlass.store.embedded.options import WriteOptions

NAMESPACE = core.Namespace.resource
CONFIG_MAP = core.ConfigMap.resource
POD = core.Pod.resource


def config_map(name: str, labels: dict[str, str] | None = None, **data: str) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name}
    if labels:
        metadata["labels"] = labels
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def pod(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "main", "image": "none"}], **spec},
    }


async def with_namespace(api: Api, name: str = "team") -> Api:
    await api.create(NAMESPACE, "", {"metadata": {"name": name}}, WriteOptions())
    return api
