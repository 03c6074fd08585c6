"""The pods that are bound to this node: one worker each, from the API's wish to processes.

A worker looks at the pod as the API has it and at the containers as the disk has them, does the
one next thing, writes the status if it changed, and sleeps until either changes. It can be killed
at any moment: the next agent finds the same two things and goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from windlass.agent import (
    containers,
    environment,
    orders,
    podstatus,
    procfs,
    progress,
    support,
    sweeping,
    volumes,
)
from windlass.agent.containers import Container, Observed
from windlass.agent.orders import Place as Place
from windlass.kinds import hostpods, kubernetes, times
from windlass.store import client, errors
from windlass.store.reflector import Change, Reflector

log = logging.getLogger(__name__)

_TELLING = ("phase", "reason", "message", "podIP", "containerStatuses", "initContainerStatuses")
"""The parts of a status whose change is worth a write; times move along."""
_RETRY = 5.0
"""Seconds until something that failed for reasons outside the pod is tried again."""


class Pods:
    """Keeps one worker per pod of this node."""

    def __init__(self, store: client.Store, place: Place) -> None:
        self._store = store
        self._place = place
        self._reflector = Reflector(
            store, kubernetes.Pod, field_selector=f"spec.nodeName={place.node}"
        )
        self._workers: dict[str, Worker] = {}

    async def run(self) -> None:
        """Until cancelled. Processes go on: their shims do not belong to us."""
        self._place.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        async with self._reflector, asyncio.TaskGroup() as group:
            await self._reflector.synced()
            self._sweep()
            for uid, namespace, name in self._left_behind():
                self._begin(group, uid, namespace, name)
            self._reflector.add_handler(lambda *change: self._changed(group, *change))
            await asyncio.Event().wait()

    def _left_behind(self) -> list[tuple[str, str, str]]:
        """Pods that have a folder here but are not in the API any more."""
        known = {pod.uid for pod in self._reflector}
        found = []
        for folder in self._place.folder.iterdir():
            record = procfs.read_json(folder / orders.RECORD) or {"namespace": "", "name": ""}
            if folder.name not in known:
                found.append((folder.name, record["namespace"], record["name"]))
        return found

    def _sweep(self) -> None:
        """Groups of pods that have no folder here any more: a clean-up that was cut short."""
        groups = self._place.abilities.cgroups
        if groups is None:
            return
        for name in groups.names():
            if not (self._place.folder / name.partition(".")[0]).exists():
                groups.group(name).remove()

    def _changed(
        self,
        group: asyncio.TaskGroup,
        _: Change,
        before: kubernetes.Pod | None,
        after: kubernetes.Pod | None,
    ) -> None:
        pod = after or before
        assert pod is not None, "a change has an object before or after it"  # noqa: S101
        worker = self._workers.get(pod.uid)
        if worker is None:
            worker = self._begin(group, pod.uid, pod.namespace, pod.name)
        worker.wake.set()

    def _begin(self, group: asyncio.TaskGroup, uid: str, namespace: str, name: str) -> Worker:
        def current() -> kubernetes.Pod | None:
            pod = self._reflector.get(name, namespace)
            return pod if pod is not None and pod.uid == uid else None

        worker = Worker(self._store, self._place, uid, current)
        self._workers[uid] = worker
        task = group.create_task(worker.run(), name=f"pod {namespace}/{name}")
        task.add_done_callback(lambda _: self._workers.pop(uid, None))
        return worker


class Worker:
    """Drives one pod."""

    def __init__(
        self,
        store: client.Store,
        place: Place,
        uid: str,
        current: Callable[[], kubernetes.Pod | None],
    ) -> None:
        self._store = store
        self._place = place
        self._current = current
        """The pod as the API has it; None when it is gone."""
        self._folder = place.folder / uid
        self._stop_sent: float | None = None
        self._told: dict[str, Any] | None = None
        """What the last status that was written said."""
        self._running: dict[str, Container] = {}
        """Containers that ran when they were last looked at: their end is waited for. Asking again
        before sleeping would miss one that ended in between."""
        self._prepared: volumes.PodFolder | None = None
        self._progress = ""
        self._progress_due = 0.0
        self.wake = asyncio.Event()

    async def run(self) -> None:
        """Until the pod is gone from the API and its processes from the machine."""
        while True:
            self.wake.clear()
            pod = self._current()
            try:
                if pod is None:
                    if await self._clean_up():
                        return
                    delay: float | None = None
                else:
                    delay = await self._step(pod)
            except (errors.ApiError, OSError) as error:
                log.warning("pod %s: tried again soon: %s", self._folder.name, error)
                delay = _RETRY
            except Exception:
                # A defect met in one pod must not take the others' workers down.
                log.exception("pod %s: tried again soon", self._folder.name)
                delay = _RETRY
            await self._sleep(delay)

    async def _step(self, pod: kubernetes.Pod) -> float | None:
        """The one next thing; seconds until the next look, if nothing changes before."""
        if pod.metadata.deletion_timestamp:
            await self._end(pod)
            return None
        if pod.status.phase in ("Succeeded", "Failed"):
            return None
        refusal = self._refusal(pod)
        if refusal is not None:
            await self._write(pod, podstatus.refused(pod, *refusal, times.now()))
            return None
        left = _seconds_left(pod)
        if left is not None and left <= 0 and await self._too_late(pod):
            return None
        try:
            before, seen, delays = await self._advance_all(pod)
        except volumes.RefusedError as never:
            told = podstatus.refused(pod, "PodNotSupported", str(never), times.now())
            await self._write(pod, told)
            return None
        status = podstatus.build(pod, seen, self._place.address, times.now(), before)
        over = status["phase"] in ("Succeeded", "Failed")
        delays.append(await self._carry_progress(pod, last=over))
        await self._write(pod, status)
        if not over:
            delays += [left, await self._renew_tokens(pod)]
        return min((each for each in delays if each is not None), default=None)

    def _refusal(self, pod: kubernetes.Pod) -> tuple[str, str] | None:
        """(reason, message) if a pod that has no folder here must not be started."""
        if self._folder.exists():
            return None
        problem = support.unsupported(pod, mounts=self._place.abilities.mounts)
        if problem is not None:
            return problem
        if pod.status.phase == "Running" and pod.spec.restart_policy == "Never":
            # It was started once and its folder is lost: to start it again were to run it twice.
            return "ContainerStatusUnknown", "the agent's record of the pod is lost"
        port = orders.taken_port(self._place, pod)
        if port is not None:
            told = f"port {port}, which the run was given, is taken by a process outside of it"
            return "PortTaken", told
        return None

    async def _advance_all(
        self, pod: kubernetes.Pod
    ) -> tuple[list[Observed], list[Observed], list[float | None]]:
        """Init containers one after the other, then all others: how they fare, when to look."""
        before: list[Observed] = []
        delays: list[float | None] = []
        specs = pod.spec.init_containers or ()
        policy = podstatus.init_policy(pod.spec.restart_policy)
        for index, spec in enumerate(specs):
            observed, delay = await self._advance(pod, spec, policy)
            before.append(observed)
            if not podstatus.initialized([observed]):
                delays.append(delay)
                before += [self._look(self._container(each.name)) for each in specs[index + 1 :]]
                seen = [self._look(self._container(each.name)) for each in pod.spec.containers]
                return before, seen, delays
        seen = []
        for spec in pod.spec.containers:
            observed, delay = await self._advance(pod, spec, pod.spec.restart_policy)
            seen.append(observed)
            delays.append(delay)
        return before, seen, delays

    async def _advance(
        self, pod: kubernetes.Pod, spec: kubernetes.Container, policy: str
    ) -> tuple[Observed, float | None]:
        """Starts the container if it should run and does not."""
        container = self._container(spec.name)
        observed = self._look(container)
        if observed.state == "ended":
            wait = podstatus.restart_after(policy, observed)
            if wait is None:
                return observed, None
            left = wait - (times.now() - times.parse(observed.finished_at)).total_seconds()
            if left > 0:
                return observed, left
        elif observed.state == "running":
            return observed, None
        try:
            if self._prepared is None:
                self._prepared = await orders.begin(self._store, self._place, pod)
            order = await orders.make(self._store, self._place, pod, spec)
            await container.start(order, self._place.nursery)
        except volumes.RefusedError:
            if containers.all_in(self._folder):
                return observed, _RETRY  # it ran before: what it needs may come back
            raise
        except environment.MissingError as missing:
            reason = "CreateContainerConfigError"
            waiting = dataclasses.replace(
                observed, state="waiting", reason=reason, message=str(missing)
            )
            return waiting, _RETRY
        return self._look(container), None

    def _container(self, name: str) -> Container:
        return Container(self._folder, name, self._place.abilities.cgroups)

    async def _too_late(self, pod: kubernetes.Pod) -> bool:
        """The pod's time is up: ends what runs; True unless it had already ended by itself."""
        before = [self._look(self._container(s.name)) for s in pod.spec.init_containers or ()]
        seen = [self._look(self._container(s.name)) for s in pod.spec.containers]
        over = podstatus.phase(pod.spec.restart_policy, seen, before) in ("Succeeded", "Failed")
        if over and not _ended_late(pod, (*before, *seen)):
            return False
        if any(each.state == "running" for each in (*before, *seen)):
            grace = pod.spec.termination_grace_period_seconds
            self._stop(containers.all_in(self._folder), 30.0 if grace is None else float(grace),
                       _stop_signal(pod))  # fmt: skip
            return True
        status = podstatus.late(pod, seen, before, self._place.address, times.now())
        await self._write(pod, status)
        return True

    async def _carry_progress(self, pod: kubernetes.Pod, *, last: bool) -> float | None:
        """The job's progress into the pod's annotation, not too often; once more at its end."""
        folder = self._prepared or orders.folder_of(self._place, pod.uid)
        if folder is None or (not self._running and not last):
            return None
        left = self._progress_due - time.monotonic()
        if left > 0 and not last:
            return left
        told = progress.read(orders.progress_file(folder, pod), folder.user)
        if told and told != self._progress:
            known = (pod.metadata.annotations or {}).get(hostpods.PROGRESS)
            if told != known:
                note = {"annotations": {hostpods.PROGRESS: told}, "uid": pod.uid}
                with contextlib.suppress(errors.NotFound, errors.Conflict):
                    await self._store.patch(
                        kubernetes.Pod, pod.name, pod.namespace, patch={"metadata": note},
                        subresource="status",
                    )  # fmt: skip
            self._progress = told
        self._progress_due = time.monotonic() + progress.EVERY
        return progress.EVERY

    async def _renew_tokens(self, pod: kubernetes.Pod) -> float | None:
        if self._prepared is None:
            self._prepared = orders.folder_of(self._place, pod.uid)
        if self._prepared is None:
            return None
        return await volumes.refresh(pod, self._prepared, self._place.tokens)

    def _look(self, container: Container) -> Observed:
        observed = container.observe()
        if observed.state == "running":
            self._running[container.name] = container
        else:
            self._running.pop(container.name, None)
        return observed

    async def _end(self, pod: kubernetes.Pod) -> None:
        """The pod is to go: stop what runs, tell how it ended, let the object go."""
        before = [self._look(self._container(s.name)) for s in pod.spec.init_containers or ()]
        seen = [self._look(self._container(s.name)) for s in pod.spec.containers]
        if any(each.state == "running" for each in (*before, *seen)):
            grace = pod.metadata.deletion_grace_period_seconds
            seconds = 30.0 if grace is None else float(grace)
            self._stop(containers.all_in(self._folder), seconds, _stop_signal(pod))
            return
        if pod.status.phase not in ("Succeeded", "Failed"):
            await self._carry_progress(pod, last=True)
            await self._write(pod, _final(pod, seen, self._place.address, before))
        # Before the object goes: whoever misses it there finds its logs here.
        await asyncio.to_thread(self._keep)
        uid = client.Preconditions(uid=pod.uid)
        try:
            await self._store.delete(
                kubernetes.Pod, pod.name, pod.namespace, grace_seconds=0, preconditions=uid
            )
        except (errors.NotFound, errors.Conflict):
            return

    async def _clean_up(self) -> bool:
        """The object is gone: so must be the processes, then the folder. True when all is."""
        left = [self._container(each.name) for each in containers.all_in(self._folder)]
        if [container for container in left if self._look(container).state == "running"]:
            self._stop(left, 0.0, "SIGKILL")
            return False
        await asyncio.to_thread(self._remove)
        return True

    def _keep(self) -> None:
        record = procfs.read_json(self._folder / orders.RECORD)
        if self._place.kept is not None and record is not None:
            self._place.kept.keep(self._folder, record)

    def _remove(self) -> None:
        self._keep()
        groups = self._place.abilities.cgroups
        if groups is not None:
            for container in containers.all_in(self._folder):
                groups.group(containers.group_name(self._folder, container.name)).remove()
        if self._folder.exists():
            sweeping.scratch(self._folder)
            volumes.remove(self._folder)

    def _stop(self, running: list[Container], grace: float, signal_name: str) -> None:
        """Once, or again if there is less grace than was told."""
        if self._stop_sent is not None and grace >= self._stop_sent:
            return
        for container in running:
            container.stop(grace, signal_name)
        self._stop_sent = grace

    async def _write(self, pod: kubernetes.Pod, status: dict[str, Any]) -> None:
        essence = {key: status.get(key) for key in _TELLING}
        if essence == self._told and pod.status.phase == status["phase"]:
            return
        try:
            await self._store.patch(
                kubernetes.Pod, pod.name, pod.namespace,
                patch={"metadata": {"uid": pod.uid}, "status": status}, subresource="status",
            )  # fmt: skip
        except (errors.NotFound, errors.Conflict):
            return  # it is gone, or another by that name; the reflector will tell
        self._told = essence

    async def _sleep(self, delay: float | None) -> None:
        """Until the pod changed, one of its containers ended, or the delay is over."""

        async def woken() -> None:
            await self.wake.wait()

        waits = [asyncio.create_task(woken())]
        waits += [asyncio.create_task(each.ended()) for each in self._running.values()]
        try:
            await asyncio.wait(waits, timeout=delay, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)


def _final(
    pod: kubernetes.Pod, seen: list[Observed], address: str, before: list[Observed]
) -> dict[str, Any]:
    """The last status of a pod that was stopped: what never ran counts as failed."""
    status = podstatus.build(pod, seen, address, times.now(), before)
    ended = bool(seen) and all(each.state == "ended" and each.exit_code == 0 for each in seen)
    return status | {"phase": "Succeeded" if ended else "Failed"}


def _stop_signal(pod: kubernetes.Pod) -> str:
    return (pod.metadata.annotations or {}).get(hostpods.STOP_SIGNAL, "SIGTERM")


def _seconds_left(pod: kubernetes.Pod) -> float | None:
    """Until the pod's active deadline; None if it has none or has not begun."""
    limit, begun = pod.spec.active_deadline_seconds, pod.status.start_time
    if limit is None or not begun:
        return None
    return limit - (times.now() - times.parse(begun)).total_seconds()


def _ended_late(pod: kubernetes.Pod, seen: Sequence[Observed]) -> bool:
    """Whether something of the pod ended after its deadline, so because of it."""
    until = times.parse(pod.status.start_time or "") + datetime.timedelta(
        seconds=pod.spec.active_deadline_seconds or 0
    )
    return any(each.finished_at and times.parse(each.finished_at) > until for each in seen)
