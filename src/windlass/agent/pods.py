"""The pods that are bound to this node: one worker each, from the API's wish to processes.

A worker looks at the pod as the API has it and at the containers as the disk has them, does the
one next thing, writes the status if it changed, and sleeps until either changes. It can be killed
at any moment: the next agent finds the same two things and goes on.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from windlass.agent import containers, environment, podstatus, procfs
from windlass.agent.containers import Container, Observed, Order
from windlass.kinds import hostpods, kubernetes, times
from windlass.store import client, errors
from windlass.store.reflector import Change, Reflector

log = logging.getLogger(__name__)

IMAGES = ("", hostpods.HOST_IMAGE)
_RECORD = "pod.json"
_TELLING = ("phase", "reason", "message", "podIP", "containerStatuses")
"""The parts of a status whose change is worth a write; times move along."""
_RETRY = 5.0
"""Seconds until something that failed for reasons outside the pod is tried again."""


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where pods run."""

    node: str
    address: str
    folder: Path
    """Holds one folder per pod, by uid."""


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
            for uid, namespace, name in self._left_behind():
                self._begin(group, uid, namespace, name)
            self._reflector.add_handler(lambda *change: self._changed(group, *change))
            await asyncio.Event().wait()

    def _left_behind(self) -> list[tuple[str, str, str]]:
        """Pods that have a folder here but are not in the API any more."""
        known = {pod.uid for pod in self._reflector}
        found = []
        for folder in self._place.folder.iterdir():
            record = procfs.read_json(folder / _RECORD)
            if record is not None and folder.name not in known:
                found.append((folder.name, record["namespace"], record["name"]))
        return found

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
        seen, delays = [], []
        for spec in pod.spec.containers:
            observed, delay = await self._advance(pod, spec)
            seen.append(observed)
            delays += [delay] if delay is not None else []
        await self._write(pod, podstatus.build(pod, seen, self._place.address, times.now()))
        return min(delays, default=None)

    def _refusal(self, pod: kubernetes.Pod) -> tuple[str, str] | None:
        """(reason, message) if a pod that has no folder here must not be started."""
        if self._folder.exists():
            return None
        problem = environment.unsupported(pod, IMAGES)
        if problem:
            return "ImageNotSupported", problem
        if pod.status.phase == "Running" and pod.spec.restart_policy == "Never":
            # It was started once and its folder is lost: to start it again were to run it twice.
            return "ContainerStatusUnknown", "the agent's record of the pod is lost"
        return None

    async def _advance(
        self, pod: kubernetes.Pod, spec: kubernetes.Container
    ) -> tuple[Observed, float | None]:
        """Starts the container if it should run and does not."""
        container = Container(self._folder, spec.name)
        observed = self._look(container)
        if observed.state == "ended":
            wait = podstatus.restart_after(pod.spec.restart_policy, observed)
            if wait is None:
                return observed, None
            left = wait - (times.now() - times.parse(observed.finished_at)).total_seconds()
            if left > 0:
                return observed, left
        elif observed.state == "running":
            return observed, None
        try:
            await container.start(await self._order(pod, spec))
        except environment.MissingError as missing:
            reason = "CreateContainerConfigError"
            waiting = dataclasses.replace(
                observed, state="waiting", reason=reason, message=str(missing)
            )
            return waiting, _RETRY
        return self._look(container), None

    def _look(self, container: Container) -> Observed:
        observed = container.observe()
        if observed.state == "running":
            self._running[container.name] = container
        else:
            self._running.pop(container.name, None)
        return observed

    async def _order(self, pod: kubernetes.Pod, spec: kubernetes.Container) -> Order:
        work = self._folder / "work"
        work.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not (self._folder / _RECORD).exists():
            procfs.write_durably(
                self._folder / _RECORD, {"namespace": pod.namespace, "name": pod.name}
            )
        facts = {"status.podIP": self._place.address, "status.hostIP": self._place.address}
        env = await environment.build(self._store, pod, spec, facts)
        return Order(environment.command(spec, env), env, spec.working_dir or str(work))

    async def _end(self, pod: kubernetes.Pod) -> None:
        """The pod is to go: stop what runs, tell how it ended, let the object go."""
        own = [Container(self._folder, spec.name) for spec in pod.spec.containers]
        seen = [self._look(container) for container in own]
        if any(each.state == "running" for each in seen):
            grace = pod.metadata.deletion_grace_period_seconds
            signal_name = (pod.metadata.annotations or {}).get(hostpods.STOP_SIGNAL, "SIGTERM")
            self._stop(own, 30.0 if grace is None else float(grace), signal_name)
            return
        if pod.status.phase not in ("Succeeded", "Failed"):
            await self._write(pod, _final(pod, seen, self._place.address))
        uid = client.Preconditions(uid=pod.uid)
        try:
            await self._store.delete(
                kubernetes.Pod, pod.name, pod.namespace, grace_seconds=0, preconditions=uid
            )
        except (errors.NotFound, errors.Conflict):
            return

    async def _clean_up(self) -> bool:
        """The object is gone: so must be the processes, then the folder. True when all is."""
        left = containers.all_in(self._folder)
        if [container for container in left if self._look(container).state == "running"]:
            self._stop(left, 0.0, "SIGKILL")
            return False
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
        return True

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


def _final(pod: kubernetes.Pod, seen: list[Observed], address: str) -> dict[str, Any]:
    """The last status of a pod that was stopped: what never ran counts as failed."""
    status = podstatus.build(pod, seen, address, times.now())
    ended = bool(seen) and all(each.state == "ended" and each.exit_code == 0 for each in seen)
    return status | {"phase": "Succeeded" if ended else "Failed"}
