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
    kind: str
    name: str
    uid: str
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(Struct):
    """Identity and bookkeeping of an object. The server owns all but name, labels, annotations."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerReference] | None = None
    finalizers: list[str] | None = None


class Condition(Struct):
    """One observed fact about an object, with the time it last changed."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    observed_generation: int | None = None
    last_transition_time: str | None = None


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
