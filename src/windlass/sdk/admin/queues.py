"""The sharing tree: looked at, planned, applied from a file, paused and opened.

A plan compares the tree that is with the one that is wanted, and asks the server what that would
do: who gains, who loses, whose runs would be stopped. Applying writes exactly what was planned, or
nothing of a queue that somebody changed meanwhile.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from windlass.kinds import queue, queuetree, validation, wire
from windlass.sdk import tokens
from windlass.store import client, errors
from windlass.store.kubernetes.client import KubernetesStore

PATH = "/apis/platform.windlass.dev/v1alpha1/queues"
Json = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """One queue that would be made, changed or deleted."""

    name: str
    action: Literal["create", "change", "delete"]
    fields: dict[str, tuple[Any, Any]]
    """Field of the spec -> before, after."""
    version: str
    """The resourceVersion that it was compared with."""


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    changes: list[Change]
    unchanged: list[str]
    others: list[str]
    """On the server, not in the file, and left alone."""
    effect: Json
    """What the server says it would do; see `control.sharing`."""


async def tree(store: KubernetesStore) -> Json:
    """Every queue with what it has, uses, borrows and lends, and what is decided next."""
    return await _asked(store, "GET", PATH)


async def plan(store: KubernetesStore, wanted: Sequence[Json], *, prune: bool = False) -> Plan:
    """What it would take to have these queues (values of Queue objects), and what that does.

    Raises Invalid with one sentence for each thing that is wrong with the tree.
    """
    values = [_checked(each) for each in wanted]
    current = {each.name: each for each in (await store.list(queue.Queue)).items}
    changes, unchanged = [], []
    for value in values:
        found = _compare(value, current.get(value["metadata"]["name"]))
        if found.action == "change" and not found.fields:
            unchanged.append(found.name)
        else:
            changes.append(found)
    named = {value["metadata"]["name"] for value in values}
    others = sorted(current.keys() - named)
    if prune:
        changes += [
            Change(name, "delete", {}, current[name].metadata.resource_version) for name in others
        ]
    effect = await _asked(store, "POST", f"{PATH}/plan", {"queues": values, "prune": prune})
    if effect["problems"]:
        causes = tuple(errors.Cause("", each) for each in effect["problems"])
        raise errors.Invalid("the tree cannot be like this", causes=causes)
    return Plan(changes, unchanged, [] if prune else others, effect)


async def apply(store: KubernetesStore, wanted: Sequence[Json], made: Plan) -> list[str]:
    """Carries a plan out, parents first, deletions last; what was done, queue by queue."""
    values = {value["metadata"]["name"]: _checked(value) for value in wanted}
    done = []
    for change in made.changes:
        if change.action == "create":
            await store.create(wire.from_dict(queue.Queue, values[change.name]))
        elif change.action == "change":
            spec = {name: after for name, (_, after) in change.fields.items()}
            patch = {
                "metadata": {"resourceVersion": change.version},
                "spec": {name: replacing(change.fields[name][0], spec[name]) for name in spec},
            }
            await store.patch(queue.Queue, change.name, patch=patch)
        else:
            await store.delete(
                queue.Queue,
                change.name,
                preconditions=client.Preconditions(resource_version=change.version),
            )
        done.append(f"queue/{change.name} {_DONE[change.action]}")
    return done


async def stop(store: KubernetesStore, name: str, how: str | None) -> queue.Queue:
    """Pauses a queue (`hold`), drains it (`drain`) or opens it again (None)."""
    return await store.patch(queue.Queue, name, patch={"spec": {"stop": how}})


async def exported(store: KubernetesStore) -> Json:
    """The file that describes the tree as it is."""
    listed = {each.name: each for each in (await store.list(queue.Queue)).items}
    specs = {name: dict(wire.to_dict(each).get("spec") or {}) for name, each in listed.items()}
    return queuetree.nested(listed, specs)


_DONE = {"create": "created", "change": "changed", "delete": "deleted"}


def _checked(value: Json) -> Json:
    """As the server would store it: with its defaults, and refused if a field is wrong."""
    head = {"apiVersion": queue.Queue.resource.api_version, "kind": "Queue"}
    value = {**value, **head}
    name = str((value.get("metadata") or {}).get("name", ""))
    pruned, unknown = validation.prune(queue.Queue, value)
    faults = validation.validate(queue.Queue, validation.defaulted(queue.Queue, pruned))
    causes = [errors.Cause("", f"queue {name}: {message}") for message in unknown]
    causes += [errors.Cause(f"queue {name}: {fault.path}", fault.message) for fault in faults]
    if causes:
        raise errors.Invalid("the tree cannot be like this", causes=tuple(causes))
    return value


def _compare(value: Json, known: queue.Queue | None) -> Change:
    wanted = dict(value.get("spec") or {})
    name = value["metadata"]["name"]
    if known is None:
        return Change(name, "create", {key: (None, each) for key, each in wanted.items()}, "")
    have = _plain(known)
    then = _plain(wire.from_dict(queue.Queue, value))
    fields = {
        key: (have.get(key), wanted.get(key))
        for key in sorted({*have, *then})
        if have.get(key) != then.get(key)
    }
    return Change(name, "change", fields, known.metadata.resource_version)


def _plain(found: queue.Queue) -> Json:
    """The spec without what is a default anyway; `gpu: 8` and `gpu: "8"` are the same."""
    spec: Json = wire.to_dict(queue.Queue(metadata=found.metadata, spec=found.spec)).get("spec", {})
    return {
        key: {name: str(each) for name, each in value.items()} if _is_amounts(value) else value
        for key, value in spec.items()
    }


def _is_amounts(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(v, int | str) for v in value.values())


def replacing(before: Any, after: Any) -> Any:
    """In a merge-patch: a mapping is replaced whole, what is not there goes."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        inner = {key: replacing(before.get(key), value) for key, value in after.items()}
        return {**dict.fromkeys(before), **inner}
    return after


async def _asked(store: KubernetesStore, method: str, path: str, body: Any = None) -> Json:
    status, answer = await tokens.ask(store, method, path, body)
    if status >= 300:
        raise errors.from_status(answer, status)
    return answer
