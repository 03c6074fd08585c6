"""Run: carries out what `control.runmachine` plans.

The Run is read from the store itself, so a step never acts on a phase that an earlier step has
left; pods come from the cache, and are read again before a phase is left for good unless the cache
is known to show all (`control.begun`): a pod that it does not show yet would be left behind.

Writes all of the status but what is the scheduler's: assignment, nomination, eviction, queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import itertools
import logging
import math
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from windlass.control import (
    begun,
    builds,
    durations,
    events,
    holding,
    leader,
    members,
    nodes,
    podrender,
    ports,
    progress,
    retrying,
    runmachine,
    runtime,
    runview,
    starting,
)
from windlass.control.engine import Engine
from windlass.kinds import kubernetes, meta, reasons, run, times
from windlass.store import client, errors
from windlass.store.reflector import Reflector

log = logging.getLogger(__name__)

NAME = "runs"
POD_INDEX = "run"
"""Name of the pod reflector's index by the uid of the owning Run."""
_AT_ONCE = 16
"""Pod requests in flight at once for one Run."""
_STEPS_AT_ONCE = 4
_ON_THE_WAY = ("Starting", "Running", "Stopping")
"""Phases after which more follows."""
_RULES = ("denied", "ValidatingAdmissionPolicy", "admission webhook")
"""How refusals by rules that somebody made begin, which are told apart from a pod that is wrong."""
_TOLD = {
    "Running": (events.NORMAL, "Started"),
    "Queued": (events.WARNING, "Retried"),
    "Succeeded": (events.NORMAL, "Succeeded"),
    "Failed": (events.WARNING, "Failed"),
    "Stopped": (events.NORMAL, "Stopped"),
}
"""Changes of phase that people are told of by an event: two of a plain run."""


def pod_index(pod: kubernetes.Pod) -> Iterable[str]:
    uid = members.owner_uid(pod)
    return (uid,) if uid else ()


def only_waits(owner: run.Run) -> bool:
    """Whether there is nothing to do for a Run but to wait for room: thousands may do that, and
    each is told now and then why."""
    return (
        owner.status.phase == "Queued"
        and owner.status.assignment is None
        and not owner.spec.stop
        and not owner.metadata.deletion_timestamp
    )


class Runs:
    """The reconciler."""

    def __init__(
        self,
        store: client.Store,
        pods: Reflector[kubernetes.Pod],
        epoch: Callable[[], int],
        *,
        silence: nodes.Silence | None = None,
        engine: Callable[[], Engine] = Engine,
        address: Callable[[str], str] = lambda _: "",
        gate: starting.Gate | None = None,
        now: Callable[[], datetime.datetime] = times.now,
        clock: Callable[[], float] = leader.steady_clock,
    ) -> None:
        self._store = store
        self._pods = pods
        self._epoch = epoch
        """The scheduler's of today; assignments of others are not started."""
        self._silence = silence
        """Without it all nodes are as they should be."""
        self._engine = engine
        self._address = address
        """Where others reach a node; "" if that is not known."""
        self._gate = gate or starting.Gate(store)
        self._builds = builds.Builds(store, pods)
        self._ports = ports.Ports()
        self._begun = begun.Begun()
        self._now = now
        self._clock = clock
        self._elapsed = durations.Elapsed(now, clock)
        self._reported: dict[str, float] = {}
        """By uid of a Run, when its progress was last written."""
        self._misreported: set[str] = set()

    async def reconcile(self, key: runtime.Key) -> runtime.Result:
        namespace, name = key
        try:
            owner = await self._store.get(run.Run, name, namespace)
        except errors.NotFound:
            return runtime.DONE
        return await self._steps(owner)

    async def _steps(self, owner: run.Run) -> runtime.Result:
        for _ in range(_STEPS_AT_ONCE):
            shown = self._pods.by(POD_INDEX, owner.uid)
            hindrance = await self._hindrance(owner, shown)
            plan, wake = self._plan(owner, shown, hindrance)
            leaves = plan.move is not None and plan.move.to not in _ON_THE_WAY
            if not self._begun.all_shown(owner, shown) and leaves:
                plan, wake = self._plan(owner, await self._live_pods(owner), hindrance)
            problem, written = await self._carry_out(owner, plan)
            if problem:
                return runtime.failed(problem)
            if written is None:
                break
            owner = written
        await self._let_go(owner)
        wake = _sooner(plan.wake, wake, await self._fold_progress(owner))
        return runtime.DONE if wake is None else runtime.again(wake + 0.01)

    async def _hindrance(self, owner: run.Run, shown: list[kubernetes.Pod]) -> podrender.Hindrance:
        """Why the pods of one that starts cannot be made yet."""
        if owner.status.phase != "Starting":
            return podrender.Hindrance()
        found = await self._gate.hindrance(owner, self._engine())
        keys = [key for key in map(members.key_of, shown) if key is not None]
        begun = any(key.attempt == owner.status.attempt for key in keys)
        if found.words or begun:
            return found
        return await self._builds.hindrance(owner, self._setting(owner, found))

    def _plan(
        self, owner: run.Run, pods: list[kubernetes.Pod], hindrance: podrender.Hindrance
    ) -> tuple[runmachine.Plan, float | None]:
        """The next step, and when a node that is silent will count as lost."""
        silent: dict[str, runview.Node] = {}
        wake: float | None = None
        if self._silence is not None and not owner.finished:
            names = {pod.spec.node_name for pod in pods if pod.spec.node_name}
            room = owner.status.assignment
            if room is not None and room.attempt == owner.status.attempt:
                names |= {member.node for listed in room.members.values() for member in listed}
            silent, wake = self._silence.look(sorted(names))
        setting = self._setting(owner, hindrance)
        closed = self._gate.closed(owner) if owner.status.phase == "Queued" else ""
        view = runview.View(
            owner, pods, self._epoch(), self._now(), silent, setting, self._elapsed.since, closed
        )
        return runmachine.plan(view), wake

    def _setting(self, owner: run.Run, hindrance: podrender.Hindrance) -> podrender.Setting:
        engine, room = self._engine(), owner.status.assignment
        if owner.status.phase not in ("Starting", "Running") or room is None:
            self._ports.forget(owner)
            return podrender.Setting(engine)
        named = {member.node for listed in room.members.values() for member in listed}
        known = {node: self._address(node) for node in named}
        block = None
        if engine.addresses == "node":
            own = self._pods.by(POD_INDEX, owner.uid)
            try:
                block = self._ports.take(owner, engine.ports, own, self._pods)
            except ports.NoPortsError as none:
                hindrance = podrender.Hindrance(words=str(none))
        return podrender.Setting(engine, block, hindrance, {n: a for n, a in known.items() if a})

    async def _carry_out(self, owner: run.Run, plan: runmachine.Plan) -> tuple[str, run.Run | None]:
        """What went wrong, if something did; and the Run if its next step can be taken at once."""
        if plan.note is not None:
            return "", await self._patch(owner, self._noted(owner, plan.note))
        move = plan.move
        if plan.create:
            problem = await self._create_company(owner) or await self._create_all(
                owner, plan.create
            )
            if isinstance(problem, runmachine.Move):
                move = problem
            elif problem:
                return problem, None
        await all_of(self._delete(pod) for pod in plan.delete)
        written = await self._write(owner, move) if move is not None else None
        await all_of(self._delete(pod, grace_seconds=0) for pod in plan.force)
        if plan.delete_run:
            uid = client.Preconditions(uid=owner.uid)
            await self._store.delete(run.Run, owner.name, owner.namespace, preconditions=uid)
        return "", written if move is not None and move.to in _ON_THE_WAY else None

    def _noted(self, owner: run.Run, note: Mapping[str, Any]) -> dict[str, Any]:
        """A note; if it says who joins or leaves, with what that means for the room they hold."""
        sizes = note.get("members")
        if sizes is None or not owner.status.held:
            return dict(note)
        before = owner.status.members or {}
        if any(size < before.get(role, 0) for role, size in sizes.items()):
            held = holding.leaving(owner, sizes)
        else:
            held = holding.started(owner, sizes, self._now())
        return {**note, "held": msgspec.to_builtins(held)}

    async def _kept_for_ledger(self, owner: run.Run) -> run.Run:
        """The Run with the finalizer that keeps it until the ledger has written down what it held;
        most have it from the moment they were created."""
        if not self._engine().ledger or holding.holds_ledger(owner):
            return owner
        names = [*(owner.metadata.finalizers or ()), run.FINALIZER_LEDGER]
        return await self._finalizers(owner, names)

    async def _let_go(self, owner: run.Run) -> None:
        """Where there is no ledger any more, nothing waits for it."""
        if owner.metadata.deletion_timestamp and owner.finished and not self._engine().ledger:
            left = holding.without_ledger(owner)
            if holding.holds_ledger(owner):
                await self._finalizers(owner, left)

    async def _finalizers(self, owner: run.Run, names: list[str]) -> run.Run:
        version = {"resourceVersion": owner.metadata.resource_version}
        return await self._store.patch(
            run.Run, owner.name, owner.namespace,
            patch={"metadata": {**version, "finalizers": names}},
        )  # fmt: skip

    def _held(self, owner: run.Run, move: runmachine.Move) -> dict[str, Any]:
        """What a change of phase means for the room that members hold."""
        if not self._engine().ledger:
            return {}
        if move.to in ("Starting", "Running"):
            sizes = move.members if owner.status.held or move.to == "Starting" else None
            held = None if sizes is None else holding.started(owner, sizes, self._now())
        elif move.to != "Stopping":
            pods = self._pods.by(POD_INDEX, owner.uid)
            held = holding.over(owner, pods, self._now(), again=move.next_attempt)
        else:
            held = None
        if held is None or held == owner.status.held:
            return {}
        return {"held": msgspec.to_builtins(held)}

    async def _fold_progress(self, owner: run.Run) -> float | None:
        """Writes what the job reports, if that is new; when to come again for it."""
        if owner.finished:
            # Where the node's own kubelet says that a pod has ended, its last words come after.
            self._reported.pop(owner.uid, None)
            self._begun.forget(owner)
            if not self._pods.by(POD_INDEX, owner.uid):
                self._misreported.discard(owner.uid)
        elif owner.status.phase != "Running":
            return None
        told = await self._progress(owner)
        if told is None or told == owner.status.progress:
            return None
        left = self._reported.get(owner.uid, -math.inf) + progress.EVERY - self._clock()
        if left > 0:
            return left
        if not owner.finished:
            self._reported[owner.uid] = self._clock()
        # Without a resourceVersion: it takes nothing from anybody, and only we write it.
        await self._store.patch(
            run.Run, owner.name, owner.namespace, subresource="status",
            patch={"status": {"progress": _progress_patch(told, owner.status.progress)}},
        )  # fmt: skip
        return None

    async def _progress(self, owner: run.Run) -> run.Progress | None:
        try:
            return progress.of_run(owner, self._pods.by(POD_INDEX, owner.uid))
        except progress.ProgressError:
            if owner.uid not in self._misreported:
                self._misreported.add(owner.uid)
                await events.tell(
                    self._store, owner, events.WARNING, "ProgressIgnored", progress.PROBLEM, NAME
                )
            return None

    async def _live_pods(self, owner: run.Run) -> list[kubernetes.Pod]:
        found = await self._store.list(
            kubernetes.Pod, owner.namespace, label_selector=f"{run.LABEL_RUN}={owner.name}"
        )
        return [pod for pod in found.items if members.owner_uid(pod) == owner.uid]

    async def _create_company(self, owner: run.Run) -> runmachine.Move | None:
        """What members prove themselves with to each other, and their names; and the last look at
        what the engine can do, for those who came past the door."""
        problem = podrender.unsupported(owner.spec, self._engine())
        if problem:
            return runmachine.Move("Stopping", reasons.Reason.UNSUPPORTED, problem)
        for made in (
            podrender.secret_of(owner, secrets.token_hex(32)),
            podrender.service_of(owner, self._engine()),
        ):
            if made is not None:
                with contextlib.suppress(errors.AlreadyExists):
                    await self._store.create(made)
        return None

    async def _create_all(self, owner: run.Run, pods: podrender.Pods) -> runmachine.Move | str:
        """ "" when all exist; words when it should be tried again; a Move when the attempt is over.
        What was made before one was refused goes with the attempt: no half of a gang stays."""
        starts = owner.status.phase == "Starting"
        # One alone is refused whole; of several, one of each role is tried first.
        if starts and len(pods) > 1 and self._engine().admission:
            refusal = await self._gate.refusal(owner, pods)
            if refusal is not None:
                return _refused(refusal)
        answers = await all_of(self._create(pod) for pod in pods)
        moves = [answer for answer in answers if isinstance(answer, runmachine.Move)]
        if not moves:
            return next((answer for answer in answers if answer), "")
        self._gate.forget(owner)
        if not starts and moves[0].reason == reasons.Reason.ADMISSION_REFUSED:
            return moves[0].message  # the others run on; it joins when it is admitted
        return moves[0]

    async def _create(self, pod: kubernetes.Pod) -> runmachine.Move | str:
        self._begun.making(pod)
        try:
            self._begun.made(await self._store.create(pod))
        except errors.AlreadyExists:
            found = await self._store.get(kubernetes.Pod, pod.name, pod.namespace)
            if members.owner_uid(found) != members.owner_uid(pod):
                return f"waiting until pod {pod.name}, which belongs to somebody else, is gone"
            self._begun.made(found)
            old = members.restart_of(found) < members.restart_of(pod)
            if old or found.metadata.deletion_timestamp:
                return f"waiting until the last pod of the name {pod.name} is gone"
        except (errors.Forbidden, errors.Invalid) as error:
            return _refused(error)
        return ""

    async def _delete(self, pod: kubernetes.Pod, grace_seconds: int | None = None) -> None:
        uid = client.Preconditions(uid=pod.uid)
        try:
            await self._store.delete(
                kubernetes.Pod, pod.name, pod.namespace,
                preconditions=uid, grace_seconds=grace_seconds,
            )  # fmt: skip
        except (errors.NotFound, errors.Conflict):
            return  # gone, or another pod by now

    async def _write(self, owner: run.Run, move: runmachine.Move) -> run.Run:
        """The change of phase, with the last that the job said of itself."""
        if move.to == "Starting":
            owner = await self._kept_for_ledger(owner)
        status = status_patch(owner, move, self._now()) | self._held(owner, move)
        told = None if owner.status.phase == "Queued" else await self._progress(owner)
        if told is not None and told != owner.status.progress:
            status["progress"] = _progress_patch(told, owner.status.progress)
        written = await self._patch(owner, status)
        if move.to == "Starting":
            self._begun.begin(written)
        log.info(
            "run %s/%s: %s -> %s %s", owner.namespace, owner.name, owner.status.phase, move.to,
            move.message,
        )  # fmt: skip
        await self._announce(owner, move)
        return written

    async def _announce(self, owner: run.Run, move: runmachine.Move) -> None:
        if move.to not in _TOLD:
            return
        kind, word = _TOLD[move.to]
        if move.next_attempt and move.reason == reasons.Reason.PREEMPTED:
            word = "Preempted"
        attempt = owner.status.attempt
        words = f"attempt {attempt}: {move.message}" if attempt else move.message
        await events.tell(self._store, owner, kind, word, words, NAME)

    async def _patch(self, owner: run.Run, status: dict[str, Any]) -> run.Run:
        """Writes into the status, if the Run is still as it was read."""
        version = {"resourceVersion": owner.metadata.resource_version}
        return await self._store.patch(
            run.Run, owner.name, owner.namespace, subresource="status",
            patch={"metadata": version, "status": status},
        )  # fmt: skip


def _refused(error: errors.ApiError) -> runmachine.Move:
    """The cluster does not admit a pod. What no rule of a namespace refuses, but the API itself,
    will never be admitted."""
    invalid = isinstance(error, errors.Invalid)
    ruled = not invalid or any(word in error.message for word in _RULES)
    reason = reasons.Reason.ADMISSION_REFUSED if ruled else reasons.Reason.UNSUPPORTED
    return runmachine.Move("Stopping", reason, error.message)


def _progress_patch(told: run.Progress, before: run.Progress | None) -> dict[str, Any]:
    """The whole of it: metrics that are no longer reported go."""
    metrics: dict[str, float | None] | None = None
    if told.metrics is not None:
        metrics = dict.fromkeys((before.metrics if before else None) or ()) | told.metrics
    return {"fraction": told.fraction, "metrics": metrics, "checkpoint": told.checkpoint}


def _sooner(*moments: float | None) -> float | None:
    return min((moment for moment in moments if moment is not None), default=None)


def status_patch(owner: run.Run, move: runmachine.Move, now: datetime.datetime) -> dict[str, Any]:
    """What the change of phase writes into the status."""
    status = owner.status
    step = run.Transition(
        at=times.seconds(now),
        from_phase=status.phase,
        to_phase=move.to,
        reason=move.reason,
        message=move.message,
        by=NAME,
    )
    history = [*(status.history or [_submitted(owner, now)]), step][-run.HISTORY_LENGTH :]
    patch = {
        "phase": move.to,
        "attempt": status.attempt,
        "exitCode": move.exit_code,
        "reason": move.reason,
        "message": move.message,
        "observedGeneration": owner.metadata.generation,
        "history": msgspec.to_builtins(history),
        "conditions": msgspec.to_builtins(_conditions(owner, move, now)),
    }
    if move.members is not None:
        patch["members"] = _whole(status.members, move.members)
    avoided = retrying.avoided(owner, move.avoid, now)
    if avoided != (status.avoid or []):
        patch["avoid"] = avoided or None
    if move.next_attempt:
        patch |= {
            "attempt": status.attempt + 1,
            "retries": status.retries + move.cost,
            "members": None,
            "restarts": 0,
            "restarted": None,
            "granted": None,
            "restartedAt": None,
        }
    return patch


def _submitted(owner: run.Run, now: datetime.datetime) -> run.Transition:
    """How every history begins. It is written with the first step: a Run that nobody has touched
    is Queued as it is."""
    at = owner.metadata.creation_timestamp or times.seconds(now)
    return run.Transition(at=at, to_phase="Queued", message="submitted", by=NAME)


def _whole(before: Mapping[str, int] | None, after: Mapping[str, int]) -> dict[str, int | None]:
    """A merge patch that leaves nothing of what was there before."""
    return dict.fromkeys(before or ()) | dict(after)


_CONDITIONS = {
    "Queued": {"Admitted": "False", "Started": "False"},
    "Starting": {"Admitted": "True"},
    "Running": {"Started": "True"},
    "Succeeded": {"Complete": "True"},
    "Failed": {"Failed": "True"},
    "Stopped": {"Failed": "True"},
}


def _conditions(
    owner: run.Run, move: runmachine.Move, now: datetime.datetime
) -> list[meta.Condition]:
    kept = {condition.type: condition for condition in owner.status.conditions or ()}
    for name, status in _CONDITIONS.get(move.to, {}).items():
        old = kept.get(name)
        since = old.last_transition_time if old and old.status == status else times.seconds(now)
        kept[name] = meta.Condition(
            type=name,
            status=status,
            reason=move.reason or move.to,
            message=move.message,
            observed_generation=owner.metadata.generation,
            last_transition_time=since,
        )
    return list(kept.values())


async def all_of(calls: Iterable[Any], at_once: int = _AT_ONCE) -> list[Any]:
    """Awaits all, a few at a time; each call is made only when its turn has come. The first error
    is raised after the rest have ended."""
    iterator = iter(calls)
    first = list(itertools.islice(iterator, 2))
    if len(first) < 2:
        return [await call for call in first]  # the most usual case needs no task
    left, answers = enumerate(itertools.chain(first, iterator)), {}

    async def some() -> None:
        for number, call in left:
            try:
                answers[number] = await call
            except Exception as error:
                answers[number] = error
            await asyncio.sleep(0)  # an answer may be there at once, and others wait, too

    await asyncio.gather(*(some() for _ in range(at_once)))
    found = [answers[number] for number in sorted(answers)]
    for answer in found:
        if isinstance(answer, Exception):
            raise answer
    return found
