"""The interface of authorisation, with one implementation per engine.

Embedded, `authenticator` decides by role bindings; on a cluster `delegated.Reviews` asks the API
server. A refusal has the same message, whether the object exists or not.
"""

from __future__ import annotations

from typing import Protocol

from windlass.kinds.types import run
from windlass.server.auth.identity import Attributes, Identity
from windlass.store import errors


class Rights(Protocol):
    async def authorize(self, identity: Identity, wanted: Attributes) -> None:
        """Returns if the caller may do it; Forbidden otherwise."""
        ...

    async def allowed(self, identity: Identity, wanted: Attributes) -> bool: ...


def creating_runs(namespace: str) -> Attributes:
    """The permission for code and mailboxes: with it a user may run code in the namespace
    anyway."""
    return Attributes("create", run.Run.resource.group, run.Run.resource.plural, "", namespace)


def refusal(identity: Identity, wanted: Attributes, why: str = "") -> errors.Forbidden:
    """The message of Kubernetes, the same whether the object exists or not."""
    resource = f"{wanted.resource}.{wanted.group}" if wanted.group else wanted.resource
    subject = f'{resource} "{wanted.name}"' if wanted.name else resource
    plain = f"{wanted.resource}/{wanted.subresource}" if wanted.subresource else wanted.resource
    where = f'in the namespace "{wanted.namespace}"' if wanted.namespace else "at the cluster scope"
    sentence = why or (
        f'User "{identity.user}" cannot {wanted.verb} resource "{plain}" in API group '
        f'"{wanted.group}" {where}'
    )
    return errors.Forbidden(
        f"{subject} is forbidden: {sentence}",
        details={
            key: value
            for key, value in (
                ("name", wanted.name), ("group", wanted.group), ("kind", wanted.resource),
            )
            if value
        },
    )  # fmt: skip
