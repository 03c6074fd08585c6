"""Who may do what, as everybody here asks it: two questions, whoever answers them.

Embedded, `access.Access` answers from role bindings; on a cluster `reviewing.Reviews` asks the API
server. A refusal is worded the same, and the same whether the object exists or not.
"""

from __future__ import annotations

from typing import Protocol

from windlass.kinds import run
from windlass.server.identity import Attributes, Identity
from windlass.store import errors


class Rights(Protocol):
    async def authorize(self, identity: Identity, wanted: Attributes) -> None:
        """Returns if the caller may do it; Forbidden otherwise."""
        ...

    async def allowed(self, identity: Identity, wanted: Attributes) -> bool: ...


def creating_runs(namespace: str) -> Attributes:
    """The right that code and calls are for: whoever has it may run code there anyway."""
    return Attributes("create", run.Run.resource.group, run.Run.resource.plural, "", namespace)


def refusal(identity: Identity, wanted: Attributes, why: str = "") -> errors.Forbidden:
    """Kubernetes' sentence for it, the same whether the object exists or not."""
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
