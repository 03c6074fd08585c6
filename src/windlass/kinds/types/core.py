"""The Kubernetes kinds that Windlass reads or writes, as partial structs.

They have only the fields that Windlass uses; the others are preserved (see `kinds.codec`).
Both engines serve these kinds: a real cluster, or the embedded server.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from windlass.kinds.types.meta import Condition, Object, Struct
from windlass.kinds.types.pod import Container as Container
from windlass.kinds.types.pod import ContainerPort as ContainerPort
from windlass.kinds.types.pod import ContainerState as ContainerState
from windlass.kinds.types.pod import ContainerStateRunning as ContainerStateRunning
from windlass.kinds.types.pod import ContainerStateTerminated as ContainerStateTerminated
from windlass.kinds.types.pod import ContainerStateWaiting as ContainerStateWaiting
from windlass.kinds.types.pod import ContainerStatus as ContainerStatus
from windlass.kinds.types.pod import EnvFrom as EnvFrom
from windlass.kinds.types.pod import EnvFromRef as EnvFromRef
from windlass.kinds.types.pod import EnvVar as EnvVar
from windlass.kinds.types.pod import EnvVarSource as EnvVarSource
from windlass.kinds.types.pod import FieldRef as FieldRef
from windlass.kinds.types.pod import KeyRef as KeyRef
from windlass.kinds.types.pod import PodSpec as PodSpec
from windlass.kinds.types.pod import PodStatus as PodStatus
from windlass.kinds.types.pod import Quantities as Quantities
from windlass.kinds.types.pod import ResourceRequirements as ResourceRequirements
from windlass.kinds.types.pod import Toleration as Toleration
from windlass.kinds.types.pod import VolumeMount as VolumeMount
from windlass.kinds.types.resource import Column, Resource

AGE = Column("Age", ".metadata.creationTimestamp", "date")


# --- namespaces, configuration, secrets ---------------------------------------------------------


class NamespaceStatus(Struct):
    """State of a namespace."""

    phase: str = ""
    """`Active`, or `Terminating` while its objects are deleted."""


class Namespace(Object):
    """The namespace of a team, with its runs, secrets and pods."""

    resource: ClassVar = Resource(
        "", "v1", "Namespace", "namespaces", namespaced=False, short_names=("ns",),
        subresources=("status",), columns=(Column("Status", ".status.phase"), AGE),
    )  # fmt: skip
    status: NamespaceStatus = msgspec.field(default_factory=NamespaceStatus)
    """Observed state."""


class ConfigMap(Object):
    """Settings that pods read."""

    resource: ClassVar = Resource(
        "", "v1", "ConfigMap", "configmaps", namespaced=True, short_names=("cm",), columns=(AGE,)
    )
    data: dict[str, str] | None = None
    """Keys and text values."""
    binary_data: dict[str, str] | None = None
    """Keys and binary values, in base64."""
    immutable: bool | None = None
    """Its data cannot be changed."""


class Secret(Object):
    """Confidential values for pods and for users who may read secrets."""

    resource: ClassVar = Resource(
        "", "v1", "Secret", "secrets", namespaced=True, columns=(Column("Type", ".type"), AGE)
    )
    type: str = ""
    """Type of the secret. Default: `Opaque`."""
    data: dict[str, str] | None = None
    """Keys and values, in base64."""
    string_data: dict[str, str] | None = None
    """Keys and plain-text values; the server moves them into `data`."""
    immutable: bool | None = None
    """Its data cannot be changed."""


class ServiceAccount(Object):
    """The identity of a pod for the API."""

    resource: ClassVar = Resource(
        "", "v1", "ServiceAccount", "serviceaccounts", namespaced=True, short_names=("sa",),
        subresources=("token",), columns=(AGE,),
    )  # fmt: skip


class ServicePort(Struct):
    """A port of a service."""

    port: int
    """The port of the service."""
    name: str = ""
    """Name of the port; required if there are several."""
    protocol: str = ""
    """TCP, UDP or SCTP."""
    target_port: int | str | None = None
    """The port of the pods: a number, or the name of a container's port."""


class ServiceSpec(Struct):
    """Selected pods and ports."""

    cluster_ip: str | None = msgspec.field(default=None, name="clusterIP")
    """The address, or `None` for a headless service."""
    selector: dict[str, str] | None = None
    """Labels of the selected pods."""
    ports: list[ServicePort] | None = None
    """Ports that it serves."""
    type: str = ""
    """ClusterIP, NodePort, LoadBalancer or ExternalName."""
    publish_not_ready_addresses: bool | None = None
    """Publish addresses of pods that are not ready."""


class Service(Object):
    """A name and address for a set of pods."""

    resource: ClassVar = Resource(
        "", "v1", "Service", "services", namespaced=True, short_names=("svc",),
        subresources=("status",),
        columns=(Column("Type", ".spec.type"), Column("Cluster-IP", ".spec.clusterIP"), AGE),
    )  # fmt: skip
    spec: ServiceSpec = msgspec.field(default_factory=ServiceSpec)
    """Selected pods and ports."""


# --- nodes --------------------------------------------------------------------------------------


class Taint(Struct):
    """A taint, which keeps pods away from a node."""

    key: str
    """The taint's name."""
    effect: str
    """NoSchedule, PreferNoSchedule or NoExecute."""
    value: str = ""
    """The taint's value."""
    time_added: str | None = None
    """When the taint was added."""


class NodeSpec(Struct):
    """Desired state of a node."""

    unschedulable: bool | None = None
    """Whether the node is cordoned: no new pods."""
    taints: list[Taint] | None = None
    """Taints of the node."""
    provider_id: str | None = msgspec.field(default=None, name="providerID")
    """ID of the machine at the cloud provider."""


class NodeAddress(Struct):
    """An address of a node."""

    type: str
    """Hostname, InternalIP or ExternalIP."""
    address: str
    """The address."""


class NodeStatus(Struct):
    """Observed state of a node."""

    capacity: Quantities | None = None
    """Resources of the machine."""
    allocatable: Quantities | None = None
    """Resources for pods."""
    conditions: list[Condition] | None = None
    """Ready, and conditions of pressure."""
    addresses: list[NodeAddress] | None = None
    """Addresses of the node."""
    daemon_endpoints: dict[str, Any] | None = None
    """Port of its agent: `kubeletEndpoint.Port`."""


class Node(Object):
    """A machine that can run pods."""

    resource: ClassVar = Resource(
        "", "v1", "Node", "nodes", namespaced=False, short_names=("no",),
        subresources=("status",),
        columns=(
            Column("Ready", '.status.conditions[?(@.type=="Ready")].status'),
            Column("CPU", ".status.allocatable.cpu"),
            Column("Memory", ".status.allocatable.memory"),
            AGE,
        ),
    )  # fmt: skip
    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    """Desired state."""
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)
    """Observed state."""

    @property
    def is_ready(self) -> bool:
        """Whether the node reports that it is ready."""
        return any(c.type == "Ready" and c.status == "True" for c in self.status.conditions or ())


# --- pods ----------------------------------------------------------------------------------------


class Pod(Object):
    """Containers that run on one node: a replica of a run, or a pod of another application."""

    resource: ClassVar = Resource(
        "", "v1", "Pod", "pods", namespaced=True, short_names=("po",), categories=("all",),
        subresources=("status", "binding", "eviction", "log", "exec", "attach", "portforward"),
        graceful=True,
        columns=(
            Column("Status", ".status.phase"),
            Column("Reason", ".status.reason"),
            Column("Node", ".spec.nodeName"),
            AGE,
            Column("IP", ".status.podIP", priority=1),
        ),
    )  # fmt: skip
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    """Desired state."""
    status: PodStatus = msgspec.field(default_factory=PodStatus)
    """Observed state."""


# --- events, leases, priorities, permissions ----------------------------------------------------


class ObjectReference(Struct):
    """A reference to an object."""

    api_version: str = ""
    """API version of the object."""
    kind: str = ""
    """Kind of the object."""
    namespace: str = ""
    """Namespace of the object."""
    name: str = ""
    """Name of the object."""
    uid: str = ""
    """UID of the object."""
    resource_version: str = ""
    """Resource version of the object at the time of the event."""
    field_path: str = ""
    """The part of the object."""


class EventSource(Struct):
    """The source of an event."""

    component: str = ""
    """Component that reported the event."""
    host: str = ""
    """Node of the component."""


class Event(Object):
    """A report of something that happened to an object."""

    resource: ClassVar = Resource(
        "", "v1", "Event", "events", namespaced=True, short_names=("ev",),
        columns=(
            Column("Last Seen", ".lastTimestamp", "date"),
            Column("Type", ".type"),
            Column("Reason", ".reason"),
            Column("Object", ".involvedObject.name"),
            Column("Message", ".message"),
        ),
    )  # fmt: skip
    involved_object: ObjectReference = msgspec.field(default_factory=ObjectReference)
    """The object of the event."""
    reason: str = ""
    """Reason, in one word."""
    message: str = ""
    """Message."""
    type: str = ""
    """Normal or Warning."""
    source: EventSource | None = None
    """Source of the event."""
    count: int | None = None
    """Number of occurrences."""
    first_timestamp: str | None = None
    """When it first happened."""
    last_timestamp: str | None = None
    """When it last happened."""
    event_time: str | None = None
    """When it happened, to the microsecond."""
    reporting_component: str = ""
    """Controller that reported the event."""
    reporting_instance: str = ""
    """Instance of the controller."""


class LeaseSpec(Struct):
    """Holder and validity of a lease."""

    holder_identity: str | None = None
    """Identity of the holder."""
    lease_duration_seconds: int | None = None
    """Time after the last renewal at which another candidate may take it."""
    acquire_time: str | None = None
    """When the holder acquired it."""
    renew_time: str | None = None
    """When the holder last renewed it."""
    lease_transitions: int | None = None
    """Number of changes of the holder."""


class Lease(Object):
    """Leader election; `leaseTransitions` is the epoch of decisions."""

    resource: ClassVar = Resource(
        "coordination.k8s.io", "v1", "Lease", "leases", namespaced=True,
        columns=(Column("Holder", ".spec.holderIdentity"), AGE),
    )  # fmt: skip
    spec: LeaseSpec = msgspec.field(default_factory=LeaseSpec)
    """Holder and validity."""


class PriorityClass(Object):
    """A name for a priority of pods."""

    resource: ClassVar = Resource(
        "scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", namespaced=False,
        short_names=("pc",), columns=(Column("Value", ".value", "integer"), AGE),
    )  # fmt: skip
    value: int = 0
    """The priority; higher is more important. Cannot change."""
    global_default: bool | None = None
    """Whether it applies to pods without a class."""
    description: str = ""
    """Description."""
    preemption_policy: str | None = None
    """PreemptLowerPriority or Never."""


class RoleRef(Struct):
    """A reference to a role."""

    kind: str
    """Role or ClusterRole."""
    name: str
    """The role's name."""
    api_group: str = "rbac.authorization.k8s.io"
    """Always rbac.authorization.k8s.io."""


class Subject(Struct):
    """A user, group or service account."""

    kind: str
    """User, Group or ServiceAccount."""
    name: str
    """Name of the subject."""
    namespace: str = ""
    """Namespace of a ServiceAccount."""
    api_group: str = ""
    """Empty for a ServiceAccount."""


class RoleBinding(Object, kw_only=True):
    """Grants a role in one namespace. The embedded engine has three roles."""

    resource: ClassVar = Resource(
        "rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings", namespaced=True,
        columns=(Column("Role", ".roleRef.name"), AGE),
    )  # fmt: skip
    role_ref: RoleRef
    """The role. Cannot change."""
    subjects: list[Subject] | None = None
    """Users, groups and service accounts with the role."""


class ClusterRoleBinding(Object, kw_only=True):
    """Grants a role in all namespaces."""

    resource: ClassVar = Resource(
        "rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings",
        namespaced=False, columns=(Column("Role", ".roleRef.name"), AGE),
    )  # fmt: skip
    role_ref: RoleRef
    """The role. Cannot change."""
    subjects: list[Subject] | None = None
    """Users, groups and service accounts with the role."""


ALL: tuple[type[Object], ...] = (
    Namespace, ConfigMap, Secret, ServiceAccount, Service, Node, Pod, Event, Lease, PriorityClass,
    RoleBinding, ClusterRoleBinding,
)  # fmt: skip
