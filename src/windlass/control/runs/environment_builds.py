"""Shared environments of a team: each is built by a pod of its own, once for all Runs that need it.

A starting Run asks here before its pods are created. The first one creates the build pod, on the
node and with the resources of its first replica, which does not exist yet; other Runs wait for the
same pod. The pod stores the environment in the team's claim, where replicas find it. If it is
killed or lost, the next reconciliation creates another. A failure is reported to the Run that
created the pod; any other Run tries again itself. Build pods are deleted with their Run.

The set of finished builds is only cached here; without the entry a new pod finds the environment.
"""

from __future__ import annotations

import hashlib
import json
import logging

import msgspec

from windlass.control.model import attempts, members, pod_indexes, pod_setup
from windlass.control.model import capabilities as engines
from windlass.control.runs import pod_template
from windlass.kinds.reasons import Reason
from windlass.kinds.types import core, meta, run
from windlass.store import errors, interface
from windlass.store.informer import Informer

log = logging.getLogger(__name__)

_FOR = "windlass.dev/built-for"
"""Annotation: the uid and the attempt of the Run that created the pod."""
_MOST_TRIES = 3
"""Build pods of one attempt that may end without a reason before the attempt fails."""
_LONGEST = 3600
"""Seconds that a build may take."""
_REMEMBERED = 4096
_PERMANENT = frozenset(
    {Reason.IMAGE_OR_ENVIRONMENT_FAILED, Reason.OUT_OF_MEMORY, Reason.TIMEOUT, Reason.UNSUPPORTED}
)
"""Reasons for which another build would fail as well."""


def is_kept(spec: run.RunSpec, engine: engines.Engine) -> bool:
    """Whether it needs an environment that all nodes can use once it is built."""
    wanted = spec.environment
    packages = wanted is not None and bool(wanted.requirements or wanted.python)
    return packages and bool(engine.kept_claim)


def digest(spec: run.RunSpec) -> str:
    """Equal for equal content, as far as the controller knows it: the build pod reads the files of
    the code that requirements name."""
    wanted = spec.environment or run.Environment()
    lines = [line.strip() for line in wanted.requirements or ()]
    names_files = any(line[:1] in "-./~" or "file:" in line for line in lines if line)
    code = spec.code.digest if spec.code and names_files else ""
    facts = [lines, wanted.python, wanted.image, code]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]


class Builds:
    """Called by the reconciler of Runs."""

    def __init__(self, store: interface.Store, pods: Informer[core.Pod]) -> None:
        self._store = store
        self._pods = pods
        self._built: dict[str, None] = {}

    async def blocked(
        self, owner: run.Run, context: attempts.AttemptContext
    ) -> attempts.BlockedReason:
        """What a starting Run waits for, if its environment does not exist yet."""
        if not is_kept(owner.spec, context.engine) or owner.status.assignment is None:
            return attempts.BlockedReason()
        key = f"{owner.namespace}/{digest(owner.spec)}"
        shown = self._pods.by(pod_indexes.BY_ENVIRONMENT, key)
        if any(members.state(pod) == "succeeded" for pod in shown):
            self._remember(key)
        if key in self._built:
            return attempts.BlockedReason()
        for pod in shown:
            if members.is_active(pod) and not pod.metadata.deletion_timestamp:
                return _waits(pod.name, members.blocked(pod))
        mine = [pod for pod in shown if _made_for(pod) == _attempt(owner)]
        failed = [pod for pod in mine if members.state(pod) == "failed"]
        found = next((each for each in map(_failure, failed) if each is not None), None)
        if found is None and len(failed) >= _MOST_TRIES:
            found = Reason.IMAGE_OR_ENVIRONMENT_FAILED, members.not_built(failed[-1])[1]
        if found is not None:
            return attempts.BlockedReason(found[0], f"its environment: {found[1]}", final=True)
        return await self._build(owner, context, shown)

    async def _build(
        self, owner: run.Run, context: attempts.AttemptContext, shown: list[core.Pod]
    ) -> attempts.BlockedReason:
        taken = [_number(pod) for pod in shown]
        pod = render(owner, context, 1 + max(taken, default=-1))
        try:
            await self._store.create(pod)
            log.info("pod %s/%s builds an environment", pod.namespace, pod.name)
        except errors.AlreadyExists:
            pass  # another Run created it at the same moment
        except (errors.Forbidden, errors.Invalid) as refused:
            message = f"the pod that builds its environment: {refused.message}"
            return attempts.BlockedReason(Reason.ADMISSION_REFUSED, message, final=True)
        return _waits(pod.name)

    def _remember(self, key: str) -> None:
        self._built.pop(key, None)
        self._built[key] = None
        while len(self._built) > _REMEMBERED:
            del self._built[next(iter(self._built))]


def render(owner: run.Run, context: attempts.AttemptContext, number: int) -> core.Pod:
    """The pod of its first replica, with only the preparation."""
    role = owner.spec.roles[0].name
    assignment = owner.status.assignment
    assert assignment is not None, "only a placed run starts"  # noqa: S101
    role = next((each.name for each in owner.spec.roles if assignment.members.get(each.name)), role)
    (pod,) = pod_template.Pods(owner, {(role, 0): assignment.members[role][0]}, context)
    order = _order(owner.spec, context.engine)
    *before, last = [_ordered(each, order) for each in pod.spec.init_containers or ()]
    name = digest(owner.spec)
    reference = meta.OwnerReference(
        api_version=owner.resource.api_version,
        kind=owner.resource.kind,
        name=owner.name,
        uid=owner.uid,
    )
    return core.Pod(
        metadata=meta.ObjectMeta(
            name=f"environment-{name}-{number}",
            namespace=owner.namespace,
            labels={pod_indexes.LABEL_ENVIRONMENT: name},
            annotations={_FOR: _attempt(owner)},
            owner_references=[reference],
        ),
        spec=msgspec.structs.replace(
            pod.spec, init_containers=before or None, containers=[last], hostname="", subdomain="",
            active_deadline_seconds=_LONGEST, termination_grace_period_seconds=5,
        ),
    )  # fmt: skip


def _order(spec: run.RunSpec, engine: engines.Engine) -> str:
    """Without the script of the run, and without waiting for other replicas."""
    wanted = msgspec.structs.replace(spec.environment or run.Environment(), setup=None)
    plain = msgspec.structs.replace(spec, environment=wanted)
    return pod_template.literal(json.dumps(pod_setup.order(plain, engine, None)))


def _ordered(container: core.Container, order: str) -> core.Container:
    given = [each for each in container.env or () if each.name != pod_setup.ORDER]
    variable = core.EnvVar(name=pod_setup.ORDER, value=order)
    return msgspec.structs.replace(container, env=[*given, variable])


def _failure(pod: core.Pod) -> tuple[Reason, str] | None:
    """A permanent failure; None: the pod was killed, or its node is the cause."""
    reason, message = members.not_built(pod)
    return (reason, message) if reason in _PERMANENT else None


def _waits(name: str, why: str = "") -> attempts.BlockedReason:
    message = f"waiting until pod {name} has built its environment"
    return attempts.BlockedReason(Reason.WAITING_FOR_DATA, f"{message}; {why}" if why else message)


def _attempt(owner: run.Run) -> str:
    return f"{owner.uid}/{owner.status.attempt}"


def _made_for(pod: core.Pod) -> str:
    return (pod.metadata.annotations or {}).get(_FOR, "")


def _number(pod: core.Pod) -> int:
    tail = pod.name.rpartition("-")[2]
    return int(tail) if tail.isdecimal() else 0
