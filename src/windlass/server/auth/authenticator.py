"""Authentication by bearer token, and authorisation by role.

`server.app` calls it once per request. Tokens and bindings are cached by watching the Api, so that
a request reads nothing from the store (except for the pods of a node and for tokens that were just
created). A refusal never reveals whether the object exists: it is decided before any lookup.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from windlass.kinds.types import core
from windlass.server.auth import node_authorizer, pod_tokens, rbac
from windlass.server.auth.authorization import refusal
from windlass.server.auth.bearer_tokens import Tokens
from windlass.server.auth.identity import AUTHENTICATED, SYSTEM_NAMESPACE, Attributes, Identity
from windlass.server.auth.pod_tokens import PodTokens
from windlass.server.auth.watch_index import Follower
from windlass.store import errors
from windlass.store.embedded.api import Api

_log = logging.getLogger(__name__)


class Access:
    def __init__(self, api: Api, pods: PodTokens) -> None:
        self._api = api
        self._tokens = Tokens(api)
        self.pods = pods
        self.bindings = rbac.Bindings()
        self._followers = [
            Follower(api, core.Secret.resource, SYSTEM_NAMESPACE, self._tokens),
            Follower(api, core.RoleBinding.resource, "", self.bindings),
            Follower(api, core.ClusterRoleBinding.resource, "", self.bindings),
        ]
        self._notes: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Returns once every token and binding is known."""
        for follower in self._followers:
            await follower.start()

    async def stop(self) -> None:
        for follower in self._followers:
            await follower.stop()
        if self._notes:
            await asyncio.gather(*self._notes, return_exceptions=True)

    async def still_allowed(
        self, authorization: str | None, identity: Identity, wanted: Attributes
    ) -> bool:
        """Whether a request that was allowed at its start is still allowed: the token may be
        revoked, the role may be gone."""
        try:
            await self.authenticate(authorization)
        except errors.Unauthorized:
            return False
        return await self.allowed(identity, wanted)

    def forget_token(self, token_id: str) -> None:
        """Makes a revoked token invalid now, before the watch shows it."""
        self._tokens.remove(SYSTEM_NAMESPACE, token_id)

    async def authenticate(self, authorization: str | None) -> Identity:
        """The caller behind an Authorization header."""
        scheme, _, token = (authorization or "").partition(" ")
        found = None
        if scheme.lower() == "bearer":
            if token.startswith(pod_tokens.PREFIX):
                pod = await self.pods.identify(token.strip())
                found = (pod, "") if pod else None
            else:
                found = await self._tokens.identify(token.strip())
        if found is None:
            raise errors.Unauthorized("Unauthorized")
        identity, note = found
        if note:
            task = asyncio.create_task(self._note_use(note))
            self._notes.add(task)
            task.add_done_callback(self._notes.discard)
        return identity

    async def authorize(self, identity: Identity, wanted: Attributes) -> None:
        """Returns if the caller may do it; Forbidden otherwise. Pods: see `pod_authorizer`."""
        if not rbac.allows(identity, wanted, self.bindings):
            raise refusal(identity, wanted)
        node = identity.node
        if node and not identity.is_master and wanted.key in rbac.NAMED_BY_PODS:
            if not await node_authorizer.named_by_pod(self._api, node, wanted):
                raise refusal(identity, wanted)
            return
        if not node or wanted.resource != "pods" or not wanted.name or identity.is_master:
            return
        if await self._node_of(wanted) != node:
            raise refusal(identity, wanted)

    def authorize_path(self, identity: Identity, path: str) -> None:
        """The same for paths that are not objects."""
        if not rbac.path_allowed(identity, path, self.bindings):
            raise errors.Forbidden(
                f'forbidden: User "{identity.user}" cannot get path "{path}"', details={}
            )

    async def allowed(self, identity: Identity, wanted: Attributes) -> bool:
        """The answer to a SelfSubjectAccessReview."""
        try:
            await self.authorize(identity, wanted)
        except errors.Forbidden:
            return False
        return True

    async def _node_of(self, wanted: Attributes) -> str:
        try:
            data = await self._api.get(core.Pod.resource, wanted.namespace, wanted.name)
        except errors.NotFound:
            return ""
        return _pod_decoder.decode(data).spec.node_name

    async def _note_use(self, token_id: str) -> None:
        try:
            await self._tokens.note_use(token_id)
        except errors.ApiError as problem:
            _log.warning("the use of token %s was not written down: %s", token_id, problem.message)


def acting_as(identity: Identity, user: str, groups: list[str]) -> Identity:
    """`kubectl --as`: callers that may do everything may act as another user."""
    if not identity.is_master or not user:
        raise refusal(identity, Attributes("impersonate", resource="users", name=user))
    return Identity(user, (*groups, AUTHENTICATED))


class _PodSpec(msgspec.Struct, rename="camel"):
    node_name: str = ""


class _Pod(msgspec.Struct):
    spec: _PodSpec = msgspec.field(default_factory=_PodSpec)


_pod_decoder = msgspec.json.Decoder(_Pod)
