"""Facts that contradict themselves are refused before anything is counted.

`state` calls it for whatever comes in, at once or event by event, so that no decision fails half
way. What a person may have got wrong in a unit alone (a queue that does not exist, more than any
node has) is no error here: it gets a verdict.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from windlass.core.facts import MOST_PRICE, Device, DeviceRequest, Facts, Node, Queue, Unit

MOST_POINTS = 1 << 30


class BadFacts(ValueError):
    """The message names the thing and what is wrong with it."""


def refuse_bad(facts: Facts) -> None:
    _refuse_twice("node", (node.name for node in facts.nodes))
    _refuse_twice("queue", (queue.name for queue in facts.queues))
    running = [each.unit for each in facts.running]
    _refuse_twice("unit", (unit.key for unit in (*facts.waiting, *running)))
    for node in facts.nodes:
        refuse_bad_node(node)
    for queue in facts.queues:
        refuse_bad_queue(queue)
    for unit in (*facts.waiting, *running):
        refuse_bad_unit(unit)


def refuse_bad_node(node: Node) -> None:
    what = f"node {node.name}"
    _refuse_amounts(what, node.allocatable)
    _refuse_amounts(what, node.attach_limits)
    if not math.isfinite(node.ready_in):
        raise BadFacts(f"{what}: ready_in is {node.ready_in!r}; it must be seconds")
    if not _is_count(node.price) or node.price > MOST_PRICE:
        raise BadFacts(f"{what}: price is {node.price!r}; it must be billionths, 0 or more")
    _refuse_twice(f"{what}: device", (device.id for device in node.devices))
    for device in node.devices:
        _refuse_bad_device(what, device)


def refuse_bad_queue(queue: Queue) -> None:
    what = f"queue {queue.name}"
    for amounts in (queue.guarantee, queue.limit, queue.lend):
        _refuse_amounts(what, amounts)
    if not _is_count(queue.weight) or queue.weight < 1:
        raise BadFacts(f"{what}: weight is {queue.weight!r}; it must be 1 or more")
    if not math.isfinite(queue.past_use) or queue.past_use < 0:
        raise BadFacts(f"{what}: past use is {queue.past_use!r}; it must be 0 or more")


def refuse_bad_unit(unit: Unit) -> None:
    what = f"unit {unit.key}"
    _refuse_twice(f"{what}: role", (role.name for role in unit.roles))
    for role in unit.roles:
        if not (_is_count(role.least) and _is_count(role.most) and role.least <= role.most):
            raise BadFacts(f"{what}: role {role.name} wants {role.least} to {role.most} members")
        _refuse_amounts(what, role.needs)
        _refuse_amounts(what, dict(role.attach))
        for request in role.devices:
            _refuse_bad_request(what, request)
        for liked in role.prefers:
            if not _is_count(abs(liked.points)) or abs(liked.points) >= MOST_POINTS:
                raise BadFacts(f"{what}: role {role.name} gives {liked.points!r} points to a node")
    for name, seconds in (("submitted", unit.submitted), ("not_before", unit.not_before)):
        if not math.isfinite(seconds):
            raise BadFacts(f"{what}: {name} is {seconds!r}; it must be a time")
    for name, time in (("expected", unit.expected), ("attained", unit.attained)):
        if time is not None and not (math.isfinite(time) and time >= 0):
            raise BadFacts(f"{what}: {name} is {time!r}; it must be 0 seconds or more")


def _refuse_bad_device(what: str, device: Device) -> None:
    _refuse_amounts(
        f"{what}: device {device.id}",
        {"compute": device.compute, "memory": device.memory, "slices": device.slices},
    )
    if device.compute == 0:
        raise BadFacts(f"{what}: device {device.id} has no compute; give it at least 1")
    for profile in device.profiles:
        if profile.slices < 1 or any(
            not 0 <= start <= device.slices - profile.slices for start in profile.starts
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
    if request.count < 1 or (request.form != "whole" and request.count != 1):
        raise BadFacts(
            f"{what}: {request.kind} in the form {request.form} cannot be {request.count}"
        )
    if request.compute > 1000:
        raise BadFacts(f"{what}: {request.compute} thousandths of one {request.kind} is too much")


def _refuse_amounts(what: str, amounts: Mapping[str, int]) -> None:
    for name, amount in amounts.items():
        if not _is_count(amount):
            raise BadFacts(f"{what}: {name} is {amount!r}; it must be a whole number, 0 or more")


def _is_count(amount: object) -> bool:
    return isinstance(amount, int) and not isinstance(amount, bool) and 0 <= amount < 1 << 62


def _refuse_twice(what: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise BadFacts(f"{what} {name!r} is there twice; names must be unique")
        seen.add(name)
