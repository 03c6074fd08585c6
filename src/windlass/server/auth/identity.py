"""The values of authentication and authorisation: the caller, and what it requests."""

from __future__ import annotations

import dataclasses

MASTERS = "system:masters"
"""Members of this group may do everything: the owner of the machine."""
AUTHENTICATED = "system:authenticated"
NODES = "system:nodes"
NODE_PREFIX = "system:node:"
BOUND_NODE = "authentication.kubernetes.io/node-name"
"""Extra attribute of a ServiceAccount's token on a cluster: the node of the pod that has it."""
SYSTEM_NAMESPACE = "windlass-system"


@dataclasses.dataclass(frozen=True, slots=True)
class PodRef:
    """Identifies a pod."""

    namespace: str
    name: str
    uid: str


@dataclasses.dataclass(frozen=True, slots=True)
class Identity:
    """An authenticated caller."""

    user: str
    groups: tuple[str, ...] = ()
    pod: PodRef | None = None
    """The pod of this token: it may fetch the code of its run and nothing else, whatever the
    bindings of its user and groups."""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Further attributes from the authenticator; authorisation may need them."""

    @property
    def is_master(self) -> bool:
        return MASTERS in self.groups

    @property
    def node(self) -> str:
        """The name of the node if this is its agent, or ""."""
        if NODES in self.groups and self.user.startswith(NODE_PREFIX):
            return self.user.removeprefix(NODE_PREFIX)
        return ""

    @property
    def bound_node(self) -> str:
        """The node to which the token of this ServiceAccount is bound, or ""."""
        named = dict(self.extra).get(BOUND_NODE, ())
        return named[0] if len(named) == 1 else ""


@dataclasses.dataclass(frozen=True, slots=True)
class Attributes:
    """What a request wants to do, in the terms of RBAC rules."""

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    field_selector: str = ""

    @property
    def key(self) -> str:
        """`pods`, `pods/log`, `runs.windlass.dev/status`: the name in the role tables."""
        key = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{key}/{self.subresource}" if self.subresource else key
