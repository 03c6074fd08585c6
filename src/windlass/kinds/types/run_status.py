"""The status of a Run. Only the platform writes it.

The scheduler writes `assignment`, `pastNodes`, `nomination`, `eviction` and `queue`, the dependency
controller `after`; the run controller writes the rest, or of an array the array controller.
`kinds.types.run` re-exports these names.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from windlass.kinds.types import field_types
from windlass.kinds.types.meta import Struct

Phase = Literal["Queued", "Starting", "Running", "Stopping", "Succeeded", "Failed", "Stopped"]
FINISHED: Final = frozenset({"Succeeded", "Failed", "Stopped"})
MOVES: Final = 16
HISTORY_LENGTH: Final = 50
AVOIDED: Final = 16
PAST_NODES: Final = 2000
HELD: Final = 128
FAILURES: Final = 65
OUTPUTS: Final = 256


class Member(Struct):
    """The node and the devices of one replica."""

    node: str
    """The node's name."""
    devices: list[str] | None = None
    """Assigned devices: `gpu/0`; a share in thousandths, `gpu/0:250`; a share by memory,
    `gpu/0:0:8192Mi`; or, where a vendor's plug-in names them, `nvidia.com/gpu/0`."""


class Assignment(Struct):
    """Nodes and devices of an attempt. Written before any pod exists."""

    attempt: int
    """The attempt."""
    epoch: int
    """The leadership that decided it; only assignments of the current epoch are started."""
    members: dict[str, list[Member]]
    """By role; the index of a replica is its position in the list."""
    shrunk_at: field_types.Time | None = None
    """When it last gave surplus replicas to a waiting run; it does not grow for a while after."""


class Eviction(Struct, kw_only=True):
    """A request to stop replicas."""

    by: str
    """The cause: the uid of the preempting Run (of the first, if there are several), whose name
    other users may not see; `user`: the user asked for fewer replicas; `queue`: its queue is
    drained; `reservation/NAME`: it must leave capacity of that Reservation."""
    reason: str
    """Message."""
    keep_members: dict[str, int] | None = None
    """By role, how many replicas may stay. None when absent."""
    deadline: field_types.Time
    """Replicas that still run at this time are killed."""


class Moved(Struct):
    """One move to other nodes."""

    at: field_types.Time
    """When the eviction was requested."""
    by: str
    """The uid of the Run that got the capacity."""


class QueuePlace(Struct):
    """Position in the queue. Only the first runs of a queue have it."""

    position: int
    """Position, from 1."""
    of: int
    """Number of runs that wait in the queue."""
    expected_start: field_types.Time | None = None
    """Expected start, from expected durations; absent if unknown."""


class Progress(Struct):
    """Progress that the program reported."""

    fraction: float | None = None
    """0 to 1."""
    metrics: Annotated[dict[str, float], Meta(max_length=64)] | None = None
    """Metrics by name, such as `loss`."""
    checkpoint: field_types.Time | None = None
    """When the program last saved its state: earlier work is not lost if it is stopped."""


class Transition(Struct, kw_only=True):
    """One phase change."""

    at: field_types.Time
    """When."""
    from_phase: str = msgspec.field(default="", name="from")
    """The phase before."""
    to_phase: str = msgspec.field(name="to")
    """The phase after."""
    reason: str = ""
    """Reason; see Reasons."""
    message: str = ""
    """Message."""
    by: str = ""
    """The cause: a user, a component of the platform, or the uid of the Run that preempted it."""


class Held(Struct, kw_only=True):
    """A usage interval of replicas of one role, for the ledger."""

    attempt: int
    """The attempt."""
    role: str
    """The role."""
    first: int = 0
    """The lowest index of these replicas."""
    count: int
    """How many there are, with consecutive indexes."""
    since: field_types.Time
    """When they were started."""
    until: field_types.Time | None = None
    """When their capacity was free again; absent while they use it."""
    lasted: list[int] | None = None
    """Seconds of use of each replica, where they did not all end together."""
    members: list[Member] | None = None
    """Their nodes and devices, once `assignment` no longer has them."""


class Dependency(Struct, kw_only=True):
    """What is known of a run of `spec.after`."""

    run: str
    """Its name."""
    uid: str = ""
    """The Run that was found by this name first; a later one of the same name does not count."""
    phase: str = ""
    """Its phase; empty: it does not exist yet; Deleted: it was deleted before its end was seen;
    Cycle: it waits for this run."""
    outcome: Literal["Waiting", "Met", "Never"] = "Waiting"
    """Whether the condition is met. Met and Never do not change any more, also if the run is
    deleted."""


class IndexFailure(Struct, kw_only=True):
    """Indices of an array that failed in the same way."""

    reason: str
    """Reason; see Reasons."""
    exit_code: int | None = None
    """Exit code, if the command ended with one."""
    indices: str
    """Which indices: `5,8-9`."""


class ArrayStatus(Struct, kw_only=True):
    """The state of the indices of an array. Those that are not named have not been created."""

    total: int = 0
    """Number of indices."""
    running: int = 0
    """How many have capacity now."""
    succeeded: int = 0
    """How many succeeded."""
    failed: int = 0
    """How many failed."""
    stopped: int = 0
    """How many were stopped."""
    active_indices: str = ""
    """Indices that run or wait in the queue."""
    succeeded_indices: str = ""
    """Indices that succeeded."""
    stopped_indices: str = ""
    """Indices that were stopped."""
    failures: Annotated[list[IndexFailure], Meta(max_length=FAILURES)] | None = None
    """Indices that failed, by reason and exit code."""


class CollectedOutputs(Struct, kw_only=True):
    """The files of one replica that were collected last."""

    attempt: int
    """The attempt that wrote them."""
    moment: Literal["end", "failure", "checkpoint"]
    """When they were collected."""
    at: field_types.Time
    """When they were published."""
    manifest: field_types.Digest | None = None
    """Digest of the list of files. Absent if they could not be collected."""
    files: int = 0
    """How many there are."""
    bytes: int = 0
    """Their size, which counts against the quota of the namespace."""
    message: str = ""
    """Why files were not collected."""


class RunStatus(Struct):
    """The state of the run. Only the platform writes it."""

    observed_generation: int = 0
    """The generation of the spec that this status describes."""
    attempt: int = 0
    """Number of the attempt, from 0."""
    phase: Phase = "Queued"
    """Queued, Starting, Running, Stopping, Succeeded, Failed or Stopped."""
    reason: str = ""
    """Reason of the phase; see Reasons."""
    message: str = ""
    """The reason in a sentence, with amounts."""
    exit_code: int | None = None
    """Exit code of the replica that decided the result; 128 + n for signal n."""
    conditions: field_types.Conditions | None = None
    """Admitted, Started, Complete, Failed, each with the time of its last change."""
    queue: QueuePlace | None = None
    """Position in the queue."""
    after: Annotated[list[Dependency], Meta(max_length=64)] | None = None
    """What is known of the runs of `spec.after`."""
    array: ArrayStatus | None = None
    """The indices of an array."""
    assignment: Assignment | None = None
    """Nodes and devices of the current attempt."""
    past_nodes: Annotated[list[str], Meta(max_length=PAST_NODES)] | None = None
    """Nodes that the run has left: of earlier attempts, and of replicas that moved or ended. Their
    agents may still send its logs."""
    nomination: Assignment | None = None
    """Nodes and devices that the run gets when the victims have left."""
    eviction: Eviction | None = None
    """The current request to stop replicas."""
    moves: Annotated[list[Moved], Meta(max_length=MOVES)] | None = None
    """The last moves to other nodes that let another Run fit, oldest first."""
    members: dict[str, int] | None = None
    """By role, how many replicas this attempt has started, or keeps when it shrinks."""
    retries: int = 0
    """Number of retries used, out of `retries.limit`."""
    restarts: int = 0
    """How often single replicas or roles were restarted within this attempt."""
    restarted: dict[str, int] | None = None
    """By role, or `role/index`: the number of the last restart."""
    restarted_at: field_types.Time | None = None
    """When the last restart was decided."""
    held: Annotated[list[Held], Meta(max_length=HELD)] | None = None
    """Usage intervals that the ledger has not recorded yet. Absent without a ledger."""
    granted: dict[str, list[str]] | None = None
    """By replica, `role/index`: the devices that its node assigned, where the node chooses and
    reports them."""
    avoid: Annotated[list[str], Meta(max_length=AVOIDED)] | None = None
    """Nodes on which this run failed for reasons of the node; the scheduler tries them last."""
    progress: Progress | None = None
    """Progress that the program reported, at most every 10 s."""
    outputs: Annotated[dict[str, CollectedOutputs], Meta(max_length=OUTPUTS)] | None = None
    """By replica, `role-index`: the files that were collected. Written by the server."""
    history: Annotated[list[Transition], Meta(max_length=HISTORY_LENGTH)] | None = None
    """The last 50 phase changes, oldest first."""
