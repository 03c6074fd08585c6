"""The queue tree in a file: nested queues, and the problems of a whole tree.

    queues:
      company:
        guarantee: {gpu: 64}
        queues:
          support: {guarantee: {gpu: 16}, limit: {gpu: 64}, weight: 2, namespaces: [support]}
      default: {}

Each entry has the fields of a Queue's spec; the queues inside `queues` have it as their parent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from windlass.kinds.types.queue import Amounts, Queue
from windlass.kinds.values import quantity

_DEEPEST = 32


class Malformed(ValueError):
    """The file is not a queue tree; the message is one sentence with the remedy."""


def flatten(document: Any, parent: str = "", depth: int = 0) -> list[dict[str, Any]]:
    """The Queues of a file, parents first."""
    entries = document.get("queues") if isinstance(document, dict) else None
    if not isinstance(entries, dict):
        where = f"below queue {parent}" if parent else "in the file"
        raise Malformed(f"{where}, queues must be a mapping from names to settings")
    if depth > _DEEPEST:
        raise Malformed(f"queues are nested deeper than {_DEEPEST} levels, below {parent}")
    found: list[dict[str, Any]] = []
    for name, settings in entries.items():
        spec = dict(settings or {}) if isinstance(settings, dict | None) else None
        if spec is None:
            raise Malformed(f"queue {name} must have settings such as {{weight: 2}}")
        if "parent" in spec and spec["parent"] != parent:
            raise Malformed(
                f"queue {name} has the parent {spec['parent']} but is "
                f"{f'below {parent}' if parent else 'at the top'}; leave out parent, or move it"
            )
        below = spec.pop("queues", None)
        if parent:
            spec["parent"] = parent
        found.append({"metadata": {"name": str(name)}, "spec": spec})
        if below is not None:
            found += flatten({"queues": below}, str(name), depth + 1)
    names = [each["metadata"]["name"] for each in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise Malformed(f"queue {twice[0]} is in the file twice; remove one of them")
    return found


def nested(queues: Mapping[str, Queue], specs: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The inverse of `flatten`: the file for these queues. `specs` are their specs as written."""

    def below(parent: str, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name in sorted(queues):
            above = queues[name].spec.parent or ""
            if (above if above in queues else "") != parent or depth > _DEEPEST:
                continue
            entry = {key: value for key, value in specs[name].items() if key != "parent"}
            if children := below(name, depth + 1):
                entry["queues"] = children
            found[name] = entry
        return found

    return {"queues": below("", 0)}


def problems(queues: Mapping[str, Queue]) -> list[str]:
    """The problems of a whole tree, one sentence with its remedy each."""
    found = [*_bad_parents(queues), *_claimed_twice(queues)]
    if not found:
        found += [each for name in sorted(queues) for each in _too_much(queues, name)]
    return found


def overcommitted(
    queues: Mapping[str, Queue], capacity: Mapping[str, str], changed: Iterable[str]
) -> list[str]:
    """One sentence for each resource of which a changed queue and its siblings are guaranteed more
    than there is: in their parent, or in the cluster."""
    found: dict[str, None] = {}
    for name in changed:
        parent = queues[name].spec.parent if queues[name].spec.parent in queues else None
        siblings = [
            each
            for each in queues.values()
            if (each.spec.parent if each.spec.parent in queues else None) == parent
        ]
        available = (queues[parent].spec.guarantee or {}) if parent else capacity
        holder = f"queue {parent} is guaranteed" if parent else "the cluster has"
        for resource in queues[name].spec.guarantee or {}:
            total = sum(_of(each.spec.guarantee, resource) for each in siblings)
            if total <= quantity.milli(available.get(resource, "0")):
                continue
            names = sorted(each.name for each in siblings if _of(each.spec.guarantee, resource))
            subject = f"queue {names[0]} is" if len(names) == 1 else f"queues {_few(names)} are"
            found[
                f"{subject} guaranteed {_amount(resource, total)} in all, but {holder} "
                f"{_amount(resource, quantity.milli(available.get(resource, '0')))}; until there "
                "is more, guarantees count in part and queues take turns"
            ] = None
    return list(found)


def _few(names: list[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more


def _amount(resource: str, milli: int) -> str:
    is_bytes = resource in ("memory", "ephemeral-storage")
    text = quantity.shortened(milli // 1000) if is_bytes else quantity.of_milli(milli)
    return f"{text} {resource}"


def _bad_parents(queues: Mapping[str, Queue]) -> list[str]:
    found, in_cycle = [], set()
    for name in sorted(queues):
        parent = queues[name].spec.parent
        if parent and parent not in queues:
            found.append(
                f"queue {name} is below {parent}, which does not exist; add {parent} or choose "
                "another parent"
            )
        path, at = [name], parent
        while at and at in queues and at not in path:
            path.append(at)
            at = queues[at].spec.parent
        if at == name and name not in in_cycle:
            in_cycle.update(path)
            found.append(
                f"queue {name} is below itself ({' below '.join([*path, name])}); give one of "
                "them another parent"
            )
    return found


def _claimed_twice(queues: Mapping[str, Queue]) -> list[str]:
    owners: dict[str, str] = {}
    found = []
    for name in sorted(queues):
        for namespace in queues[name].spec.namespaces or ():
            first = owners.setdefault(namespace, name)
            if first != name:
                found.append(
                    f"namespace {namespace} belongs to the queues {first} and {name}; list it in "
                    "only one of them"
                )
    return found


def _too_much(queues: Mapping[str, Queue], name: str) -> list[str]:
    spec = queues[name].spec
    found = []
    for resource, amount in (spec.guarantee or {}).items():
        limit = (spec.limit or {}).get(resource)
        if limit is not None and quantity.milli(limit) < quantity.milli(amount):
            found.append(
                f"queue {name} is guaranteed {resource}={amount}, more than its limit of "
                f"{resource}={limit}; raise the limit or guarantee less"
            )
    below = [each for each in queues.values() if each.spec.parent == name]
    for resource, own in (spec.guarantee or {}).items():
        total = sum(_of(each.spec.guarantee, resource) for each in below)
        if total > quantity.milli(own):
            names = ", ".join(
                sorted(each.name for each in below if _of(each.spec.guarantee, resource))
            )
            found.append(
                f"the queues below {name} ({names}) are guaranteed {resource}="
                f"{quantity.of_milli(total)} in total, more than its own {resource}={own}; raise "
                f"the guarantee of {name} or lower theirs"
            )
    return found


def _of(amounts: Amounts | None, resource: str) -> int:
    return quantity.milli((amounts or {}).get(resource, "0"))
