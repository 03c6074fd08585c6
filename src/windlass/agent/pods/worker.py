"""One worker for each pod that is bound to this node: it reconciles the pod with its processes.

A worker reads the pod from the API and the containers from disk, does the one next step, writes the
status if it changed, and sleeps until one of both changes. It may be killed at any moment: the next
agent reads the same state and continues.
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

from windlass.agent.pods import (
    container_config,
    disk_usage,
    env,
    garbage_collection,
    pod_status,
    progress,
    validation,
    volumes,
)
from windlass.agent.pods.container_config import AgentContext as AgentContext
from windlass.agent.runtime import containers, procfs
from windlass.agent.runtime.containers import Container, Observed
from windlass.kinds.annotations import PROGRESS, STOP_SIGNAL
from windlass.kinds.types import core
from windlass.kinds.values import times
from windlass.store import errors, interface
from windlass.store.informer import Change, Informer

log = logging.getLogger(__name__)

_COMPARED = ("phase", "reason", "message", "podIP", "containerStatuses", "initContainerStatuses")
"""Fields of a status whose change causes a write; a changed time alone does not."""
_SHORTEST_SIDECAR, _LONGEST_SIDECAR = 2.0, 600.0
"""Seconds that sidecars have to end, of a deleted pod and of one whose containers have ended."""
_READY_SECONDS = 5.0
"""Seconds from the start of a sidecar in which it is not asked to end: a signal would kill it
before it handles signals. The collector of outputs finds out by itself that the command has
ended."""
_SIDECAR_STARTS = 4
"""A sidecar that is killed after the containers have ended is started this often in all."""
_RETRY = 5.0
"""Seconds until a step that failed for reasons outside of the pod is tried again."""


class PodWorkers:
    """Runs one worker per pod of this node."""

    def __init__(self, store: interface.Store, context: AgentContext) -> None:
        self._store = store
        self._context = context
        self._informer = Informer(store, core.Pod, field_selector=f"spec.nodeName={context.node}")
        self._workers: dict[str, PodWorker] = {}

    async def run(self) -> None:
        """Runs until cancelled. Containers keep running: their shims are not children of the
        agent."""
        self._context.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        async with self._informer, asyncio.TaskGroup() as group:
            await self._informer.synced()
            self._remove_stale_cgroups()
            for uid, namespace, name in self._left_behind():
                self._begin(group, uid, namespace, name)
            group.create_task(disk_usage.DiskWatch(self._context).run(), name="disk usage")
            self._informer.add_handler(lambda *change: self._changed(group, *change))
            await asyncio.Event().wait()

    def _left_behind(self) -> list[tuple[str, str, str]]:
        """Uid, namespace and name of the pods that have a folder here and no object in the API."""
        known = {pod.uid for pod in self._informer}
        found = []
        for folder in self._context.folder.iterdir():
            record = procfs.read_json(folder / container_config.RECORD) or {
                "namespace": "",
                "name": "",
            }
            if folder.name not in known:
                found.append((folder.name, record["namespace"], record["name"]))
        return found

    def _remove_stale_cgroups(self) -> None:
        """Removes the cgroups of pods without a folder: a clean-up was interrupted."""
        groups = self._context.abilities.cgroups
        if groups is None:
            return
        for name in groups.names():
            if not (self._context.folder / name.partition(".")[0]).exists():
                groups.group(name).remove()

    def _changed(
        self,
        group: asyncio.TaskGroup,
        _: Change,
        before: core.Pod | None,
        after: core.Pod | None,
    ) -> None:
        pod = after or before
        assert pod is not None, "a change has an object before or after it"  # noqa: S101
        worker = self._workers.get(pod.uid)
        if worker is None:
            worker = self._begin(group, pod.uid, pod.namespace, pod.name)
        worker.wake.set()

    def _begin(self, group: asyncio.TaskGroup, uid: str, namespace: str, name: str) -> PodWorker:
        def current() -> core.Pod | None:
            pod = self._informer.get(name, namespace)
            return pod if pod is not None and pod.uid == uid else None

        worker = PodWorker(self._store, self._context, uid, current)
        self._workers[uid] = worker
        task = group.create_task(worker.run(), name=f"pod {namespace}/{name}")
        task.add_done_callback(lambda _: self._workers.pop(uid, None))
        return worker


class PodWorker:
    """Reconciles one pod."""

    def __init__(
        self,
        store: interface.Store,
        context: AgentContext,
        uid: str,
        current: Callable[[], core.Pod | None],
    ) -> None:
        self._store = store
        self._context = context
        self._current = current
        """The pod from the API; None when it is deleted."""
        self._folder = context.folder / uid
        self._stop_sent: float | None = None
        self._written: dict[str, Any] | None = None
        """The compared fields of the last status that was written."""
        self._running: dict[str, Container] = {}
        """Containers that were running when last observed; `_sleep` waits for their end. Observing
        them again before sleeping would miss one that ended in between."""
        self._prepared: volumes.PodFolder | None = None
        self._progress = ""
        self._progress_due = 0.0
        self._asked: set[tuple[str, int, bool]] = set()
        """Sidecars that were asked to end: name, number of the start, whether the pod was being
        deleted, which leaves less time."""
        self.wake = asyncio.Event()

    async def run(self) -> None:
        """Runs until the pod is deleted from the API and its processes have ended."""
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
                log.warning("pod %s: retry in %g s: %s", self._folder.name, _RETRY, error)
                delay = _RETRY
            except Exception:
                # A defect that one pod triggers must not stop the workers of the other pods.
                log.exception("pod %s: retry in %g s", self._folder.name, _RETRY)
                delay = _RETRY
            await self._sleep(delay)

    async def _step(self, pod: core.Pod) -> float | None:
        """Does the one next step. Returns the seconds until the next one if nothing changes; None:
        wait for a change."""
        if pod.metadata.deletion_timestamp:
            await self._end(pod)
            return None
        if pod.status.phase in ("Succeeded", "Failed"):
            return None
        refusal = self._refusal(pod)
        if refusal is not None:
            await self._write(pod, pod_status.refused(pod, *refusal, times.now()))
            return None
        left = _seconds_left(pod)
        if left is not None and left <= 0 and await self._too_late(pod):
            return None
        try:
            before, seen, delays = await self._advance_all(pod)
        except volumes.VolumeRejected as never:
            changed = isinstance(never, container_config.RightsChanged)
            reason = "RightsChanged" if changed else "MountFailed"
            status = pod_status.refused(pod, reason, str(never), times.now())
            await self._write(pod, status)
            return None
        status = pod_status.build(pod, seen, self._context.address, times.now(), before)
        over = status["phase"] in ("Succeeded", "Failed")
        if over and not self._sidecars_ended(pod):
            # The node reports how the containers ended, and the pod as over once all have.
            await self._write(pod, status | {"phase": "Running"})
            return self._stop_sidecars(pod, _LONGEST_SIDECAR, ready_after=_READY_SECONDS)
        delays.append(await self._publish_progress(pod, last=over))
        await self._write(pod, status)
        if not over:
            delays += [left, await self._renew_tokens(pod)]
        return min((each for each in delays if each is not None), default=None)

    def _refusal(self, pod: core.Pod) -> tuple[str, str] | None:
        """(reason, message) if a pod that has no folder here must not be started."""
        if self._folder.exists():
            return None
        problem = validation.unsupported(pod, mounts=self._context.abilities.mounts)
        if problem is not None:
            return problem
        if pod.status.phase == "Running" and pod.spec.restart_policy == "Never":
            # The pod was started and its folder is lost: a second start would run it twice.
            return "ContainerStatusUnknown", "the agent's record of the pod is lost"
        port = container_config.taken_port(self._context, pod)
        if port is not None:
            message = f"port {port}, assigned to the run, is in use by a process outside of the run"
            return "PortTaken", message
        return None

    async def _advance_all(
        self, pod: core.Pod
    ) -> tuple[list[Observed], list[Observed], list[float | None]]:
        """Starts init containers one after the other, then all others. Returns the observed init
        containers, the observed containers, and delays until the next step."""
        before: list[Observed] = []
        delays: list[float | None] = []
        specs = [each for each in pod.spec.init_containers or () if not _is_sidecar(each)]
        policy = pod_status.init_policy(pod.spec.restart_policy)
        for index, spec in enumerate(specs):
            observed, delay = await self._advance(pod, spec, policy)
            before.append(observed)
            if not pod_status.initialized([observed]):
                delays.append(delay)
                before += [self._poll(self._container(each.name)) for each in specs[index + 1 :]]
                seen = [self._poll(self._container(each.name)) for each in pod.spec.containers]
                return before, seen, delays
        delays += await self._advance_sidecars(pod)
        seen = []
        for spec in pod.spec.containers:
            observed, delay = await self._advance(pod, spec, pod.spec.restart_policy)
            seen.append(observed)
            delays.append(delay)
        return before, seen, delays

    async def _advance_sidecars(self, pod: core.Pod) -> list[float | None]:
        """Starts the sidecars, and again those that ended, while a container runs. A sidecar that
        was killed in its last work is started again a few times."""
        seen = [self._poll(self._container(spec.name)) for spec in pod.spec.containers]
        over = pod_status.phase(pod.spec.restart_policy, seen) in ("Succeeded", "Failed")
        delays = []
        for spec in _sidecars(pod):
            observed = self._poll(self._container(spec.name))
            if not over:
                _, delay = await self._advance(pod, spec, "Always")
                delays.append(delay)
            elif _was_killed(observed) and observed.restarts < _SIDECAR_STARTS:
                config = await container_config.make(self._store, self._context, pod, spec)
                await self._container(spec.name).start(config, self._context.zygote)
                self._poll(self._container(spec.name))
        return delays

    async def _advance(
        self, pod: core.Pod, spec: core.Container, policy: str
    ) -> tuple[Observed, float | None]:
        """Starts the container if it should run and does not. Returns its observed state and the
        seconds until the next step."""
        container = self._container(spec.name)
        observed = self._poll(container)
        if observed.state == "ended":
            wait = pod_status.restart_after(policy, observed)
            if wait is None:
                return observed, None
            left = wait - (times.now() - times.parse(observed.finished_at)).total_seconds()
            if left > 0:
                return observed, left
        elif observed.state == "running":
            return observed, None
        try:
            if self._prepared is None:
                self._prepared = await container_config.begin(self._store, self._context, pod)
            config = await container_config.make(self._store, self._context, pod, spec)
            await container.start(config, self._context.zygote)
        except volumes.VolumeRejected as rejected:
            changed = isinstance(rejected, container_config.RightsChanged)
            if changed or not containers.all_in(self._folder):
                raise
            # Containers ran before: the volume may become available again.
            return _not_configured(observed, rejected), _RETRY
        except env.MissingError as missing:
            return _not_configured(observed, missing), _RETRY
        return self._poll(container), None

    def _sidecars_ended(self, pod: core.Pod) -> bool:
        names = [spec.name for spec in _sidecars(pod)]
        return all(self._poll(self._container(name)).state != "running" for name in names)

    def _stop_sidecars(
        self, pod: core.Pod, grace: float, *, ready_after: float = 0.0
    ) -> float | None:
        """Asks the sidecars to end; their work at the end is part of the pod's. Returns the seconds
        until those can be asked that started less than `ready_after` seconds ago."""
        waits = []
        for spec in _sidecars(pod):
            container = self._container(spec.name)
            start = (spec.name, container.starts, bool(pod.metadata.deletion_timestamp))
            observed = self._poll(container)
            if start in self._asked or observed.state != "running":
                continue
            left = ready_after - (times.now() - times.parse(observed.started_at)).total_seconds()
            if left > 0:
                waits.append(left)
                continue
            self._asked.add(start)
            container.stop(grace, "SIGTERM")
        return min(waits, default=None)

    def _container(self, name: str) -> Container:
        return Container(self._folder, name, self._context.abilities.cgroups)

    async def _too_late(self, pod: core.Pod) -> bool:
        """Called after the active deadline: stops running containers. Returns False if the pod had
        ended before the deadline."""
        before = [self._poll(self._container(s.name)) for s in _initial(pod)]
        seen = [self._poll(self._container(s.name)) for s in pod.spec.containers]
        over = pod_status.phase(pod.spec.restart_policy, seen, before) in ("Succeeded", "Failed")
        if over and not _ended_late(pod, (*before, *seen)):
            return False
        if any(each.state == "running" for each in (*before, *seen)):
            grace = pod.spec.termination_grace_period_seconds
            self._stop(containers.all_in(self._folder), 30.0 if grace is None else float(grace),
                       _stop_signal(pod))  # fmt: skip
            return True
        status = pod_status.late(pod, seen, before, self._context.address, times.now())
        await self._write(pod, status)
        return True

    async def _publish_progress(self, pod: core.Pod, *, last: bool) -> float | None:
        """Copies the job's progress file into the pod's annotation, at a limited rate and once at
        the end. Returns the seconds until the next copy."""
        folder = self._prepared or container_config.folder_of(self._context, pod.uid)
        if folder is None or (not self._running and not last):
            return None
        left = self._progress_due - time.monotonic()
        if left > 0 and not last:
            return left
        report = progress.read(container_config.progress_file(folder, pod), folder.user)
        if report and report != self._progress:
            known = (pod.metadata.annotations or {}).get(PROGRESS)
            if report != known:
                note = {"annotations": {PROGRESS: report}, "uid": pod.uid}
                with contextlib.suppress(errors.NotFound, errors.Conflict):
                    await self._store.patch(
                        core.Pod, pod.name, pod.namespace, patch={"metadata": note},
                        subresource="status",
                    )  # fmt: skip
            self._progress = report
        self._progress_due = time.monotonic() + progress.EVERY
        return progress.EVERY

    async def _renew_tokens(self, pod: core.Pod) -> float | None:
        if self._prepared is None:
            self._prepared = container_config.folder_of(self._context, pod.uid)
        if self._prepared is None:
            return None
        return await volumes.refresh(pod, self._prepared, self._context.tokens)

    def _poll(self, container: Container) -> Observed:
        observed = container.observe()
        if observed.state == "running":
            self._running[container.name] = container
        else:
            self._running.pop(container.name, None)
        return observed

    async def _end(self, pod: core.Pod) -> None:
        """Terminates a pod: stops its containers, then writes the final status, archives the logs
        and deletes the object."""
        before = [self._poll(self._container(s.name)) for s in _initial(pod)]
        seen = [self._poll(self._container(s.name)) for s in pod.spec.containers]
        if any(each.state == "running" for each in (*before, *seen)):
            grace = pod.metadata.deletion_grace_period_seconds
            seconds = 30.0 if grace is None else float(grace)
            beside = {spec.name for spec in _sidecars(pod)}
            stopped = [c for c in containers.all_in(self._folder) if c.name not in beside]
            self._stop(stopped, seconds, _stop_signal(pod))
            return
        if not self._sidecars_ended(pod):
            status = _final(pod, seen, self._context.address, before)
            await self._write(pod, status | {"phase": pod.status.phase})
            self._stop_sidecars(pod, _left_to_end(pod))
            return
        if pod.status.phase not in ("Succeeded", "Failed"):
            await self._publish_progress(pod, last=True)
            await self._write(pod, _final(pod, seen, self._context.address, before))
        # Before the deletion: a reader that no longer finds the pod finds its archived log.
        await asyncio.to_thread(self._archive_logs)
        uid = interface.Preconditions(uid=pod.uid)
        try:
            await self._store.delete(
                core.Pod, pod.name, pod.namespace, grace_seconds=0, preconditions=uid
            )
        except (errors.NotFound, errors.Conflict):
            return

    async def _clean_up(self) -> bool:
        """Called after the object is deleted: kills the processes, then removes the folder.
        Returns True when both are done."""
        left = [self._container(each.name) for each in containers.all_in(self._folder)]
        if [container for container in left if self._poll(container).state == "running"]:
            self._stop(left, 0.0, "SIGKILL")
            return False
        await asyncio.to_thread(self._remove)
        return True

    def _archive_logs(self) -> None:
        record = procfs.read_json(self._folder / container_config.RECORD)
        if self._context.log_archive is not None and record is not None:
            logs = containers.logs_in(self._folder)
            self._context.log_archive.add(self._folder, record, logs)

    def _remove(self) -> None:
        self._archive_logs()
        groups = self._context.abilities.cgroups
        if groups is not None:
            for container in containers.all_in(self._folder):
                groups.group(containers.group_name(self._folder, container.name)).remove()
        if self._folder.exists():
            garbage_collection.scratch(self._folder)
            volumes.remove(self._folder)

    def _stop(self, running: list[Container], grace: float, signal_name: str) -> None:
        """Stops the containers, unless that was already done with the same or less grace."""
        if self._stop_sent is not None and grace >= self._stop_sent:
            return
        for container in running:
            container.stop(grace, signal_name)
        self._stop_sent = grace

    async def _write(self, pod: core.Pod, status: dict[str, Any]) -> None:
        compared = {key: status.get(key) for key in _COMPARED}
        if compared == self._written and pod.status.phase == status["phase"]:
            return
        try:
            await self._store.patch(
                core.Pod, pod.name, pod.namespace,
                patch={"metadata": {"uid": pod.uid}, "status": status}, subresource="status",
            )  # fmt: skip
        except (errors.NotFound, errors.Conflict):
            return  # deleted, or replaced by a pod of the same name: the watch delivers that
        self._written = compared

    async def _sleep(self, delay: float | None) -> None:
        """Returns when the pod has changed, one of its containers has ended, or after `delay`."""

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


def _is_sidecar(spec: core.Container) -> bool:
    return spec.restart_policy == "Always"


def _sidecars(pod: core.Pod) -> list[core.Container]:
    """The init containers that run beside the others, as long as those do."""
    return [spec for spec in pod.spec.init_containers or () if _is_sidecar(spec)]


def _initial(pod: core.Pod) -> list[core.Container]:
    """The init containers that end before the others start."""
    return [spec for spec in pod.spec.init_containers or () if not _is_sidecar(spec)]


def _was_killed(observed: Observed) -> bool:
    return observed.state == "ended" and observed.exit_code != 0


def _left_to_end(pod: core.Pod) -> float:
    """Seconds of a deleted pod's grace that are left for its sidecars; two at least, as kubelet
    gives them."""
    ends = times.parse(pod.metadata.deletion_timestamp or "")
    return max(_SHORTEST_SIDECAR, (ends - times.now()).total_seconds())


def _final(
    pod: core.Pod, seen: list[Observed], address: str, before: list[Observed]
) -> dict[str, Any]:
    """The last status of a pod that was stopped; a container that never ran counts as failed."""
    status = pod_status.build(pod, seen, address, times.now(), before)
    ended = bool(seen) and all(each.state == "ended" and each.exit_code == 0 for each in seen)
    return status | {"phase": "Succeeded" if ended else "Failed"}


def _stop_signal(pod: core.Pod) -> str:
    return (pod.metadata.annotations or {}).get(STOP_SIGNAL, "SIGTERM")


def _seconds_left(pod: core.Pod) -> float | None:
    """Seconds until the pod's active deadline; None if it has none or has not started."""
    limit, started = pod.spec.active_deadline_seconds, pod.status.start_time
    if limit is None or not started:
        return None
    return limit - (times.now() - times.parse(started)).total_seconds()


def _not_configured(observed: Observed, problem: Exception) -> Observed:
    """The state of a container that cannot start yet; one that ran before keeps its state."""
    if observed.state == "ended":
        return observed
    return dataclasses.replace(
        observed, state="waiting", reason="CreateContainerConfigError", message=str(problem)
    )


def _ended_late(pod: core.Pod, seen: Sequence[Observed]) -> bool:
    """Whether a container ended after the pod's deadline, and so because of it."""
    until = times.parse(pod.status.start_time or "") + datetime.timedelta(
        seconds=pod.spec.active_deadline_seconds or 0
    )
    return any(each.finished_at and times.parse(each.finished_at) > until for each in seen)
