"""The queue tree: reads it, plans changes, applies a file, pauses and resumes queues.

A plan compares the present tree with the wanted one, and asks the server for the effect: which
queues gain or lose, which runs are stopped. Applying writes exactly the plan; a queue that another
client changed meanwhile is not written.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from windlass.kinds import codec, quota_tree_file, validate
from windlass.kinds.types import queue
from windlass.sdk.admin import tokens
from windlass.store import errors, interface
from windlass.store.kubernetes.client import KubernetesStore

PATH = "/apis/platform.windlass.dev/v1alpha1/queues"
Json = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """One queue to create, change or delete."""

    name: str
    action: Literal["create", "change", "delete"]
    fields: dict[str, tuple[Any, Any]]
    """Field of the spec -> before, after."""
    version: str
    """The resourceVersion of the compared queue."""


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    changes: list[Change]
    unchanged: list[str]
    others: list[str]
    """Queues on the server that are not in the file, and stay unchanged."""
    effect: Json
    """The effect, as computed by the server; see `control.explain.quota_tree`."""


async def tree(store: KubernetesStore) -> Json:
    """Every queue with its quota, usage, borrowing and lending, and the next decision."""
    return await _asked(store, "GET", PATH)


async def overcommitted(store: KubernetesStore, *changed: str) -> list[str]:
    """What these queues and their siblings are guaranteed beyond what there is, one sentence for
    each resource. Empty if the caller may not read the tree."""
    try:
        capacity = (await tree(store))["capacity"]
        found = {each.name: each for each in (await store.list(queue.Queue)).items}
    except errors.ApiError:
        return []
    return quota_tree_file.overcommitted(found, capacity, [n for n in changed if n in found])


async def plan(store: KubernetesStore, wanted: Sequence[Json], *, prune: bool = False) -> Plan:
    """The changes to get these queues (values of Queue objects), and their effect.

    Raises Invalid with one sentence for each problem of the tree.
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
        raise errors.Invalid("the queue tree is not valid", causes=causes)
    return Plan(changes, unchanged, [] if prune else others, effect)


async def apply(store: KubernetesStore, wanted: Sequence[Json], made: Plan) -> list[str]:
    """Applies a plan, parents first, deletions last; yields one line per queue."""
    values = {value["metadata"]["name"]: _checked(value) for value in wanted}
    done = []
    for change in made.changes:
        if change.action == "create":
            await store.create(codec.from_dict(queue.Queue, values[change.name]))
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
                preconditions=interface.Preconditions(resource_version=change.version),
            )
        done.append(f"queue/{change.name} {_DONE[change.action]}")
    return done


async def stop(store: KubernetesStore, name: str, how: str | None) -> queue.Queue:
    """Pauses a queue (`hold`), drains it (`drain`) or resumes it (None)."""
    return await store.patch(queue.Queue, name, patch={"spec": {"stop": how}})


async def exported(store: KubernetesStore) -> Json:
    """The present tree as a file."""
    listed = {each.name: each for each in (await store.list(queue.Queue)).items}
    specs = {name: dict(codec.to_dict(each).get("spec") or {}) for name, each in listed.items()}
    return quota_tree_file.nested(listed, specs)


_DONE = {"create": "created", "change": "changed", "delete": "deleted"}


def _checked(value: Json) -> Json:
    """The queue with its defaults; raises Invalid if a field is wrong."""
    head = {"apiVersion": queue.Queue.resource.api_version, "kind": "Queue"}
    value = {**value, **head}
    name = str((value.get("metadata") or {}).get("name", ""))
    pruned, unknown = validate.prune(queue.Queue, value)
    faults = validate.validate(queue.Queue, validate.defaulted(queue.Queue, pruned))
    causes = [errors.Cause("", f"queue {name}: {message}") for message in unknown]
    causes += [errors.Cause(f"queue {name}: {fault.path}", fault.message) for fault in faults]
    if causes:
        raise errors.Invalid("the queue tree is not valid", causes=tuple(causes))
    return value


def _compare(value: Json, known: queue.Queue | None) -> Change:
    wanted = dict(value.get("spec") or {})
    name = value["metadata"]["name"]
    if known is None:
        return Change(name, "create", {key: (None, each) for key, each in wanted.items()}, "")
    have = _plain(known)
    then = _plain(codec.from_dict(queue.Queue, value))
    fields = {
        key: (have.get(key), wanted.get(key))
        for key in sorted({*have, *then})
        if have.get(key) != then.get(key)
    }
    return Change(name, "change", fields, known.metadata.resource_version)


def _plain(found: queue.Queue) -> Json:
    """The spec without defaults; `gpu: 8` and `gpu: "8"` become equal."""
    spec: Json = codec.to_dict(queue.Queue(metadata=found.metadata, spec=found.spec)).get(
        "spec", {}
    )
    return {
        key: {name: str(each) for name, each in value.items()} if _is_amounts(value) else value
        for key, value in spec.items()
    }


def _is_amounts(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(v, int | str) for v in value.values())


def replacing(before: Any, after: Any) -> Any:
    """The merge patch that replaces a mapping as a whole; missing keys are removed."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        inner = {key: replacing(before.get(key), value) for key, value in after.items()}
        return {**dict.fromkeys(before), **inner}
    return after


async def _asked(store: KubernetesStore, method: str, path: str, body: Any = None) -> Json:
    status, answer = await tokens.ask(store, method, path, body)
    if status >= 300:
        raise errors.from_status(answer, status)
    return answer
