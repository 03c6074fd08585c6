"""Changes of a scenario: what if this queue had more, what if this pool were half, what if twice
as many came. `windlass simulate` applies them before it plays.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from windlass.core.model import validation
from windlass.core.model.types import ClusterFacts, Node, Queue, Workload
from windlass.kinds.schema import field_errors
from windlass.kinds.values import duration, quantity
from windlass.sim.inputs import builders, queue_spec
from windlass.sim.inputs.queue_spec import Field
from windlass.sim.policy_grid import Variant
from windlass.sim.scenario import BadInput, Scenario

_HELP = "Write queue.NAME.FIELD=VALUE, such as queue.support.guarantee.gpu=32 or =+16."


def edited(scenario: Scenario, edits: Sequence[str]) -> Scenario:
    """With every `queue.NAME.FIELD[.RESOURCE]=VALUE` carried out, in order."""
    queues = {queue.name: queue for queue in scenario.facts.queues}
    for edit in edits:
        name, field, resource, value = _read(edit, queues)
        try:
            queues[name] = _changed(edit, queues[name], field, resource, value)
            validation.refuse_bad_queue(queues[name])
        except BadInput:
            raise
        except (quantity.Malformed, duration.Malformed, ValueError) as problem:
            raise BadInput(f"{edit!r}: {str(problem).removesuffix('.')}.") from problem
    facts = dataclasses.replace(scenario.facts, queues=tuple(queues.values()))
    return dataclasses.replace(scenario, facts=facts)


def fields_of(scenario: Scenario, edits: Sequence[str]) -> frozenset[str]:
    """What the changes are about: `order`, `limit`, ..."""
    queues = {queue.name: queue for queue in scenario.facts.queues}
    return frozenset(_read(edit, queues)[1].name for edit in edits)


def overridden(scenario: Scenario, edits: Sequence[str], policies: Sequence[Variant]) -> str:
    """The first of the changes, carried out already, that a policy would undo; empty: none."""
    queues = {queue.name: queue for queue in scenario.facts.queues}
    for edit in edits:
        name, field, _, _ = _read(edit, queues)
        is_now = getattr(queues[name], field.name)
        if any(getattr(policy.queue(queues[name]), field.name) != is_now for policy in policies):
            return edit
    return ""


def nodes_scaled(scenario: Scenario, request: str) -> Scenario:
    """`FACTOR`, or `LABEL=VALUE:FACTOR` for one pool: of every kind of node so many are taken away
    or copied.

    What ran on a node that is taken away waits again.
    """
    selector, _, number = request.rpartition(":")
    factor = _positive(number, request)
    chosen = [node for node in scenario.facts.nodes if _matches(node, selector)]
    if not chosen:
        raise BadInput(f"{request!r} matches no node: no label is {selector!r}.")
    others = [node for node in scenario.facts.nodes if not _matches(node, selector)]
    many = _copies(chosen, factor)
    size = sum(many.values())
    if size + len(others) > builders.MOST_NODES:
        raise BadInput(
            f"{request!r} makes {size} nodes of {len(chosen)}: choose a factor that leaves no more "
            f"than {builders.MOST_NODES} in all."
        )
    kept = [_copy(node, turn) for node in chosen for turn in range(many[node.name])]
    return _without_missing(scenario, (*others, *kept))


def load_scaled(scenario: Scenario, factor: float) -> Scenario:
    """The same jobs, coming `factor` times as fast."""
    if not 0 < factor < math.inf:
        raise BadInput(f"The load can be scaled by a number above 0, not by {factor}.")
    start = scenario.start
    present = scenario.present()
    jobs = tuple(
        job
        if job.workload.key in present
        else dataclasses.replace(
            job,
            workload=dataclasses.replace(
                job.workload, submitted=start + (job.workload.submitted - start) / factor
            ),
        )
        for job in scenario.jobs
    )
    return dataclasses.replace(scenario, jobs=jobs)


def first(scenario: Scenario, count: int) -> Scenario:
    """Only the first so many jobs."""
    jobs = scenario.jobs[:count]
    keys = {job.workload.key for job in jobs}
    facts = dataclasses.replace(
        scenario.facts,
        running=tuple(r for r in scenario.facts.running if r.workload.key in keys),
        waiting=tuple(workload for workload in scenario.facts.waiting if workload.key in keys),
    )
    return dataclasses.replace(scenario, jobs=jobs, facts=facts)


def _read(edit: str, queues: dict[str, Queue]) -> tuple[str, Field, str, str]:
    """Queue, field, resource and value of a change."""
    path, equals, value = edit.partition("=")
    kind, _, rest = path.partition(".")
    name, field, resource = _split(rest, queues)
    if not equals or kind != "queue" or not field:
        raise BadInput(f"{edit!r} is no change. {_HELP}")
    if name not in queues:
        raise BadInput(f"{edit!r}: there is no queue {name!r}; there are {_names(queues)}.")
    return name, _field(edit, field, resource), resource, value


def _field(edit: str, word: str, inner: str) -> Field:
    """The field that a change names, in camelCase or as the core spells it."""
    known = {each: field for each, field in queue_spec.by_word().items() if each != "name"}
    found = known.get(queue_spec.word(word))
    if found is not None and (bool(found.inner) == bool(inner) or (not inner and found.optional)):
        return found
    names = {each: each + field.inner for each, field in known.items()}
    near = field_errors.nearest(queue_spec.word(word), names)
    hint = f"did you mean {names[near]}? " if near else ""
    raise BadInput(f"{edit!r}: {hint}queues have {', '.join(sorted(names.values()))}.")


def _split(rest: str, queues: dict[str, Queue]) -> tuple[str, str, str]:
    """Queue, field and resource; names of queues and resources may have dots themselves."""
    for name in sorted(queues, key=len, reverse=True):
        if rest.startswith(name + "."):
            field, _, resource = rest[len(name) + 1 :].partition(".")
            return name, field, resource
    name, _, others = rest.partition(".")
    field, _, resource = others.partition(".")
    return name, field, resource


def _changed(edit: str, queue: Queue, field: Field, inner: str, value: str) -> Queue:
    had = getattr(queue, field.name)
    given: dict[str, Any] = {field.name: queue_spec.put(field, had, inner, value, repr(edit))}
    return dataclasses.replace(queue, **given)


def _matches(node: Node, selector: str) -> bool:
    key, _, value = selector.partition("=")
    return not selector or node.labels.get(key) == value


def _copies(chosen: list[Node], factor: float) -> dict[str, int]:
    """How many of each node there shall be. They are counted off with those that are alike next to
    each other, so every kind of node gets its part, give or take one, and so does every rack."""
    found: dict[str, int] = {}
    made = 0
    for place, node in enumerate(sorted(chosen, key=_kind), start=1):
        due = math.floor(place * factor + 0.5)
        found[node.name], made = due - made, due
    return found


def _kind(node: Node) -> tuple[Any, ...]:
    devices = sorted((device.kind, device.model, device.memory) for device in node.devices)
    return -len(devices), devices, sorted(node.allocatable.items()), node.path, node.name


def _copy(node: Node, turn: int) -> Node:
    return dataclasses.replace(node, name=f"{node.name}-copy{turn}") if turn else node


def _without_missing(scenario: Scenario, nodes: tuple[Node, ...]) -> Scenario:
    names = {node.name for node in nodes}
    facts: ClusterFacts = scenario.facts
    stay = tuple(r for r in facts.running if all(pod.node in names for pod in r.pods))
    keys = {running.workload.key for running in stay}
    lost = tuple(
        r.workload for r in facts.running if r.workload.key not in keys and _is_ours(r.workload)
    )
    gone = {
        r.workload.key
        for r in facts.running
        if r.workload.key not in keys and not _is_ours(r.workload)
    }
    jobs = tuple(job for job in scenario.jobs if job.workload.key not in gone)
    nominations = tuple(n for n in facts.nominations if all(pod.node in names for pod in n.pods))
    reservations = tuple(r for r in facts.reservations if all(pod.node in names for pod in r.pods))
    facts = dataclasses.replace(
        facts, nodes=nodes, running=stay, waiting=(*facts.waiting, *lost),
        nominations=nominations, reservations=reservations,
    )  # fmt: skip
    outages = tuple(outage for outage in scenario.outages if outage.node in names)
    return dataclasses.replace(scenario, facts=facts, jobs=jobs, outages=outages)


def _is_ours(workload: Workload) -> bool:
    """Whether the simulator restarts it when its node is gone; other schedulers restart the
    others."""
    return workload.history_key is not None


def _positive(text: str, request: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = math.nan
    if not 0 < factor < 1000:
        raise BadInput(f"{request!r}: say by how much, such as 0.5 or pool=train:2.")
    return factor


def _names(queues: dict[str, Queue]) -> str:
    return ", ".join(sorted(queues)[:12]) or "none"
