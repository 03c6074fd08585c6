"""Indexes of the pod informer: by owning Run, by node, by the environment that a pod builds."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from windlass.control.model import members
from windlass.kinds.types import core

LABEL_ENVIRONMENT = "windlass.dev/environment"
"""On a pod that builds an environment: its digest."""
BY_RUN, BY_NODE, BY_ENVIRONMENT = "run", "node", "environment"


def run_uid(pod: core.Pod) -> Iterable[str]:
    """The uid of the Run that owns the pod."""
    uid = members.owner_uid(pod)
    return (uid,) if uid else ()


def node(pod: core.Pod) -> Iterable[str]:
    return (pod.spec.node_name,) if pod.spec.node_name else ()


def environment(pod: core.Pod) -> Iterable[str]:
    """Namespace and digest of the environment that the pod builds."""
    name = (pod.metadata.labels or {}).get(LABEL_ENVIRONMENT)
    return (f"{pod.namespace}/{name}",) if name else ()


ALL: dict[str, Callable[[core.Pod], Iterable[str]]] = {
    BY_RUN: run_uid,
    BY_NODE: node,
    BY_ENVIRONMENT: environment,
}
