"""The status of a Run: what the platform writes, and nobody else.

Two rooms write it, each its own fields: the scheduler `assignment`, `nomination`, `eviction` and
`queue`, the run controller all the rest. `kinds.run` offers these names too.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from windlass.kinds import fields
from windlass.kinds.meta import Struct

Phase = Literal["Queued", "Starting", "Running", "Stopping", "Succeeded", "Failed", "Stopped"]
FINISHED: Final = frozenset({"Succeeded", "Failed", "Stopped"})
MOVES: Final = 16
HISTORY_LENGTH: Final = 50
AVOIDED: Final = 16
HELD: Final = 128


class Member(Struct):
    """Where one member runs and what it holds."""

    node: str
    """The node's name."""
    devices: list[str] | None = None
    """Granted devices: `gpu/0`, a share in thousandths: `gpu/0:250`, one by memory, too:
    `gpu/0:0:8192Mi`, or, where a vendor's plug-in names them, `nvidia.com/gpu/0`."""


class Assignment(Struct):
    """Room that was given to an attempt. Written before any pod exists."""

    attempt: int
    """For which attempt."""
    epoch: int
    """Under which leader it was decided; only those of the current epoch are started."""
    members: dict[str, list[Member]]
    """By role; a member's index is its place in the list."""
    shrunk_at: fields.Time | None = None
    """When it last gave surplus members back to a waiting run: it does not grow for a while."""


class Eviction(Struct, kw_only=True):
    """Room that must be given back."""

    by: str
    """For whom: the uid of the Run that gets the room (of the first, where several do), whose
    name others may not see; or `user`, who asked for fewer members; or `queue`: it is drained."""
    reason: str
    """Why, for people."""
    keep_members: dict[str, int] | None = None
    """By role, how many members may stay. None at all when absent."""
    deadline: fields.Time
    """Members that still run then are killed."""


class Moved(Struct):
    """One move to other nodes."""

    at: fields.Time
    """When it was told to go."""
    by: str
    """For whom: the uid of the Run that got the room."""


class QueuePlace(Struct):
    """Where it waits. Only the first runs of a queue carry this."""

    position: int
    """1 is the head."""
    of: int
    """How many wait in the queue."""
    expected_start: fields.Time | None = None
    """From expected durations; absent when nothing is known."""


class Progress(Struct):
    """What the user's code reported."""

    fraction: float | None = None
    """0 to 1."""
    metrics: Annotated[dict[str, float], Meta(max_length=64)] | None = None
    """Named numbers, such as `loss`."""
    checkpoint: fields.Time | None = None
    """When it last saved its state: what it computed until then is not lost if it is stopped."""


class Transition(Struct, kw_only=True):
    """One change of phase."""

    at: fields.Time
    """When."""
    from_phase: str = msgspec.field(default="", name="from")
    """The phase before."""
    to_phase: str = msgspec.field(name="to")
    """The phase after."""
    reason: str = ""
    """Why; see Reasons."""
    message: str = ""
    """Why, for people."""
    by: str = ""
    """Who caused it: a user, or a part of the platform."""


class Held(Struct, kw_only=True):
    """Room that members of one role held, from when to when: what the ledger writes down."""

    attempt: int
    """Of which attempt."""
    role: str
    """Of which role."""
    first: int = 0
    """The lowest index of these members."""
    count: int
    """How many there are, with indexes in a row."""
    since: fields.Time
    """When they were started."""
    until: fields.Time | None = None
    """When their room was free again; absent while they hold it."""
    lasted: list[int] | None = None
    """Seconds that each held its room, where they did not all end together."""
    members: list[Member] | None = None
    """Where they ran and what they held, once `assignment` does not tell it any more."""


class RunStatus(Struct):
    """What became of it. Only the platform writes this."""

    observed_generation: int = 0
    """The generation of the spec that this status is about."""
    attempt: int = 0
    """Counts the starts; the first is 0."""
    phase: Phase = "Queued"
    """Queued, Starting, Running, Stopping, Succeeded, Failed or Stopped."""
    reason: str = ""
    """Why it is in this phase; see Reasons."""
    message: str = ""
    """The same for people, with amounts."""
    exit_code: int | None = None
    """Of the member that decided how the run ended; 128 + n for signal n."""
    conditions: fields.Conditions | None = None
    """Admitted, Started, Complete, Failed, each with the time it last changed."""
    queue: QueuePlace | None = None
    """Where it waits."""
    assignment: Assignment | None = None
    """Room that it holds."""
    nomination: Assignment | None = None
    """Room that it will get when others have given it back."""
    eviction: Eviction | None = None
    """Room that it must give back."""
    moves: Annotated[list[Moved], Meta(max_length=MOVES)] | None = None
    """The last times it was moved to other nodes so that another Run fits, oldest first."""
    members: dict[str, int] | None = None
    """By role, how many members this attempt has started, or is to keep when it shrinks."""
    retries: int = 0
    """Attempts that failures have cost, out of `retries.limit`."""
    restarts: int = 0
    """How often single members or roles were started again within this attempt."""
    restarted: dict[str, int] | None = None
    """Which: a role, or `role/index`, and the number of its last restart."""
    restarted_at: fields.Time | None = None
    """When the last of these was decided."""
    held: Annotated[list[Held], Meta(max_length=HELD)] | None = None
    """Room that it holds, and that earlier attempts held which the ledger has not yet written
    down. Absent where there is no ledger."""
    granted: dict[str, list[str]] | None = None
    """By member, `role/index`, the devices that its node gave it, as the node names them, where
    the node chooses and says so."""
    avoid: Annotated[list[str], Meta(max_length=AVOIDED)] | None = None
    """Nodes on which this run failed through no fault of its own: tried last."""
    progress: Progress | None = None
    """What the user's code reported, at most every 10 s."""
    history: Annotated[list[Transition], Meta(max_length=HISTORY_LENGTH)] | None = None
    """The last 50 changes of phase, oldest first."""
