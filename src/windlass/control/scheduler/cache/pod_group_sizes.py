"""How many pods a gang has if its pods do not name the number: its Job, JobSet or PodGroup is read.

One read for each gang, one more when a pod of it has gone (its owner may have become smaller), and
again after a while as long as there is no answer; until then its pods wait with a message. An owner
that is no gang after all (a Job whose pods run in waves) has the size 1.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from windlass.control.convert import pod_groups
from windlass.control.runtime.concurrency import all_of
from windlass.kinds.types.pod_groups import (
    ALL,
    Job,
    JobSet,
    OldPodGroup,
    PodGroup,
    Sized,
    SparkApplication,
    Spec,
)
from windlass.store import errors, interface

log = logging.getLogger(__name__)

_DYNAMIC = "spark.dynamicAllocation.enabled"
ASK_AGAIN = 30.0
"""Seconds until an owner that did not answer is asked again."""
_KINDS = {(each.resource.api_version, each.resource.kind): each for each in ALL}


class Sizes:
    def __init__(self, store: interface.Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._clock = store, clock
        self._silent: dict[pod_groups.Source, float] = {}
        """Owners that did not answer, and when."""

    async def ask(
        self, wanted: Sequence[pod_groups.Source]
    ) -> dict[pod_groups.Source, pod_groups.Size]:
        """Sizes that became known. Owners that are not in `wanted` are dropped: the next one of
        that name may be another object."""
        now, before = self._clock(), self._silent
        recent = (each for each in wanted if before.get(each, now - ASK_AGAIN) + ASK_AGAIN > now)
        self._silent = {each: before[each] for each in recent}
        due = [each for each in wanted if each not in self._silent]
        answers = dict(zip(due, await all_of(self._ask_one(each) for each in due), strict=True))
        self._silent |= {source: now for source, size in answers.items() if size is None}
        return {source: size for source, size in answers.items() if size is not None}

    async def _ask_one(self, source: pod_groups.Source) -> pod_groups.Size | None:
        kind = _KINDS.get((source.api_version, source.kind))
        if kind is None:
            return pod_groups.Size(1)
        try:
            found = await self._store.get(kind, source.name, source.namespace)
        except errors.ApiError as error:
            what = f"{source.kind} {source.namespace}/{source.name}"
            log.info("%s does not say how many pods it has: %s", what, error.message)
            return None
        return size_from(found)


def size_from(found: Sized) -> pod_groups.Size:
    return pod_groups.Size(size_of(found), _in_order(found))


def size_of(found: Sized) -> int:
    """Pods that must start together; 1: they need not."""
    spec = found.spec
    if isinstance(found, Job):
        at_once, in_all = _whole(spec.get("parallelism"), 1), _whole(spec.get("completions"), 1)
        return at_once if at_once >= in_all else 1
    if isinstance(found, PodGroup | OldPodGroup):
        return _whole(spec.get("minMember"), 1)
    if isinstance(found, JobSet):
        return sum(_pods_of(each) for each in spec.get("replicatedJobs") or ())
    if isinstance(found, SparkApplication):
        grows = (spec.get("dynamicAllocation") or {}).get("enabled")
        grows = grows or (spec.get("sparkConf") or {}).get(_DYNAMIC) == "true"
        return 1 if grows else _whole((spec.get("executor") or {}).get("instances"), 1)
    policy = (spec.get("runPolicy") or {}).get("schedulingPolicy") or {}
    if policy.get("minAvailable"):
        return _whole(policy["minAvailable"], 1)
    groups = (each for name, each in spec.items() if name.endswith("ReplicaSpecs"))
    roles = {name: role for each in groups for name, role in each.items()}
    if spec.get("launcherCreationPolicy") == "WaitForWorkersReady":
        roles.pop("Launcher", None)
    return sum(_whole(role.get("replicas"), 1) for role in roles.values())


def _in_order(found: Sized) -> dict[str, int] | None:
    """Pods of each part, where later parts are made only when earlier ones run or have ended."""
    listed = found.spec.get("replicatedJobs") or ()
    policy = found.spec.get("startupPolicy") or {}
    ordered = policy.get("startupPolicyOrder") == "InOrder"
    if not ordered and not any(each.get("dependsOn") for each in listed):
        return None
    return {each["name"]: _pods_of(each) for each in listed}


def _pods_of(replicated: Spec) -> int:
    job = (replicated.get("template") or {}).get("spec") or {}
    return _whole(replicated.get("replicas"), 1) * _whole(job.get("parallelism"), 1)


def _whole(value: object, usual: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else usual
