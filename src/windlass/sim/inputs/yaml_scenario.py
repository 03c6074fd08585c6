"""A described cluster and load: YAML into a scenario.

Nodes in groups, queues as users write them, jobs one by one or drawn from a seed
(`sim.inputs.synthetic`) or read from a trace, what stopping costs, and what goes wrong.
docs/guide/simulate.md lists the fields; fields that are not known are refused.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml
from msgspec import Meta

from windlass.core.model.types import Account, ClusterFacts, Node, Queue, Taint, Workload
from windlass.kinds.values import duration, quantity
from windlass.sim import scenario as scenarios
from windlass.sim.inputs import (
    builders,
    csv_traces,
    field_names,
    job_spec,
    queue_spec,
    reservation_windows,
    synthetic,
)
from windlass.sim.inputs.job_spec import (
    Count,
    JobSpec,
    Moment,
    Seconds,
    Some,
    Struct,
    moment,
    seconds,
)
from windlass.sim.scenario import FOREVER, BadInput, Costs, Job, Outage, Scenario, devices_of

MOST_LOSSES = 1_000_000
"""Of nodes, by chance, in one scenario."""
_COUNTS = {"shapes": (3, 10_000), "priorities": (1, 10_000)}
"""What a mix counts, and from what to what; all else in it are parts of the demand."""
_ONE_WHOLE = (("cpu_only", "shares"), ("required_rack", "preferred_block"))
"""Parts of a mix of which a job is in one at most."""


class TaintSpec(Struct):
    """Keeps jobs away that do not tolerate it."""

    key: str
    value: str = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = "NoSchedule"


class NodeGroup(Struct):
    count: Some
    gpus: Annotated[int, Meta(ge=0, le=1024)] = 8
    model: str = ""
    gpu_memory: str = "80Gi"
    cpu: str | float = 128
    memory: str = "2Ti"
    rack: Count = 0
    """Nodes to a rack; 0: no racks."""
    block: Count = 0
    """Racks to a block."""
    labels: dict[str, str] = {}
    name: str = "node"
    price: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    """Of one node, an hour."""
    numa: Annotated[int, Meta(ge=0, le=64)] = 0
    """NUMA nodes that share its CPU, memory and GPUs evenly; 0: not reported per NUMA node."""
    taints: list[TaintSpec] = []
    capabilities: list[str] = []
    """What jobs may ask for by name."""


class Load(Struct):
    """Jobs from a seed."""

    jobs: Some
    over: Seconds
    """Arrivals are spread at random over this time."""
    seed: int = 0
    median: Seconds = "30m"
    spread: Annotated[float, Meta(ge=0, le=10)] = 1.6
    """Of the logarithm of durations: 0 makes all alike."""
    mix: dict[str, float] = {}
    """Parts of the demand; see `sim.inputs.synthetic.Mix`."""

    def __post_init__(self) -> None:
        _refuse_bad_mix(self.mix)


class PastUse(Struct):
    """What a queue, or one of its users, used before the start, in time of the whole cluster: half
    of it for a day is 12h. See `core.fairness.past_use`."""

    queue: str
    user: str = ""
    excess: Moment = 0
    """Above the entitlement; below 0: it is owed something."""
    usage: Seconds = 0
    """In all; it counts where the queue has a half-life."""


class TraceFields(Struct):
    file: str
    queue: str = ""


class OutageFields(Struct, rename={"last": "for"}):
    node: str
    at: Seconds
    last: Seconds = ""
    """Empty: it never comes back."""


class Trouble(Struct):
    """Things that go wrong by chance, from a seed."""

    node_mtbf: Seconds = ""
    """Mean time between losses of one node."""
    repair: Seconds = "4h"
    jobs: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """Part of all jobs of which one attempt fails."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.node_mtbf != "" and not seconds(self.node_mtbf) > 0:
            raise ValueError(
                f"nodeMtbf is {self.node_mtbf!r}: it must be more than 0 seconds; leave it out "
                "where no node is lost"
            )


class CostFields(Struct):
    grace: Seconds = "30s"
    checkpoint: Seconds | None = "30m"
    restart: Seconds = "60s"
    backoff: Seconds = "30s"
    repair: Seconds = "10m"


class Described(Struct):
    name: str
    nodes: Annotated[list[NodeGroup], Meta(min_length=1)]
    queues: list[dict[str, Any]] = []
    """Fields as in `core.model.types.Queue`; `sim.inputs.queue_spec` reads them."""
    jobs: list[JobSpec] = []
    past_use: list[PastUse] = []
    load: Load | None = None
    trace: TraceFields | None = None
    costs: CostFields = msgspec.field(default_factory=CostFields)
    outages: list[OutageFields] = []
    trouble: Trouble | None = None
    start: Moment | None = None
    """Where it begins; jobs that were submitted before wait there. None: see `scenario.begin`."""
    reservations: list[reservation_windows.ReservationFields] = []

    def __post_init__(self) -> None:
        count = sum(group.count for group in self.nodes)
        if count > builders.MOST_NODES:
            raise ValueError(
                f"nodes are {count} in all: describe {builders.MOST_NODES} at most, a part of the "
                "cluster with its part of the load"
            )


def read(path: Path) -> Scenario:
    document = _document(path)
    try:
        field_names.refuse_unknown(document, Described)
        spec = msgspec.convert(document, Described)
        return scenario(spec, path.parent)
    except BadInput as problem:
        raise BadInput(f"{path}: {problem}") from problem
    except (msgspec.ValidationError, quantity.Malformed, duration.Malformed) as problem:
        raise BadInput(f"{path}: {problem}.") from problem


def scenario(spec: Described, folder: Path = Path()) -> Scenario:
    nodes = tuple(_nodes(spec.nodes))
    blocks = any(group.block for group in spec.nodes)
    levels: tuple[str, ...] = synthetic.LEVELS if blocks else builders.LEVELS
    if not any(node.path for node in nodes):
        levels = ()
    queues = tuple(
        queue_spec.queue(each, f"queues[{number}]") for number, each in enumerate(spec.queues)
    ) or (Queue("default"),)
    jobs = [*map(job_spec.Builder().job, spec.jobs), *_drawn(spec.load, nodes, queues, levels)]
    if spec.trace is not None:
        jobs += csv_traces.read_jobs(folder / spec.trace.file, queue=spec.trace.queue)
    bad = sorted({job.workload.queue for job in jobs} - {each.name for each in queues})
    if bad:
        raise BadInput(f"{spec.name}: jobs name the queue {bad[0]!r}: describe it in `queues`.")
    if not jobs:
        raise BadInput(f"{spec.name} has no work: describe `jobs`, a `load` or a `trace`.")
    jobs = sorted(
        _failing(jobs, spec.trouble), key=lambda job: (job.workload.submitted, job.workload.key)
    )
    names = {node.name for node in nodes}
    for outage in spec.outages:
        if outage.node not in names:
            shown = ", ".join(sorted(names)[:3])
            raise BadInput(f"{spec.name}: there is no node {outage.node!r}: there are {shown}...")
    until = max(job.workload.submitted for job in jobs)
    outages = (*map(_outage, spec.outages), *_losses(spec.trouble, nodes, until))
    start = None if spec.start is None else moment(spec.start)
    reserved = reservation_windows.read(
        spec.reservations, nodes, queues, seconds=seconds, amounts=queue_spec.amounts
    )
    facts = ClusterFacts(nodes, queues, levels=levels, accounts=_accounts(spec), advance=reserved)
    played = Scenario(spec.name, facts, tuple(jobs), outages, costs(spec.costs))
    return scenarios.begin(played, start)


def _accounts(spec: Described) -> tuple[Account, ...]:
    known = {each.get("name") for each in spec.queues} or {"default"}
    for each in spec.past_use:
        if each.queue not in known:
            raise BadInput(f"pastUse names the queue {each.queue!r}: describe it in `queues`.")
    accounts = {
        (each.queue, each.user): Account(
            each.queue, each.user, moment(each.excess), seconds(each.usage)
        )
        for each in spec.past_use
    }
    if len(accounts) < len(spec.past_use):
        raise BadInput("pastUse names a queue, or a user of it, twice: leave one of them out.")
    return tuple(accounts.values())


def costs(spec: CostFields) -> Costs:
    return Costs(
        seconds(spec.grace),
        None if spec.checkpoint is None else seconds(spec.checkpoint),
        seconds(spec.restart),
        seconds(spec.backoff),
        seconds(spec.repair),
    )


def _document(path: Path) -> Any:
    try:
        raw = path.read_bytes()
        return yaml.load(raw.decode("utf-8-sig"), _Loader)  # noqa: S506 - it is a safe one
    except OSError as problem:
        raise BadInput(f"{path} cannot be read: {problem.strerror or problem}.") from problem
    except UnicodeDecodeError as problem:
        line = raw.count(b"\n", 0, problem.start) + 1
        raise BadInput(
            f"{path} line {line} is no UTF-8 text (byte {raw[problem.start]:#04x}): save the file "
            "as UTF-8."
        ) from problem
    except _GivenTwice as problem:
        raise BadInput(f"{path} {problem}") from problem
    except (yaml.YAMLError, ValueError, RecursionError) as problem:
        raise BadInput(f"{path} is no YAML: {' '.join(str(problem).split())}.") from problem


class _GivenTwice(Exception):
    """Refuses a key that is given twice: one of them would be ignored, and which was meant is
    unknown."""


class _Loader(yaml.SafeLoader):
    """Refuses a key that is given twice, where YAML's own loader takes the last."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Checked before merges (`<<`) bring in keys that may be given again."""
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            line, name = key.start_mark.line + 1, (key.tag, key.value)
            if name in lines:
                raise _GivenTwice(
                    f"gives {key.value!r} twice, in line {lines[name]} and in line {line}: leave "
                    "one of them out."
                )
            lines[name] = line
        return node


def _nodes(groups: list[NodeGroup]) -> Iterator[Node]:
    number = 0
    paths = _Paths(any(group.block for group in groups))
    for group in groups:
        form = builders.NodeForm(
            group.gpus, group.model, quantity.whole(group.gpu_memory) >> 20,
            quantity.milli(group.cpu), quantity.whole(group.memory), group.labels,
            round(group.price * 10**9 / 3600), group.numa,
            tuple(Taint(each.key, each.value, each.effect) for each in group.taints),
            frozenset(group.capabilities),
        )  # fmt: skip
        for path in paths.of(group):
            yield form.node(f"{group.name}-{number:04}", path)
            number += 1


class _Paths:
    """Racks and blocks are numbered over all groups, but no two groups share one."""

    def __init__(self, with_blocks: bool) -> None:
        self._with_blocks = with_blocks
        self._racks = self._blocks = 0

    def of(self, group: NodeGroup) -> Iterator[tuple[str, ...]]:
        """Where each node of the group is."""
        if group.block and not group.rack:
            raise BadInput(
                f"Nodes {group.name} have blocks of {group.block} racks, but no racks: say with "
                "`rack` how many nodes are in one, or leave `block` out."
            )
        if not group.rack:
            yield from [()] * group.count
            return
        wide = group.block or 1  # a rack without a block has no neighbours
        for number in range(group.count):
            rack = number // group.rack
            path = (f"rack-{self._racks + rack:03}",)
            block = (f"block-{self._blocks + rack // wide:03}",)
            yield (*block, *path) if self._with_blocks else path
        racks = math.ceil(group.count / group.rack)
        self._racks += racks
        self._blocks += math.ceil(racks / wide)


def _drawn(
    load: Load | None, nodes: tuple[Node, ...], queues: tuple[Queue, ...], levels: tuple[str, ...]
) -> Iterator[Job]:
    if load is None:
        return
    chance = random.Random(load.seed)  # noqa: S311 - repeatable on purpose
    parents = {each.parent for each in queues}
    leaves = tuple(each.name for each in queues if each.name not in parents)
    demand = synthetic.Demand(load.seed, leaves, _mix(load, levels))
    arrivals = sorted(chance.uniform(0.0, seconds(load.over)) for _ in range(load.jobs))
    middle = math.log(max(1.0, seconds(load.median)))
    capacity = _NodeCapacity.of(nodes)
    for at in arrivals:
        workload = _fitting(demand, at, capacity)
        lasts = round(math.exp(chance.gauss(middle, load.spread)), 3)
        yield Job(
            dataclasses.replace(workload, submitted=at, expected=lasts, history_key=workload.user),
            lasts,
        )


def _refuse_bad_mix(mix: dict[str, float]) -> None:
    known = {field.name for field in dataclasses.fields(synthetic.Mix)}
    for name, value in mix.items():
        if name not in known:
            raise ValueError(f"load.mix has no {name!r}: it knows {', '.join(sorted(known))}")
        least, most = _COUNTS.get(name, (0, 1))
        if not (least <= value <= most and (name not in _COUNTS or value.is_integer())):
            what = "a whole number" if name in _COUNTS else "a part"
            raise ValueError(
                f"load.mix.{name} is {value:g}: it must be {what} from {least} to {most}"
            )
    for one, other in _ONE_WHOLE:
        both = mix.get(one, 0.0) + mix.get(other, 0.0)
        if both > 1:
            raise ValueError(
                f"load.mix.{one} and load.mix.{other} are {both:g} together: they are parts of the "
                "same jobs, make them 1 or less"
            )


def _mix(load: Load, levels: tuple[str, ...]) -> synthetic.Mix:
    chosen: dict[str, Any] = dict(load.mix)
    if "rack" not in levels:
        chosen |= {"required_rack": 0.0}
    if "block" not in levels:
        chosen |= {"preferred_block": 0.0}
    chosen |= {name: int(chosen[name]) for name in _COUNTS if name in chosen}
    for pair in _ONE_WHOLE:
        for name, other in (pair, pair[::-1]):
            if name not in chosen and other in chosen:  # given values win over defaults
                usual = getattr(synthetic.Mix(), name)
                chosen[name] = min(usual, 1.0 - chosen[other])
    return synthetic.Mix(**chosen)


@dataclasses.dataclass(frozen=True, slots=True)
class _NodeCapacity:
    """What drawn jobs must fit into: half of the cluster, or one whole rack where they must."""

    gpus: float
    rack: float
    members: int

    @classmethod
    def of(cls, nodes: tuple[Node, ...]) -> _NodeCapacity:
        racks: collections.Counter[tuple[str, ...]] = collections.Counter()
        for node in nodes:
            racks[node.path] += len(node.devices)
        return cls(sum(racks.values()) / 2, max(racks.values(), default=0), 4 * len(nodes))


def _fitting(demand: synthetic.Demand, at: float, capacity: _NodeCapacity) -> Workload:
    """Workloads that this cluster could never hold do not come to it."""
    for _ in range(1000):
        workload = demand.workload(at)
        near = workload.topology is not None and workload.topology.required
        most = min(capacity.gpus, capacity.rack) if near else capacity.gpus
        if (
            devices_of(workload) <= most
            and sum(role.min_count for role in workload.roles) <= capacity.members
        ):
            return workload
    raise BadInput("The load has no job that this cluster could hold: describe more nodes.")


def _failing(jobs: list[Job], trouble: Trouble | None) -> Iterator[Job]:
    chance = random.Random(trouble.seed if trouble else 0)  # noqa: S311
    for job in jobs:
        if trouble is not None and job.duration != FOREVER and chance.random() < trouble.jobs:
            at = round(chance.random() * job.duration, 3)
            yield dataclasses.replace(job, fails=(at,))
        else:
            yield job


def _outage(spec: OutageFields) -> Outage:
    begin = seconds(spec.at)
    return Outage(spec.node, begin, begin + seconds(spec.last) if spec.last else FOREVER)


def _losses(trouble: Trouble | None, nodes: tuple[Node, ...], until: float) -> Iterator[Outage]:
    if trouble is None or not trouble.node_mtbf:
        return
    chance = random.Random(trouble.seed + 1)  # noqa: S311
    mean, repair = seconds(trouble.node_mtbf), seconds(trouble.repair)
    if len(nodes) * until / (mean + repair) > MOST_LOSSES:
        raise BadInput(
            f"Nodes that are lost every {mean:g} s, for {repair:g} s, would be lost more than "
            f"{MOST_LOSSES} times in all: make trouble.nodeMtbf or trouble.repair longer."
        )
    for node in nodes:
        at = chance.expovariate(1 / mean)
        while at < until:
            yield Outage(node.name, round(at, 3), round(at + repair, 3))
            at += repair + chance.expovariate(1 / mean)
