"""The caller's identity on a server, and the caller's role in each team.

It uses the review APIs of Kubernetes, so it works on both engines. The teams come from the queues,
which every user may read.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

from windlass.kinds.types import queue
from windlass.sdk.admin import tokens
from windlass.store import errors
from windlass.store.kubernetes.client import KubernetesStore

_RULES = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
_USER = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
_AT_ONCE, _MOST_TEAMS = 8, 500
_TESTS: tuple[tuple[str, str, str, str], ...] = (
    ("admin", "create", "rbac.authorization.k8s.io", "rolebindings"),
    ("member", "create", "windlass.dev", "runs"),
    ("viewer", "list", "windlass.dev", "runs"),
)
"""Role, and a permission that identifies it, most powerful first."""


@dataclasses.dataclass(frozen=True, slots=True)
class Caller:
    user: str
    groups: list[str]
    teams: dict[str, str]
    """Namespace -> admin, member or viewer."""
    platform: str
    """Role in all namespaces; "" for most users."""
    everything: bool
    """Whether the caller may do everything."""


async def whoami(store: KubernetesStore, namespace: str) -> Caller:
    """Checks the client's namespace and all namespaces of queues."""
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    status, answer = await tokens.ask(store, "POST", _USER, body)
    if status >= 300:
        raise errors.from_status(answer, status)
    who = answer["status"]["userInfo"]
    everywhere = await _rules(store, "")
    platform = _role(everywhere)
    spaces = {namespace} | await _spaces(store)
    turn = asyncio.Semaphore(_AT_ONCE)

    async def fetch(space: str) -> tuple[str, str]:
        async with turn:
            return space, _role(await _rules(store, space))

    found = await asyncio.gather(*(fetch(space) for space in sorted(spaces)[:_MOST_TEAMS]))
    return Caller(
        who["username"], who.get("groups") or [], {space: role for space, role in found if role},
        platform, any(_covers(rule, "*", "*", "*") for rule in everywhere),
    )  # fmt: skip


async def _spaces(store: KubernetesStore) -> set[str]:
    try:
        queues = (await store.list(queue.Queue)).items
    except errors.ApiError:
        return set()  # a cluster without Windlass, or one that shows its queues to few
    return {space for each in queues for space in each.spec.namespaces or ()}


async def _rules(store: KubernetesStore, namespace: str) -> list[dict[str, Any]]:
    # Kubernetes answers for one namespace; a permission in one that cannot exist applies to all.
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace or "windlass-nowhere"},
    }
    status, answer = await tokens.ask(store, "POST", _RULES, body)
    if status >= 300:
        return []
    return list((answer.get("status") or {}).get("resourceRules") or ())


def _role(rules: list[dict[str, Any]]) -> str:
    for role, verb, group, resource in _TESTS:
        if any(_covers(rule, verb, group, resource) for rule in rules):
            return role
    return ""


def _covers(rule: dict[str, Any], verb: str, group: str, resource: str) -> bool:
    return not rule.get("resourceNames") and all(
        wanted in (listed := rule.get(key) or ()) or "*" in listed
        for key, wanted in (("verbs", verb), ("apiGroups", group), ("resources", resource))
    )
