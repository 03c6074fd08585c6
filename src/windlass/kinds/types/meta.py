"""The parts that every Kubernetes-style object shares, and the base classes of all kinds.

Structs are partial: they have the fields that Windlass reads or writes. `kinds.codec` decodes them
and restores the other fields when an object is written back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec

if TYPE_CHECKING:
    from windlass.kinds.types.resource import Resource


class Struct(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True, gc=False):
    """Base of every part of an object. Objects are trees without cycles, so `gc=False` is safe."""


class OwnerReference(Struct):
    """The owner of an object; the object is deleted when all its owners are gone."""

    api_version: str
    """API version of the owner."""
    kind: str
    """Kind of the owner."""
    name: str
    """Name of the owner."""
    uid: str
    """UID of the owner; another object of the same name is not the owner."""
    controller: bool | None = None
    """Whether the owner manages this object; only one owner may."""
    block_owner_deletion: bool | None = None
    """Whether a foreground deletion of the owner waits until this object is gone."""


class ObjectMeta(Struct):
    """Metadata of an object. The server sets all fields but name, labels and annotations."""

    name: str = ""
    """Unique among objects of its kind in its namespace. Cannot change."""
    generate_name: str = ""
    """Prefix of the name that the server generates if the object has no name."""
    namespace: str = ""
    """The namespace (team) of the object."""
    uid: str = ""
    """Unique among all objects at all times. The server sets it."""
    resource_version: str = ""
    """Changes with every write; the server refuses a write with an older version."""
    generation: int = 0
    """Counts the changes of spec. The server sets it."""
    creation_timestamp: str | None = None
    """When it was created. The server sets it."""
    deletion_timestamp: str | None = None
    """When the deletion was requested; the object is gone when it has no finalizers. The server
    sets it."""
    deletion_grace_period_seconds: int | None = None
    """Grace period of the deletion. The server sets it."""
    labels: dict[str, str] | None = None
    """Labels, by which objects are selected."""
    annotations: dict[str, str] | None = None
    """Annotations for tools and users; objects are not selected by them."""
    owner_references: list[OwnerReference] | None = None
    """Owners of this object; it is deleted when all of them are gone."""
    finalizers: list[str] | None = None
    """Finalizers, which must be removed before the object is deleted."""


class Condition(Struct):
    """One condition of an object, with the time of its last change."""

    type: str
    """Type of the condition: `Started`, `Complete`, `Ready`."""
    status: str
    """`True`, `False` or `Unknown`."""
    reason: str = ""
    """Reason, in one word."""
    message: str = ""
    """Message."""
    observed_generation: int | None = None
    """The generation of the spec that the condition describes."""
    last_transition_time: str | None = None
    """When the status last changed."""


class Object(Struct, dict=True, gc=True):
    """Base of every kind.

    `apiVersion` and `kind` are the class's own (`resource`), not fields of each instance:
    `kinds.codec` adds them when it encodes. `dict=True` lets the codec keep the bytes of a decoded
    instance, so that writing it back loses no field.
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
