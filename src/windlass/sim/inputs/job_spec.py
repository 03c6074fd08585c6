"""Jobs of a described scenario: the fields of a Run's spec, and the true duration, into a `Job`.

A job with one role may be written flat (`gpus`, `replicas`, `cpu`, ...); several roles are written
as in a Run. Job lists (`sim.inputs.csv_traces`) with such columns are read through here, too.
"""

from __future__ import annotations

import collections
import fractions
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from windlass.core.model import run_spec, validation
from windlass.core.model.types import Role, Topology, Workload
from windlass.kinds.types import run
from windlass.kinds.values import duration, quantity
from windlass.sim.scenario import FOREVER, BadInput, Job

Seconds = str | Annotated[float, Meta(ge=0, le=validation.MOST_SECONDS)]
Moment = str | Annotated[float, Meta(ge=-validation.MOST_SECONDS, le=validation.MOST_SECONDS)]
Quantity = str | Annotated[float, Meta(ge=0)]
Some = Annotated[int, Meta(ge=1, le=1_000_000)]
Count = Annotated[int, Meta(ge=0, le=1_000_000)]
Level = Annotated[str, Meta(min_length=1)]
_UNKNOWN = "unknown"
"""As `expected`: the job does not say how long it runs."""


class Struct(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Fields are written as users write objects."""


class DeviceSpec(run.Device):
    """As in a Run; a model may be spelled as the nodes spell theirs."""

    models: list[str] | None = None

    def __post_init__(self) -> None:
        by_size = self.memory is not None or self.compute is not None
        if sum((self.count is not None, self.share is not None, by_size)) > 1:
            raise ValueError(
                "a device is asked for whole by count, or as one share by share, or by memory "
                "and compute"
            )
        if self.share is not None and fractions.Fraction(self.share) >= 1:
            raise ValueError(f"share is {self.share}: it must be below 1")


class ResourcesSpec(Struct):
    """Of each replica."""

    cpu: Quantity = 0
    memory: Quantity = 0


class RoleSpec(Struct):
    """Replicas that are alike."""

    name: str = "worker"
    replicas: Some = 1
    min_replicas: Some | None = None
    resources: ResourcesSpec = msgspec.field(default_factory=ResourcesSpec)
    devices: list[DeviceSpec] = []


class JobSpec(Struct):
    name: str
    at: Moment = 0
    """When it is submitted; below 0: it waits at the start already, since so long."""
    duration: Seconds = "1h"
    """How long it really runs."""
    expected: Seconds | UnsetType | None = UNSET
    """The estimated runtime; absent: the true one; `unknown` or null: no estimate."""
    max: Seconds | None = None
    """An attempt that runs longer than this ends the job."""
    queue: str = "default"
    user: str = ""
    priority: int = 50
    preemptible: bool = True
    movable: bool = False
    """Short for the same in `placement`."""

    gpus: Count | UnsetType = UNSET
    """Of each replica; 1 unless devices are given otherwise."""
    models: list[str] = []
    """Of these GPUs, best first."""
    share: str = ""
    """A fraction of one GPU."""
    devices: list[DeviceSpec] = []
    cpu: Quantity = 0
    memory: Quantity = 0
    replicas: Some | None = None
    min_replicas: Some | None = None
    members: Some | None = None
    """Replicas that it starts with, and `most`, those it can grow to."""
    most: Count = 0
    roles: list[RoleSpec] = []

    placement: run.Placement | None = None
    topology: Level | run.Topology | Literal[""] = ""
    required: bool = True
    """For a topology that is given as a level alone."""
    bundle: Literal["", "numa", "pcie"] | run.Bundle = ""


def seconds(value: Seconds) -> float:
    """A duration such as 90s or 2h, or plain seconds."""
    return duration.milliseconds(value) / 1000 if isinstance(value, str) else float(value)


def moment(value: Moment) -> float:
    """Seconds after the start of the scenario, or (`-2h`) before it."""
    if isinstance(value, str) and value.startswith("-"):
        return -seconds(value[1:])
    return seconds(value)


class Builder:
    """Makes jobs of specs. Equal roles become one value, so that decisions see each shape once."""

    def __init__(self) -> None:
        self._roles: dict[str, Role] = {}

    def job(self, spec: JobSpec, key: str = "") -> Job:
        """The job; `key` names its workload where the spec's name need not be unique."""
        lasts = seconds(spec.duration)
        placement = _placement(spec)
        made = (_role(spec, role, placement) for role in _roles(spec))
        roles = tuple(self._roles.setdefault(repr(role), role) for role in made)
        topology = placement.topology
        workload = Workload(
            key or spec.name, spec.queue, roles, moment(spec.at), spec.user,
            priority=spec.priority, preemptible=spec.preemptible, gang=placement.gang,
            pack=placement.pack, movable=spec.movable or placement.movable,
            topology=Topology(topology.level, topology.mode == "required") if topology else None,
            expected=_expected(spec, lasts), history_key=spec.user,
        )  # fmt: skip
        return Job(workload, lasts, longest=FOREVER if spec.max is None else seconds(spec.max))


def _expected(spec: JobSpec, lasts: float) -> float | None:
    if isinstance(spec.expected, UnsetType):
        return lasts
    if spec.expected is None or spec.expected == _UNKNOWN:
        return None
    return seconds(spec.expected)


def _placement(spec: JobSpec) -> run.Placement:
    """As in a Run, with the short forms of topology and bundle in their places."""
    found = spec.placement or run.Placement()
    given: dict[str, Any] = {}
    if spec.topology:
        mode: Literal["required", "preferred"] = "required" if spec.required else "preferred"
        short = spec.topology
        given["topology"] = (
            run.Topology(level=short, mode=mode) if isinstance(short, str) else short
        )
    if spec.bundle:
        short_bundle = spec.bundle
        given["bundle"] = (
            run.Bundle(within=short_bundle, devices=["gpu", "cpu"])
            if isinstance(short_bundle, str)
            else short_bundle
        )
    for name in given:
        if getattr(found, name) is not None:
            raise BadInput(
                f"Job {spec.name} gives {name} and placement.{name}: leave one of them out."
            )
    if (bundle := given.get("bundle", found.bundle)) and bundle.within == "socket":
        raise BadInput(f"Job {spec.name}: a bundle is within numa or pcie, not within socket.")
    return msgspec.structs.replace(found, **given)


def _roles(spec: JobSpec) -> list[RoleSpec]:
    """The roles as written, or the one that the flat fields describe."""
    flat = [
        name
        for name in ("gpus", "models", "share", "devices", "cpu", "memory", "replicas",
                     "min_replicas", "members", "most")
        if getattr(spec, name) not in (UNSET, None, "", 0, [])
    ]  # fmt: skip
    if not spec.roles:
        least, most = _sizes(spec)
        resources = ResourcesSpec(spec.cpu, spec.memory)
        return [RoleSpec("worker", most, least, resources, _flat_devices(spec))]
    if flat:
        raise BadInput(f"Job {spec.name} has roles: put {_camel(flat[0])} into one of them.")
    names = collections.Counter(role.name for role in spec.roles)
    twice = [name for name, count in names.items() if count > 1]
    if twice:
        raise BadInput(f"Job {spec.name} has the role {twice[0]!r} twice: rename one.")
    return spec.roles


def _sizes(spec: JobSpec) -> tuple[int, int]:
    """Replicas that it starts with, and that it can grow to."""
    if spec.replicas is None and spec.min_replicas is None:
        least = spec.members or 1
        return least, max(least, spec.most)
    if spec.members is not None or spec.most:
        raise BadInput(
            f"Job {spec.name} gives replicas and members: give replicas and minReplicas, or "
            "members and most."
        )
    most = spec.replicas or spec.min_replicas or 1
    return spec.min_replicas or most, most


def _flat_devices(spec: JobSpec) -> list[DeviceSpec]:
    if spec.devices:
        both = [name for name in ("gpus", "models", "share") if getattr(spec, name) not in
                (UNSET, "", [])]  # fmt: skip
        if both:
            raise BadInput(f"Job {spec.name} has devices: put {both[0]} into one of them.")
        return spec.devices
    models = spec.models or None
    if spec.share:
        if spec.gpus not in (UNSET, 1):
            raise BadInput(f"Job {spec.name} asks for a share of one GPU: leave gpus out.")
        return [_share(spec, models)]
    gpus = 1 if isinstance(spec.gpus, UnsetType) else spec.gpus
    return [DeviceSpec(kind="gpu", count=gpus, models=models)] if gpus else []


def _share(spec: JobSpec, models: list[str] | None) -> DeviceSpec:
    try:
        return msgspec.convert({"kind": "gpu", "share": spec.share, "models": models}, DeviceSpec)
    except msgspec.ValidationError as problem:
        raise BadInput(
            f"Job {spec.name}: share is {spec.share!r}: write a fraction below 1 such as 1/4."
        ) from problem


def _role(spec: JobSpec, role: RoleSpec, placement: run.Placement) -> Role:
    least = role.replicas if role.min_replicas is None else role.min_replicas
    if least > role.replicas:
        raise BadInput(
            f"Job {spec.name}: minReplicas of role {role.name} is {least}, more than its "
            f"{role.replicas} replicas."
        )
    within = placement.bundle.within if placement.bundle else ""
    if within and not any(each.devices for each in _roles(spec)):
        raise BadInput(f"Job {spec.name} bundles no GPUs: give it gpus, or leave bundle out.")
    needs = {
        "cpu": quantity.milli(role.resources.cpu),
        "memory": quantity.whole(role.resources.memory),
    }
    nodes = placement.nodes or run.NodeChoice()
    return Role(
        role.name,
        least if placement.gang else 1,
        role.replicas,
        {name: amount for name, amount in needs.items() if amount},
        tuple(run_spec.device_request(device) for device in role.devices),
        within if within != "socket" and role.devices else "",
        run_spec.constraint(nodes),
        run_spec.preferences(nodes),
    )


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.title() for part in rest)
