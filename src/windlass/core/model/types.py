"""What the core decides on: nodes, devices, workloads, queues, as plain immutable values.

`control.convert.run_workloads` makes them from objects, `sim` from traces and described clusters.
Amounts are integers: cpu in thousandths of a core, memory in bytes, compute of a device in
thousandths of it, memory of a device in MiB. Times are seconds since the epoch, given by the
caller.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Literal

from windlass.core.model.advance_reservation import AdvanceReservation as AdvanceReservation
from windlass.core.model.queues import Account as Account
from windlass.core.model.queues import Amounts as Amounts
from windlass.core.model.queues import Order as Order
from windlass.core.model.queues import Queue as Queue
from windlass.core.model.queues import Quota as Quota
from windlass.core.model.queues import UserLimit as UserLimit
from windlass.core.model.queues import UserLimits as UserLimits
from windlass.kinds.reasons import Reason

Form = Literal["whole", "share", "ratio", "partition"]
Isolation = Literal["none", "soft", "hard"]
Pack = Literal["binpack", "spread", "fragmentation"]

WHOLE = 1000
"""Thousandths of a device that make a whole one."""
PROTECTED = 1e14
"""As a time until which a workload is protected: while its disruption budgets refuse."""
SHARE_UNIT = 1_000_000
"""Shares of queues are compared as whole millionths."""
MOST_PRICE = 1 << 40
"""Billionths a second, about a thousand a second: sums and products of prices stay exact."""


# --- nodes and their devices --------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Profile:
    """A partition that a device can be cut into: how many slices it takes, and where."""

    name: str
    slices: int
    """Memory slices it occupies: a `3g` profile takes 4 of 8."""
    starts: tuple[int, ...]
    """Slices at which it may begin."""
    compute: int = 0
    """Thousandths of the device's compute that it stands for in quotas."""


@dataclasses.dataclass(frozen=True, slots=True)
class Device:
    """One accelerator, NIC or other countable thing of a node."""

    id: str
    kind: str
    model: str = ""
    compute: int = WHOLE
    memory: int = 0
    numa: int = -1
    switch: str = ""
    """PCIe switch: devices with the same one talk without crossing a CPU."""
    links: str = ""
    """Link group (an NVLink island): devices with the same one have the best links."""
    slices: int = 0
    """Memory slices that profiles divide; 0: it cannot be partitioned."""
    profiles: tuple[Profile, ...] = ()
    forms: frozenset[Form] = frozenset(("whole",))
    """The forms in which an agent on this node can grant it."""
    isolation: Isolation = "none"
    """How strongly its shares are kept apart."""
    healthy: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Domain:
    """A NUMA node of a node: what there is of it in that one place."""

    id: int
    allocatable: Amounts
    """cpu, memory; what it does not name is counted for the whole node only."""


@dataclasses.dataclass(frozen=True, slots=True)
class Taint:
    key: str
    value: str = ""
    effect: str = "NoSchedule"


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """A machine, or one that could be had (`ready_in` > 0)."""

    name: str
    allocatable: Amounts
    devices: tuple[Device, ...] = ()
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    ready: bool = True
    """Takes new pods: Ready and not cordoned."""
    path: tuple[str, ...] = ()
    """Where it stands, widest first: ("zone-a", "block-2", "rack-7"); levels are named by the
    snapshot."""
    ready_in: float = 0.0
    """Seconds until it could be there; 0: it exists."""
    attach_limits: Amounts = dataclasses.field(default_factory=dict)
    """Volumes it can still attach, by driver."""
    price: int = 0
    """What one second of it costs, in billionths of the platform's currency; 0: not known. Between
    places that are equally good the cheaper one is taken."""
    capabilities: frozenset[str] = frozenset()
    """What it can do besides running processes, by names that platform and users agree on:
    `shares`, `partitions`, `isolation:hard`."""
    numa: tuple[Domain, ...] = ()
    """Its NUMA nodes; empty: it does not say, and where CPU and memory lie is its own choice."""
    cordoned: bool = False
    """An administrator closed it; implies that it is not `ready`."""


# --- what a pod needs ------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceRequest:
    """Devices of one kind for one pod, in exactly one form."""

    kind: str
    count: int = 1
    """Whole devices; 1 for every other form."""
    ratio: int = 0
    """1:ratio of one device; it locks the device's mode to that ratio."""
    compute: int = 0
    memory: int = 0
    """A share by size: thousandths of compute and MiB of memory, either may be 0."""
    profile: str = ""
    models: tuple[str, ...] = ()
    """Acceptable models, best first; empty: any."""
    isolation: Isolation = "none"
    """The weakest that is acceptable."""

    @property
    def form(self) -> Form:
        if self.profile:
            return "partition"
        if self.ratio:
            return "ratio"
        return "share" if self.compute or self.memory else "whole"


@dataclasses.dataclass(frozen=True, slots=True)
class Requirement:
    """One condition of node affinity: In, NotIn, Exists, DoesNotExist, Gt, Lt."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Toleration:
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def accepts(self, taint: Taint) -> bool:
        if self.effect and self.effect != taint.effect:
            return False
        if self.operator == "Exists":
            return self.key in ("", taint.key)
        return (self.key, self.value) == (taint.key, taint.value)


Terms = tuple[tuple[Requirement, ...], ...]
"""Any of them, all conditions of a term."""


@dataclasses.dataclass(frozen=True, slots=True)
class Storage:
    """A volume that is not bound yet: an existing one, or one that is provisioned."""

    among: tuple[tuple[str, Terms | None], ...] = ()
    """Volumes that would do, the best first, and from where each can be reached; None: from
    everywhere."""
    made: tuple[Terms, ...] | None = None
    """Where one can be made: all of these; None: nowhere."""


@dataclasses.dataclass(frozen=True, slots=True)
class Constraint:
    """Which nodes are acceptable at all; equal constraints share one mask."""

    selector: tuple[tuple[str, str], ...] = ()
    affinity: Terms = ()
    """Required node affinity: any of the terms, all conditions of a term."""
    tolerations: tuple[Toleration, ...] = ()
    volumes: tuple[Terms, ...] = ()
    """From where volumes can be reached: of every volume any of the terms."""
    storage: tuple[Storage, ...] = ()
    """Volumes that are still to be had, each another one, in the order in which they are sought."""
    names: frozenset[str] | None = None
    """Only these nodes."""
    not_now: frozenset[str] = frozenset()
    """Nodes that are held back: they refused such a pod a while ago, or cannot attach its
    volumes besides those that they have. They count as cordoned."""
    capabilities: frozenset[str] = frozenset()
    """Only nodes that offer all of these."""
    reserved: tuple[str, ...] = ()
    """Windows of advance reservations whose capacity the workload must not use if it starts now;
    set by `core.calendar.advance_windows` for one decision."""


@dataclasses.dataclass(frozen=True, slots=True)
class Preference:
    """A soft preference: its weight counts for every pod on a node whose labels match.

    The node's name counts as the label `metadata.name`, so that a preference can name the nodes
    that have the data.
    """

    match: tuple[Requirement, ...]
    """All of them."""
    weight: int = 1
    """Below 0: rather not there."""


@dataclasses.dataclass(frozen=True, slots=True)
class Affinity:
    """Near (or, `anti`, away from) pods whose labels match, inside one domain of `key`."""

    key: str
    match: tuple[Requirement, ...]
    anti: bool = False
    namespaces: frozenset[str] = frozenset()
    required: bool = True
    weight: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Spread:
    """Matching pods differ by at most `skew` between domains of `key`."""

    key: str
    match: tuple[Requirement, ...]
    skew: int = 1
    required: bool = True
    min_domains: int = 0
    by_affinity: bool = True
    """Only nodes count that the pod's selector and node affinity accept."""
    by_taints: bool = False
    """Only nodes count whose taints it tolerates."""


@dataclasses.dataclass(frozen=True, slots=True)
class Runtime:
    """The container runtime of the pods, where it is not the default one; named in messages."""

    name: str
    overhead: tuple[tuple[str, int], ...] = ()
    """What of the needs of each pod is its own."""


@dataclasses.dataclass(frozen=True, slots=True)
class Role:
    """Pods of a workload that are alike."""

    name: str
    min_count: int
    """How many must start together with the least of every other role."""
    max_count: int
    needs: Amounts
    """Of each pod: cpu, memory, and any other resource that nodes count."""
    devices: tuple[DeviceRequest, ...] = ()
    bundle: Literal["", "numa", "pcie"] = ""
    """All its devices, and its CPU and memory on the NUMA node of these, or not at all. Only for
    pods with devices: by these is known what it holds where."""
    constraint: Constraint = Constraint()
    prefers: tuple[Preference, ...] = ()
    """Where its pods would rather be: most points in all, before anything about packing."""
    ports: tuple[int, ...] = ()
    """Host ports, as `core.cluster.host_ports` numbers them."""
    attach: tuple[tuple[str, int], ...] = ()
    """Volumes to attach, by driver."""
    labels: tuple[tuple[str, str], ...] = ()
    """By which others' affinity and spread terms see its pods."""
    affinities: tuple[Affinity, ...] = ()
    spreads: tuple[Spread, ...] = ()
    runtime: Runtime | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Topology:
    level: str
    required: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Workload:
    """Something that is placed as a whole: a run, a gang of pods, a revision of a service."""

    key: str
    queue: str
    roles: tuple[Role, ...]
    submitted: float = 0.0
    user: str = ""
    namespace: str = ""
    priority: int = 50
    gang: bool = True
    """False: pods start one by one as capacity allows."""
    pack: Pack = "binpack"
    topology: Topology | None = None
    preemptible: bool = True
    preempts: bool = True
    """Others may be stopped for it, where it has the right; False: it waits until there is
    capacity."""
    expected: float | None = None
    """The runtime in seconds that the user stated; None: unknown, or it has no end."""
    max_runtime: float | None = None
    """Seconds after which the platform stops it; None: no limit."""
    grace: float = 0.0
    """Seconds between the signal to save its state and its end."""
    attained: float = 0.0
    """Seconds it ran in earlier attempts."""
    preemptions: int = 0
    """How often it was preempted before."""
    history_key: str | None = ""
    """The history group: user, team, script. Predictions are learned per group and size. None (for
    pods that another scheduler placed): nothing is learned from it about others."""
    not_before: float = 0.0
    hold_reason: tuple[Reason, str] | None = None
    """Why it may not start whatever is free: a budget, an unsupported request."""
    lately: tuple[Reason, str] | None = None
    """Why it must wait until `not_before`: how it fared the last time."""
    movable: bool = False
    """Its owner allows that it is stopped and started again elsewhere, so that another fits."""
    moved: tuple[tuple[float, str], ...] = ()
    """When it was moved, and for which workload."""


@dataclasses.dataclass(frozen=True, slots=True)
class Grant:
    """What a pod holds of one device."""

    device: str
    form: Form = "whole"
    compute: int = WHOLE
    memory: int = 0
    ratio: int = 0
    profile: str = ""
    start: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class PodAssignment:
    """Where one pod is."""

    role: str
    index: int
    node: str
    grants: tuple[Grant, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Running:
    """A workload that holds capacity: assigned, running, or being stopped."""

    workload: Workload
    pods: tuple[PodAssignment, ...]
    started: float
    expected_end: float | None = None
    """When it should end, as stated or as predicted."""
    protected_until: float = 0.0
    """Not preempted before: its queue's minimum runtime. `PROTECTED`: a disruption budget refuses
    its eviction, for as long as the budget says so."""
    checkpoint_at: float | None = None
    """When it last saved its state; what it computed since would be lost."""
    leaving: tuple[tuple[str, int], ...] = ()
    """Pods (role, index) that were evicted: they hold their capacity until they are gone."""
    shrunk_at: float | None = None
    """When it last gave surplus pods back: it does not grow for a while after that."""


@dataclasses.dataclass(frozen=True, slots=True)
class Nomination:
    """Capacity that was freed, or is being freed, for one waiting workload: no other workload may
    take it."""

    workload: str
    pods: tuple[PodAssignment, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class ClusterFacts:
    """Everything at one moment. `core.snapshot.snapshot.build` turns it into arrays and indexes."""

    nodes: tuple[Node, ...] = ()
    queues: tuple[Queue, ...] = ()
    running: tuple[Running, ...] = ()
    waiting: tuple[Workload, ...] = ()
    nominations: tuple[Nomination, ...] = ()
    reservations: tuple[ReservationRecord, ...] = ()
    """Reservations of the last decision, in its order: a reserved start never gets later by
    itself."""
    levels: tuple[str, ...] = ()
    """Names of the levels of `Node.path`, widest first; the node itself is always the last."""
    quotas: tuple[Quota, ...] = ()
    accounts: tuple[Account, ...] = ()
    accounted_at: float | None = None
    """Until when use is in the accounts; None: nothing was accounted for yet."""
    advance: tuple[AdvanceReservation, ...] = ()
    """Windows of advance reservations that have not ended."""


# --- what the core answers ----------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Placement:
    """A workload starts, or an elastic one grows, with these pods."""

    workload: str
    pods: tuple[PodAssignment, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Eviction:
    """Pods that must stop, and the preemptor."""

    workload: str
    pods: tuple[tuple[str, int], ...]
    """(role, index): all of them, or the surplus of an elastic workload."""
    preemptor: str
    reason: str
    move: bool = False
    """It starts again at once elsewhere, on capacity that is nominated to it."""
    reservation: str = ""
    """The advance reservation that they must leave; then there is no preemptor."""


def by_workload(evictions: Iterable[Eviction]) -> list[Eviction]:
    """One for each workload, though it gives capacity to several: all its pods that go, with the
    first preemptor's name and reason."""
    found: dict[str, Eviction] = {}
    for each in evictions:
        known = found.get(each.workload)
        if known is not None:
            found[each.workload] = dataclasses.replace(known, pods=(*known.pods, *each.pods))
        else:
            found[each.workload] = each
    return list(found.values())


@dataclasses.dataclass(frozen=True, slots=True)
class ReservationRecord:
    """When and where a blocked head will start if running workloads end as expected."""

    workload: str
    start: float
    pods: tuple[PodAssignment, ...]
    firm: bool = True
    """Whether other queues keep off it. False: it is tentative, since its queue would exceed its
    share then; another queue that is below its share may take the place first."""
    made: float | None = None
    """When the workload first got it; None: not known."""


@dataclasses.dataclass(frozen=True, slots=True)
class Withdrawal:
    """A firm reservation of an earlier decision that this one does not keep."""

    workload: str
    start: float
    """The start that was given."""
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """Why a workload waits: a reason, a message and numbers."""

    workload: str
    reason: Reason
    message: str
    resource: str = ""
    """The binding resource or constraint."""
    deficit: int = 0
    """How much of it is missing."""
    queue: str = ""
    """The queue whose limit binds, where one does."""
    resolved: bool = True
    """False: the search ended at its budget; it may fit after all."""
    user: str | None = None
    """The user whose limit in that queue binds; None: the limit is not one of a user."""
    possible: int | None = None
    """For a request that no node can ever satisfy: how much of the resource it could have."""


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """Nodes that do not exist yet and would let waiting workloads start."""

    node: str
    workloads: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    placements: tuple[Placement, ...] = ()
    evictions: tuple[Eviction, ...] = ()
    nominations: tuple[Nomination, ...] = ()
    reservations: tuple[ReservationRecord, ...] = ()
    withdrawals: tuple[Withdrawal, ...] = ()
    wanted: tuple[Wanted, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    wake_at: float | None = None
    """When time alone changes the answer."""
    operations: int = 0
    """Work done, against the policy's budget."""


@dataclasses.dataclass(frozen=True, slots=True)
class Policy:
    """Choices of the platform team."""

    operations: int = 200_000_000
    """Bound on the work of one decision, in node-visits: a few seconds of one core."""
    reclaim: bool = True
    preempt: bool = True
    grow: bool = True
    unknown_runtime: Literal["learned", "never", "preemptible"] = "learned"
    """Whether workloads that do not say how long they run may use reserved places until then."""
    defragment: bool = True
    """Whether movable workloads are moved so that one that waits fits."""
    move_loses: float = 600.0
    """Seconds of work that a move may lose: since the last checkpoint of the workload."""
    move_every: float = 3600.0
    """Seconds between two moves of one workload, at least."""
    moves: int = 4
    """Workloads that are moved for one that waits, at most."""
    growth_pause: float = 600.0
    """Seconds that an elastic workload does not grow after it gave surplus back. A stream of short
    workloads shrinks it once in that time; they use what it gave until none of them waits any
    more."""
    reservations: int | None = None
    """Reservations that there are at most, over all queues; None: as suits the number of nodes
    (`core.reservation.allowance`)."""
