"""Parses the path of a URL: a collection, an object, a subresource or a review.

Called once per request; plain splitting and one dictionary look-up, no patterns.
"""

from __future__ import annotations

import dataclasses
import functools
import urllib.parse

from windlass.kinds import registry
from windlass.kinds.types.resource import Resource
from windlass.server.apiserver import discovery


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """The target of an object path. `name` empty: the collection."""

    resource: Resource
    namespace: str = ""
    name: str = ""
    subresource: str = ""


def parse(raw_path: str) -> Target | discovery.Review | None:
    """The target of a path as received; None if there is none."""
    parts = raw_path.split("/")[1:]
    if len(parts) < 3 or "" in parts:
        return None
    if "%" in raw_path:
        parts = [urllib.parse.unquote(part) for part in parts]
    if parts[0] == "api":
        return _in_group("", parts[1], parts[2:])
    if parts[0] == "apis" and len(parts) > 3:
        return _in_group(parts[1], parts[2], parts[3:])
    return None


def _in_group(group: str, version: str, rest: list[str]) -> Target | discovery.Review | None:
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and not (len(rest) == 3 and rest[2] == "status"):
        namespace, rest = rest[1], rest[2:]
    found = _served().get((group, version, rest[0]))
    if found is None or len(rest) > 3:
        return None
    if isinstance(found, discovery.Review):
        return found if len(rest) == 1 and not namespace else None
    named = len(rest) > 1
    if bool(namespace) and not found.namespaced:
        return None
    if named and found.namespaced and not namespace:
        return None
    if len(rest) == 3 and rest[2] not in found.subresources:
        return None
    return Target(found, namespace, rest[1] if named else "", rest[2] if len(rest) == 3 else "")


@functools.cache
def _served() -> dict[tuple[str, str, str], Resource | discovery.Review]:
    served: dict[tuple[str, str, str], Resource | discovery.Review] = {
        path: kind.resource for path, kind in registry.by_path().items()
    }
    for review in discovery.REVIEWS:
        served[review.group, review.version, review.plural] = review
    return served
