"""Who else may start things here: as long as nobody may, the machine's owner is alone in `default`.

Then pods of `default` run as the engine's own user: whoever may start them is that user already,
and his files and folders work as by hand. Any binding of a role that may start runs, in `default`
or everywhere, ends it for pods that come later. What cannot be read counts as somebody.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from windlass.agent.privileges import Users
from windlass.kinds import kubernetes
from windlass.store import client
from windlass.store.reflector import Reflector

OWN = "default"
_WATCHERS = frozenset({"windlass-viewer"})
"""Roles that cannot start anything."""


class Owners:
    """Which user a namespace's pods run as."""

    def __init__(self, store: client.Store, users: Users) -> None:
        self._users = users
        self._here = Reflector(store, kubernetes.RoleBinding, OWN)
        self._everywhere = Reflector(store, kubernetes.ClusterRoleBinding)

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        async with self._here, self._everywhere:
            await self._here.synced()
            await self._everywhere.synced()
            yield

    def user_of(self, namespace: str) -> int | None:
        return None if namespace == OWN and self.alone() else self._users.of(namespace)

    def alone(self) -> bool:
        bindings = [*self._here, *self._everywhere]
        return not any(
            binding.subjects and binding.role_ref.name not in _WATCHERS for binding in bindings
        )
