"""Environments that a team keeps are built by a pod of their own, once for all who want the same.

A Run that starts and wants one asks here before its members' pods are made. The first who asks
makes the pod, on the node and with the resources that were given to its first member, which does
not exist yet; the others wait for the same pod. It ends with the environment in the team's claim,
where members find it. Killed or lost, the next look makes another. What failed is told to the Run
that it was made for; any other tries it for itself. Pods go with the Run that they were made for.

That an environment is there is remembered here only; who forgot makes a pod that finds it.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable

import msgspec

from windlass.control import engine as engines
from windlass.control import members, podrender, podsetup
from windlass.kinds import kubernetes, meta, run
from windlass.kinds.reasons import Reason
from windlass.store import client, errors
from windlass.store.reflector import Reflector

log = logging.getLogger(__name__)

LABEL = "windlass.dev/environment"
"""Of a pod that builds one: which."""
_FOR = "windlass.dev/built-for"
"""Annotation: the uid and the attempt of the Run that it was made for."""
POD_INDEX = "environment"
"""Name of the pod reflector's index by namespace and environment."""
_MOST_TRIES = 3
"""Builders of one attempt that were killed without a word before that is its failure."""
_LONGEST = 3600
"""Seconds that a build may take."""
_REMEMBERED = 4096
_TELLING = frozenset(
    {Reason.IMAGE_OR_ENVIRONMENT_FAILED, Reason.OUT_OF_MEMORY, Reason.TIMEOUT, Reason.UNSUPPORTED}
)
"""Reasons for which another build of the same would fail as well."""


def pod_index(pod: kubernetes.Pod) -> Iterable[str]:
    name = (pod.metadata.labels or {}).get(LABEL)
    return (f"{pod.namespace}/{name}",) if name else ()


def is_kept(spec: run.RunSpec, engine: engines.Engine) -> bool:
    """Whether it wants an environment that all nodes can use once it is built."""
    wanted = spec.environment
    packages = wanted is not None and bool(wanted.requirements or wanted.python)
    return packages and bool(engine.kept_claim)


def digest(spec: run.RunSpec) -> str:
    """The same for the same content, as far as that is known from here: files of the code that
    requirements name are read by who builds."""
    wanted = spec.environment or run.Environment()
    lines = [line.strip() for line in wanted.requirements or ()]
    names_files = any(line[:1] in "-./~" or "file:" in line for line in lines if line)
    code = spec.code.digest if spec.code and names_files else ""
    facts = [lines, wanted.python, wanted.image, code]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]


class Builds:
    """Asked by the reconciler of Runs."""

    def __init__(self, store: client.Store, pods: Reflector[kubernetes.Pod]) -> None:
        self._store = store
        self._pods = pods
        self._built: dict[str, None] = {}

    async def hindrance(self, owner: run.Run, setting: podrender.Setting) -> podrender.Hindrance:
        """What a Run that starts waits for, if its environment is not there yet."""
        if not is_kept(owner.spec, setting.engine) or owner.status.assignment is None:
            return podrender.Hindrance()
        key = f"{owner.namespace}/{digest(owner.spec)}"
        shown = self._pods.by(POD_INDEX, key)
        if any(members.state(pod) == "succeeded" for pod in shown):
            self._remember(key)
        if key in self._built:
            return podrender.Hindrance()
        for pod in shown:
            if members.is_active(pod) and not pod.metadata.deletion_timestamp:
                return _waits(pod.name, members.hindrance(pod))
        mine = [pod for pod in shown if _made_for(pod) == _attempt(owner)]
        failed = [pod for pod in mine if members.state(pod) == "failed"]
        found = next((each for each in map(_failure, failed) if each is not None), None)
        if found is None and len(failed) >= _MOST_TRIES:
            found = Reason.IMAGE_OR_ENVIRONMENT_FAILED, members.not_built(failed[-1])[1]
        if found is not None:
            return podrender.Hindrance(found[0], f"its environment: {found[1]}", final=True)
        return await self._build(owner, setting, shown)

    async def _build(
        self, owner: run.Run, setting: podrender.Setting, shown: list[kubernetes.Pod]
    ) -> podrender.Hindrance:
        taken = [_number(pod) for pod in shown]
        pod = render(owner, setting, 1 + max(taken, default=-1))
        try:
            await self._store.create(pod)
            log.info("pod %s/%s builds an environment", pod.namespace, pod.name)
        except errors.AlreadyExists:
            pass  # somebody else wanted it at the same moment
        except (errors.Forbidden, errors.Invalid) as refused:
            words = f"the pod that builds its environment: {refused.message}"
            return podrender.Hindrance(Reason.ADMISSION_REFUSED, words, final=True)
        return _waits(pod.name)

    def _remember(self, key: str) -> None:
        self._built.pop(key, None)
        self._built[key] = None
        while len(self._built) > _REMEMBERED:
            del self._built[next(iter(self._built))]


def render(owner: run.Run, setting: podrender.Setting, number: int) -> kubernetes.Pod:
    """The pod of its first member, but with what that does before its command alone."""
    role = owner.spec.roles[0].name
    room = owner.status.assignment
    assert room is not None, "only who has room starts"  # noqa: S101
    role = next((each.name for each in owner.spec.roles if room.members.get(each.name)), role)
    (pod,) = podrender.Pods(owner, {(role, 0): room.members[role][0]}, setting)
    order = _order(owner.spec, setting.engine)
    *before, last = [_ordered(each, order) for each in pod.spec.init_containers or ()]
    name = digest(owner.spec)
    reference = meta.OwnerReference(
        api_version=owner.resource.api_version,
        kind=owner.resource.kind,
        name=owner.name,
        uid=owner.uid,
    )
    return kubernetes.Pod(
        metadata=meta.ObjectMeta(
            name=f"environment-{name}-{number}",
            namespace=owner.namespace,
            labels={LABEL: name},
            annotations={_FOR: _attempt(owner)},
            owner_references=[reference],
        ),
        spec=msgspec.structs.replace(
            pod.spec, init_containers=before or None, containers=[last], hostname="", subdomain="",
            active_deadline_seconds=_LONGEST, termination_grace_period_seconds=5,
        ),
    )  # fmt: skip


def _order(spec: run.RunSpec, engine: engines.Engine) -> str:
    """Without the run's own script, and without waiting for anybody."""
    wanted = msgspec.structs.replace(spec.environment or run.Environment(), setup=None)
    plain = msgspec.structs.replace(spec, environment=wanted)
    return podrender.literal(json.dumps(podsetup.order(plain, engine, None)))


def _ordered(container: kubernetes.Container, order: str) -> kubernetes.Container:
    given = [each for each in container.env or () if each.name != podsetup.ORDER]
    told = kubernetes.EnvVar(name=podsetup.ORDER, value=order)
    return msgspec.structs.replace(container, env=[*given, told])


def _failure(pod: kubernetes.Pod) -> tuple[Reason, str] | None:
    """Why it will not work another time, either; None: it was killed, or its node is to blame."""
    reason, words = members.not_built(pod)
    return (reason, words) if reason in _TELLING else None


def _waits(name: str, why: str = "") -> podrender.Hindrance:
    words = f"waiting until pod {name} has built its environment"
    return podrender.Hindrance(Reason.WAITING_FOR_DATA, f"{words}; {why}" if why else words)


def _attempt(owner: run.Run) -> str:
    return f"{owner.uid}/{owner.status.attempt}"


def _made_for(pod: kubernetes.Pod) -> str:
    return (pod.metadata.annotations or {}).get(_FOR, "")


def _number(pod: kubernetes.Pod) -> int:
    tail = pod.name.rpartition("-")[2]
    return int(tail) if tail.isdecimal() else 0
