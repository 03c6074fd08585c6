"""Kinds that only a cluster serves, as partial structs: volumes, quotas of namespaces, runtimes.

The embedded engine has none, and its ConfigMap `engine` says so (`claims`, `admission`, `images`);
whoever reads these kinds asks that first.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from windlass.kinds import placing
from windlass.kinds.kubernetes import ObjectReference, Quantities, Toleration
from windlass.kinds.meta import Object, Struct
from windlass.kinds.resources import Resource

SELECTED_NODE = "volume.kubernetes.io/selected-node"
"""Annotation of a claim: for this node its volume is to be made."""
WAITS_FOR_NODE = "WaitForFirstConsumer"
ONE_POD = "ReadWriteOncePod"


# --- volumes -----------------------------------------------------------------------------------


class NodeSelectorRequirement(Struct):
    """One condition on a node's labels."""

    key: str
    """The label."""
    operator: str
    """In, NotIn, Exists, DoesNotExist, Gt or Lt."""
    values: list[str] | None = None
    """What the label is compared with."""


class NodeSelectorTerm(Struct):
    """Conditions that must all hold."""

    match_expressions: list[NodeSelectorRequirement] | None = None
    """On labels."""
    match_fields: list[NodeSelectorRequirement] | None = None
    """On `metadata.name`."""


class NodeSelector(Struct):
    """Nodes for which any of the terms holds."""

    node_selector_terms: list[NodeSelectorTerm] | None = None
    """The terms."""


class VolumeNodeAffinity(Struct):
    """From where a volume can be reached."""

    required: NodeSelector | None = None
    """Only from these nodes."""


class CSIVolumeSource(Struct):
    """A volume behind a driver."""

    driver: str = ""
    """Who attaches it."""
    volume_handle: str = ""
    """What the driver calls it."""


class PersistentVolumeSpec(Struct):
    """What a volume is."""

    capacity: Quantities | None = None
    """How large it is (`storage`)."""
    access_modes: list[str] | None = None
    """How it can be mounted."""
    volume_mode: str = ""
    """Filesystem or Block."""
    volume_attributes_class_name: str = ""
    """What it is like besides, by the name of a class."""
    csi: CSIVolumeSource | None = None
    """The driver's volume, if a driver has it."""
    node_affinity: VolumeNodeAffinity | None = None
    """From where it can be reached; from everywhere when absent."""
    claim_ref: ObjectReference | None = None
    """The claim that it is kept for, or bound to."""
    storage_class_name: str = ""
    """Its class."""


class PersistentVolumeStatus(Struct):
    """What became of a volume."""

    phase: str = ""
    """Available, Bound, Released or Failed."""


class PersistentVolume(Object):
    """A piece of storage."""

    resource: ClassVar = Resource(
        "", "v1", "PersistentVolume", "persistentvolumes", namespaced=False, short_names=("pv",)
    )
    spec: PersistentVolumeSpec = msgspec.field(default_factory=PersistentVolumeSpec)
    """What it is."""
    status: PersistentVolumeStatus = msgspec.field(default_factory=PersistentVolumeStatus)
    """What became of it."""


class ClaimResources(Struct):
    """How much storage is wanted."""

    requests: Quantities | None = None
    """At least (`storage`)."""


class PersistentVolumeClaimSpec(Struct):
    """What storage is wanted."""

    storage_class_name: str | None = None
    """From which class."""
    access_modes: list[str] | None = None
    """ReadWriteOnce, ReadWriteMany, ReadOnlyMany, ReadWriteOncePod."""
    resources: ClaimResources = msgspec.field(default_factory=ClaimResources)
    """How much."""
    selector: placing.LabelSelector | None = None
    """Only volumes with such labels."""
    volume_mode: str = ""
    """Filesystem or Block."""
    volume_attributes_class_name: str = ""
    """What it must be like besides, by the name of a class."""
    volume_name: str = ""
    """The volume that it is bound to, or wants."""


class PersistentVolumeClaimStatus(Struct):
    """What became of a claim."""

    phase: str = ""
    """Pending, Bound or Lost."""


class PersistentVolumeClaim(Object):
    """Storage that pods of a namespace mount by name."""

    resource: ClassVar = Resource(
        "", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", namespaced=True,
        short_names=("pvc",),
    )  # fmt: skip
    spec: PersistentVolumeClaimSpec = msgspec.field(default_factory=PersistentVolumeClaimSpec)
    """What is wanted."""
    status: PersistentVolumeClaimStatus = msgspec.field(default_factory=PersistentVolumeClaimStatus)
    """What became of it."""


class TopologySelectorLabel(Struct):
    """A label with one of several values."""

    key: str
    """The label."""
    values: list[str]
    """Any of these."""


class TopologySelectorTerm(Struct):
    """Labels that must all match."""

    match_label_expressions: list[TopologySelectorLabel] | None = None
    """The labels."""


class StorageClass(Object):
    """How volumes are made."""

    resource: ClassVar = Resource(
        "storage.k8s.io", "v1", "StorageClass", "storageclasses", namespaced=False,
        short_names=("sc",),
    )  # fmt: skip
    provisioner: str = ""
    """Who makes them."""
    volume_binding_mode: str = ""
    """Immediate, or WaitForFirstConsumer: not before it is known for which node."""
    allowed_topologies: list[TopologySelectorTerm] | None = None
    """Where volumes can be made: any of the terms; everywhere when absent."""


class VolumeLimit(Struct):
    """What a driver can do on a node."""

    count: int | None = None
    """Volumes that can be attached at the same time; without limit when absent."""


class CSINodeDriver(Struct):
    """A driver on a node."""

    name: str = ""
    """Of the driver."""
    allocatable: VolumeLimit | None = None
    """How much it can do."""


class CSINodeSpec(Struct):
    """Which drivers a node has."""

    drivers: list[CSINodeDriver] | None = None
    """All of them."""


class CSINode(Object):
    """What drivers of volumes say about a node; it has the node's name."""

    resource: ClassVar = Resource(
        "storage.k8s.io", "v1", "CSINode", "csinodes", namespaced=False
    )  # fmt: skip
    spec: CSINodeSpec = msgspec.field(default_factory=CSINodeSpec)
    """Which drivers it has."""


class AttachedVolume(Struct):
    """What is attached."""

    persistent_volume_name: str = ""
    """The volume."""


class VolumeAttachmentSpec(Struct):
    """Which volume is attached where."""

    attacher: str = ""
    """The driver."""
    node_name: str = ""
    """The node."""
    source: AttachedVolume = msgspec.field(default_factory=AttachedVolume)
    """The volume."""


class VolumeAttachment(Object):
    """A volume that is attached to a node, is being attached, or not yet let go."""

    resource: ClassVar = Resource(
        "storage.k8s.io", "v1", "VolumeAttachment", "volumeattachments", namespaced=False
    )  # fmt: skip
    spec: VolumeAttachmentSpec = msgspec.field(default_factory=VolumeAttachmentSpec)
    """Which and where."""


class CSIDriverSpec(Struct):
    """What a driver wants."""

    storage_capacity: bool = False
    """It says where it has how much room; volumes are made only where that suffices."""


class CSIDriver(Object):
    """Who makes and attaches volumes."""

    resource: ClassVar = Resource(
        "storage.k8s.io", "v1", "CSIDriver", "csidrivers", namespaced=False
    )  # fmt: skip
    spec: CSIDriverSpec = msgspec.field(default_factory=CSIDriverSpec)
    """What it wants."""


class CSIStorageCapacity(Object):
    """How much room a driver has for volumes of a class, and for which nodes."""

    resource: ClassVar = Resource(
        "storage.k8s.io", "v1", "CSIStorageCapacity", "csistoragecapacities", namespaced=True
    )  # fmt: skip
    storage_class_name: str = ""
    """The class."""
    node_topology: placing.LabelSelector | None = None
    """For nodes with such labels; for none when absent."""
    capacity: str | None = None
    """Room for all volumes."""
    maximum_volume_size: str | None = None
    """The largest volume, if that is known better."""


# --- quotas ------------------------------------------------------------------------------------


class ScopeRequirement(Struct):
    """One condition on pods that a quota counts."""

    scope_name: str
    """Terminating, NotTerminating, BestEffort, NotBestEffort, PriorityClass ..."""
    operator: str
    """In, NotIn, Exists or DoesNotExist."""
    values: list[str] | None = None
    """Of a PriorityClass, its names."""


class ScopeSelector(Struct):
    """Conditions that must all hold."""

    match_expressions: list[ScopeRequirement] | None = None
    """The conditions."""


class ResourceQuotaSpec(Struct):
    """How much the objects of a namespace may ask for together."""

    hard: Quantities | None = None
    """By resource."""
    scopes: list[str] | None = None
    """Only pods to which all of these apply count."""
    scope_selector: ScopeSelector | None = None
    """Only pods for which all of these hold count."""


class ResourceQuota(Object):
    """How much the objects of a namespace may ask for together."""

    resource: ClassVar = Resource(
        "", "v1", "ResourceQuota", "resourcequotas", namespaced=True, short_names=("quota",)
    )
    spec: ResourceQuotaSpec = msgspec.field(default_factory=ResourceQuotaSpec)
    """How much."""


# --- runtimes ----------------------------------------------------------------------------------


class RuntimeOverhead(Struct):
    """What a runtime itself needs."""

    pod_fixed: Quantities | None = None
    """For each pod."""


class RuntimeScheduling(Struct):
    """Where a runtime is."""

    node_selector: dict[str, str] | None = None
    """Labels of the nodes that have it."""
    tolerations: list[Toleration] | None = None
    """What its pods tolerate besides their own."""


class RuntimeClass(Object):
    """A container runtime that pods may ask for by name."""

    resource: ClassVar = Resource(
        "node.k8s.io", "v1", "RuntimeClass", "runtimeclasses", namespaced=False
    )  # fmt: skip
    overhead: RuntimeOverhead | None = None
    """What it needs for each pod besides the pod's own requests."""
    scheduling: RuntimeScheduling | None = None
    """On which nodes its pods can be; on all when absent."""


# --- disruptions -------------------------------------------------------------------------------


class PodDisruptionBudgetSpec(Struct):
    """Which pods must not all go at once."""

    selector: placing.LabelSelector | None = None
    """The pods; none if absent."""


class PodDisruptionBudgetStatus(Struct):
    """How things stand with a budget."""

    disruptions_allowed: int = 0
    """How many of the pods may be evicted now."""


class PodDisruptionBudget(Object):
    """How many of a set of pods may be evicted at a time; pods/eviction asks it."""

    resource: ClassVar = Resource(
        "policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", namespaced=True,
        short_names=("pdb",), subresources=("status",),
    )  # fmt: skip
    spec: PodDisruptionBudgetSpec = msgspec.field(default_factory=PodDisruptionBudgetSpec)
    """Which pods."""
    status: PodDisruptionBudgetStatus = msgspec.field(default_factory=PodDisruptionBudgetStatus)
    """How things stand."""
