"""How many pods a gang has whose pods do not say so: its Job, JobSet, PodGroup is asked.

One read for each gang, and again after a while as long as there is no answer; until then its pods
wait with words. What is no gang after all (a Job whose pods run in waves) has the size 1.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from windlass.control import gangs
from windlass.control.runs import all_of
from windlass.kinds import gangkinds
from windlass.store import client, errors

log = logging.getLogger(__name__)

ASK_AGAIN = 30.0
"""Seconds until who did not answer is asked again."""
_KINDS = {(each.resource.group, each.resource.kind): each for each in gangkinds.ALL}


class Sizes:
    def __init__(self, store: client.Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._clock = store, clock
        self._asked: dict[gangs.Source, float] = {}

    async def ask(self, wanted: Iterable[gangs.Source]) -> dict[gangs.Source, int]:
        """What became known."""
        now = self._clock()
        self._asked = {each: at for each, at in self._asked.items() if at + ASK_AGAIN > now}
        due = [each for each in wanted if each not in self._asked]
        self._asked |= dict.fromkeys(due, now)
        answers = await all_of(self._ask_one(each) for each in due)
        return {source: size for source, size in zip(due, answers, strict=True) if size is not None}

    async def _ask_one(self, source: gangs.Source) -> int | None:
        kind = _KINDS.get((source.api_version.partition("/")[0], source.kind))
        if kind is None:
            return 1
        try:
            found = await self._store.get(kind, source.name, source.namespace)
        except errors.ApiError as error:
            what = f"{source.kind} {source.namespace}/{source.name}"
            log.info("%s does not say how many pods it has: %s", what, error.message)
            return None
        return size_of(found)


def size_of(found: gangkinds.Sized) -> int:
    """Pods that must start together; 1: they need not."""
    spec = found.spec
    if isinstance(found, gangkinds.Job):
        at_once, in_all = _whole(spec.get("parallelism"), 1), _whole(spec.get("completions"), 1)
        return at_once if at_once >= in_all else 1
    if isinstance(found, gangkinds.PodGroup | gangkinds.OldPodGroup):
        return _whole(spec.get("minMember"), 1)
    if isinstance(found, gangkinds.JobSet):
        return sum(_pods_of(each) for each in spec.get("replicatedJobs") or ())
    if isinstance(found, gangkinds.SparkApplication):
        grows = (spec.get("dynamicAllocation") or {}).get("enabled")
        return 1 if grows else _whole((spec.get("executor") or {}).get("instances"), 1)
    policy = (spec.get("runPolicy") or {}).get("schedulingPolicy") or {}
    if policy.get("minAvailable"):
        return _whole(policy["minAvailable"], 1)
    groups = (each for name, each in spec.items() if name.endswith("ReplicaSpecs"))
    return sum(_whole(role.get("replicas"), 1) for each in groups for role in each.values())


def _pods_of(replicated: gangkinds.Spec) -> int:
    job = (replicated.get("template") or {}).get("spec") or {}
    return _whole(replicated.get("replicas"), 1) * _whole(job.get("parallelism"), 1)


def _whole(value: object, usual: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else usual
