"""Run: work that queues, starts and ends. Training, batch, Spark, Flink, a notebook.

Users write `spec`. The scheduler writes `assignment`, `nomination`, `eviction` and `queue` of
`status`; the run controller writes the rest. Cross-field
rules live in `kinds.schema.cel_rules`. The docstrings below become `kubectl explain` and
docs/reference.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
from typing import Annotated, ClassVar, Final, Literal

import msgspec
from msgspec import Meta

from windlass.kinds.types import field_types
from windlass.kinds.types.meta import Object, Struct
from windlass.kinds.types.resource import Column, Resource
from windlass.kinds.types.run_status import AVOIDED as AVOIDED
from windlass.kinds.types.run_status import FAILURES as FAILURES
from windlass.kinds.types.run_status import FINISHED as FINISHED
from windlass.kinds.types.run_status import HELD as HELD
from windlass.kinds.types.run_status import HISTORY_LENGTH as HISTORY_LENGTH
from windlass.kinds.types.run_status import MOVES as MOVES
from windlass.kinds.types.run_status import OUTPUTS as OUTPUTS
from windlass.kinds.types.run_status import PAST_NODES as PAST_NODES
from windlass.kinds.types.run_status import ArrayStatus as ArrayStatus
from windlass.kinds.types.run_status import Assignment as Assignment
from windlass.kinds.types.run_status import CollectedOutputs as CollectedOutputs
from windlass.kinds.types.run_status import Dependency as Dependency
from windlass.kinds.types.run_status import Eviction as Eviction
from windlass.kinds.types.run_status import Held as Held
from windlass.kinds.types.run_status import IndexFailure as IndexFailure
from windlass.kinds.types.run_status import Member as Member
from windlass.kinds.types.run_status import Phase as Phase
from windlass.kinds.types.run_status import Progress as Progress
from windlass.kinds.types.run_status import QueuePlace as QueuePlace
from windlass.kinds.types.run_status import RunStatus as RunStatus
from windlass.kinds.types.run_status import Transition as Transition

DEFAULT_PRIORITY = 50
LABEL_RUN: Final = "windlass.dev/run"
LABEL_ATTEMPT: Final = "windlass.dev/attempt"
LABEL_ROLE: Final = "windlass.dev/role"
LABEL_INDEX: Final = "windlass.dev/index"
"""The four labels that identify the replica of a pod."""

LABEL_ARRAY: Final = "windlass.dev/array"
LABEL_ARRAY_UID: Final = "windlass.dev/array-uid"
LABEL_ARRAY_INDEX: Final = "windlass.dev/array-index"
"""On the Run and the pods of one index of an array: name and uid of the array, and the index."""

FINALIZER_ARRAY: Final = "windlass.dev/array"
"""Keeps the Run of an index until its result is in the status of the array."""

FINALIZER_LEDGER: Final = "windlass.dev/ledger"
"""Keeps a Run until the ledger has recorded its usage."""

MAX_NAME: Final = 40

Framework = Literal[
    "process", "torch", "mpi", "horovod", "tensorflow", "jax", "ray", "deepspeed", "spark", "flink"
]
RetryCause = Literal["NodeLost", "Preempted", "Failed"]
OutputMoment = Literal["end", "failure", "checkpoint"]
Signal = Literal["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"]


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class MemberKey:
    """Identifies a replica of an attempt; matches assignments and pods."""

    run_uid: str
    attempt: int
    role: str
    index: int


def pod_name(run_name: str, run_uid: str, attempt: int, role: str, index: int) -> str:
    """The name of a replica's pod: the same key gives the same name, another key another one.

    It shows the run, role and index; the tail makes it unique, because run `a-b` with
    role `c` and run `a` with role `b-c` read the same, and so do two attempts.
    """
    key = f"{run_uid}/{attempt}/{role}/{index}".encode()
    tail = base64.b32encode(hashlib.sha256(key).digest()[:5]).decode().lower()
    member = f"-{role}-{index}-{tail}"
    return run_name[: 63 - len(member)].rstrip("-.").replace(".", "-") + member


def known_nodes(owner: Run) -> list[str]:
    """The nodes that a Run has or had, the present ones last."""
    given = owner.status.assignment
    listed = given.members.values() if given is not None else ()
    present = sorted({member.node for each in listed for member in each})
    return [node for node in owner.status.past_nodes or () if node not in present] + present


# --- spec: written by users ---------------------------------------------------------------------


class EnvFrom(Struct):
    """All values of one Secret or ConfigMap as environment variables."""

    secret: field_types.ObjectName | None = None
    """Name of a Secret in the run's namespace."""
    config: field_types.ObjectName | None = None
    """Name of a ConfigMap in the run's namespace."""
    prefix: field_types.EnvPrefix = ""
    """Put before each variable's name."""


class Port(Struct):
    """A port on which a replica listens."""

    name: field_types.PortName
    """The name for other replicas and for `windlass`."""
    port: Annotated[int, Meta(ge=1, le=65535)]
    """The port number inside the replica."""


class Resources(Struct):
    """Resources of each replica of a role."""

    cpu: field_types.Quantity = "1"
    """Cores: `8`, or thousandths of one: `500m`."""
    memory: field_types.Quantity = "1Gi"
    """Memory, shared memory included: `32Gi`."""
    shm: field_types.QuantityOrAuto = "auto"
    """Size of /dev/shm, which is part of the memory. `auto`: half of it."""
    disk: field_types.Quantity | None = None
    """Disk for the files of a replica that go with it: work folder, home, tmp, logs. A replica with
    more ends with OutOfDisk. Default: the limit of the node."""


class Device(Struct):
    """Devices of each replica: whole ones by `count`, or one share by `share` or by size."""

    kind: field_types.DnsLabel
    """Kind of device: `gpu`, `rdma`, `npu`."""
    count: Annotated[int, Meta(ge=1, le=1024)] | None = None
    """Number of whole devices. 1 when no share is requested."""
    models: Annotated[list[field_types.DnsLabel], Meta(max_length=16)] | None = None
    """Accepted models, best first. Default: any model."""
    share: field_types.Fraction | None = None
    """A fraction of one device, below 1: `1/4`."""
    memory: field_types.Quantity | None = None
    """A share of one device by its memory: `8Gi`."""
    compute: Annotated[int, Meta(ge=1, le=100)] | None = None
    """A share of one device by its compute, in percent."""
    isolation: Literal["none", "soft", "hard"] | None = None
    """The weakest accepted isolation from other shares of the device."""


class Role(Struct, kw_only=True):
    """A group of equal replicas: same command, same resources."""

    name: field_types.RoleName = "worker"
    """Unique in the run."""
    replicas: field_types.Replicas = 1
    """Number of replicas. May change while the run is active."""
    min_replicas: field_types.Replicas | None = None
    """Elastic: the run starts with at least this many, shrinks to it before it is preempted and
    grows again when capacity is free. The same as `replicas` when absent."""
    resize: Literal["restart", "live"] = "restart"
    """`restart`: stop by the checkpoint contract, start at the new size. `live`: surplus replicas
    get the signal, highest index first, index 0 never."""
    command: Annotated[list[field_types.Argument], Meta(min_length=1, max_length=512)]
    """Program and arguments, without a shell."""
    env: Annotated[dict[field_types.EnvName, field_types.Argument], Meta(max_length=512)] | None = (
        None
    )
    """Environment variables. Use `envFrom` for secrets."""
    env_from: Annotated[list[EnvFrom], Meta(max_length=32)] | None = None
    """Environment variables from Secrets and ConfigMaps."""
    ports: Annotated[list[Port], field_types.keyed("name", 32)] | None = None
    """Ports on which replicas listen."""
    resources: Resources = msgspec.field(default_factory=Resources)
    """Resources of each replica."""
    devices: Annotated[list[Device], Meta(max_length=8)] | None = None
    """Devices of each replica."""


class Completion(Struct):
    """When the run ends."""

    role: field_types.RoleName
    """When all replicas of this role have ended, the run ends and the others are stopped."""


class Topology(Struct):
    """How close the replicas must be to each other."""

    level: field_types.DnsLabel
    """A level of the cluster's topology: `rack`, `zone`, `block`."""
    mode: Literal["preferred", "required"] = "preferred"
    """`required`: wait rather than spread over several domains."""


class Bundle(Struct):
    """Devices that are assigned together in one locality domain, or not at all."""

    within: Literal["numa", "socket", "pcie"]
    """The locality domain."""
    devices: Annotated[list[field_types.DnsLabel], Meta(min_length=2, max_length=8)]
    """Kinds of devices that must share the domain: `[gpu, rdma]`."""


class Toleration(Struct):
    """A taint that the run tolerates."""

    key: field_types.LabelKey = ""
    """The taint's key. Empty with operator `Exists`: every taint."""
    operator: Literal["Equal", "Exists"] = "Equal"
    """`Exists` compares the key only."""
    value: field_types.LabelValue = ""
    """The taint's value."""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    """The taint's effect. Empty: all effects."""


class NodePreference(Struct):
    """Nodes that are preferred, or avoided, among feasible nodes."""

    selector: Annotated[
        dict[field_types.LabelKey, field_types.LabelValue],
        Meta(min_length=1, max_length=64),
    ]
    """Labels of such a node; all must match."""
    weight: Annotated[int, Meta(ge=-100, le=100)] = 1
    """Score for each replica on such a node; below 0: avoid it."""


class NodeChoice(Struct):
    """Which nodes are feasible, and which of them are preferred."""

    selector: (
        Annotated[
            dict[field_types.LabelKey, field_types.LabelValue],
            Meta(max_length=64),
        ]
        | None
    ) = None
    """Labels that a node must have."""
    tolerations: Annotated[list[Toleration], Meta(max_length=32)] | None = None
    """Taints that are tolerated."""
    capabilities: Annotated[list[field_types.Capability], Meta(max_length=16)] | None = None
    """Capabilities that a node must have, by the names in its annotation
    `windlass.dev/capabilities`."""
    prefer: Annotated[list[NodePreference], Meta(max_length=16)] | None = None
    """Preferred nodes: the largest total score wins, before packing is considered. Never a reason
    to wait."""


class Placement(Struct):
    """Where replicas are placed."""

    gang: bool = True
    """`minReplicas` of every role start together, or none does."""
    pack: Literal["binpack", "spread", "fragmentation"] = "binpack"
    """`binpack` fills nodes, `spread` distributes over nodes, `fragmentation` keeps free capacity
    useful for the observed demand."""
    topology: Topology | None = None
    """How close replicas must be to each other."""
    bundle: Bundle | None = None
    """Devices that must be in one locality domain."""
    nodes: NodeChoice | None = None
    """Which nodes are feasible."""
    movable: bool = False
    """The scheduler may stop it by the checkpoint contract and start it on other nodes, so that a
    waiting run fits. Only when it reported a checkpoint within ten minutes, and at most once an
    hour."""


class Environment(Struct):
    """The software environment of the replicas."""

    image: Annotated[str, Meta(max_length=1024)] | None = None
    """A container image (Kubernetes engine)."""
    python: field_types.PythonVersion | None = None
    """A Python version: `"3.11"`. Quote it: YAML reads 3.10 as 3.1."""
    requirements: Annotated[list[field_types.Text], Meta(max_length=512)] | None = None
    """Python packages, as in requirements.txt."""
    setup: field_types.Script | None = None
    """A shell script that runs once before the command."""


class Code(Struct):
    """The user's working folder."""

    digest: field_types.Digest
    """Digest of the uploaded archive. The client fills it in from `--workdir`."""


class Mount(Struct, kw_only=True):
    """A volume that is mounted into the replicas."""

    source: field_types.MountSource = msgspec.field(name="from")
    """`claim:NAME`, `host:/path`, `config:NAME`, `secret:NAME` or `dataset:NAME`."""
    path: field_types.AbsolutePath
    """The mount path."""
    read_only: bool = False
    """Replicas cannot write to it."""


class Durations(Struct):
    """Estimated and maximum durations."""

    expected: field_types.Duration | None = None
    """Expected duration, as estimated by the user. Backfill and `order: shortest` use it."""
    max: field_types.Duration | None = None
    """Maximum duration of an attempt; a longer one ends with reason Timeout."""
    start: field_types.Duration | None = None
    """All replicas must run within this time after the assignment, else the attempt ends."""


class Retries(Struct):
    """When a run that did not succeed is retried."""

    limit: Annotated[int, Meta(ge=0, le=1000)] = 3
    """Maximum number of further attempts after failures; with `restart: pod` or `role` also of
    restarts within an attempt. Preemption, suspension and resizing cost none."""
    causes: Annotated[list[RetryCause], Meta(max_length=3)] = msgspec.field(
        default_factory=lambda: ["NodeLost", "Preempted"]
    )
    """Causes that lead to another attempt. `Failed`: the program ended with an error. Without
    `Preempted`, a run that is preempted has failed."""
    lost_after: field_types.Duration = "5m"
    """While a node is not ready, it is unknown whether its replicas still run. Another attempt
    starts when they are known to be gone, or when the node has not been ready for this time; then
    two attempts may have run at the same time, and the status says so. Kubernetes itself notices a
    silent node after about 50 seconds."""


class Checkpoint(Struct):
    """How replicas are stopped."""

    signal: Signal = "SIGTERM"
    """The signal that asks the program to save its state and exit."""
    grace: field_types.Duration = "30s"
    """Time between the signal and SIGKILL."""
    path: field_types.AbsolutePath | None = None
    """Folder of the checkpoints: `WINDLASS_CHECKPOINT` in every replica. Use a mount that outlives
    the pod."""


class Output(Struct, kw_only=True):
    """Files of each replica that are collected and outlive its pod, until the Run is deleted."""

    path: field_types.OutputPath
    """A file, a folder, or a pattern with `*`, `?`, `[..]` and `**`. Relative to the working
    folder; or absolute, below `/windlass` or a mount."""
    when: Annotated[list[OutputMoment], Meta(min_length=1, max_length=3)] = msgspec.field(
        default_factory=lambda: ["end", "failure"]
    )
    """`end`: when the command has succeeded. `failure`: when it ended in any other way, stopped
    and preempted included. `checkpoint`: then, and also each time that the program reports a
    checkpoint."""


class SecurityContext(Struct):
    """User and group of the processes."""

    run_as_user: field_types.UserId | None = None
    """User id."""
    run_as_group: field_types.UserId | None = None
    """Group id."""
    fs_group: field_types.UserId | None = None
    """Group id of mounted volumes."""


class ResourceClaim(Struct):
    """A claim for devices of Dynamic Resource Allocation."""

    name: field_types.DnsLabel
    """The name for containers."""
    resource_claim_name: field_types.ObjectName | None = None
    """An existing claim of the namespace."""
    resource_claim_template_name: field_types.ObjectName | None = None
    """The template of a claim per pod."""


class Overrides(Struct):
    """Advanced pod fields. Other pod fields cannot be set."""

    labels: field_types.Labels | None = None
    """Further labels of the pods."""
    annotations: field_types.Labels | None = None
    """Annotations of the pods."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """Pull policy of the image."""
    image_pull_secrets: Annotated[list[field_types.ObjectName], Meta(max_length=16)] | None = None
    """Image pull secrets."""
    runtime_class_name: field_types.ObjectName | None = None
    """The container runtime, where the engine runs images. The scheduler considers what the
    RuntimeClass adds to pods (overhead, node labels, tolerations)."""
    priority_class_name: field_types.ObjectName | None = None
    """Priority class of the pods, for evictions by the kubelet."""
    security_context: SecurityContext | None = None
    """User and group of the processes."""
    resource_claims: Annotated[list[ResourceClaim], Meta(max_length=16)] | None = None
    """Not supported yet: Kubernetes does not allocate claims for pods that are created on their
    node. A run with claims waits with the reason Unsupported."""


class After(Struct, kw_only=True):
    """Another run that must have ended before this one starts."""

    run: field_types.ObjectName
    """Name of a Run in the same namespace."""
    when: Literal["ok", "any", "failed"] = "ok"
    """`ok`: it must succeed. `any`: it must end. `failed`: it must end without success. A run whose
    condition can no longer be met ends with the reason DependencyFailed."""


class Array(Struct, kw_only=True):
    """The same job many times, each with an index of its own."""

    indices: field_types.Indices
    """Indices as ranges, with a step or as a list: `0-99`, `0-99:2`, `1,4,7`; at most 10,000.
    Each index is a run of its own for placement, quota, preemption, retries and usage."""
    parallelism: Annotated[int, Meta(ge=1, le=10000)] | None = None
    """How many indices may run at the same time. May change while the array is active."""
    stop: field_types.IndicesOrNone = ""
    """Indices to stop, as `3-5,9`; those that have not started never start. May grow while the
    array is active."""


class RunSpec(Struct, kw_only=True):
    """What to run. priority, queue, suspend, stop, replicas, minReplicas, duration,
    array.parallelism, array.stop and ttlAfterFinished may change while the run is active; the rest
    is immutable."""

    queue: field_types.ObjectName | None = None
    """The queue of the run. Default: the queue that owns the namespace, else `default`."""
    user: Annotated[str, Meta(min_length=1, max_length=253)] | None = None
    """The user of the run. The client fills it in; any name other than the caller's is refused."""
    priority: field_types.Priority = DEFAULT_PRIORITY
    """Priority within the queue; higher first. Above 50 only for administrators of the team and
    callers with the verb `prioritize` on runs. The queue's `maxPriority` caps it."""
    preemptible: bool = True
    """The scheduler may stop the run to reclaim capacity. `false`: the run uses only its queue's
    guarantee and capacity that is guaranteed to no queue; only administrators of the team may set
    it."""
    suspend: bool = False
    """The run does not start, or is stopped by the checkpoint contract, until this is false."""
    stop: bool = False
    """Stop the run by the checkpoint contract. The record stays. This cannot be undone."""
    after: Annotated[list[After], field_types.keyed("run", 64)] | None = None
    """Runs that must have ended before this one takes part in the queue."""
    array: Array | None = None
    """Runs the job once for each index: `WINDLASS_ARRAY_INDEX` in every replica."""
    framework: Framework = "process"
    """The framework that connects the replicas."""
    completion: Completion | None = None
    """When the run ends. Default: when all replicas of all roles have ended."""
    restart: Literal["pod", "role", "run"] = "run"
    """What restarts when a replica fails: that replica (`pod`), its role, or the whole run."""
    roles: Annotated[list[Role], field_types.keyed("name", 16, 1)]
    """The groups of replicas."""
    placement: Placement = msgspec.field(default_factory=Placement)
    """Where replicas are placed."""
    environment: Environment | None = None
    """The software environment. Default: that of the node."""
    code: Code | None = None
    """The user's working folder."""
    mounts: Annotated[list[Mount], Meta(max_length=32)] | None = None
    """Volumes that are mounted into the replicas."""
    duration: Durations | None = None
    """Estimated and maximum durations."""
    retries: Retries = msgspec.field(default_factory=Retries)
    """When the run is retried."""
    checkpoint: Checkpoint = msgspec.field(default_factory=Checkpoint)
    """How replicas are stopped."""
    outputs: Annotated[list[Output], field_types.keyed("path", 32, 1)] | None = None
    """Files that are collected. With any, the folder `$WINDLASS_OUTPUTS` is collected, too."""
    overrides: Overrides | None = None
    """Advanced pod fields."""
    ttl_after_finished: field_types.DurationOrZero | None = None
    """The Run is deleted this long after its end. Kept when absent."""


class Run(Object, kw_only=True):
    """Work that queues, starts and ends: training, batch, Spark, Flink, a notebook."""

    resource: ClassVar = Resource(
        "windlass.dev", "v1alpha1", "Run", "runs", namespaced=True, short_names=("wr",),
        categories=("windlass", "all"), subresources=("status",),
        columns=(
            Column("Phase", ".status.phase", description="Phase of the run"),
            Column("Reason", ".status.reason", description="Why"),
            Column("Queue", ".spec.queue", description="Queue of the run"),
            Column("User", ".spec.user", description="User of the run"),
            Column("Age", ".metadata.creationTimestamp", "date"),
            Column("Priority", ".spec.priority", "integer", 1, "Higher first"),
            Column("Attempt", ".status.attempt", "integer", 1, "Counts the starts"),
            Column("Framework", ".spec.framework", "string", 1, "Framework of the run"),
            Column("Message", ".status.message", "string", 1, "Why, with amounts"),
        ),
    )  # fmt: skip
    spec: RunSpec
    status: RunStatus = msgspec.field(default_factory=RunStatus)

    @property
    def finished(self) -> bool:
        return self.status.phase in FINISHED
