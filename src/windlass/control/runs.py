"""Run: carries out what `control.runmachine` plans.

The Run is read from the store itself, so a step never acts on a phase that an earlier step has
left; pods come from the cache, and are read again before a phase is left for good, because a pod
that the cache does not show yet would be left behind.

Writes phase, attempt, conditions, history, exit code, reason and message; never the assignment.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from windlass.control import members, runmachine, runtime
from windlass.kinds import kubernetes, meta, reasons, run, times
from windlass.store import client, errors
from windlass.store.reflector import Reflector

log = logging.getLogger(__name__)

NAME = "runs"
POD_INDEX = "run"
"""Name of the pod reflector's index by the uid of the owning Run."""
_AT_ONCE = 16
"""Pod requests in flight at once for one Run."""


def pod_index(pod: kubernetes.Pod) -> Iterable[str]:
    uid = members.owner_uid(pod)
    return (uid,) if uid else ()


class Runs:
    """The reconciler."""

    def __init__(
        self,
        store: client.Store,
        pods: Reflector[kubernetes.Pod],
        epoch: int,
        now: Callable[[], datetime.datetime] = times.now,
    ) -> None:
        self._store = store
        self._pods = pods
        self._epoch = epoch
        self._now = now

    async def reconcile(self, key: runtime.Key) -> runtime.Result:
        namespace, name = key
        try:
            owner = await self._store.get(run.Run, name, namespace)
        except errors.NotFound:
            return runtime.DONE
        plan = self._plan(owner, self._pods.by(POD_INDEX, owner.uid))
        if plan.move is not None and plan.move.to not in ("Starting", "Running", "Stopping"):
            plan = self._plan(owner, await self._live_pods(owner))
        return await self._carry_out(owner, plan)

    def _plan(self, owner: run.Run, pods: list[kubernetes.Pod]) -> runmachine.Plan:
        return runmachine.plan(runmachine.View(owner, pods, self._epoch, self._now()))

    async def _carry_out(self, owner: run.Run, plan: runmachine.Plan) -> runtime.Result:
        if plan.create:
            problem = await self._create_all(plan.create)
            if isinstance(problem, runmachine.Move):
                plan = runmachine.Plan(move=problem)
            elif problem:
                return runtime.failed(problem)
        await all_of(self._delete(pod) for pod in plan.delete)
        if plan.move is not None:
            await self._write(owner, plan.move)
        if plan.delete_run:
            uid = client.Preconditions(uid=owner.uid)
            await self._store.delete(run.Run, owner.name, owner.namespace, preconditions=uid)
        return runtime.DONE if plan.wake is None else runtime.again(plan.wake + 0.01)

    async def _live_pods(self, owner: run.Run) -> list[kubernetes.Pod]:
        found = await self._store.list(
            kubernetes.Pod, owner.namespace, label_selector=f"{run.LABEL_RUN}={owner.name}"
        )
        return [pod for pod in found.items if members.owner_uid(pod) == owner.uid]

    async def _create_all(self, pods: Iterable[kubernetes.Pod]) -> runmachine.Move | str:
        """ "" when all exist; words when it should be tried again; a Move when it never will."""
        answers = await all_of(self._create(pod) for pod in pods)
        moves = [answer for answer in answers if isinstance(answer, runmachine.Move)]
        return moves[0] if moves else next((answer for answer in answers if answer), "")

    async def _create(self, pod: kubernetes.Pod) -> runmachine.Move | str:
        try:
            await self._store.create(pod)
        except errors.AlreadyExists:
            found = await self._store.get(kubernetes.Pod, pod.name, pod.namespace)
            if members.owner_uid(found) != members.owner_uid(pod):
                return f"waiting until pod {pod.name}, which belongs to somebody else, is gone"
        except errors.Invalid as error:
            return runmachine.Move("Stopping", reasons.Reason.UNSUPPORTED, error.message)
        return ""

    async def _delete(self, pod: kubernetes.Pod) -> None:
        uid = client.Preconditions(uid=pod.uid)
        try:
            await self._store.delete(kubernetes.Pod, pod.name, pod.namespace, preconditions=uid)
        except (errors.NotFound, errors.Conflict):
            return  # gone, or another pod by now

    async def _write(self, owner: run.Run, move: runmachine.Move) -> None:
        """The change of phase, if the Run is still as it was read."""
        before = owner.status.phase if owner.status.history else ""
        status = status_patch(owner, move, self._now())
        await self._store.patch(
            run.Run, owner.name, owner.namespace, subresource="status",
            patch={
                "metadata": {"resourceVersion": owner.metadata.resource_version},
                "status": status,
            },
        )  # fmt: skip
        log.info(
            "run %s/%s: %s -> %s %s", owner.namespace, owner.name, before, move.to, move.message
        )


def status_patch(owner: run.Run, move: runmachine.Move, now: datetime.datetime) -> dict[str, Any]:
    """What the change of phase writes into the status."""
    status = owner.status
    step = run.Transition(
        at=times.seconds(now),
        from_phase=status.phase if status.history else "",
        to_phase=move.to,
        reason=move.reason,
        message=move.message,
        by=NAME,
    )
    history = [*(status.history or ()), step][-run.HISTORY_LENGTH :]
    patch = {
        "phase": move.to,
        "attempt": status.attempt + (1 if move.next_attempt else 0),
        "exitCode": move.exit_code,
        "observedGeneration": owner.metadata.generation,
        "history": msgspec.to_builtins(history),
        "conditions": msgspec.to_builtins(_conditions(owner, move, now)),
    }
    if status.history:
        # Of a new Run the scheduler may have said already why it waits; that stays.
        patch |= {"reason": move.reason, "message": move.message}
    return patch


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


async def all_of(calls: Iterable[Any]) -> list[Any]:
    """Awaits all, a few at a time; the first error is raised after the rest have ended."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(call: Any) -> Any:
        async with gate:
            return await call

    answers = await asyncio.gather(*(one(call) for call in calls), return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return list(answers)
