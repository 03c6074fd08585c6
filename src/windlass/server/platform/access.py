"""Access rules of routes: the router checks a route's rule before it calls the handler.

A rule's audience says which callers the route is for; the tenancy tests try it as all others:

    team      callers with a permission in the namespace that the path names
    platform  callers with a permission in all namespaces, and the platform's own agents
    everyone  every authenticated user; `reason` says why that is right
    mailbox   holders of the token of the mailbox that the path names
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Literal, Protocol

from windlass.server.auth.authorization import Rights, refusal
from windlass.server.auth.identity import Attributes, Identity
from windlass.server.auth.pod_authorizer import PodRights
from windlass.server.platform import paths
from windlass.server.platform.call import PlatformCall

Audience = Literal["team", "platform", "everyone", "mailbox"]


@dataclasses.dataclass(frozen=True, slots=True)
class Authorizers:
    """What rules ask."""

    rights: Rights
    pods: PodRights
    path: Callable[[Identity, str], Awaitable[None]]
    """Forbidden unless the caller may get this path outside the objects."""
    mailbox_token: Callable[[PlatformCall], Awaitable[None]]
    """Unauthorized unless the request has the token of its mailbox."""


class AccessRule(Protocol):
    @property
    def audience(self) -> Audience: ...

    @property
    def reason(self) -> str: ...

    async def check(self, call: PlatformCall, authorizers: Authorizers) -> None:
        """Forbidden or Unauthorized unless the caller may make this call."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Permission:
    """An RBAC permission on objects, in the namespace that the path names."""

    verb: str
    group: str
    resource: str
    subresource: str = ""
    name: str = ""
    """The parameter of the path with the object's name."""
    audience: Audience = "team"
    reason: str = ""

    def attributes(self, call: PlatformCall) -> Attributes:
        name = call.parameters[self.name] if self.name else ""
        return Attributes(
            self.verb, self.group, self.resource, self.subresource, call.namespace, name
        )

    async def check(self, call: PlatformCall, authorizers: Authorizers) -> None:
        await authorizers.rights.authorize(call.identity, self.attributes(call))


@dataclasses.dataclass(frozen=True, slots=True)
class AnyUser(Permission):
    """Every user: the handler leaves out what the caller may not read. Pods and nodes need the
    permission itself."""

    async def check(self, call: PlatformCall, authorizers: Authorizers) -> None:
        if call.identity.pod is not None or call.identity.node:
            await authorizers.rights.authorize(call.identity, self.attributes(call))


@dataclasses.dataclass(frozen=True, slots=True)
class OwnRunPermission(Permission):
    """The same, or the token of a pod of that Run."""

    async def check(self, call: PlatformCall, authorizers: Authorizers) -> None:
        if call.identity.pod is None:
            await authorizers.rights.authorize(call.identity, self.attributes(call))
            return
        owner = await authorizers.pods.run_of(call.identity.pod)
        asked = call.namespace, call.parameters[self.name]
        if owner is None or (owner.namespace, owner.name) != asked:
            raise refusal(call.identity, self.attributes(call))
        call.run = owner


@dataclasses.dataclass(frozen=True, slots=True)
class TeamRunPermission(Permission):
    """The same, or the token of a pod of any Run of the team: its user may read what it asks."""

    async def check(self, call: PlatformCall, authorizers: Authorizers) -> None:
        if call.identity.pod is None:
            await authorizers.rights.authorize(call.identity, self.attributes(call))
            return
        owner = await authorizers.pods.run_of(call.identity.pod)
        if owner is None or owner.namespace != call.namespace:
            raise refusal(call.identity, self.attributes(call))


@dataclasses.dataclass(frozen=True, slots=True)
class BlobPermission(Permission):
    """The same; to read, also the token of a pod whose Run has this code."""

    async def check(self, call: PlatformCall, authorizers: Authorizers) -> None:
        digest, read = call.parameters["digest"], call.request.method == "GET"
        await authorizers.pods.authorize_blob(call.identity, call.namespace, digest, read=read)


@dataclasses.dataclass(frozen=True, slots=True)
class PathPermission:
    """The permission to get a path outside the objects."""

    path: str
    audience: Audience = "platform"
    reason: str = ""

    async def check(self, call: PlatformCall, authorizers: Authorizers) -> None:
        await authorizers.path(call.identity, self.path)


@dataclasses.dataclass(frozen=True, slots=True)
class OwnTokens:
    """Every user; the handler shows and revokes the caller's own tokens, and those of others only
    with the permission on tokens. Pods and nodes have no tokens to manage."""

    verb: str
    audience: Audience = "everyone"
    reason: str = "callers manage their own tokens"

    async def check(self, call: PlatformCall, authorizers: Authorizers) -> None:
        del authorizers
        if call.identity.pod is not None or call.identity.node:
            name = call.parameters.get("token", "")
            raise refusal(call.identity, Attributes(self.verb, paths.GROUP, "tokens", name=name))


@dataclasses.dataclass(frozen=True, slots=True)
class TokenPermission(Permission):
    """The permission on tokens, for users: never for pods and nodes, whatever they are bound to."""

    async def check(self, call: PlatformCall, authorizers: Authorizers) -> None:
        if call.identity.pod is not None or call.identity.node:
            raise refusal(call.identity, self.attributes(call))
        await authorizers.rights.authorize(call.identity, self.attributes(call))


@dataclasses.dataclass(frozen=True, slots=True)
class MailboxToken:
    """The mailbox's own token, in place of a user's."""

    audience: Audience = "mailbox"
    reason: str = ""

    async def check(self, call: PlatformCall, authorizers: Authorizers) -> None:
        await authorizers.mailbox_token(call)
