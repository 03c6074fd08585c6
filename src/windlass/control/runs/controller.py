"""The run controller: executes the plans of `control.runs.state_machine`.

The Run is read from the store itself, so a step never acts on an outdated phase. Pods come from the
cache, and are listed again before the end of a phase unless the cache is known to be complete
(`control.runs.expectations`): a pod that it does not show yet would be left behind.

Writes all of the status but the fields of the scheduler: assignment, nomination, eviction, queue.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import math
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from windlass.control.model import (
    attempts,
    dependencies,
    members,
    pod_indexes,
    ports,
    retry,
    run_view,
    unsupported,
)
from windlass.control.model.capabilities import Engine
from windlass.control.runs import (
    environment_builds,
    expectations,
    node_lifecycle,
    pod_template,
    progress,
    start_gate,
    state_machine,
    usage_intervals,
)
from windlass.control.runtime import controller, event_recorder, leader_election
from windlass.control.runtime.clock import Elapsed
from windlass.control.runtime.concurrency import all_of
from windlass.kinds import reasons
from windlass.kinds.types import core, meta, run
from windlass.kinds.values import duration, times
from windlass.store import errors, interface
from windlass.store.informer import Informer

log = logging.getLogger(__name__)

NAME = "runs"
_STEPS_AT_ONCE = 4
_ON_THE_WAY = ("Starting", "Running", "Stopping")
"""Phases that are not final."""
_RULES = ("denied", "ValidatingAdmissionPolicy", "admission webhook")
"""The texts of refusals by an admission policy, as opposed to an invalid pod."""
_EVENTS = {
    "Running": (event_recorder.NORMAL, "Started"),
    "Queued": (event_recorder.WARNING, "Retried"),
    "Succeeded": (event_recorder.NORMAL, "Succeeded"),
    "Failed": (event_recorder.WARNING, "Failed"),
    "Stopped": (event_recorder.NORMAL, "Stopped"),
}
"""Changes of phase with an event: two for a plain run."""


def only_waits(owner: run.Run) -> bool:
    """Whether the Run only waits for capacity: thousands may do that, and the scheduler updates the
    reason of each from time to time."""
    return (
        owner.status.phase == "Queued"
        and dependencies.state(owner) != "Never"
        and owner.status.assignment is None
        and not owner.spec.stop
        and not owner.metadata.deletion_timestamp
    )


class Runs:
    """The reconciler."""

    def __init__(
        self,
        store: interface.Store,
        pods: Informer[core.Pod],
        epoch: Callable[[], int],
        *,
        nodes: node_lifecycle.NodeStates | None = None,
        engine: Callable[[], Engine] = Engine,
        gate: start_gate.StartGate | None = None,
        expires: Callable[[run.Run], bool] = lambda _owner: True,
        now: Callable[[], datetime.datetime] = times.now,
        clock: Callable[[], float] = leader_election.steady_clock,
    ) -> None:
        self._store = store
        self._pods = pods
        self._epoch = epoch
        """The epoch of the present scheduler; assignments of other epochs are not started."""
        self._nodes = nodes
        """None: all nodes are ready, and have no addresses."""
        self._engine = engine
        self._gate = gate or start_gate.StartGate(store)
        self._expires = expires
        """Whether a finished Run may be deleted once its time has come."""
        self._builds = environment_builds.Builds(store, pods)
        self._ports = ports.Ports()
        self._expectations = expectations.PodExpectations()
        self._now = now
        self._clock = clock
        self._elapsed = Elapsed(now, clock)
        self._reported: dict[str, float] = {}
        """By uid of a Run, when its progress was last written."""
        self._misreported: set[str] = set()

    async def reconcile(self, key: controller.Key) -> controller.Result:
        namespace, name = key
        try:
            owner = await self._store.get(run.Run, name, namespace)
        except errors.NotFound:
            return controller.DONE
        return await self._steps(owner)

    async def _steps(self, owner: run.Run) -> controller.Result:
        if owner.spec.array is not None:  # `control.arrays` runs it
            await self._let_go(owner)
            return controller.DONE
        for _ in range(_STEPS_AT_ONCE):
            shown = self._pods.by(pod_indexes.BY_RUN, owner.uid)
            blocked = await self._blocked(owner, shown)
            plan, wake = self._plan(owner, shown, blocked)
            leaves = plan.move is not None and plan.move.to not in _ON_THE_WAY
            if not self._expectations.satisfied(owner, shown) and leaves:
                plan, wake = self._plan(owner, await self._live_pods(owner), blocked)
            problem, written = await self._carry_out(owner, plan)
            if problem:
                return controller.failed(problem)
            if written is None:
                break
            owner = written
        await self._let_go(owner)
        wake = _sooner(plan.wake, wake, await self._fold_progress(owner))
        return controller.DONE if wake is None else controller.again(wake + 0.01)

    async def _blocked(self, owner: run.Run, shown: list[core.Pod]) -> attempts.BlockedReason:
        """Why the pods of a starting Run cannot be created yet."""
        if owner.status.phase != "Starting":
            return attempts.BlockedReason()
        found = await self._gate.blocked(owner, self._engine())
        keys = [key for key in map(members.key_of, shown) if key is not None]
        running = any(key.attempt == owner.status.attempt for key in keys)
        if found.message or running:
            return found
        return await self._builds.blocked(owner, self._context(owner, found))

    def _plan(
        self, owner: run.Run, pods: list[core.Pod], blocked: attempts.BlockedReason
    ) -> tuple[state_machine.Plan, float | None]:
        """The next step, and when a silent node will count as lost."""
        silent: dict[str, run_view.Node] = {}
        wake: float | None = None
        if self._nodes is not None and not owner.finished:
            names = {pod.spec.node_name for pod in pods if pod.spec.node_name}
            assignment = owner.status.assignment
            if assignment is not None and assignment.attempt == owner.status.attempt:
                names |= {
                    member.node for listed in assignment.members.values() for member in listed
                }
            within = duration.milliseconds(owner.spec.retries.lost_after) / 1000
            silent, wake = self._nodes.lost(sorted(names), within)
        context = self._context(owner, blocked)
        closed = self._gate.closed(owner) if owner.status.phase == "Queued" else ""
        view = run_view.View(
            owner, pods, self._epoch(), self._now(), silent, context, self._elapsed.since, closed
        )
        return state_machine.plan(view), wake

    def _context(self, owner: run.Run, blocked: attempts.BlockedReason) -> attempts.AttemptContext:
        engine, assignment = self._engine(), owner.status.assignment
        if owner.status.phase not in ("Starting", "Running") or assignment is None:
            self._ports.forget(owner)
            return attempts.AttemptContext(engine)
        named = {member.node for listed in assignment.members.values() for member in listed}
        known = {node: self._nodes.address(node) for node in named} if self._nodes else {}
        block = None
        if engine.addresses == "node":
            own = self._pods.by(pod_indexes.BY_RUN, owner.uid)
            try:
                block = self._ports.take(owner, engine.ports, own, self._pods)
            except ports.NoPortsError as none:
                blocked = attempts.BlockedReason(message=str(none))
        addresses = {node: address for node, address in known.items() if address}
        return attempts.AttemptContext(engine, block, blocked, addresses)

    async def _carry_out(
        self, owner: run.Run, plan: state_machine.Plan
    ) -> tuple[str, run.Run | None]:
        """The error, if there is one; and the Run if its next step can follow at once."""
        if plan.note is not None:
            return "", await self._patch(owner, self._noted(owner, plan.note))
        move = plan.move
        if plan.create:
            problem = await self._create_dependents(owner) or await self._create_all(
                owner, plan.create
            )
            if isinstance(problem, state_machine.Move):
                move = problem
            elif problem:
                return problem, None
        await all_of(self._delete(pod) for pod in plan.delete)
        written = await self._write(owner, move) if move is not None else None
        await all_of(self._delete(pod, grace_seconds=0) for pod in plan.force)
        if plan.delete_run and not self._expires(owner):
            return "a run that waits for its end has not noted it yet", None
        if plan.delete_run:
            uid = interface.Preconditions(uid=owner.uid)
            await self._store.delete(run.Run, owner.name, owner.namespace, preconditions=uid)
        return "", written if move is not None and move.to in _ON_THE_WAY else None

    def _noted(self, owner: run.Run, note: Mapping[str, Any]) -> dict[str, Any]:
        """A note; if replicas join or leave, with the change of their usage intervals."""
        sizes = note.get("members")
        if sizes is None or not owner.status.held:
            return dict(note)
        before = owner.status.members or {}
        if any(size < before.get(role, 0) for role, size in sizes.items()):
            intervals = usage_intervals.leaving(owner, sizes)
        else:
            intervals = usage_intervals.started(owner, sizes, self._now())
        return {**note, "held": msgspec.to_builtins(intervals)}

    async def _kept_for_ledger(self, owner: run.Run) -> run.Run:
        """The Run with the finalizer that keeps it until the ledger has recorded its usage; most
        have it from their creation."""
        if not self._engine().ledger or usage_intervals.holds_ledger(owner):
            return owner
        names = [*(owner.metadata.finalizers or ()), run.FINALIZER_LEDGER]
        return await self._finalizers(owner, names)

    async def _let_go(self, owner: run.Run) -> None:
        """Removes the finalizer of the ledger where there is no ledger any more."""
        if owner.metadata.deletion_timestamp and owner.finished and not self._engine().ledger:
            left = usage_intervals.without_ledger(owner)
            if usage_intervals.holds_ledger(owner):
                await self._finalizers(owner, left)

    async def _finalizers(self, owner: run.Run, names: list[str]) -> run.Run:
        version = {"resourceVersion": owner.metadata.resource_version}
        return await self._store.patch(
            run.Run, owner.name, owner.namespace,
            patch={"metadata": {**version, "finalizers": names}},
        )  # fmt: skip

    def _usage_patch(self, owner: run.Run, move: state_machine.Move) -> dict[str, Any]:
        """The change of usage intervals with a change of phase."""
        if not self._engine().ledger:
            return {}
        if move.to in ("Starting", "Running"):
            sizes = move.members if owner.status.held or move.to == "Starting" else None
            intervals = (
                None if sizes is None else usage_intervals.started(owner, sizes, self._now())
            )
        elif move.to != "Stopping":
            pods = self._pods.by(pod_indexes.BY_RUN, owner.uid)
            intervals = usage_intervals.over(owner, pods, self._now(), again=move.next_attempt)
        else:
            intervals = None
        if intervals is None or intervals == owner.status.held:
            return {}
        return {"held": msgspec.to_builtins(intervals)}

    async def _fold_progress(self, owner: run.Run) -> float | None:
        """Writes the progress that the job reports, if it is new; returns when to check again."""
        if owner.finished:
            # If the kubelet reports the end of a pod, the last progress report comes after it.
            self._reported.pop(owner.uid, None)
            self._expectations.forget(owner)
            if not self._pods.by(pod_indexes.BY_RUN, owner.uid):
                self._misreported.discard(owner.uid)
        elif owner.status.phase != "Running":
            return None
        reported = await self._progress(owner)
        if reported is None or reported == owner.status.progress:
            return None
        left = self._reported.get(owner.uid, -math.inf) + progress.EVERY - self._clock()
        if left > 0:
            return left
        if not owner.finished:
            self._reported[owner.uid] = self._clock()
        # Without a resourceVersion: only this controller writes the field.
        await self._store.patch(
            run.Run, owner.name, owner.namespace, subresource="status",
            patch={"status": {"progress": _progress_patch(reported, owner.status.progress)}},
        )  # fmt: skip
        return None

    async def _progress(self, owner: run.Run) -> run.Progress | None:
        try:
            return progress.of_run(owner, self._pods.by(pod_indexes.BY_RUN, owner.uid))
        except progress.ProgressError:
            if owner.uid not in self._misreported:
                self._misreported.add(owner.uid)
                await event_recorder.record(
                    self._store,
                    owner,
                    event_recorder.WARNING,
                    "ProgressIgnored",
                    progress.PROBLEM,
                    NAME,
                )
            return None

    async def _live_pods(self, owner: run.Run) -> list[core.Pod]:
        found = await self._store.list(
            core.Pod, owner.namespace, label_selector=f"{run.LABEL_RUN}={owner.name}"
        )
        return [pod for pod in found.items if members.owner_uid(pod) == owner.uid]

    async def _create_dependents(self, owner: run.Run) -> state_machine.Move | None:
        """Creates the Secret and the Service of the replicas; and checks the capabilities of the
        engine again, for Runs that were not validated at creation."""
        problem = unsupported.unsupported(owner.spec, self._engine())
        if problem:
            return state_machine.Move("Stopping", reasons.Reason.UNSUPPORTED, problem)
        for made in (
            pod_template.secret_of(owner, secrets.token_hex(32)),
            pod_template.service_of(owner, self._engine()),
        ):
            if made is not None:
                with contextlib.suppress(errors.AlreadyExists):
                    await self._store.create(made)
        return None

    async def _create_all(
        self, owner: run.Run, pods: pod_template.Pods
    ) -> state_machine.Move | str:
        """ "" when all pods exist; a message when it should be tried again; a Move when the attempt
        is over. Pods that were created before a refusal end with the attempt: no part of a gang
        stays."""
        starts = owner.status.phase == "Starting"
        # A single pod is refused or not; of several, one of each role is tried first.
        if starts and len(pods) > 1 and self._engine().admission:
            refusal = await self._gate.refusal(owner, pods)
            if refusal is not None:
                return _refused(refusal)
        answers = await all_of(self._create(pod) for pod in pods)
        moves = [answer for answer in answers if isinstance(answer, state_machine.Move)]
        if not moves:
            return next((answer for answer in answers if answer), "")
        self._gate.forget(owner)
        if not starts and moves[0].reason == reasons.Reason.ADMISSION_REFUSED:
            return moves[0].message  # the others continue; it joins when it is admitted
        return moves[0]

    async def _create(self, pod: core.Pod) -> state_machine.Move | str:
        self._expectations.creating(pod)
        try:
            self._expectations.created(await self._store.create(pod))
        except errors.AlreadyExists:
            found = await self._store.get(core.Pod, pod.name, pod.namespace)
            if members.owner_uid(found) != members.owner_uid(pod):
                return f"waiting until pod {pod.name} of another owner is deleted"
            self._expectations.created(found)
            old = members.restart_of(found) < members.restart_of(pod)
            if old or found.metadata.deletion_timestamp:
                return f"waiting until the last pod of the name {pod.name} is gone"
        except (errors.Forbidden, errors.Invalid) as error:
            return _refused(error)
        return ""

    async def _delete(self, pod: core.Pod, grace_seconds: int | None = None) -> None:
        uid = interface.Preconditions(uid=pod.uid)
        try:
            await self._store.delete(
                core.Pod, pod.name, pod.namespace,
                preconditions=uid, grace_seconds=grace_seconds,
            )  # fmt: skip
        except (errors.NotFound, errors.Conflict):
            return  # deleted, or replaced by another pod

    async def _write(self, owner: run.Run, move: state_machine.Move) -> run.Run:
        """Writes the change of phase, with the last progress of the job."""
        if move.to == "Starting":
            owner = await self._kept_for_ledger(owner)
        status = status_patch(owner, move, self._now()) | self._usage_patch(owner, move)
        progress = None if owner.status.phase == "Queued" else await self._progress(owner)
        if progress is not None and progress != owner.status.progress:
            status["progress"] = _progress_patch(progress, owner.status.progress)
        written = await self._patch(owner, status)
        if move.to == "Starting":
            self._expectations.begin(written)
        log.info(
            "run %s/%s: %s -> %s %s", owner.namespace, owner.name, owner.status.phase, move.to,
            move.message,
        )  # fmt: skip
        await self._announce(owner, move)
        return written

    async def _announce(self, owner: run.Run, move: state_machine.Move) -> None:
        if move.to not in _EVENTS:
            return
        kind, event_reason = _EVENTS[move.to]
        if move.next_attempt and move.reason == reasons.Reason.PREEMPTED:
            event_reason = "Preempted"
        attempt = owner.status.attempt
        text = f"attempt {attempt}: {move.message}" if attempt else move.message
        await event_recorder.record(self._store, owner, kind, event_reason, text, NAME)

    async def _patch(self, owner: run.Run, status: dict[str, Any]) -> run.Run:
        """Patches the status, if the Run is still as it was read."""
        version = {"resourceVersion": owner.metadata.resource_version}
        return await self._store.patch(
            run.Run, owner.name, owner.namespace, subresource="status",
            patch={"metadata": version, "status": status},
        )  # fmt: skip


def _refused(error: errors.ApiError) -> state_machine.Move:
    """The cluster does not admit a pod. If the API itself refuses it, and no policy of a namespace,
    it will never be admitted."""
    invalid = isinstance(error, errors.Invalid)
    ruled = not invalid or any(word in error.message for word in _RULES)
    reason = reasons.Reason.ADMISSION_REFUSED if ruled else reasons.Reason.UNSUPPORTED
    return state_machine.Move("Stopping", reason, error.message)


def _progress_patch(progress: run.Progress, before: run.Progress | None) -> dict[str, Any]:
    """The whole progress: metrics that are no longer reported are removed."""
    metrics: dict[str, float | None] | None = None
    if progress.metrics is not None:
        metrics = dict.fromkeys((before.metrics if before else None) or ()) | progress.metrics
    return {"fraction": progress.fraction, "metrics": metrics, "checkpoint": progress.checkpoint}


def _sooner(*moments: float | None) -> float | None:
    return min((moment for moment in moments if moment is not None), default=None)


def _cause(owner: run.Run, move: state_machine.Move) -> str:
    """The cause of a change of phase: of a preemption, what the scheduler recorded with it."""
    if move.reason != reasons.Reason.PREEMPTED:
        return NAME
    if owner.status.eviction is not None:
        return owner.status.eviction.by
    history = owner.status.history
    return history[-1].by if history and history[-1].reason == move.reason else NAME


def status_patch(
    owner: run.Run, move: state_machine.Move, now: datetime.datetime
) -> dict[str, Any]:
    """The status patch of a change of phase."""
    status = owner.status
    step = run.Transition(
        at=times.seconds(now),
        from_phase=status.phase,
        to_phase=move.to,
        reason=move.reason,
        message=move.message,
        by=_cause(owner, move),
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
    avoided = retry.avoided(owner, move.avoid, now)
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
    """The first entry of every history. It is written with the first step: an untouched Run is
    Queued."""
    at = owner.metadata.creation_timestamp or times.seconds(now)
    return run.Transition(at=at, to_phase="Queued", message="submitted", by=NAME)


def _whole(before: Mapping[str, int] | None, after: Mapping[str, int]) -> dict[str, int | None]:
    """A merge patch that replaces the whole map."""
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
    owner: run.Run, move: state_machine.Move, now: datetime.datetime
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
