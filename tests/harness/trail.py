"""What the scheduler wrote into Runs, in the order in which the API server took it.

A decision is written in one go: nominations, then victims. So what one
decision did is seen in the objects' history alone, whatever the clock says.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tests.harness import rest

Json = dict[str, Any]
RUNS = "/apis/windlass.dev/v1alpha1/runs"


@dataclasses.dataclass(frozen=True)
class Step:
    what: str
    """`nominated`, `evicted` or `assigned`."""
    run: str
    """`namespace/name`."""
    told: Json
    """What was written."""
    held: int
    """Members that the Run had when it was written."""

    @property
    def given_up(self) -> int:
        """Of an eviction: how many members go."""
        kept = self.told.get("keepMembers")
        return self.held - (sum(kept.values()) if kept else 0)


class Trail:
    """Everything from now on; `steps` tells what was written until then."""

    def __init__(self, api: rest.Rest, patience: float) -> None:
        found = api.get(RUNS).json
        self._api = api
        self._known = {_key(each): each.get("status", {}) for each in found["items"]}
        version = found["metadata"]["resourceVersion"]
        self._since = int(version)
        self._watch = api.watch(RUNS, seconds=patience, resourceVersion=version)

    def steps(self) -> list[Step]:
        """Closes the trail."""
        items = self._api.get(RUNS).json["items"]
        last = max((_version(each) for each in items), default=0)
        found: list[Step] = []
        with self._watch as events:
            seen = self._since
            while seen < last:
                (event,) = events.take(1)
                found += self._taken(event["object"])
                seen = _version(event["object"])
        return found

    def _taken(self, run: Json) -> list[Step]:
        before, now = self._known.get(_key(run), {}), run.get("status", {})
        self._known[_key(run)] = now
        names = {"nominated": "nomination", "evicted": "eviction", "assigned": "assignment"}
        return [
            Step(what, _key(run), now[field], _members(before))
            for what, field in names.items()
            if now.get(field) and now[field] != before.get(field)
        ]


def _members(status: Json) -> int:
    listed = (status.get("assignment") or {}).get("members", {})
    return sum(len(each) for each in listed.values())


def _key(run: Json) -> str:
    return f"{run['metadata']['namespace']}/{run['metadata']['name']}"


def _version(run: Json) -> int:
    return int(run["metadata"]["resourceVersion"])
