"""Who asks for what: the two values that authentication and authorisation pass around."""

from __future__ import annotations

import dataclasses

MASTERS = "system:masters"
"""Members of this group may do everything: the owner of the machine."""
AUTHENTICATED = "system:authenticated"
NODES = "system:nodes"
NODE_PREFIX = "system:node:"
SYSTEM_NAMESPACE = "windlass-system"


@dataclasses.dataclass(frozen=True, slots=True)
class PodRef:
    """Which pod."""

    namespace: str
    name: str
    uid: str


@dataclasses.dataclass(frozen=True, slots=True)
class Identity:
    """An authenticated caller."""

    user: str
    groups: tuple[str, ...] = ()
    pod: PodRef | None = None
    """The pod whose token this is: it may fetch its run's code and nothing else, whatever its
    user and groups are bound to."""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """What else whoever authenticated them said of them; authorisation may ask for it."""

    @property
    def is_master(self) -> bool:
        return MASTERS in self.groups

    @property
    def node(self) -> str:
        """The name of the node whose agent this is, or ""."""
        if NODES in self.groups and self.user.startswith(NODE_PREFIX):
            return self.user.removeprefix(NODE_PREFIX)
        return ""


@dataclasses.dataclass(frozen=True, slots=True)
class Attributes:
    """What a request wants to do, as rules name it."""

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    field_selector: str = ""

    @property
    def key(self) -> str:
        """`pods`, `pods/log`, `runs.windlass.dev/status`: how the role tables name it."""
        key = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{key}/{self.subresource}" if self.subresource else key
