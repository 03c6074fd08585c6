"""The agent on a node of Kubernetes: `python -m windlass.agent cluster --node NAME`.

Kubelet runs the pods. The agent does what kubelet does not: it archives the logs of Runs' pods
(`agent.daemonset.kubelet_log_archive`), records the devices of each pod
(`agent.daemonset.pod_resources`), publishes the progress of jobs, and sends the usage of node and
pods (`agent.metrics.push`). It runs as a DaemonSet. All of its state is on the node's disk, so it
may be killed at any moment.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import time
import urllib.parse
from pathlib import Path

from windlass.agent.daemonset import kubelet_log_archive, pod_resources
from windlass.agent.metrics import kubelet_cgroups, push
from windlass.agent.pods import progress
from windlass.agent.runtime import exit_status
from windlass.kinds.annotations import PROGRESS, SHARED_MEMORY_FULL
from windlass.kinds.types import core, run
from windlass.podlogs import inotify
from windlass.store import connect, errors
from windlass.store.informer import Change, Informer
from windlass.store.kubernetes.client import KubernetesStore
from windlass.store.kubernetes.config.model import KubeconfigError

log = logging.getLogger("windlass.agent")

_INTERVAL = 1.0
"""Seconds between two rounds over the logs: kubelet rotates at most every ten seconds."""
_GATHER = 0.05
"""Seconds within which changes of a folder are handled together."""
_SEND = 0.5
"""Seconds between two checks for logs to send: once a pod is deleted, readers ask the server."""
_RETRY = 5.0
_ENDED = ("Succeeded", "Failed")
_PLATFORM = "/apis/platform.windlass.dev/v1alpha1"
_GONE = (404, 409)
"""The Run is deleted, or another Run has its name: its logs are not needed any more."""
_REFUSED_SECONDS = 86400.0
"""A log that the server still refuses after this time is discarded."""


def main(argv: list[str]) -> int:
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        asyncio.run(_serve(_parse(argv)))
    except (KubeconfigError, OSError) as problem:
        print(f"windlass.agent: {problem}", file=sys.stderr)  # noqa: T201 - for people
        return 1
    return 0


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m windlass.agent cluster", description=__doc__)
    parser.add_argument("--node", default=os.environ.get("NODE_NAME"), help="default: $NODE_NAME")
    parser.add_argument("--kubeconfig", help="default: the pod's service account")
    parser.add_argument(
        "--logs", type=Path, default=Path("/var/log/pods"), help="kubelet's (default %(default)s)"
    )
    parser.add_argument(
        "--state", type=Path, default=Path("/var/log/windlass"),
        help="folder of the log archive; in the same mount as --logs (default %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--kubelet", type=Path, default=Path("/var/lib/kubelet"),
        help="kubelet's folder (default %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--cgroups", type=Path, default=Path("/sys/fs/cgroup"),
        help="the machine's cgroup file system (default %(default)s)",
    )  # fmt: skip
    parser.add_argument("--ready", type=Path, help="file to create when the pods are listed")
    options = parser.parse_args(argv)
    if not options.node:
        parser.error("the node's name is missing: pass --node NAME or set NODE_NAME")
    return options


async def _serve(options: argparse.Namespace) -> None:
    """Runs until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    options.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    store = connect.open_store(options.kubeconfig)
    logs = kubelet_log_archive.KubeletLogArchive(options.state, options.logs)
    agent = DaemonSetAgent(store, options.node, logs, options.kubelet, options.ready)
    meter = kubelet_cgroups.PodMeter(options.node, options.cgroups, options.logs)
    reports = push.MetricsPush(store, options.node, meter)
    working = asyncio.create_task(_all(agent, reports))
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        for task in (working, stopping):
            task.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)
        await store.close()


async def _all(agent: DaemonSetAgent, reports: push.MetricsPush) -> None:
    async with asyncio.TaskGroup() as both:
        both.create_task(agent.run())
        both.create_task(reports.run())


class DaemonSetAgent:
    def __init__(
        self,
        store: KubernetesStore,
        node: str,
        logs: kubelet_log_archive.KubeletLogArchive,
        kubelet: Path,
        ready: Path | None = None,
    ) -> None:
        """`kubelet`: kubelet's folder. `ready`: a file to create when the pods are listed."""
        self._ready = ready
        self._store = store
        self._logs = logs
        self._devices = pod_resources.DeviceRecorder(kubelet / pod_resources.SOCKET, store)
        self._folder = kubelet / "pods"
        """Kubelet's folder with the volumes of pods."""
        self._pods = Informer(
            store,
            core.Pod,
            label_selector=run.LABEL_RUN,
            field_selector=f"spec.nodeName={node}",
            on_event=self._on_event,
        )
        self._woken = asyncio.Event()
        self._leaving: list[core.Pod] = []
        """Pods that were deleted since the last round: their logs may still exist."""
        self._jobs: dict[str, asyncio.Task[None]] = {}
        """Uid of a pod -> the task that follows the files its job writes."""
        self._later: dict[Path, float] = {}
        """Entries that could not be sent -> time of the next try."""

    async def run(self) -> None:
        """Runs until cancelled."""
        folders = inotify.Inotify()
        try:
            async with self._pods:
                await self._pods.synced()
                log.info("watching %d pods of runs", len(self._pods))
                if self._ready is not None:
                    self._ready.touch()
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._archive_forever(folders))
                    tasks.create_task(self._send_forever())
                    tasks.create_task(self._record_devices_forever())
        finally:
            for task in self._jobs.values():
                task.cancel()
            await asyncio.gather(*self._jobs.values(), return_exceptions=True)
            folders.close()

    async def _archive_forever(self, folders: inotify.Inotify) -> None:
        while True:
            self._woken.clear()
            await self._round(folders)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_INTERVAL):
                    await self._woken.wait()

    def _on_event(self, change: Change, before: core.Pod | None, _: core.Pod | None) -> None:
        if change == "DELETED" and before is not None:
            self._leaving.append(before)
        self._woken.set()

    async def _round(self, folders: inotify.Inotify) -> None:
        """Links logs, then starts and stops the tasks of pods. Logs come first: kubelet removes
        them soon after the pod."""
        leaving, self._leaving = self._leaving, []
        pods = list(self._pods)
        await asyncio.to_thread(self._link_logs, [*leaving, *pods])
        here = {pod.uid for pod in pods}
        for uid in here - self._jobs.keys():
            self._jobs[uid] = asyncio.create_task(self._follow(uid, folders))
        for uid in self._jobs.keys() - here:
            self._jobs.pop(uid).cancel()

    async def _record_devices_forever(self) -> None:
        """A task of its own: linking logs must not wait for the API server."""
        while True:
            await self._devices.update(list(self._pods))
            await asyncio.sleep(_INTERVAL)

    def _link_logs(self, pods: list[core.Pod]) -> None:
        for pod in pods:
            try:
                self._logs.link(pod)
            except OSError as problem:
                log.warning("the logs of pod %s are not archived: %s", pod.name, problem)

    # --- logs of deleted pods

    async def _send_forever(self) -> None:
        """A task of its own: linking logs must not wait for a slow or unreachable server."""
        while True:
            here = {pod.uid for pod in (*self._pods, *self._leaving)}
            for entry in await asyncio.to_thread(self._logs.entries):
                if entry.record["uid"] not in here:
                    await self._send(entry)
            await asyncio.sleep(_SEND)

    async def _send(self, entry: kubelet_log_archive.ArchivedPod) -> None:
        """Sends an entry to the server and deletes it when the server has it."""
        if self._later.get(entry.folder, 0.0) > time.monotonic():
            return
        try:
            status = await self._upload(entry)
        except errors.ApiError as problem:
            status, detail = 503, problem.message
        else:
            detail = f"the server answered {status}"
        expired = status == 403 and await asyncio.to_thread(entry.age) > _REFUSED_SECONDS
        if status < 300 or status in _GONE or expired:
            what = "sent to the server" if status < 300 else f"discarded: {detail}"
            log.info("the log of pod %s is %s", entry.record["pod"], what)
            await asyncio.to_thread(entry.drop)
            self._later.pop(entry.folder, None)
            return
        pod = entry.record["pod"]
        log.warning("the log of pod %s is not sent, retry in %g s: %s", pod, _RETRY, detail)
        self._later[entry.folder] = time.monotonic() + _RETRY

    async def _upload(self, entry: kubelet_log_archive.ArchivedPod) -> int:
        """Sends the segments, then the record; returns the first HTTP status that is no success,
        else that of the record."""
        record = dict(entry.record)
        namespace, name = record.pop("namespace"), record.pop("runName")
        base = "/".join(
            (_PLATFORM, "namespaces", namespace, "runs", urllib.parse.quote(name), "logs",
             entry.folder.name)
        )  # fmt: skip
        owner = (("run", record["run"]),)
        total = 0
        for container, number, path in entry.segments:
            data = await asyncio.to_thread(path.read_bytes)
            total += len(data)
            status, _, _ = await self._store.raw(
                "PUT", f"{base}/{container}/{number}", body=data, query=owner,
                content_type="application/octet-stream",
            )  # fmt: skip
            if status >= 300:
                return status
        record |= {"keptAt": entry.at, "bytes": total}
        status, _, _ = await self._store.raw(
            "PUT", base, body=json.dumps(record).encode(), query=owner
        )
        return status

    async def _follow(self, uid: str, folders: inotify.Inotify) -> None:
        await asyncio.gather(self._publish_progress(uid, folders), self._watch_shared_memory(uid))

    # --- shared memory

    async def _watch_shared_memory(self, uid: str) -> None:
        """Annotates the pod when its /dev/shm was full: the run controller reads that if the pod
        fails."""
        folder = self._folder / uid / "volumes" / "kubernetes.io~empty-dir" / "shm"
        shm = exit_status.SharedMemory({"size": 0, "path": str(folder), "private": True})
        while (pod := self._pod(uid)) and pod.status.phase not in _ENDED:
            shm.sample()
            full = SHARED_MEMORY_FULL
            if shm.was_full and await self._annotate(pod, full, "true"):
                return
            await asyncio.sleep(shm.interval or _INTERVAL)

    # --- progress

    async def _publish_progress(self, uid: str, folders: inotify.Inotify) -> None:
        """Copies the job's progress file into the pod's annotation. The file is read at once,
        because kubelet removes it soon after the pod's end; the annotation is written at a limited
        rate."""
        folder = self._folder / uid / "volumes" / "kubernetes.io~empty-dir" / "run"
        while not folder.is_dir():
            pod = self._pod(uid)
            if pod is None or pod.status.phase in _ENDED:
                return
            await asyncio.sleep(_INTERVAL)
        report = written = sent = ""
        due = 0.0
        writing: asyncio.Task[bool] | None = None
        with folders.watching(folder) as watch:
            try:
                while pod := self._pod(uid):
                    watch.clear()
                    report = progress.read(str(folder / "progress.json"), _user(pod)) or report
                    over = pod.status.phase in _ENDED
                    if writing is not None and writing.done():
                        if writing.result():
                            written, due = sent, time.monotonic() + progress.EVERY
                        writing = None
                    if over and report == written:
                        return
                    timely = over or time.monotonic() >= due
                    if writing is None and report != written and timely:
                        sent = report
                        # A task of its own: reading must not wait for the API server.
                        write = self._annotate(pod, PROGRESS, report)
                        writing = asyncio.create_task(write)
                        writing.add_done_callback(lambda _: watch.wake())
                    await watch.wait()
                    await asyncio.sleep(_GATHER)
            finally:
                if writing is not None:
                    writing.cancel()

    def _pod(self, uid: str) -> core.Pod | None:
        """The pod from the informer; None when it is deleted."""
        return next((pod for pod in self._pods if pod.uid == uid), None)

    async def _annotate(self, pod: core.Pod, name: str, value: str) -> bool:
        """Writes an annotation; returns False if it must be tried again."""
        patch = {"metadata": {"uid": pod.uid, "annotations": {name: value}}}
        try:
            await self._store.patch(core.Pod, pod.name, pod.namespace, patch=patch)
        except (errors.NotFound, errors.Conflict):
            return True  # deleted, or replaced by a pod of the same name
        except errors.ApiError as problem:
            log.warning("annotation %s of pod %s is not written, it is tried again: %s",
                        name, pod.name, problem.message)  # fmt: skip
            return False
        return True


def _user(pod: core.Pod) -> int | None:
    """The user id of the pod's processes, if its spec sets one."""
    found = (pod.spec.security_context or {}).get("runAsUser")
    return found if isinstance(found, int) else None
