"""The parts of a Pod that Windlass reads or writes. `kinds.kubernetes` offers these names too."""

from __future__ import annotations

from typing import Any

import msgspec

from windlass.kinds import placing
from windlass.kinds.meta import Condition, Struct

Quantities = dict[str, str | int | float]
"""Resource name -> Kubernetes quantity, as written; `kinds.quantity` reads it exactly."""


class KeyRef(Struct):
    """One value of a Secret or ConfigMap."""

    name: str = ""
    """Name of the Secret or ConfigMap."""
    key: str = ""
    """Which of its values."""
    optional: bool | None = None
    """The variable is left out if there is none."""


class FieldRef(Struct):
    """A field of the pod."""

    field_path: str
    """The field of the pod: `metadata.name`, `status.podIP`."""


class EnvVarSource(Struct):
    """Where a variable's value comes from."""

    secret_key_ref: KeyRef | None = None
    """A value of a Secret."""
    config_map_key_ref: KeyRef | None = None
    """A value of a ConfigMap."""
    field_ref: FieldRef | None = None
    """A field of the pod itself."""
    resource_field_ref: dict[str, Any] | None = None
    """What a container of the pod may use: `resource`, `containerName`, `divisor`."""


class EnvVar(Struct):
    """An environment variable."""

    name: str
    """The variable's name."""
    value: str = ""
    """Its value."""
    value_from: EnvVarSource | None = None
    """Where its value comes from."""


class EnvFromRef(Struct):
    """A Secret or ConfigMap."""

    name: str = ""
    """Name of the Secret or ConfigMap."""
    optional: bool | None = None
    """Nothing is set if there is none."""


class EnvFrom(Struct):
    """All values of a Secret or ConfigMap as variables."""

    prefix: str = ""
    """Put before each variable's name."""
    secret_ref: EnvFromRef | None = None
    """All values of a Secret."""
    config_map_ref: EnvFromRef | None = None
    """All values of a ConfigMap."""


class ResourceRequirements(Struct):
    """What a container needs and may use."""

    requests: Quantities | None = None
    """What is kept free for it."""
    limits: Quantities | None = None
    """What it may use at most."""


class ContainerPort(Struct):
    """A port that a container listens on."""

    container_port: int
    """The port's number."""
    name: str = ""
    """How the port is called."""
    host_port: int | None = None
    """The same on the node."""
    host_ip: str = msgspec.field(default="", name="hostIP")
    """The node's address that the host port is on; all of them if absent."""
    protocol: str = ""
    """TCP, UDP or SCTP."""


class VolumeMount(Struct):
    """A volume as a container sees it."""

    name: str
    """Name of the pod's volume."""
    mount_path: str
    """Where the container sees it."""
    sub_path: str = ""
    """Only this part of it."""
    read_only: bool | None = None
    """The container cannot write to it."""


class Container(Struct):
    """One program of a pod."""

    name: str
    """Unique in the pod."""
    image: str = ""
    """The image that it runs."""
    command: list[str] | None = None
    """The program; the image's own if absent."""
    args: list[str] | None = None
    """Its arguments."""
    working_dir: str = ""
    """The folder it starts in."""
    env: list[EnvVar] | None = None
    """Environment variables."""
    env_from: list[EnvFrom] | None = None
    """Environment variables from Secrets and ConfigMaps."""
    resources: ResourceRequirements | None = None
    """What it needs and may use."""
    ports: list[ContainerPort] | None = None
    """Ports that it listens on."""
    volume_mounts: list[VolumeMount] | None = None
    """Volumes that it sees."""
    image_pull_policy: str = ""
    """When the image is pulled: Always, IfNotPresent, Never."""
    restart_policy: str | None = None
    """`Always` on an init container makes it a sidecar."""
    stdin: bool | None = None
    """Its standard input stays open, for attach."""
    stdin_once: bool | None = None
    """Its standard input ends when the first who attached leaves."""
    tty: bool | None = None
    """It runs on a terminal of its own."""
    termination_message_path: str = ""
    """The file for its last words."""
    termination_message_policy: str = ""
    """`FallbackToLogsOnError`: the end of its log when it left none."""
    liveness_probe: dict[str, Any] | None = None
    """How to find out whether it must be started again."""
    readiness_probe: dict[str, Any] | None = None
    """How to find out whether it can serve."""
    startup_probe: dict[str, Any] | None = None
    """How to find out whether it has started."""
    lifecycle: dict[str, Any] | None = None
    """What to do after its start and before its end."""
    security_context: dict[str, Any] | None = None
    """What its processes may do."""


class Toleration(Struct):
    """A taint that a pod accepts."""

    key: str = ""
    """The taint's key; every taint when empty, with operator `Exists`."""
    operator: str = ""
    """`Equal` or `Exists`."""
    value: str = ""
    """The taint's value."""
    effect: str = ""
    """The taint's effect; all when empty."""
    toleration_seconds: int | None = None
    """How long NoExecute is tolerated."""


class PodSpec(Struct):
    """What a pod runs, and where."""

    containers: list[Container] = []
    """What runs."""
    init_containers: list[Container] | None = None
    """What runs before, one after the other."""
    node_name: str = ""
    """The node that it runs on."""
    scheduler_name: str = ""
    """Who chooses the node."""
    restart_policy: str = ""
    """Always, OnFailure or Never."""
    termination_grace_period_seconds: int | None = None
    """Time between SIGTERM and SIGKILL."""
    active_deadline_seconds: int | None = None
    """How long it may run."""
    node_selector: dict[str, str] | None = None
    """Labels that the node must have."""
    affinity: placing.Affinity | None = None
    """Where it must or would like to be."""
    topology_spread_constraints: list[placing.TopologySpread] | None = None
    """How evenly pods like it are spread."""
    tolerations: list[Toleration] | None = None
    """Taints that are accepted."""
    scheduling_gates: list[placing.SchedulingGate] | None = None
    """What must be done before it is placed."""
    resource_claims: list[dict[str, Any]] | None = None
    """Devices that it claims by ResourceClaims."""
    resources: ResourceRequirements | None = None
    """What all its containers together need and may use."""
    priority: int | None = None
    """Higher is more important."""
    priority_class_name: str = ""
    """Where its priority comes from."""
    preemption_policy: str | None = None
    """PreemptLowerPriority (if absent), or Never: it waits until there is room."""
    volumes: list[dict[str, Any]] | None = None
    """File trees that containers may mount."""
    runtime_class_name: str | None = None
    """Which container runtime."""
    image_pull_secrets: list[dict[str, str]] | None = None
    """Secrets with the registry's credentials."""
    security_context: dict[str, Any] | None = None
    """Whom its processes run as."""
    overhead: Quantities | None = None
    """What the runtime itself needs."""
    hostname: str = ""
    """Its name in its own eyes."""
    subdomain: str = ""
    """The headless service that its name is below."""
    share_process_namespace: bool | None = None
    """Its processes see each other, and none of its containers is the first one."""
    host_network: bool | None = None
    """It shares the node's network."""
    service_account_name: str = ""
    """Who it is to the API."""
    automount_service_account_token: bool | None = None
    """Whether it gets a token for the API."""
    enable_service_links: bool | None = None
    """Services appear in its environment."""


class ContainerStateTerminated(Struct):
    """How a container ended."""

    exit_code: int = 0
    """128 + n for signal n."""
    signal: int | None = None
    """The signal that ended it."""
    reason: str = ""
    """Completed, Error, OOMKilled."""
    message: str = ""
    """What it left to be read."""
    started_at: str | None = None
    """When it started."""
    finished_at: str | None = None
    """When it ended."""


class ContainerStateRunning(Struct):
    """Since when a container runs."""

    started_at: str | None = None
    """When it started."""


class ContainerStateWaiting(Struct):
    """Why a container has not started."""

    reason: str = ""
    """Why it has not started, in one word."""
    message: str = ""
    """Why, for people."""


class ContainerState(Struct):
    """What a container is doing; one of the three."""

    waiting: ContainerStateWaiting | None = None
    """It has not started."""
    running: ContainerStateRunning | None = None
    """It runs."""
    terminated: ContainerStateTerminated | None = None
    """It has ended."""


class ContainerStatus(Struct):
    """What became of a container."""

    name: str
    """Which container."""
    state: ContainerState = msgspec.field(default_factory=ContainerState)
    """What it is doing."""
    ready: bool = False
    """It can serve."""
    restart_count: int = 0
    """How often it was started again."""
    image: str = ""
    """The image that runs."""
    image_id: str = msgspec.field(default="", name="imageID")
    """The image's digest."""
    container_id: str | None = msgspec.field(default=None, name="containerID")
    """What the runtime calls it."""


class PodStatus(Struct):
    """What became of a pod."""

    phase: str = ""
    """Pending, Running, Succeeded, Failed or Unknown."""
    reason: str = ""
    """Why, in one word."""
    message: str = ""
    """Why, for people."""
    conditions: list[Condition] | None = None
    """Scheduled, initialized, ready."""
    container_statuses: list[ContainerStatus] | None = None
    """What the containers are doing."""
    init_container_statuses: list[ContainerStatus] | None = None
    """What the init containers are doing."""
    host_ip: str | None = msgspec.field(default=None, name="hostIP")
    """The node's address."""
    pod_ip: str | None = msgspec.field(default=None, name="podIP")
    """Its own address."""
    start_time: str | None = None
    """When the node took it."""
    nominated_node_name: str = ""
    """The node on which room is being made for it."""
