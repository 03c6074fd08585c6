"""The priority level and the flow of a caller. Pure.

Agents and controllers come first, then administrators, then jobs, then members. A caller is one
user; jobs of one team are one caller, so that a team's thousand pods share its turns.
"""

from __future__ import annotations

from windlass.server.auth.identity import Identity

_SYSTEM_ACCOUNTS = (
    "system:serviceaccount:windlass-system:", "system:serviceaccount:windlass-nodes:",
)  # fmt: skip
_SYSTEM_USERS = ("system:kube-", "system:apiserver", "system:aggregator", "system:windlass-")


def of(identity: Identity) -> tuple[str, str]:
    """The level and the name of the flow."""
    if identity.pod is not None:
        return "jobs", f"jobs of namespace {identity.pod.namespace}"
    user = identity.user
    if user.startswith("system:") and (
        identity.node or user.startswith(_SYSTEM_ACCOUNTS) or user.startswith(_SYSTEM_USERS)
    ):
        return "system", user
    return ("administrators" if identity.is_master else "members"), f"user {user}"


def of_mailbox(namespace: str) -> tuple[str, str]:
    """Workers of a mailbox, which have its token and no user."""
    return "jobs", f"jobs of namespace {namespace}"


def of_source(source: str) -> tuple[str, str]:
    """Requests whose caller is unknown."""
    return "anonymous", f"address {source}" if source else "a caller without an address"
