"""Facts that contradict themselves are refused before anything is counted.

`state` calls it for whatever comes in, at once or event by event, so that no decision fails half
way. What a person may have got wrong in a workload alone (a queue that does not exist, more than
any node has) is no error here: it gets a verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeGuard, get_args

from windlass.core.model.types import (
    MOST_PRICE,
    WHOLE,
    Account,
    AdvanceReservation,
    ClusterFacts,
    Device,
    DeviceRequest,
    Form,
    Grant,
    Isolation,
    Node,
    Nomination,
    Order,
    Pack,
    PodAssignment,
    Queue,
    Quota,
    ReservationRecord,
    Role,
    Running,
    UserLimits,
    Workload,
)

MOST = 1 << 53
"""Of anything on one node or for one pod: sums over thousands of nodes stay exact."""
_ISOLATIONS, _PACKS, _FORMS = get_args(Isolation), get_args(Pack), get_args(Form)
_BUNDLES = ("numa", "pcie")
MOST_MEMBERS = 1 << 31
MOST_POINTS = 1 << 30
MOST_SECONDS = 1e15
"""Thirty million years, from either side of the epoch."""


class BadFacts(ValueError):
    """The message names the thing and what is wrong with it."""


class Once:
    """Equal workloads share their roles, and nodes their devices: each is checked once."""

    def __init__(self) -> None:
        self._seen: dict[int, object] = {}

    def is_new(self, part: object) -> bool:
        new = id(part) not in self._seen
        self._seen[id(part)] = part  # kept, so that nothing else gets its id
        return new


def refuse_bad(facts: ClusterFacts) -> None:
    once = Once()
    _refuse_twice("node", (node.name for node in facts.nodes))
    _refuse_twice("queue", (queue.name for queue in facts.queues))
    _refuse_twice("level", facts.levels)
    running = [each.workload for each in facts.running]
    _refuse_twice("workload", (workload.key for workload in (*facts.waiting, *running)))
    for node in facts.nodes:
        refuse_bad_node(node, once)
    for queue in facts.queues:
        refuse_bad_queue(queue)
    refuse_bad_quotas(facts.quotas)
    refuse_bad_advance(facts.advance)
    for workload in facts.waiting:
        refuse_bad_workload(workload, once)
    for each in facts.running:
        refuse_bad_running(each, once)
    _refuse_twice("nomination of", (nomination.workload for nomination in facts.nominations))
    for nomination in facts.nominations:
        refuse_bad_nomination(nomination)
    refuse_bad_reservations(facts.reservations)
    refuse_bad_accounts(facts.accounts)
    if facts.accounted_at is not None:
        refuse_bad_time("accounts", "accounted_at", facts.accounted_at)


def refuse_bad_node(node: Node, once: Once | None = None) -> None:
    what = f"node {node.name}"
    _refuse_amounts(what, node.allocatable)
    _refuse_amounts(what, node.attach_limits)
    _refuse_seconds(what, "ready_in", node.ready_in)
    if not _is_count(node.price) or node.price > MOST_PRICE:
        raise BadFacts(f"{what}: price is {node.price!r}; it must be billionths, 0 or more")
    if once is None or once.is_new(node.devices):
        _refuse_twice(f"{what}: device", (device.id for device in node.devices))
        for device in node.devices:
            _refuse_bad_device(what, device)
    if node.numa:
        _refuse_bad_domains(what, node, once)


def refuse_bad_accounts(accounts: Iterable[Account]) -> None:
    for each in accounts:
        what = f"account of {each.queue}" + (f", user {each.user}" if each.user else "")
        for name, amount in (("excess", each.excess), ("usage", each.usage)):
            if not abs(amount) <= MOST_SECONDS:
                raise BadFacts(f"{what}: {name} is {amount!r}; it must be share-seconds")


def _refuse_bad_user_limits(what: str, limits: UserLimits) -> None:
    for user, each in (("", limits), *limits.users.items()):
        where = f"{what}: limits of {f'user {user}' if user else 'each user'}"
        _refuse_amounts(where, each.resources)
        counts = {"running": each.running, "submitted": each.submitted}
        _refuse_amounts(where, {name: n for name, n in counts.items() if n is not None})


def refuse_bad_queue(queue: Queue) -> None:
    what = f"queue {queue.name}"
    for amounts in (queue.guarantee, queue.limit, queue.lend):
        _refuse_amounts(what, amounts)
    if not _is_count(queue.weight) or queue.weight < 1:
        raise BadFacts(f"{what}: weight is {queue.weight!r}; it must be 1 or more")
    _refuse_amounts(what, {"reserve": queue.max_reservations})
    if queue.half_life is not None:
        _refuse_seconds(what, "half_life", queue.half_life)
    if queue.fair_share_preemption is not None:
        _refuse_seconds(what, "fair_share_preemption", queue.fair_share_preemption)
    if queue.user_limits is not None:
        _refuse_bad_user_limits(what, queue.user_limits)
    _refuse_seconds(what, "min_runtime", queue.min_runtime)
    if queue.max_priority is not None:
        _refuse_priority(what, queue.max_priority)
    if queue.order not in get_args(Order):
        raise BadFacts(f"{what}: there is no order {queue.order!r}")


def refuse_bad_quotas(quotas: Iterable[Quota]) -> None:
    quotas = tuple(quotas)
    _refuse_twice("quota", (f"{quota.namespace}/{quota.name}" for quota in quotas))
    for quota in quotas:
        _refuse_amounts(f"quota {quota.namespace}/{quota.name}", quota.hard)


def refuse_bad_advance(reservations: Iterable[AdvanceReservation]) -> None:
    listed = tuple(reservations)
    _refuse_twice("window of reservation", (each.id for each in listed))
    for each in listed:
        what = f"reservation {each.name}"
        refuse_bad_time(what, "start", each.start)
        refuse_bad_time(what, "end", each.end)
        if each.end <= each.start:
            raise BadFacts(f"{what}: it ends at {each.end!r}, not after its start {each.start!r}")
        _refuse_amounts(what, each.amounts)
        if each.amounts and (each.nodes is not None or each.selector):
            raise BadFacts(f"{what}: it names both nodes and amounts")
        if not each.amounts and each.nodes is None and not each.selector:
            raise BadFacts(f"{what}: it names neither nodes nor amounts")


def refuse_bad_workload(workload: Workload, once: Once | None = None) -> None:
    what = f"workload {workload.key}"
    if len(workload.roles) > 1:
        _refuse_twice(f"{what}: role", (role.name for role in workload.roles))
    for role in workload.roles:
        if once is None or once.is_new(role):
            _refuse_bad_role(what, role)
    _refuse_priority(what, workload.priority)
    for name, moment in (("submitted", workload.submitted), ("not_before", workload.not_before)):
        refuse_bad_time(what, name, moment)
    lengths = (("expected", workload.expected), ("max_runtime", workload.max_runtime))
    for name, seconds in (*lengths, ("attained", workload.attained), ("grace", workload.grace)):
        if seconds is not None:
            _refuse_seconds(what, name, seconds)
    for moment, _ in workload.moved:
        refuse_bad_time(what, "moved", moment)
    _refuse_amounts(what, {"preemptions": workload.preemptions})
    if workload.pack not in _PACKS:
        raise BadFacts(f"{what}: there is no way to pack {workload.pack!r}")


def refuse_bad_running(running: Running, once: Once | None = None) -> None:
    refuse_bad_workload(running.workload, once)
    what = f"workload {running.workload.key}"
    refuse_bad_pods(what, running.pods)
    times = {
        "started": running.started,
        "expected_end": running.expected_end,
        "protected_until": running.protected_until,
        "checkpoint_at": running.checkpoint_at,
        "shrunk_at": running.shrunk_at,
    }
    for name, moment in times.items():
        if moment is not None:
            refuse_bad_time(what, name, moment)


def refuse_bad_nomination(nomination: Nomination) -> None:
    refuse_bad_pods(f"nomination of {nomination.workload}", nomination.pods)


def refuse_bad_reservations(reservations: Iterable[ReservationRecord]) -> None:
    reservations = tuple(reservations)
    _refuse_twice("reservation of", (reservation.workload for reservation in reservations))
    for reservation in reservations:
        what = f"reservation of {reservation.workload}"
        refuse_bad_pods(what, reservation.pods)
        refuse_bad_time(what, "start", reservation.start)


def refuse_bad_moment(key: str, name: str, moment: float) -> None:
    """Refuses a bad time of something that happened to a workload."""
    refuse_bad_time(f"workload {key}", name, moment)


def refuse_bad_seconds(key: str, name: str, seconds: float) -> None:
    """Refuses a bad duration of something that happened to a workload."""
    _refuse_seconds(f"workload {key}", name, seconds)


def refuse_bad_pods(what: str, pods: Iterable[PodAssignment]) -> None:
    pods = tuple(pods)
    for pod in pods:
        _refuse_amounts(f"{what}: pod of {pod.role}", {"index": pod.index})
        for grant in pod.grants:
            _refuse_bad_grant(what, grant)
    _refuse_twice(f"{what}: pod", (f"{pod.role}/{pod.index}" for pod in pods))


def _refuse_bad_role(what: str, role: Role) -> None:
    counts = (
        _is_count(role.min_count) and _is_count(role.max_count) and role.max_count <= MOST_MEMBERS
    )
    if not counts or role.min_count > role.max_count:
        raise BadFacts(f"{what}: role {role.name} wants {role.min_count} to {role.max_count} pods")
    _refuse_amounts(what, role.needs)
    _refuse_amounts(what, dict(role.attach))
    for request in role.devices:
        _refuse_bad_request(what, request)
    if role.bundle and (role.bundle not in _BUNDLES or not role.devices):
        raise BadFacts(
            f"{what}: role {role.name} has the bundle {role.bundle!r} of {len(role.devices)} kinds "
            "of devices; it must be numa or pcie, of at least one"
        )
    for preference in role.prefers:
        if not _is_whole(preference.weight) or abs(preference.weight) >= MOST_POINTS:
            raise BadFacts(f"{what}: role {role.name} gives {preference.weight!r} points to a node")
    for term in role.affinities:
        if not _is_whole(term.weight) or abs(term.weight) >= MOST_POINTS:
            raise BadFacts(f"{what}: an affinity has the weight {term.weight!r}")
    for spread in role.spreads:
        _refuse_amounts(f"{what}: spread", {"skew": spread.skew, "min_domains": spread.min_domains})


def _refuse_bad_domains(what: str, node: Node, once: Once | None) -> None:
    """Checks NUMA nodes, and that the devices are on them: the devices determine where a bundle's
    resources are, so those under one switch must be on one NUMA node."""
    if once is None or once.is_new(node.numa):
        for domain in node.numa:
            if not _is_count(domain.id):
                raise BadFacts(f"{what}: a NUMA node has the number {domain.id!r}")
            _refuse_amounts(f"{what}: NUMA node {domain.id}", domain.allocatable)
        _refuse_twice(f"{what}: NUMA node", (str(domain.id) for domain in node.numa))
    known, switches = {domain.id for domain in node.numa}, dict[str, int]()
    for device in node.devices:
        if device.numa != -1 and device.numa not in known:
            there = ", ".join(str(number) for number in sorted(known))
            raise BadFacts(
                f"{what}: device {device.id} is on NUMA node {device.numa}; the node has {there}"
            )
        if device.switch and switches.setdefault(device.switch, device.numa) != device.numa:
            raise BadFacts(
                f"{what}: devices of the switch {device.switch} are on the NUMA nodes "
                f"{switches[device.switch]} and {device.numa}; a switch is on one"
            )


def _refuse_bad_device(what: str, device: Device) -> None:
    _refuse_amounts(
        f"{what}: device {device.id}",
        {"compute": device.compute, "memory": device.memory, "slices": device.slices},
    )
    _refuse_isolation(f"{what}: device {device.id}", device.isolation)
    if device.compute == 0:
        raise BadFacts(f"{what}: device {device.id} has no compute; give it at least 1")
    if not _is_whole(device.numa) or abs(device.numa) > MOST:
        raise BadFacts(f"{what}: device {device.id} is on the NUMA node {device.numa!r}")
    for profile in device.profiles:
        name = f"{what}: device {device.id}: profile {profile.name}"
        _refuse_amounts(name, {"slices": profile.slices, "compute": profile.compute})
        if profile.slices < 1 or any(
            not _is_count(start) or start > device.slices - profile.slices
            for start in profile.starts
        ):
            raise BadFacts(
                f"{what}: device {device.id} has {device.slices} slices; profile {profile.name} "
                "does not fit in them"
            )


def _refuse_bad_request(what: str, request: DeviceRequest) -> None:
    amounts = {
        "count": request.count,
        "ratio": request.ratio,
        "compute": request.compute,
        "memory": request.memory,
    }
    _refuse_amounts(f"{what}: {request.kind}", amounts)
    _refuse_isolation(f"{what}: {request.kind}", request.isolation)
    if request.count < 1 or (request.form != "whole" and request.count != 1):
        raise BadFacts(
            f"{what}: {request.kind} in the form {request.form} cannot be {request.count}"
        )
    if request.compute > WHOLE:
        raise BadFacts(f"{what}: {request.compute} thousandths of one {request.kind} is too much")
    if request.ratio > WHOLE:
        raise BadFacts(f"{what}: 1:{request.ratio} of one {request.kind} is too little")


def _refuse_bad_grant(what: str, grant: Grant) -> None:
    where = f"{what}: device {grant.device}"
    amounts = {
        "compute": grant.compute,
        "memory": grant.memory,
        "ratio": grant.ratio,
        "start": grant.start,
    }
    _refuse_amounts(where, amounts)
    if grant.form not in _FORMS:
        raise BadFacts(f"{where}: there is no form {grant.form!r}")
    if (grant.form == "ratio") != (grant.ratio > 0) or grant.ratio > WHOLE:
        raise BadFacts(f"{where}: held in the form {grant.form} with the ratio {grant.ratio}")


def _refuse_isolation(what: str, isolation: str) -> None:
    if isolation not in _ISOLATIONS:
        raise BadFacts(f"{what}: there is no isolation {isolation!r}")


def _refuse_priority(what: str, priority: object) -> None:
    if not _is_whole(priority) or abs(priority) > MOST:
        raise BadFacts(f"{what}: priority is {priority!r}; it must be a whole number")


def refuse_bad_time(what: str, name: str, moment: float) -> None:
    if not abs(moment) <= MOST_SECONDS:
        raise BadFacts(f"{what}: {name} is {moment!r}; it must be a time")


def _refuse_seconds(what: str, name: str, seconds: float) -> None:
    if not 0 <= seconds <= MOST_SECONDS:
        raise BadFacts(f"{what}: {name} is {seconds!r}; it must be 0 seconds or more")


def _refuse_amounts(what: str, amounts: Mapping[str, int]) -> None:
    for name, amount in amounts.items():
        # Written out: it is asked for every device and every pod.
        if type(amount) is not int or not 0 <= amount <= MOST:
            raise BadFacts(f"{what}: {name} is {amount!r}; it must be a whole number, 0 or more")


def _is_count(amount: object) -> bool:
    return _is_whole(amount) and 0 <= amount <= MOST


def _is_whole(number: object) -> TypeGuard[int]:
    return isinstance(number, int) and not isinstance(number, bool)


def _refuse_twice(what: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise BadFacts(f"{what} {name!r} is there twice; names must be unique")
        seen.add(name)
