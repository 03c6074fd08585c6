"""The parts that every Kubernetes-style object shares, and the base classes of all kinds.

Structs are partial: they name the fields we read or write. `kinds.wire` decodes them and, when an
object is written back, puts the fields they do not name back in place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec

if TYPE_CHECKING:
    from windlass.kinds.resources import Resource


class Struct(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True, gc=False):
    """Base of every part of an object. Trees only, never cycles: the collector need not look."""


class OwnerReference(Struct):
    """Who owns an object; when all owners are gone the object is collected."""

    api_version: str
    """Of the owner."""
    kind: str
    """Of the owner."""
    name: str
    """Of the owner."""
    uid: str
    """Of the owner: another object of the same name is not meant."""
    controller: bool | None = None
    """The owner manages this object; only one may."""
    block_owner_deletion: bool | None = None
    """The owner, deleted in the foreground, waits for this object to be gone."""


class ObjectMeta(Struct):
    """Identity and bookkeeping of an object. The server owns all but name, labels, annotations."""

    name: str = ""
    """Unique among objects of its kind in its namespace. Cannot change."""
    generate_name: str = ""
    """Without a name: the server makes one that begins like this."""
    namespace: str = ""
    """The team's room that the object is in."""
    uid: str = ""
    """Unique over all objects and times. The server sets it."""
    resource_version: str = ""
    """Changes with every write; a write that names an older one is refused."""
    generation: int = 0
    """Counts the changes of spec. The server sets it."""
    creation_timestamp: str | None = None
    """When it was created. The server sets it."""
    deletion_timestamp: str | None = None
    """When it was asked to go; it is gone when its finalizers are. The server sets it."""
    deletion_grace_period_seconds: int | None = None
    """How long it may take to end in order. The server sets it."""
    labels: dict[str, str] | None = None
    """Names and values to select objects by."""
    annotations: dict[str, str] | None = None
    """Names and values for tools and people; nothing selects by them."""
    owner_references: list[OwnerReference] | None = None
    """Objects that own this one; when all are gone it is deleted."""
    finalizers: list[str] | None = None
    """Who must let go before the object can be gone."""


class Condition(Struct):
    """One observed fact about an object, with the time it last changed."""

    type: str
    """The fact: `Started`, `Complete`, `Ready`."""
    status: str
    """`True`, `False` or `Unknown`."""
    reason: str = ""
    """Why, in one word."""
    message: str = ""
    """Why, for people."""
    observed_generation: int | None = None
    """The generation of the spec that this is about."""
    last_transition_time: str | None = None
    """When the status last changed."""


class Object(Struct, dict=True, gc=True):
    """Base of every kind.

    `apiVersion` and `kind` are the class's own (`resource`), not fields of each instance:
    `kinds.wire` adds them when it encodes. `dict=True` lets wire keep the bytes an instance was
    decoded from, so that writing it back loses nothing.
    """

    resource: ClassVar[Resource]

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def namespace(self) -> str:
        return self.metadata.namespace

    @property
    def uid(self) -> str:
        return self.metadata.uid
