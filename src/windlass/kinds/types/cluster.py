"""Kinds that only a cluster serves, as partial structs: volumes, quotas of namespaces, runtimes.

The embedded engine has none of them. Callers check the capabilities in the ConfigMap `engine`
(`claims`, `admission`, `images`) first.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from windlass.kinds.types import pod_placement
from windlass.kinds.types.core import ObjectReference, Quantities, Toleration
from windlass.kinds.types.meta import Object, Struct
from windlass.kinds.types.resource import Resource

SELECTED_NODE = "volume.kubernetes.io/selected-node"
"""Annotation of a claim: the node for which its volume is provisioned."""
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
    """Values to compare with."""


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
    """Nodes that can reach a volume."""

    required: NodeSelector | None = None
    """Only these nodes."""


class CSIVolumeSource(Struct):
    """A volume of a CSI driver."""

    driver: str = ""
    """The driver that attaches it."""
    volume_handle: str = ""
    """ID of the volume in the driver."""


class PersistentVolumeSpec(Struct):
    """Specification of a volume."""

    capacity: Quantities | None = None
    """Size (`storage`)."""
    access_modes: list[str] | None = None
    """Access modes."""
    volume_mode: str = ""
    """Filesystem or Block."""
    volume_attributes_class_name: str = ""
    """VolumeAttributesClass of the volume."""
    csi: CSIVolumeSource | None = None
    """Volume of a CSI driver, if it has one."""
    node_affinity: VolumeNodeAffinity | None = None
    """Nodes that can reach it. Default: all nodes."""
    claim_ref: ObjectReference | None = None
    """The claim that it is bound to or reserved for."""
    storage_class_name: str = ""
    """StorageClass of the volume."""


class PersistentVolumeStatus(Struct):
    """Observed state of a volume."""

    phase: str = ""
    """Available, Bound, Released or Failed."""


class PersistentVolume(Object):
    """A piece of storage."""

    resource: ClassVar = Resource(
        "", "v1", "PersistentVolume", "persistentvolumes", namespaced=False, short_names=("pv",)
    )
    spec: PersistentVolumeSpec = msgspec.field(default_factory=PersistentVolumeSpec)
    """Specification."""
    status: PersistentVolumeStatus = msgspec.field(default_factory=PersistentVolumeStatus)
    """Observed state."""


class ClaimResources(Struct):
    """Requested size."""

    requests: Quantities | None = None
    """Minimum size (`storage`)."""


class PersistentVolumeClaimSpec(Struct):
    """Desired state of a claim."""

    storage_class_name: str | None = None
    """StorageClass of the claim."""
    access_modes: list[str] | None = None
    """ReadWriteOnce, ReadWriteMany, ReadOnlyMany, ReadWriteOncePod."""
    resources: ClaimResources = msgspec.field(default_factory=ClaimResources)
    """Amounts."""
    selector: pod_placement.LabelSelector | None = None
    """Labels of accepted volumes."""
    volume_mode: str = ""
    """Filesystem or Block."""
    volume_attributes_class_name: str = ""
    """VolumeAttributesClass of the claim."""
    volume_name: str = ""
    """The volume that it is bound to or requests."""


class PersistentVolumeClaimStatus(Struct):
    """Observed state of a claim."""

    phase: str = ""
    """Pending, Bound or Lost."""


class PersistentVolumeClaim(Object):
    """Storage that pods of a namespace mount by name."""

    resource: ClassVar = Resource(
        "", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", namespaced=True,
        short_names=("pvc",),
    )  # fmt: skip
    spec: PersistentVolumeClaimSpec = msgspec.field(default_factory=PersistentVolumeClaimSpec)
    """Desired state."""
    status: PersistentVolumeClaimStatus = msgspec.field(default_factory=PersistentVolumeClaimStatus)
    """Observed state."""


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
    """A class of storage: how volumes are provisioned."""

    resource: ClassVar = Resource(
        "storage.k8s.io", "v1", "StorageClass", "storageclasses", namespaced=False,
        short_names=("sc",),
    )  # fmt: skip
    provisioner: str = ""
    """The provisioner."""
    volume_binding_mode: str = ""
    """Immediate, or WaitForFirstConsumer: after a pod is scheduled."""
    allowed_topologies: list[TopologySelectorTerm] | None = None
    """Topologies in which volumes can be provisioned. Default: all."""


class VolumeLimit(Struct):
    """Limits of a driver on a node."""

    count: int | None = None
    """Maximum number of attached volumes. Default: no limit."""


class CSINodeDriver(Struct):
    """A driver on a node."""

    name: str = ""
    """Name of the driver."""
    allocatable: VolumeLimit | None = None
    """Limits of the driver."""


class CSINodeSpec(Struct):
    """Drivers of a node."""

    drivers: list[CSINodeDriver] | None = None
    """The drivers."""


class CSINode(Object):
    """CSI drivers of a node; it has the node's name."""

    resource: ClassVar = Resource(
        "storage.k8s.io", "v1", "CSINode", "csinodes", namespaced=False
    )  # fmt: skip
    spec: CSINodeSpec = msgspec.field(default_factory=CSINodeSpec)
    """Drivers of the node."""


class AttachedVolume(Struct):
    """The attached volume."""

    persistent_volume_name: str = ""
    """The volume."""


class VolumeAttachmentSpec(Struct):
    """Volume and node of an attachment."""

    attacher: str = ""
    """The driver."""
    node_name: str = ""
    """The node."""
    source: AttachedVolume = msgspec.field(default_factory=AttachedVolume)
    """The volume."""


class VolumeAttachment(Object):
    """A volume that is attached to a node, or is being attached or detached."""

    resource: ClassVar = Resource(
        "storage.k8s.io", "v1", "VolumeAttachment", "volumeattachments", namespaced=False
    )  # fmt: skip
    spec: VolumeAttachmentSpec = msgspec.field(default_factory=VolumeAttachmentSpec)
    """Volume and node."""


class CSIDriverSpec(Struct):
    """Specification of a driver."""

    storage_capacity: bool = False
    """Whether the driver publishes CSIStorageCapacity; volumes are then provisioned only where the
    capacity suffices."""


class CSIDriver(Object):
    """A driver that provisions and attaches volumes."""

    resource: ClassVar = Resource(
        "storage.k8s.io", "v1", "CSIDriver", "csidrivers", namespaced=False
    )  # fmt: skip
    spec: CSIDriverSpec = msgspec.field(default_factory=CSIDriverSpec)
    """Specification."""


class CSIStorageCapacity(Object):
    """Free capacity of a driver for volumes of a class, for some nodes."""

    resource: ClassVar = Resource(
        "storage.k8s.io", "v1", "CSIStorageCapacity", "csistoragecapacities", namespaced=True
    )  # fmt: skip
    storage_class_name: str = ""
    """The StorageClass."""
    node_topology: pod_placement.LabelSelector | None = None
    """Labels of the nodes. Absent: no nodes."""
    capacity: str | None = None
    """Total free capacity."""
    maximum_volume_size: str | None = None
    """Maximum size of one volume, if known."""


# --- quotas ------------------------------------------------------------------------------------


class ScopeRequirement(Struct):
    """One condition on pods that a quota counts."""

    scope_name: str
    """Terminating, NotTerminating, BestEffort, NotBestEffort, PriorityClass ..."""
    operator: str
    """In, NotIn, Exists or DoesNotExist."""
    values: list[str] | None = None
    """Names of PriorityClasses."""


class ScopeSelector(Struct):
    """Conditions that must all hold."""

    match_expressions: list[ScopeRequirement] | None = None
    """The conditions."""


class ResourceQuotaSpec(Struct):
    """Quota of a namespace: the total requests of its objects."""

    hard: Quantities | None = None
    """Limit by resource."""
    scopes: list[str] | None = None
    """Only pods to which all of these apply count."""
    scope_selector: ScopeSelector | None = None
    """Only pods for which all of these hold count."""


class ResourceQuota(Object):
    """Quota of a namespace: the total requests of its objects."""

    resource: ClassVar = Resource(
        "", "v1", "ResourceQuota", "resourcequotas", namespaced=True, short_names=("quota",)
    )
    spec: ResourceQuotaSpec = msgspec.field(default_factory=ResourceQuotaSpec)
    """Amounts."""


# --- runtimes ----------------------------------------------------------------------------------


class RuntimeOverhead(Struct):
    """Resource overhead of a runtime."""

    pod_fixed: Quantities | None = None
    """Overhead of each pod."""


class RuntimeScheduling(Struct):
    """Nodes of a runtime."""

    node_selector: dict[str, str] | None = None
    """Labels of the nodes that have it."""
    tolerations: list[Toleration] | None = None
    """Tolerations that are added to its pods."""


class RuntimeClass(Object):
    """A container runtime that pods select by name."""

    resource: ClassVar = Resource(
        "node.k8s.io", "v1", "RuntimeClass", "runtimeclasses", namespaced=False
    )  # fmt: skip
    overhead: RuntimeOverhead | None = None
    """Overhead of each pod beside its requests."""
    scheduling: RuntimeScheduling | None = None
    """Nodes of its pods. Default: all nodes."""


# --- disruptions -------------------------------------------------------------------------------


class PodDisruptionBudgetSpec(Struct):
    """Specification of a disruption budget."""

    selector: pod_placement.LabelSelector | None = None
    """Selected pods; none if absent."""


class PodDisruptionBudgetStatus(Struct):
    """Observed state of a disruption budget."""

    disruptions_allowed: int = 0
    """Number of pods that may be evicted now."""


class PodDisruptionBudget(Object):
    """Limits how many of a set of pods may be evicted at a time, through pods/eviction."""

    resource: ClassVar = Resource(
        "policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", namespaced=True,
        short_names=("pdb",), subresources=("status",),
    )  # fmt: skip
    spec: PodDisruptionBudgetSpec = msgspec.field(default_factory=PodDisruptionBudgetSpec)
    """Specification."""
    status: PodDisruptionBudgetStatus = msgspec.field(default_factory=PodDisruptionBudgetStatus)
    """Observed state."""
