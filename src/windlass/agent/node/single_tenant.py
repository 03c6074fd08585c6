"""Checks whether the machine's owner is the only user who may start pods in `default`.

While that holds, pods of `default` run as the user of the engine: every user who may start them is
that user, and access to files works as in a shell. A binding of a role that may start runs, in
`default` or cluster-wide, ends this for pods that start later. If bindings cannot be read, the
check does not pass.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable

from windlass.agent.node.privileges import NamespaceUsers
from windlass.kinds.types import core
from windlass.store import interface
from windlass.store.informer import Informer

OWN = "default"
READ_ONLY_ROLES = frozenset({"windlass-viewer"})
"""Roles that cannot start pods."""


class SingleTenantCheck:
    """Determines the user that the pods of a namespace run as."""

    def __init__(self, store: interface.Store, users: NamespaceUsers) -> None:
        self._users = users
        self._here = Informer(store, core.RoleBinding, OWN)
        self._everywhere = Informer(store, core.ClusterRoleBinding)

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        async with self._here, self._everywhere:
            await self._here.synced()
            await self._everywhere.synced()
            yield

    def user_of(self, namespace: str) -> int | None:
        """The user id for pods of a namespace; None: the agent's own user."""
        single = namespace == OWN and self.is_single_tenant()
        return None if single else self._users.of(namespace)

    def is_single_tenant(self) -> bool:
        return alone([*self._here, *self._everywhere])


def alone(bindings: Iterable[core.RoleBinding | core.ClusterRoleBinding]) -> bool:
    """Whether none of these bindings lets another user start pods."""
    return not any(
        binding.subjects and binding.role_ref.name not in READ_ONLY_ROLES for binding in bindings
    )
