"""Run: work that queues, starts and ends. Training, batch, Spark, Flink, a notebook.

`spec` is what a user writes; `status` is written by two rooms only: the scheduler writes
`assignment`, `nomination`, `eviction` and `queue`, the run controller all the rest. Cross-field
rules live in `kinds.rules`. The docstrings below become `kubectl explain` and docs/reference.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
from typing import Annotated, ClassVar, Final, Literal

import msgspec
from msgspec import Meta

from windlass.kinds import fields
from windlass.kinds.meta import Object, Struct
from windlass.kinds.resources import Column, Resource
from windlass.kinds.runstatus import AVOIDED as AVOIDED
from windlass.kinds.runstatus import FINISHED as FINISHED
from windlass.kinds.runstatus import HELD as HELD
from windlass.kinds.runstatus import HISTORY_LENGTH as HISTORY_LENGTH
from windlass.kinds.runstatus import MOVES as MOVES
from windlass.kinds.runstatus import Assignment as Assignment
from windlass.kinds.runstatus import Eviction as Eviction
from windlass.kinds.runstatus import Held as Held
from windlass.kinds.runstatus import Member as Member
from windlass.kinds.runstatus import Phase as Phase
from windlass.kinds.runstatus import Progress as Progress
from windlass.kinds.runstatus import QueuePlace as QueuePlace
from windlass.kinds.runstatus import RunStatus as RunStatus
from windlass.kinds.runstatus import Transition as Transition

LABEL_RUN: Final = "windlass.dev/run"
LABEL_ATTEMPT: Final = "windlass.dev/attempt"
LABEL_ROLE: Final = "windlass.dev/role"
LABEL_INDEX: Final = "windlass.dev/index"
"""The four labels by which a pod says which member it is."""

FINALIZER_LEDGER: Final = "windlass.dev/ledger"
"""Keeps a Run until the ledger has written down what it held."""

MAX_NAME: Final = 40

Framework = Literal[
    "process", "torch", "mpi", "horovod", "tensorflow", "jax", "ray", "deepspeed", "spark", "flink"
]
RetryCause = Literal["NodeLost", "Preempted", "Failed"]
Signal = Literal["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"]


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class MemberKey:
    """Which member of which attempt: what assignments and pods are matched by."""

    run_uid: str
    attempt: int
    role: str
    index: int


def pod_name(run_name: str, run_uid: str, attempt: int, role: str, index: int) -> str:
    """The name of a member's pod: the same key gives the same name, another key another one.

    People read the run, role and index in it; the tail makes it unique, because run `a-b` with
    role `c` and run `a` with role `b-c` read the same, and so do two attempts.
    """
    key = f"{run_uid}/{attempt}/{role}/{index}".encode()
    tail = base64.b32encode(hashlib.sha256(key).digest()[:5]).decode().lower()
    member = f"-{role}-{index}-{tail}"
    return run_name[: 63 - len(member)].rstrip("-.").replace(".", "-") + member


# --- what a user writes -------------------------------------------------------------------------


class EnvFrom(Struct):
    """All values of one Secret or ConfigMap as environment variables."""

    secret: fields.ObjectName | None = None
    """Name of a Secret in the run's namespace."""
    config: fields.ObjectName | None = None
    """Name of a ConfigMap in the run's namespace."""
    prefix: fields.EnvPrefix = ""
    """Put before each variable's name."""


class Port(Struct):
    """A port that a member listens on."""

    name: fields.PortName
    """How other members and `windlass` name it."""
    port: Annotated[int, Meta(ge=1, le=65535)]
    """Its number inside the member."""


class Resources(Struct):
    """What each member of a role holds for itself."""

    cpu: fields.Quantity = "1"
    """Cores: `8`, or thousandths of one: `500m`."""
    memory: fields.Quantity = "1Gi"
    """Memory, shared memory included: `32Gi`."""
    shm: fields.QuantityOrAuto = "auto"
    """Size of /dev/shm, which is part of the memory. `auto`: half of it."""


class Device(Struct):
    """Devices for each member: whole ones by `count`, or one share by `share` or by size."""

    kind: fields.DnsLabel
    """What it is: `gpu`, `rdma`, `npu`."""
    count: Annotated[int, Meta(ge=1, le=1024)] | None = None
    """Whole devices. 1 when no share is asked for."""
    models: Annotated[list[fields.DnsLabel], Meta(max_length=16)] | None = None
    """Models that are acceptable, best first. Any when absent."""
    share: fields.Fraction | None = None
    """A fraction of one device, below 1: `1/4`."""
    memory: fields.Quantity | None = None
    """A share of one device by its memory: `8Gi`."""
    compute: Annotated[int, Meta(ge=1, le=100)] | None = None
    """A share of one device by its compute, in percent."""
    isolation: Literal["none", "soft", "hard"] | None = None
    """The weakest isolation from the other shares of the device that is acceptable."""


class Role(Struct, kw_only=True):
    """Members that are alike: same command, same resources."""

    name: fields.RoleName = "worker"
    """Unique in the run."""
    replicas: fields.Replicas = 1
    """How many members. May be changed while the run lives."""
    min_replicas: fields.Replicas | None = None
    """Elastic: starts with this many at least, shrinks to it before the run is preempted and
    grows again when there is room. The same as `replicas` when absent."""
    resize: Literal["restart", "live"] = "restart"
    """`restart`: stop by the checkpoint contract, start at the new size. `live`: surplus members
    get the signal, highest index first, index 0 never."""
    command: Annotated[list[fields.Argument], Meta(min_length=1, max_length=512)]
    """Program and arguments, as they are: no shell reads them."""
    env: Annotated[dict[fields.EnvName, fields.Argument], Meta(max_length=512)] | None = None
    """Environment variables. Secrets belong into `envFrom`."""
    env_from: Annotated[list[EnvFrom], Meta(max_length=32)] | None = None
    """Environment variables from Secrets and ConfigMaps."""
    ports: Annotated[list[Port], fields.keyed("name", 32)] | None = None
    """Ports that members listen on."""
    resources: Resources = msgspec.field(default_factory=Resources)
    """What each member holds."""
    devices: Annotated[list[Device], Meta(max_length=8)] | None = None
    """Devices for each member."""


class Completion(Struct):
    """When the run ends."""

    role: fields.RoleName
    """When all members of this role have ended, the run ends and the rest are stopped."""


class Topology(Struct):
    """How near the members must be to each other."""

    level: fields.DnsLabel
    """A level of the cluster's topology: `rack`, `zone`, `block`."""
    mode: Literal["preferred", "required"] = "preferred"
    """`required`: wait rather than spread over several."""


class Bundle(Struct):
    """Devices that are granted together in one locality domain, or not at all."""

    within: Literal["numa", "socket", "pcie"]
    """The locality domain."""
    devices: Annotated[list[fields.DnsLabel], Meta(min_length=2, max_length=8)]
    """Kinds of devices that must share it: `[gpu, rdma]`."""


class Toleration(Struct):
    """A taint of nodes that the run accepts."""

    key: fields.LabelKey = ""
    """The taint's key. Every taint when empty, with operator `Exists`."""
    operator: Literal["Equal", "Exists"] = "Equal"
    """`Exists` looks at the key only."""
    value: fields.LabelValue = ""
    """The taint's value."""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    """The taint's effect. All when empty."""


class NodePreference(Struct):
    """Nodes that are liked better, or less, than others that would do."""

    selector: Annotated[
        dict[fields.LabelKey, fields.LabelValue],
        Meta(min_length=1, max_length=64),
    ]
    """Labels that such a node has, all of them."""
    weight: Annotated[int, Meta(ge=-100, le=100)] = 1
    """Points for every member on such a node; below 0: rather not there."""


class NodeChoice(Struct):
    """Which nodes are acceptable, and which of them are liked better."""

    selector: (
        Annotated[
            dict[fields.LabelKey, fields.LabelValue],
            Meta(max_length=64),
        ]
        | None
    ) = None
    """Labels that a node must have."""
    tolerations: Annotated[list[Toleration], Meta(max_length=32)] | None = None
    """Taints that are accepted."""
    capabilities: Annotated[list[fields.Capability], Meta(max_length=16)] | None = None
    """What a node must offer, by the names in its annotation `windlass.dev/capabilities`."""
    prefer: Annotated[list[NodePreference], Meta(max_length=16)] | None = None
    """Where members would rather be: most points in all, before anything about packing. Never a
    reason to wait."""


class Placement(Struct):
    """Where members go."""

    gang: bool = True
    """All of `minReplicas` of every role start together, or none does."""
    pack: Literal["binpack", "spread", "fragmentation"] = "binpack"
    """`binpack` fills nodes, `spread` empties them evenly, `fragmentation` keeps the largest free
    blocks whole."""
    topology: Topology | None = None
    """How near members must be to each other."""
    bundle: Bundle | None = None
    """Devices that must be near each other."""
    nodes: NodeChoice | None = None
    """Which nodes are acceptable."""
    movable: bool = False
    """It may be stopped by the checkpoint contract and started again on other nodes, so that a
    waiting run fits. Only when it reported a checkpoint within ten minutes, and at most once an
    hour."""


class Environment(Struct):
    """The software that members run in."""

    image: Annotated[str, Meta(max_length=1024)] | None = None
    """A container image, where the engine runs images."""
    python: fields.PythonVersion | None = None
    """A Python version: `"3.11"`. Quote it: YAML reads 3.10 as 3.1."""
    requirements: Annotated[list[fields.Text], Meta(max_length=512)] | None = None
    """Python packages, as in requirements.txt."""
    setup: fields.Script | None = None
    """A shell script that runs once before the command."""


class Code(Struct):
    """The user's working folder."""

    digest: fields.Digest
    """Of the uploaded archive. The client fills it in from `--workdir`."""


class Mount(Struct, kw_only=True):
    """A file tree that members see at a path."""

    source: fields.MountSource = msgspec.field(name="from")
    """`claim:NAME`, `host:/path`, `config:NAME`, `secret:NAME` or `dataset:NAME`."""
    path: fields.AbsolutePath
    """Where members see it."""
    read_only: bool = False
    """Members cannot write to it."""


class Durations(Struct):
    """How long the run takes and may take."""

    expected: fields.Duration | None = None
    """The user's estimate. Backfill and `order: shortest` use it."""
    max: fields.Duration | None = None
    """Running longer than this ends the attempt with reason Timeout."""
    start: fields.Duration | None = None
    """All members must run this soon after they were assigned, else the attempt ends."""


class Retries(Struct):
    """When a run that did not succeed is started again."""

    limit: Annotated[int, Meta(ge=0, le=1000)] = 3
    """Further attempts after failures, at most; with `restart: pod` or `role` also restarts within
    an attempt. Being preempted, held or resized costs none."""
    causes: Annotated[list[RetryCause], Meta(max_length=3)] = msgspec.field(
        default_factory=lambda: ["NodeLost", "Preempted"]
    )
    """What is worth another attempt. `Failed`: the user's code ended with an error. Without
    `Preempted`, a run that is preempted has failed."""
    lost_after: fields.Duration = "5m"
    """After a node was lost nobody can tell whether its members still run. Another attempt starts
    when they are known to be gone, or after this long; then it may have run twice, and says so."""


class Checkpoint(Struct):
    """What members are told before they are stopped."""

    signal: Signal = "SIGTERM"
    """The signal that asks for a checkpoint and an end."""
    grace: fields.Duration = "30s"
    """Time between the signal and SIGKILL."""
    path: fields.AbsolutePath | None = None
    """Where checkpoints lie: `WINDLASS_CHECKPOINT` in every member. Use a mount that outlives
    the pod."""


class SecurityContext(Struct):
    """Whom processes run as."""

    run_as_user: fields.UserId | None = None
    """User id."""
    run_as_group: fields.UserId | None = None
    """Group id."""
    fs_group: fields.UserId | None = None
    """Group that owns mounted volumes."""


class ResourceClaim(Struct):
    """A claim for devices of Dynamic Resource Allocation."""

    name: fields.DnsLabel
    """How containers name it."""
    resource_claim_name: fields.ObjectName | None = None
    """A claim of the namespace."""
    resource_claim_template_name: fields.ObjectName | None = None
    """What a claim of its own is made from."""


class Overrides(Struct):
    """Pod fields for experts. What is not listed here cannot be set."""

    labels: fields.Labels | None = None
    """Further labels of the pods."""
    annotations: fields.Labels | None = None
    """Annotations of the pods."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """When the image is pulled."""
    image_pull_secrets: Annotated[list[fields.ObjectName], Meta(max_length=16)] | None = None
    """Secrets with the registry's credentials."""
    runtime_class_name: fields.ObjectName | None = None
    """Which container runtime, where the engine runs images. What its RuntimeClass adds to pods
    (overhead, labels of nodes, tolerations) is decided with."""
    priority_class_name: fields.ObjectName | None = None
    """What kubelet evicts last when a node runs short."""
    security_context: SecurityContext | None = None
    """Whom processes run as."""
    resource_claims: Annotated[list[ResourceClaim], Meta(max_length=16)] | None = None
    """Not supported yet: nobody would allocate them for pods that are created on their node. A run
    that has any waits with the reason Unsupported."""


class RunSpec(Struct, kw_only=True):
    """What to run. priority, queue, suspend, stop, replicas, minReplicas, duration and
    ttlAfterFinished may change while it lives; the rest is fixed."""

    queue: fields.ObjectName | None = None
    """Whose share it uses. Default: the queue that owns the namespace, else `default`."""
    user: Annotated[str, Meta(min_length=1, max_length=253)] | None = None
    """Who asked for it. The client fills it in; any other than the caller is refused."""
    priority: fields.Priority = 50
    """Higher first, inside its queue. The queue's `maxPriority` caps it."""
    preemptible: bool = True
    """May be stopped to give back what was lent. `false` starts only inside the queue's own
    guarantee."""
    suspend: bool = False
    """Hold: not started, or stopped by the checkpoint contract, until it is false again."""
    stop: bool = False
    """End it, by the checkpoint contract. It stays as a record and cannot be taken back."""
    framework: Framework = "process"
    """How the members find each other."""
    completion: Completion | None = None
    """When the run ends. Default: when all members of all roles have ended."""
    restart: Literal["pod", "role", "run"] = "run"
    """What starts again when a member fails: that member, its role, or the whole run."""
    roles: Annotated[list[Role], fields.keyed("name", 16, 1)]
    """The kinds of members."""
    placement: Placement = msgspec.field(default_factory=Placement)
    """Where members go."""
    environment: Environment | None = None
    """The software that members run in. Default: what the node has."""
    code: Code | None = None
    """The user's working folder."""
    mounts: Annotated[list[Mount], Meta(max_length=32)] | None = None
    """File trees that members see."""
    duration: Durations | None = None
    """How long it takes and may take."""
    retries: Retries = msgspec.field(default_factory=Retries)
    """When it is started again."""
    checkpoint: Checkpoint = msgspec.field(default_factory=Checkpoint)
    """What members are told before they are stopped."""
    overrides: Overrides | None = None
    """Pod fields for experts."""
    ttl_after_finished: fields.DurationOrZero | None = None
    """The Run is deleted this long after it ended. Kept when absent."""


class Run(Object, kw_only=True):
    """Work that queues, starts and ends: training, batch, Spark, Flink, a notebook."""

    resource: ClassVar = Resource(
        "windlass.dev", "v1alpha1", "Run", "runs", namespaced=True, short_names=("wr",),
        categories=("windlass", "all"), subresources=("status",),
        columns=(
            Column("Phase", ".status.phase", description="What it is doing"),
            Column("Reason", ".status.reason", description="Why"),
            Column("Queue", ".spec.queue", description="Whose share it uses"),
            Column("User", ".spec.user", description="Who asked for it"),
            Column("Age", ".metadata.creationTimestamp", "date"),
            Column("Priority", ".spec.priority", "integer", 1, "Higher first"),
            Column("Attempt", ".status.attempt", "integer", 1, "Counts the starts"),
            Column("Framework", ".spec.framework", "string", 1, "How members find each other"),
            Column("Message", ".status.message", "string", 1, "Why, with amounts"),
        ),
    )  # fmt: skip
    spec: RunSpec
    status: RunStatus = msgspec.field(default_factory=RunStatus)

    @property
    def finished(self) -> bool:
        return self.status.phase in FINISHED
