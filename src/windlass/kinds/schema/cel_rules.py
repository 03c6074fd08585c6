"""Rules of Windlass' own kinds that span several fields.

Each rule is written twice, side by side: as CEL, which a cluster's API server enforces, and as
Python, which the embedded server and the CLI enforce, with the same message. Tests check that both
give the same result. Rules that CEL cannot express (does a time zone exist?) are Python only.

Rules of an object are in its CRD. Rules of a change to an object are in an admission policy
(`install.policies`): a server evaluates the rules of a CRD at every write, also of a status, and
most writes of a Run are of its status.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import zoneinfo
from collections.abc import Callable, Iterable
from typing import Any, Final

import cronsim
import msgspec

from windlass.kinds.types import cronrun, pricelist, queue, reservation, run
from windlass.kinds.types.meta import Object
from windlass.kinds.values import index_set, quantity, times

Json = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """A rule for a struct wherever it occurs in an object."""

    struct: type[msgspec.Struct]
    path: str
    """The field that a problem is reported at, relative to the struct: `minReplicas`."""
    message: str
    cel: str
    """Empty if CEL cannot express the rule."""
    holds: Callable[[Json], bool]


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """A rule for an update: compares a struct before and after it."""

    kind: type[Object]
    """Only in objects of this kind: a CronRun's template, though a RunSpec too, may change."""
    struct: type[msgspec.Struct]
    path: str
    """The field of the struct that the rule is about."""
    message: str
    holds: Callable[[Json, Json], bool]
    cel: str
    """Of the struct before, `{old}`, and after, `{new}`."""


NAMED_SCHEDULES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
MUTABLE: Final = {
    run.RunSpec: {
        "priority", "queue", "suspend", "stop", "roles", "duration", "array", "ttlAfterFinished",
    },
    run.Role: {"replicas", "minReplicas"},
    run.Array: {"parallelism", "stop"},
}  # fmt: skip
"""Fields of an unfinished Run that may change; of `roles` and `array` only those listed."""


def _short_name(kind: type[msgspec.Struct], limit: int, made: str) -> Rule:
    return Rule(
        kind,
        "metadata.name",
        f"must be at most {limit} characters, because the names of its {made} are derived from it",
        f"size(self.metadata.name) <= {limit}",
        lambda value: len((value.get("metadata") or {}).get("name") or "") <= limit,
    )


def _one_share(device: Json) -> bool:
    forms = ("count" in device, "share" in device, "memory" in device or "compute" in device)
    return sum(forms) <= 1


def _below_one(device: Json) -> bool:
    if "share" not in device:
        return True
    part, of = device["share"].split("/")
    return int(part) < int(of)


def _isolated_share(device: Json) -> bool:
    return "isolation" not in device or any(k in device for k in ("share", "memory", "compute"))


def _shared_memory_fits(resources: Json) -> bool:
    shm = resources.get("shm", "auto")
    memory = resources.get("memory", run.Resources().memory)
    return shm == "auto" or quantity.nano(shm) <= quantity.nano(memory)


def _memory_has_a_unit(resources: Json) -> bool:
    memory = resources.get("memory", run.Resources().memory)
    return quantity.whole(memory) >= quantity.LEAST_MEMORY


def _completion_role_exists(spec: Json) -> bool:
    if "completion" not in spec:
        return True
    return any(role.get("name") == spec["completion"]["role"] for role in spec["roles"])


def _indices_read(array: Json) -> bool:
    try:
        return bool(index_set.parse_array(array["indices"]))
    except ValueError:
        return False


def _stop_reads(array: Json) -> bool:
    try:
        return index_set.parse(array.get("stop") or "") >= 0
    except ValueError:
        return False


def _is_class_of_jobs(overrides: Json) -> bool:
    name = overrides.get("priorityClassName", "")
    return not name.startswith("system-") and name != "windlass-platform"


def _lends_what_it_has(spec: Json) -> bool:
    guarantee = spec.get("guarantee") or {}
    return all(
        name in guarantee and quantity.nano(amount) <= quantity.nano(guarantee[name])
        for name, amount in (spec.get("lend") or {}).items()
    )


def _limit_covers_guarantee(spec: Json) -> bool:
    limit = spec.get("limit") or {}
    return all(
        name not in limit or quantity.nano(amount) <= quantity.nano(limit[name])
        for name, amount in (spec.get("guarantee") or {}).items()
    )


def _one_begin(spec: Json) -> bool:
    return ("from" in spec) != ("schedule" in spec)


def _one_end(spec: Json) -> bool:
    return ("to" in spec) != ("duration" in spec) and not ("to" in spec and "schedule" in spec)


def _is_a_day(spec: Json) -> bool:
    try:
        times.parse(spec.get("from", "2026-01-01T00:00:00Z"))
    except (ValueError, OverflowError):
        return False
    return True


def _ends_after_it_begins(spec: Json) -> bool:
    if "from" not in spec or "to" not in spec:
        return True
    try:
        return times.parse(spec["to"]) > times.parse(spec["from"])
    except (ValueError, OverflowError):
        return False


def _schedule_reads(spec: Json) -> bool:
    schedule: str = spec.get("schedule", "@daily")
    text = NAMED_SCHEDULES.get(schedule, schedule)
    try:
        cronsim.CronSim(text, _EPOCH)
    except cronsim.CronSimError:
        return False
    return True


def _zone_exists(spec: Json) -> bool:
    return spec.get("timeZone", "UTC") in _zones()


@functools.cache
def _zones() -> set[str]:
    return zoneinfo.available_timezones()


def _own_parent(value: Json) -> bool:
    parent = (value.get("spec") or {}).get("parent")
    return parent is None or parent != (value.get("metadata") or {}).get("name")


_EPOCH: Final = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
_LEND: Final = (
    "!has(self.lend) || self.lend.all(k, has(self.guarantee) && k in self.guarantee && "
    "quantity(string(self.lend[k])).compareTo(quantity(string(self.guarantee[k]))) <= 0)"
)
_LIMIT: Final = (
    "!has(self.limit) || !has(self.guarantee) || self.guarantee.all(k, !(k in self.limit) || "
    "quantity(string(self.guarantee[k])).compareTo(quantity(string(self.limit[k]))) <= 0)"
)
_SHARED_MEMORY: Final = (
    "!has(self.shm) || string(self.shm) == 'auto' || "
    "quantity(string(self.shm)).compareTo(quantity(string(self.memory))) <= 0"
)

_RESERVATION: Final = (
    Rule(
        reservation.ReservationSpec, "", "needs a start: either from, or schedule",
        "has(self.from) != has(self.schedule)", _one_begin,
    ),
    Rule(
        reservation.ReservationSpec, "",
        "needs an end: either to, or duration; with a schedule, duration",
        "has(self.to) != has(self.duration) && !(has(self.to) && has(self.schedule))", _one_end,
    ),
    Rule(
        reservation.ReservationSpec, "from", "must be a valid date",
        "!has(self.from) || timestamp(self.from) > timestamp('1000-01-01T00:00:00Z')", _is_a_day,
    ),
    Rule(
        reservation.ReservationSpec, "to", "must be a valid date later than from",
        "!has(self.from) || !has(self.to) || timestamp(self.to) > timestamp(self.from)",
        _ends_after_it_begins,
    ),
    Rule(
        reservation.ReservationSpec, "", "must name either nodes or amounts",
        "has(self.nodes) != has(self.amounts)",
        lambda spec: ("nodes" in spec) != ("amounts" in spec),
    ),
    Rule(
        reservation.ReservationSpec, "amounts", "must name at least one resource",
        "!has(self.amounts) || size(self.amounts) > 0",
        lambda spec: bool(spec.get("amounts", True)),
    ),
    Rule(
        reservation.ReservationSpec, "schedule",
        "must be five fields (minute hour day month weekday) that name a time, such as 0 20 * * 6",
        "", _schedule_reads,
    ),
    Rule(
        reservation.ReservationSpec, "timeZone",
        "must be a known time zone such as UTC or Europe/Berlin", "", _zone_exists,
    ),
    Rule(
        reservation.ReservedNodes, "", "needs either names or selector, with at least one entry",
        "has(self.names) != has(self.selector) && (!has(self.selector) || size(self.selector) > 0)",
        lambda nodes: ("names" in nodes) != ("selector" in nodes)
        and bool(nodes.get("selector", True)),
    ),
    Rule(
        reservation.Beneficiaries, "", "must name at least one queue, namespace or user; leave out "
        "for if no workload may run there",
        "(has(self.queues) && size(self.queues) > 0) || "
        "(has(self.namespaces) && size(self.namespaces) > 0) || "
        "(has(self.users) && size(self.users) > 0)",
        lambda named: any(named.get(each) for each in ("queues", "namespaces", "users")),
    ),
)  # fmt: skip

RULES: Final[tuple[Rule, ...]] = (
    _short_name(run.Run, run.MAX_NAME, "pods"),
    _short_name(cronrun.CronRun, cronrun.MAX_NAME, "Runs"),
    Rule(
        run.Array, "indices",
        "must be 1 to 10000 indices, each range with its lower end first, such as 0-99 or 1,4,7",
        "", _indices_read,
    ),
    Rule(
        run.Array, "stop", "must have the lower end of each range first, such as 3-5", "",
        _stop_reads,
    ),
    Rule(
        queue.Queue, "spec.parent", "a queue cannot be its own parent",
        "!has(self.spec) || !has(self.spec.parent) || self.spec.parent != self.metadata.name",
        _own_parent,
    ),
    Rule(
        run.Role, "minReplicas", "must be at most replicas",
        "!has(self.minReplicas) || self.minReplicas <= self.replicas",
        lambda role: role.get("minReplicas", 1) <= role.get("replicas", 1),
    ),
    Rule(
        run.Resources, "shm", "must be at most the memory, which includes it: request more memory",
        _SHARED_MEMORY, _shared_memory_fits,
    ),
    Rule(
        run.Resources, "memory",
        "must be at least 1Mi; a number without a suffix counts bytes: write 4Gi",
        "!has(self.memory) || quantity(string(self.memory)).compareTo(quantity('1Mi')) >= 0",
        _memory_has_a_unit,
    ),
    Rule(
        run.EnvFrom, "", "must name exactly one of secret and config",
        "has(self.secret) != has(self.config)",
        lambda source: ("secret" in source) != ("config" in source),
    ),
    Rule(
        run.Device, "", "must request whole devices by count, or one share by share, or by "
        "memory and compute; not several of these",
        "(has(self.count) ? 1 : 0) + (has(self.share) ? 1 : 0) + "
        "(has(self.memory) || has(self.compute) ? 1 : 0) <= 1",
        _one_share,
    ),
    Rule(
        run.Device, "share", "must be below 1; request whole devices by count",
        "!has(self.share) || int(self.share.split('/')[0]) < int(self.share.split('/')[1])",
        _below_one,
    ),
    Rule(
        run.Device, "isolation", "is for shares; whole devices are never shared",
        "!has(self.isolation) || has(self.share) || has(self.memory) || has(self.compute)",
        _isolated_share,
    ),
    Rule(
        run.Overrides, "priorityClassName",
        "must not be a class of the cluster's own pods: system-*, windlass-platform",
        "!has(self.priorityClassName) || !(self.priorityClassName.startsWith('system-') || "
        "self.priorityClassName == 'windlass-platform')",
        _is_class_of_jobs,
    ),
    Rule(
        run.RunSpec, "completion.role", "must be the name of one of the roles",
        "!has(self.completion) || self.roles.exists(r, r.name == self.completion.role)",
        _completion_role_exists,
    ),
    Rule(
        run.RunSpec, "outputs",
        "must be absent from an array, whose indices are removed when they end; write into a mount",
        "!has(self.outputs) || !has(self.array)",
        lambda spec: "outputs" not in spec or "array" not in spec,
    ),
    Rule(
        cronrun.CronRunSpec, "schedule",
        "must be five fields (minute hour day month weekday) that name a time, such as 0 3 * * 1-5",
        "", _schedule_reads,
    ),
    Rule(
        cronrun.CronRunSpec, "timeZone", "must be a known time zone such as UTC or Europe/Berlin",
        "", _zone_exists,
    ),
    Rule(
        queue.QueueSpec, "lend", "must be at most the guarantee, resource by resource",
        _LEND, _lends_what_it_has,
    ),
    Rule(
        queue.QueueSpec, "limit", "must be at least the guarantee, resource by resource",
        _LIMIT, _limit_covers_guarantee,
    ),
    Rule(
        queue.Budget, "", "must name hours of at least one kind of device, or money",
        "(has(self.deviceHours) && size(self.deviceHours) > 0) || has(self.money)",
        lambda budget: bool(budget.get("deviceHours")) or "money" in budget,
    ),
    Rule(
        queue.Budget, "timeZone", "must be a known time zone such as UTC or Europe/Berlin",
        "", _zone_exists,
    ),
    *_RESERVATION,
    Rule(
        pricelist.Price, "device",
        "must be a kind of device such as gpu, or machine, which prices processors and memory "
        "together",
        "!(self.device in ['cpu', 'memory', 'pods'])",
        lambda price: price["device"] not in ("cpu", "memory", "pods"),
    ),
    Rule(
        pricelist.Price, "", "needs either rented or owned",
        "has(self.rented) != has(self.owned)",
        lambda price: ("rented" in price) != ("owned" in price),
    ),
    Rule(
        pricelist.Rented, "", "needs either perHour or perSecond",
        "has(self.perHour) != has(self.perSecond)",
        lambda rented: ("perHour" in rented) != ("perSecond" in rented),
    ),
)  # fmt: skip


def _unchanged(name: str) -> Callable[[Json, Json], bool]:
    return lambda new, old: new.get(name) == old.get(name)


def _fixed(
    kind: type[Object], struct: type[msgspec.Struct], message: str, names: Iterable[str]
) -> list[Change]:
    """One rule per field that may not be changed, added or removed."""
    same = "has({{new}}.{0}) ? has({{old}}.{0}) && {{new}}.{0} == {{old}}.{0} : !has({{old}}.{0})"
    return [
        Change(kind, struct, name, message, _unchanged(name), same.format(name)) for name in names
    ]


def _living(struct: type[msgspec.Struct]) -> list[Change]:
    """Rules for the fields of a Run that may not change."""
    message = "cannot change after the Run was created; create a new Run"
    names = [field.encode_name for field in msgspec.structs.fields(struct)]
    may = MUTABLE[struct] | ({"name"} if struct is run.Role else set())
    return _fixed(run.Run, struct, message, [name for name in names if name not in may])


def _never_edited() -> list[Change]:
    message = "cannot change: the ledger uses these prices; create a new price list"
    names = [field.encode_name for field in msgspec.structs.fields(pricelist.PriceListSpec)]
    return _fixed(pricelist.PriceList, pricelist.PriceListSpec, message, names)


def _same_roles(new: Json, old: Json) -> bool:
    return [role.get("name") for role in new["roles"]] == [r.get("name") for r in old["roles"]]


CHANGES: Final[tuple[Change, ...]] = (
    *_living(run.RunSpec),
    *_living(run.Role),
    *_living(run.Array),
    *_never_edited(),
    Change(
        run.Run, run.RunSpec, "stop", "a stopped Run cannot be resumed; submit it again",
        lambda new, old: not old.get("stop") or bool(new.get("stop")),
        "!has({old}.stop) || !{old}.stop || (has({new}.stop) && {new}.stop)",
    ),
    Change(
        run.Run, run.RunSpec, "array", "cannot be added or removed; create a new Run",
        lambda new, old: ("array" in new) == ("array" in old),
        "has({new}.array) == has({old}.array)",
    ),
    Change(
        run.Run, run.RunSpec, "roles",
        "roles cannot be added, removed or renamed after the Run was created; create a new Run",
        _same_roles, "{new}.roles.map(r, r.name) == {old}.roles.map(r, r.name)",
    ),
)  # fmt: skip
