"""The parts of a Pod that Windlass reads or writes. `kinds.types.core` exports these names, too."""

from __future__ import annotations

from typing import Any

import msgspec

from windlass.kinds.types import pod_placement
from windlass.kinds.types.meta import Condition, Struct

Quantities = dict[str, str | int | float]
"""Resource name -> Kubernetes quantity, as written; `kinds.values.quantity` parses it exactly."""


class KeyRef(Struct):
    """One value of a Secret or ConfigMap."""

    name: str = ""
    """Name of the Secret or ConfigMap."""
    key: str = ""
    """Key of the value."""
    optional: bool | None = None
    """Leave out the variable if the value does not exist."""


class FieldRef(Struct):
    """A field of the pod."""

    field_path: str
    """The field of the pod: `metadata.name`, `status.podIP`."""


class EnvVarSource(Struct):
    """Source of a variable's value."""

    secret_key_ref: KeyRef | None = None
    """A value of a Secret."""
    config_map_key_ref: KeyRef | None = None
    """A value of a ConfigMap."""
    field_ref: FieldRef | None = None
    """A field of the pod itself."""
    resource_field_ref: dict[str, Any] | None = None
    """A limit or request of a container of the pod: `resource`, `containerName`, `divisor`."""


class EnvVar(Struct):
    """An environment variable."""

    name: str
    """The variable's name."""
    value: str = ""
    """Its value."""
    value_from: EnvVarSource | None = None
    """Source of the value."""


class EnvFromRef(Struct):
    """A Secret or ConfigMap."""

    name: str = ""
    """Name of the Secret or ConfigMap."""
    optional: bool | None = None
    """Set nothing if it does not exist."""


class EnvFrom(Struct):
    """All values of a Secret or ConfigMap as variables."""

    prefix: str = ""
    """Prefix of each variable's name."""
    secret_ref: EnvFromRef | None = None
    """All values of a Secret."""
    config_map_ref: EnvFromRef | None = None
    """All values of a ConfigMap."""


class ResourceRequirements(Struct):
    """Requests and limits of a container."""

    requests: Quantities | None = None
    """Requests: what the scheduler allocates."""
    limits: Quantities | None = None
    """Limits: what it may use at most."""


class ContainerPort(Struct):
    """A port that a container listens on."""

    container_port: int
    """The port's number."""
    name: str = ""
    """Name of the port."""
    host_port: int | None = None
    """Port on the node."""
    host_ip: str = msgspec.field(default="", name="hostIP")
    """Node address of the host port. Default: all addresses."""
    protocol: str = ""
    """TCP, UDP or SCTP."""


class VolumeMount(Struct):
    """A volume mount of a container."""

    name: str
    """Name of the pod's volume."""
    mount_path: str
    """Mount path in the container."""
    sub_path: str = ""
    """Mount only this path of the volume."""
    read_only: bool | None = None
    """Mount it read-only."""


class Container(Struct):
    """A container of a pod."""

    name: str
    """Unique in the pod."""
    image: str = ""
    """Image of the container."""
    command: list[str] | None = None
    """The program. Default: that of the image."""
    args: list[str] | None = None
    """Its arguments."""
    working_dir: str = ""
    """Working directory."""
    env: list[EnvVar] | None = None
    """Environment variables."""
    env_from: list[EnvFrom] | None = None
    """Environment variables from Secrets and ConfigMaps."""
    resources: ResourceRequirements | None = None
    """Requests and limits."""
    ports: list[ContainerPort] | None = None
    """Ports that it listens on."""
    volume_mounts: list[VolumeMount] | None = None
    """Mounted volumes."""
    image_pull_policy: str = ""
    """Pull policy of the image: Always, IfNotPresent, Never."""
    restart_policy: str | None = None
    """`Always` on an init container makes it a sidecar."""
    stdin: bool | None = None
    """Keep its standard input open, for attach."""
    stdin_once: bool | None = None
    """Close its standard input when the first attached client disconnects."""
    tty: bool | None = None
    """Allocate a terminal."""
    termination_message_path: str = ""
    """File of the termination message."""
    termination_message_policy: str = ""
    """`FallbackToLogsOnError`: use the end of the log if there is no message."""
    liveness_probe: dict[str, Any] | None = None
    """Liveness probe: whether the container must be restarted."""
    readiness_probe: dict[str, Any] | None = None
    """Readiness probe: whether the container can serve."""
    startup_probe: dict[str, Any] | None = None
    """Startup probe: whether the container has started."""
    lifecycle: dict[str, Any] | None = None
    """Hooks after its start and before its stop."""
    security_context: dict[str, Any] | None = None
    """Security options of its processes."""


class Toleration(Struct):
    """A taint that a pod tolerates."""

    key: str = ""
    """The taint's key. Empty with operator `Exists`: every taint."""
    operator: str = ""
    """`Equal` or `Exists`."""
    value: str = ""
    """The taint's value."""
    effect: str = ""
    """The taint's effect. Empty: all effects."""
    toleration_seconds: int | None = None
    """How long NoExecute is tolerated."""


class PodSpec(Struct):
    """Desired state of a pod."""

    containers: list[Container] = []
    """Containers."""
    init_containers: list[Container] | None = None
    """Init containers, which run one after the other before the containers."""
    node_name: str = ""
    """Node of the pod."""
    scheduler_name: str = ""
    """Scheduler that chooses the node."""
    restart_policy: str = ""
    """Always, OnFailure or Never."""
    termination_grace_period_seconds: int | None = None
    """Time between SIGTERM and SIGKILL."""
    active_deadline_seconds: int | None = None
    """Maximum running time."""
    node_selector: dict[str, str] | None = None
    """Labels that the node must have."""
    affinity: pod_placement.Affinity | None = None
    """Required and preferred nodes and neighbours."""
    topology_spread_constraints: list[pod_placement.TopologySpread] | None = None
    """Topology spread constraints."""
    tolerations: list[Toleration] | None = None
    """Tolerated taints."""
    scheduling_gates: list[pod_placement.SchedulingGate] | None = None
    """Scheduling gates."""
    resource_claims: list[dict[str, Any]] | None = None
    """ResourceClaims of devices."""
    resources: ResourceRequirements | None = None
    """Requests and limits of the whole pod."""
    priority: int | None = None
    """Priority; higher is more important."""
    priority_class_name: str = ""
    """PriorityClass of the pod."""
    preemption_policy: str | None = None
    """PreemptLowerPriority (default), or Never: the pod waits until capacity is free."""
    volumes: list[dict[str, Any]] | None = None
    """Volumes for containers."""
    runtime_class_name: str | None = None
    """RuntimeClass of the pod."""
    image_pull_secrets: list[dict[str, str]] | None = None
    """Image pull secrets."""
    security_context: dict[str, Any] | None = None
    """User and groups of its processes."""
    overhead: Quantities | None = None
    """Resource overhead of the runtime."""
    hostname: str = ""
    """Host name inside the pod."""
    subdomain: str = ""
    """Headless service of its DNS name."""
    share_process_namespace: bool | None = None
    """Share one process namespace among the containers."""
    host_network: bool | None = None
    """Use the node's network."""
    service_account_name: str = ""
    """ServiceAccount of the pod."""
    automount_service_account_token: bool | None = None
    """Whether to mount a token for the API."""
    enable_service_links: bool | None = None
    """Whether to set environment variables for services."""


class ContainerStateTerminated(Struct):
    """State of a terminated container."""

    exit_code: int = 0
    """128 + n for signal n."""
    signal: int | None = None
    """The signal that ended it."""
    reason: str = ""
    """Completed, Error, OOMKilled."""
    message: str = ""
    """Termination message."""
    started_at: str | None = None
    """When it started."""
    finished_at: str | None = None
    """When it ended."""


class ContainerStateRunning(Struct):
    """State of a running container."""

    started_at: str | None = None
    """When it started."""


class ContainerStateWaiting(Struct):
    """State of a waiting container."""

    reason: str = ""
    """Reason, in one word."""
    message: str = ""
    """Message."""


class ContainerState(Struct):
    """State of a container; one of the three."""

    waiting: ContainerStateWaiting | None = None
    """The container has not started."""
    running: ContainerStateRunning | None = None
    """The container is running."""
    terminated: ContainerStateTerminated | None = None
    """The container has terminated."""


class ContainerStatus(Struct):
    """Observed state of a container."""

    name: str
    """Name of the container."""
    state: ContainerState = msgspec.field(default_factory=ContainerState)
    """State."""
    ready: bool = False
    """Whether it is ready."""
    restart_count: int = 0
    """Number of restarts."""
    image: str = ""
    """The image that runs."""
    image_id: str = msgspec.field(default="", name="imageID")
    """The image's digest."""
    container_id: str | None = msgspec.field(default=None, name="containerID")
    """ID of the container in the runtime."""


class PodStatus(Struct):
    """Observed state of a pod."""

    phase: str = ""
    """Pending, Running, Succeeded, Failed or Unknown."""
    reason: str = ""
    """Reason, in one word."""
    message: str = ""
    """Message."""
    conditions: list[Condition] | None = None
    """Scheduled, initialized, ready."""
    container_statuses: list[ContainerStatus] | None = None
    """States of the containers."""
    init_container_statuses: list[ContainerStatus] | None = None
    """States of the init containers."""
    host_ip: str | None = msgspec.field(default=None, name="hostIP")
    """The node's address."""
    pod_ip: str | None = msgspec.field(default=None, name="podIP")
    """Its own address."""
    start_time: str | None = None
    """When the node accepted it."""
    nominated_node_name: str = ""
    """The node on which other pods are preempted for it."""
