"""The Kubernetes kinds that Windlass reads or writes, as partial structs.

Only fields that some room uses are named; the rest travels along untouched (see `kinds.wire`).
Both engines serve these kinds: a real cluster, or the embedded server.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from windlass.kinds.meta import Condition, Object, Struct
from windlass.kinds.podspec import Container as Container
from windlass.kinds.podspec import ContainerPort as ContainerPort
from windlass.kinds.podspec import ContainerState as ContainerState
from windlass.kinds.podspec import ContainerStateRunning as ContainerStateRunning
from windlass.kinds.podspec import ContainerStateTerminated as ContainerStateTerminated
from windlass.kinds.podspec import ContainerStateWaiting as ContainerStateWaiting
from windlass.kinds.podspec import ContainerStatus as ContainerStatus
from windlass.kinds.podspec import EnvFrom as EnvFrom
from windlass.kinds.podspec import EnvFromRef as EnvFromRef
from windlass.kinds.podspec import EnvVar as EnvVar
from windlass.kinds.podspec import EnvVarSource as EnvVarSource
from windlass.kinds.podspec import FieldRef as FieldRef
from windlass.kinds.podspec import KeyRef as KeyRef
from windlass.kinds.podspec import PodSpec as PodSpec
from windlass.kinds.podspec import PodStatus as PodStatus
from windlass.kinds.podspec import Quantities as Quantities
from windlass.kinds.podspec import ResourceRequirements as ResourceRequirements
from windlass.kinds.podspec import Toleration as Toleration
from windlass.kinds.podspec import VolumeMount as VolumeMount
from windlass.kinds.resources import Column, Resource

AGE = Column("Age", ".metadata.creationTimestamp", "date")


# --- namespaces, configuration, secrets ---------------------------------------------------------


class NamespaceStatus(Struct):
    """Whether a namespace is in use."""

    phase: str = ""
    """`Active`, or `Terminating` while what is inside goes."""


class Namespace(Object):
    """A team's room: every run, secret and pod lives in one."""

    resource: ClassVar = Resource(
        "", "v1", "Namespace", "namespaces", namespaced=False, short_names=("ns",),
        subresources=("status",), columns=(Column("Status", ".status.phase"), AGE),
    )  # fmt: skip
    status: NamespaceStatus = msgspec.field(default_factory=NamespaceStatus)
    """Whether it is in use."""


class ConfigMap(Object):
    """Settings that pods read."""

    resource: ClassVar = Resource(
        "", "v1", "ConfigMap", "configmaps", namespaced=True, short_names=("cm",), columns=(AGE,)
    )
    data: dict[str, str] | None = None
    """Names and texts."""
    binary_data: dict[str, str] | None = None
    """Names and bytes, in base64."""
    immutable: bool | None = None
    """Nothing in it may change any more."""


class Secret(Object):
    """Values by reference: only pods and those who may read secrets see what is inside."""

    resource: ClassVar = Resource(
        "", "v1", "Secret", "secrets", namespaced=True, columns=(Column("Type", ".type"), AGE)
    )
    type: str = ""
    """What kind of secret; `Opaque` if nobody says."""
    data: dict[str, str] | None = None
    """Names and values, in base64."""
    string_data: dict[str, str] | None = None
    """Names and values as plain text; the server moves them into `data`."""
    immutable: bool | None = None
    """Nothing in it may change any more."""


class ServiceAccount(Object):
    """Who a pod is to the API."""

    resource: ClassVar = Resource(
        "", "v1", "ServiceAccount", "serviceaccounts", namespaced=True, short_names=("sa",),
        subresources=("token",), columns=(AGE,),
    )  # fmt: skip


class ServicePort(Struct):
    """A port of a service."""

    port: int
    """The port of the service."""
    name: str = ""
    """How the port is called; needed when there are several."""
    protocol: str = ""
    """TCP, UDP or SCTP."""
    target_port: int | str | None = None
    """The port of the pods: a number, or the name of a container's port."""


class ServiceSpec(Struct):
    """Which pods, which ports."""

    cluster_ip: str | None = msgspec.field(default=None, name="clusterIP")
    """The address, or `None`: names lead straight to the pods."""
    selector: dict[str, str] | None = None
    """Labels of the pods behind it."""
    ports: list[ServicePort] | None = None
    """Ports that it serves."""
    type: str = ""
    """ClusterIP, NodePort, LoadBalancer or ExternalName."""
    publish_not_ready_addresses: bool | None = None
    """Pods are found before they are ready."""


class Service(Object):
    """A name and address for a set of pods."""

    resource: ClassVar = Resource(
        "", "v1", "Service", "services", namespaced=True, short_names=("svc",),
        subresources=("status",),
        columns=(Column("Type", ".spec.type"), Column("Cluster-IP", ".spec.clusterIP"), AGE),
    )  # fmt: skip
    spec: ServiceSpec = msgspec.field(default_factory=ServiceSpec)
    """Which pods, which ports."""


# --- nodes --------------------------------------------------------------------------------------


class Taint(Struct):
    """Keeps pods away from a node."""

    key: str
    """The taint's name."""
    effect: str
    """NoSchedule, PreferNoSchedule or NoExecute."""
    value: str = ""
    """The taint's value."""
    time_added: str | None = None
    """When it was put there."""


class NodeSpec(Struct):
    """What its keeper wants of a node."""

    unschedulable: bool | None = None
    """No new pods: the node is cordoned."""
    taints: list[Taint] | None = None
    """Pods that do not tolerate these stay away."""
    provider_id: str | None = msgspec.field(default=None, name="providerID")
    """What the provider calls the machine."""


class NodeAddress(Struct):
    """How a node is reached."""

    type: str
    """Hostname, InternalIP or ExternalIP."""
    address: str
    """The address."""


class NodeStatus(Struct):
    """What a node has and how it is."""

    capacity: Quantities | None = None
    """What the machine has."""
    allocatable: Quantities | None = None
    """What pods may use of it."""
    conditions: list[Condition] | None = None
    """Ready, and what presses the node."""
    addresses: list[NodeAddress] | None = None
    """How it is reached."""
    daemon_endpoints: dict[str, Any] | None = None
    """Where its agent listens: `kubeletEndpoint.Port`."""


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
    """What its keeper wants of it."""
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)
    """What it has and how it is."""

    @property
    def is_ready(self) -> bool:
        """Whether the node says that it can run pods."""
        return any(c.type == "Ready" and c.status == "True" for c in self.status.conditions or ())


# --- pods ----------------------------------------------------------------------------------------


class Pod(Object):
    """One member of a run, or somebody else's: processes on one node."""

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
    """What it runs, and where."""
    status: PodStatus = msgspec.field(default_factory=PodStatus)
    """What became of it."""


# --- events, leases, priorities, rights ---------------------------------------------------------


class ObjectReference(Struct):
    """Which object."""

    api_version: str = ""
    """Of the object."""
    kind: str = ""
    """Of the object."""
    namespace: str = ""
    """Of the object."""
    name: str = ""
    """Of the object."""
    uid: str = ""
    """Of the object."""
    resource_version: str = ""
    """Of the object when it happened."""
    field_path: str = ""
    """Which part of the object."""


class EventSource(Struct):
    """Who told an event."""

    component: str = ""
    """Which program told it."""
    host: str = ""
    """On which node."""


class Event(Object):
    """Something that happened to an object, told to people."""

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
    """The object it is about."""
    reason: str = ""
    """What happened, in one word."""
    message: str = ""
    """What happened, for people."""
    type: str = ""
    """Normal or Warning."""
    source: EventSource | None = None
    """Who told it."""
    count: int | None = None
    """How often it happened."""
    first_timestamp: str | None = None
    """When it first happened."""
    last_timestamp: str | None = None
    """When it last happened."""
    event_time: str | None = None
    """When it happened, to the microsecond."""
    reporting_component: str = ""
    """Which controller told it."""
    reporting_instance: str = ""
    """Which instance of that controller."""


class LeaseSpec(Struct):
    """Who holds a lease, until when."""

    holder_identity: str | None = None
    """Who holds it."""
    lease_duration_seconds: int | None = None
    """How long after the last renewal others may take it."""
    acquire_time: str | None = None
    """When the holder got it."""
    renew_time: str | None = None
    """When the holder last renewed it."""
    lease_transitions: int | None = None
    """How often the holder changed."""


class Lease(Object):
    """Who leads, until when; `leaseTransitions` is the epoch of decisions."""

    resource: ClassVar = Resource(
        "coordination.k8s.io", "v1", "Lease", "leases", namespaced=True,
        columns=(Column("Holder", ".spec.holderIdentity"), AGE),
    )  # fmt: skip
    spec: LeaseSpec = msgspec.field(default_factory=LeaseSpec)
    """Who holds it, until when."""


class PriorityClass(Object):
    """A name for a priority of pods."""

    resource: ClassVar = Resource(
        "scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", namespaced=False,
        short_names=("pc",), columns=(Column("Value", ".value", "integer"), AGE),
    )  # fmt: skip
    value: int = 0
    """The priority; higher is more important. Cannot change."""
    global_default: bool | None = None
    """For pods that name no class."""
    description: str = ""
    """What it is for."""
    preemption_policy: str | None = None
    """PreemptLowerPriority or Never."""


class RoleRef(Struct):
    """Which role."""

    kind: str
    """Role or ClusterRole."""
    name: str
    """The role's name."""
    api_group: str = "rbac.authorization.k8s.io"
    """Always rbac.authorization.k8s.io."""


class Subject(Struct):
    """Who."""

    kind: str
    """User, Group or ServiceAccount."""
    name: str
    """The name."""
    namespace: str = ""
    """Of a ServiceAccount."""
    api_group: str = ""
    """Empty for a ServiceAccount."""


class RoleBinding(Object, kw_only=True):
    """Gives people a role in one namespace. Embedded, the roles are the three of Windlass."""

    resource: ClassVar = Resource(
        "rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings", namespaced=True,
        columns=(Column("Role", ".roleRef.name"), AGE),
    )  # fmt: skip
    role_ref: RoleRef
    """What they may do. Cannot change."""
    subjects: list[Subject] | None = None
    """Who may do it."""


class ClusterRoleBinding(Object, kw_only=True):
    """Gives people a role everywhere."""

    resource: ClassVar = Resource(
        "rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings",
        namespaced=False, columns=(Column("Role", ".roleRef.name"), AGE),
    )  # fmt: skip
    role_ref: RoleRef
    """What they may do. Cannot change."""
    subjects: list[Subject] | None = None
    """Who may do it."""


ALL: tuple[type[Object], ...] = (
    Namespace, ConfigMap, Secret, ServiceAccount, Service, Node, Pod, Event, Lease, PriorityClass,
    RoleBinding, ClusterRoleBinding,
)  # fmt: skip
