"""The Kubernetes kinds that Windlass reads or writes, as partial structs.

Only fields that some room uses are named; the rest travels along untouched (see `kinds.wire`).
Both engines serve these kinds: a real cluster, or the embedded server.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from windlass.kinds.meta import Condition, Object, Struct
from windlass.kinds.resources import Column, Resource

AGE = Column("Age", ".metadata.creationTimestamp", "date")

Quantities = dict[str, str | int | float]
"""Resource name -> Kubernetes quantity, as written; `kinds.quantity` reads it exactly."""


# --- namespaces, configuration, secrets ---------------------------------------------------------


class NamespaceStatus(Struct):
    phase: str = ""


class Namespace(Object):
    """A team's room: every run, secret and pod lives in one."""

    resource: ClassVar = Resource(
        "", "v1", "Namespace", "namespaces", namespaced=False, short_names=("ns",),
        subresources=("status",), columns=(Column("Status", ".status.phase"), AGE),
    )  # fmt: skip
    status: NamespaceStatus = msgspec.field(default_factory=NamespaceStatus)


class ConfigMap(Object):
    resource: ClassVar = Resource(
        "", "v1", "ConfigMap", "configmaps", namespaced=True, short_names=("cm",), columns=(AGE,)
    )
    data: dict[str, str] | None = None
    binary_data: dict[str, str] | None = None
    immutable: bool | None = None


class Secret(Object):
    """Values by reference: only pods and those who may read secrets see what is inside."""

    resource: ClassVar = Resource(
        "", "v1", "Secret", "secrets", namespaced=True, columns=(Column("Type", ".type"), AGE)
    )
    type: str = ""
    data: dict[str, str] | None = None
    string_data: dict[str, str] | None = None
    immutable: bool | None = None


class ServiceAccount(Object):
    resource: ClassVar = Resource(
        "", "v1", "ServiceAccount", "serviceaccounts", namespaced=True, short_names=("sa",),
        columns=(AGE,),
    )  # fmt: skip


class ServicePort(Struct):
    port: int
    name: str = ""
    protocol: str = ""
    target_port: int | str | None = None


class ServiceSpec(Struct):
    cluster_ip: str | None = msgspec.field(default=None, name="clusterIP")
    selector: dict[str, str] | None = None
    ports: list[ServicePort] | None = None
    type: str = ""
    publish_not_ready_addresses: bool | None = None


class Service(Object):
    resource: ClassVar = Resource(
        "", "v1", "Service", "services", namespaced=True, short_names=("svc",),
        subresources=("status",),
        columns=(Column("Type", ".spec.type"), Column("Cluster-IP", ".spec.clusterIP"), AGE),
    )  # fmt: skip
    spec: ServiceSpec = msgspec.field(default_factory=ServiceSpec)


# --- nodes --------------------------------------------------------------------------------------


class Taint(Struct):
    key: str
    effect: str
    value: str = ""
    time_added: str | None = None


class NodeSpec(Struct):
    unschedulable: bool | None = None
    taints: list[Taint] | None = None
    provider_id: str | None = msgspec.field(default=None, name="providerID")


class NodeAddress(Struct):
    type: str
    address: str


class NodeStatus(Struct):
    capacity: Quantities | None = None
    allocatable: Quantities | None = None
    conditions: list[Condition] | None = None
    addresses: list[NodeAddress] | None = None


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
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)


# --- pods ---------------------------------------------------------------------------------------


class KeyRef(Struct):
    name: str = ""
    key: str = ""
    optional: bool | None = None


class FieldRef(Struct):
    field_path: str


class EnvVarSource(Struct):
    secret_key_ref: KeyRef | None = None
    config_map_key_ref: KeyRef | None = None
    field_ref: FieldRef | None = None


class EnvVar(Struct):
    name: str
    value: str = ""
    value_from: EnvVarSource | None = None


class EnvFromRef(Struct):
    name: str = ""
    optional: bool | None = None


class EnvFrom(Struct):
    prefix: str = ""
    secret_ref: EnvFromRef | None = None
    config_map_ref: EnvFromRef | None = None


class ResourceRequirements(Struct):
    requests: Quantities | None = None
    limits: Quantities | None = None


class ContainerPort(Struct):
    container_port: int
    name: str = ""
    host_port: int | None = None
    protocol: str = ""


class VolumeMount(Struct):
    name: str
    mount_path: str
    sub_path: str = ""
    read_only: bool | None = None


class Container(Struct):
    name: str
    image: str = ""
    command: list[str] | None = None
    args: list[str] | None = None
    working_dir: str = ""
    env: list[EnvVar] | None = None
    env_from: list[EnvFrom] | None = None
    resources: ResourceRequirements | None = None
    ports: list[ContainerPort] | None = None
    volume_mounts: list[VolumeMount] | None = None
    restart_policy: str | None = None
    """`Always` on an init container makes it a sidecar."""


class Toleration(Struct):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class PodSpec(Struct):
    containers: list[Container] = []
    init_containers: list[Container] | None = None
    node_name: str = ""
    scheduler_name: str = ""
    restart_policy: str = ""
    termination_grace_period_seconds: int | None = None
    active_deadline_seconds: int | None = None
    node_selector: dict[str, str] | None = None
    tolerations: list[Toleration] | None = None
    priority: int | None = None
    priority_class_name: str = ""
    volumes: list[dict[str, Any]] | None = None
    overhead: Quantities | None = None
    hostname: str = ""
    subdomain: str = ""
    host_network: bool | None = None
    service_account_name: str = ""
    automount_service_account_token: bool | None = None
    enable_service_links: bool | None = None


class ContainerStateTerminated(Struct):
    exit_code: int = 0
    signal: int | None = None
    reason: str = ""
    message: str = ""
    started_at: str | None = None
    finished_at: str | None = None


class ContainerStateRunning(Struct):
    started_at: str | None = None


class ContainerStateWaiting(Struct):
    reason: str = ""
    message: str = ""


class ContainerState(Struct):
    waiting: ContainerStateWaiting | None = None
    running: ContainerStateRunning | None = None
    terminated: ContainerStateTerminated | None = None


class ContainerStatus(Struct):
    name: str
    state: ContainerState = msgspec.field(default_factory=ContainerState)
    ready: bool = False
    restart_count: int = 0
    image: str = ""
    image_id: str = msgspec.field(default="", name="imageID")
    container_id: str | None = msgspec.field(default=None, name="containerID")


class PodStatus(Struct):
    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    host_ip: str | None = msgspec.field(default=None, name="hostIP")
    pod_ip: str | None = msgspec.field(default=None, name="podIP")
    start_time: str | None = None


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
    status: PodStatus = msgspec.field(default_factory=PodStatus)


# --- events, leases, priorities, rights ---------------------------------------------------------


class ObjectReference(Struct):
    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    field_path: str = ""


class EventSource(Struct):
    component: str = ""
    host: str = ""


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
    reason: str = ""
    message: str = ""
    type: str = ""
    source: EventSource | None = None
    count: int | None = None
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    event_time: str | None = None
    reporting_component: str = ""
    reporting_instance: str = ""


class LeaseSpec(Struct):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(Object):
    """Who leads, until when; `leaseTransitions` is the epoch of decisions."""

    resource: ClassVar = Resource(
        "coordination.k8s.io", "v1", "Lease", "leases", namespaced=True,
        columns=(Column("Holder", ".spec.holderIdentity"), AGE),
    )  # fmt: skip
    spec: LeaseSpec = msgspec.field(default_factory=LeaseSpec)


class PriorityClass(Object):
    resource: ClassVar = Resource(
        "scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", namespaced=False,
        short_names=("pc",), columns=(Column("Value", ".value", "integer"), AGE),
    )  # fmt: skip
    value: int = 0
    global_default: bool | None = None
    description: str = ""
    preemption_policy: str | None = None


class RoleRef(Struct):
    kind: str
    name: str
    api_group: str = "rbac.authorization.k8s.io"


class Subject(Struct):
    kind: str
    name: str
    namespace: str = ""
    api_group: str = ""


class RoleBinding(Object, kw_only=True):
    """Gives people a role in one namespace. Embedded, the roles are the three of Windlass."""

    resource: ClassVar = Resource(
        "rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings", namespaced=True,
        columns=(Column("Role", ".roleRef.name"), AGE),
    )  # fmt: skip
    role_ref: RoleRef
    subjects: list[Subject] | None = None


class ClusterRoleBinding(Object, kw_only=True):
    """Gives people a role everywhere."""

    resource: ClassVar = Resource(
        "rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings",
        namespaced=False, columns=(Column("Role", ".roleRef.name"), AGE),
    )  # fmt: skip
    role_ref: RoleRef
    subjects: list[Subject] | None = None


ALL: tuple[type[Object], ...] = (
    Namespace, ConfigMap, Secret, ServiceAccount, Service, Node, Pod, Event, Lease, PriorityClass,
    RoleBinding, ClusterRoleBinding,
)  # fmt: skip
