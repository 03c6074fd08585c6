"""The agent on a node of Kubernetes: `python -m windlass.agent cluster --node NAME`.

Kubelet runs the pods. This keeps what kubelet does not: the logs of Runs' pods beyond the pods
(`agent.held`), which devices they got (`agent.granted`), what jobs say of their progress, and what
node and pods use (`agent.reporting`), with the same code as when embedded. It is a DaemonSet; all
that it holds lies on the node, so it may be killed at any moment.
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

from windlass.agent import changes, endings, granted, held, podgroups, progress, reporting
from windlass.kinds import hostpods, kubernetes, run
from windlass.store import connect, errors
from windlass.store.kubernetes.access import KubeconfigError
from windlass.store.kubernetes.client import KubernetesStore
from windlass.store.reflector import Change, Reflector

log = logging.getLogger("windlass.agent")

_LOOK = 1.0
"""Seconds between two looks at logs that grow: kubelet rotates no sooner than every ten."""
_GATHER = 0.05
"""Seconds in which changes of a folder are one."""
_SEND = 0.5
"""Seconds between two looks for logs to send: whoever misses the pod asks the server."""
_RETRY = 5.0
_ENDED = ("Succeeded", "Failed")
_PLATFORM = "/apis/platform.windlass.dev/v1alpha1"
_GONE = (404, 409)
"""The Run is gone, or is another one by now: nobody will ask for its logs."""


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
        help="where logs are held; in the same mount as --logs (default %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--kubelet", type=Path, default=Path("/var/lib/kubelet"),
        help="kubelet's folder (default %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--cgroups", type=Path, default=Path("/sys/fs/cgroup"),
        help="the machine's, where kubelet's groups are (default %(default)s)",
    )  # fmt: skip
    parser.add_argument("--ready", type=Path, help="a file that is made when it knows its pods")
    options = parser.parse_args(argv)
    if not options.node:
        parser.error("--node NAME, or the variable NODE_NAME, must say which node this is")
    return options


async def _serve(options: argparse.Namespace) -> None:
    """Until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    options.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    store = connect.open_store(options.kubeconfig)
    logs = held.Held(options.state, options.logs)
    agent = Agent(store, options.node, logs, options.kubelet, options.ready)
    meter = podgroups.PodMeter(options.node, options.cgroups, options.logs)
    reports = reporting.Reports(store, options.node, meter)
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


async def _all(agent: Agent, reports: reporting.Reports) -> None:
    async with asyncio.TaskGroup() as both:
        both.create_task(agent.run())
        both.create_task(reports.run())


class Agent:
    def __init__(
        self,
        store: KubernetesStore,
        node: str,
        logs: held.Held,
        kubelet: Path,
        ready: Path | None = None,
    ) -> None:
        """`kubelet`: its folder. `ready`: a file that says that it works."""
        self._ready = ready
        self._store = store
        self._logs = logs
        self._devices = granted.Devices(kubelet / granted.SOCKET, store)
        self._folder = kubelet / "pods"
        """Where kubelet has the volumes of pods."""
        self._pods = Reflector(
            store,
            kubernetes.Pod,
            label_selector=run.LABEL_RUN,
            field_selector=f"spec.nodeName={node}",
            on_event=self._see,
        )
        self._woken = asyncio.Event()
        self._leaving: list[kubernetes.Pod] = []
        """Pods that are gone since the last round: their logs may still be there."""
        self._jobs: dict[str, asyncio.Task[None]] = {}
        """By uid of a pod: who looks at what its job writes."""
        self._later: dict[Path, float] = {}
        """Entries that could not be sent, and when to try again."""

    async def run(self) -> None:
        """Until cancelled."""
        noticing = changes.Changes()
        try:
            async with self._pods:
                await self._pods.synced()
                log.info("watches %d pods of runs", len(self._pods))
                if self._ready is not None:
                    self._ready.touch()
                async with asyncio.TaskGroup() as all_of_it:
                    all_of_it.create_task(self._look_for_ever(noticing))
                    all_of_it.create_task(self._send_for_ever())
                    all_of_it.create_task(self._grant_for_ever())
        finally:
            for task in self._jobs.values():
                task.cancel()
            await asyncio.gather(*self._jobs.values(), return_exceptions=True)
            noticing.close()

    async def _look_for_ever(self, noticing: changes.Changes) -> None:
        while True:
            self._woken.clear()
            await self._round(noticing)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK):
                    await self._woken.wait()

    def _see(self, change: Change, before: kubernetes.Pod | None, _: kubernetes.Pod | None) -> None:
        if change == "DELETED" and before is not None:
            self._leaving.append(before)
        self._woken.set()

    async def _round(self, noticing: changes.Changes) -> None:
        """Logs first: kubelet removes them soon after the pod."""
        leaving, self._leaving = self._leaving, []
        pods = list(self._pods)
        await asyncio.to_thread(self._hold, [*leaving, *pods])
        here = {pod.uid for pod in pods}
        for uid in here - self._jobs.keys():
            self._jobs[uid] = asyncio.create_task(self._follow(uid, noticing))
        for uid in self._jobs.keys() - here:
            self._jobs.pop(uid).cancel()

    async def _grant_for_ever(self) -> None:
        """Beside the rounds: they hold logs, whether or not the API server answers."""
        while True:
            await self._devices.look(list(self._pods))
            await asyncio.sleep(_LOOK)

    def _hold(self, pods: list[kubernetes.Pod]) -> None:
        for pod in pods:
            try:
                self._logs.hold(pod)
            except OSError as problem:
                log.warning("the logs of pod %s are not held: %s", pod.name, problem)

    # --- logs of pods that are gone

    async def _send_for_ever(self) -> None:
        """Beside the rounds: a server that is slow or away keeps no log from being held."""
        while True:
            here = {pod.uid for pod in (*self._pods, *self._leaving)}
            for entry in await asyncio.to_thread(self._logs.entries):
                if entry.record["uid"] not in here:
                    await self._send(entry)
            await asyncio.sleep(_SEND)

    async def _send(self, entry: held.Entry) -> None:
        """Hands what is held to the server and lets go of it when that has it."""
        if self._later.get(entry.folder, 0.0) > time.monotonic():
            return
        try:
            status = await self._upload(entry)
        except errors.ApiError as problem:
            status, words = 503, problem.message
        else:
            words = f"the server answered {status}"
        if status < 300 or status in _GONE:
            what = "sent to the server" if status < 300 else f"let go: {words}"
            log.info("the log of pod %s is %s", entry.record["pod"], what)
            await asyncio.to_thread(entry.drop)
            self._later.pop(entry.folder, None)
            return
        log.warning("the log of pod %s cannot be sent yet: %s", entry.record["pod"], words)
        self._later[entry.folder] = time.monotonic() + _RETRY

    async def _upload(self, entry: held.Entry) -> int:
        told = dict(entry.record)
        namespace, name = told.pop("namespace"), told.pop("runName")
        base = "/".join(
            (_PLATFORM, "namespaces", namespace, "runs", urllib.parse.quote(name), "logs",
             entry.folder.name)
        )  # fmt: skip
        owner = (("run", told["run"]),)
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
        told |= {"keptAt": entry.at, "bytes": total}
        status, _, _ = await self._store.raw(
            "PUT", base, body=json.dumps(told).encode(), query=owner
        )
        return status

    async def _follow(self, uid: str, noticing: changes.Changes) -> None:
        await asyncio.gather(self._carry_progress(uid, noticing), self._watch_shared_memory(uid))

    # --- shared memory

    async def _watch_shared_memory(self, uid: str) -> None:
        """Says on the pod that its /dev/shm was full: its controller reads that when it fails."""
        folder = self._folder / uid / "volumes" / "kubernetes.io~empty-dir" / "shm"
        shm = endings.SharedMemory({"size": 0, "path": str(folder), "private": True})
        while (pod := self._pod(uid)) and pod.status.phase not in _ENDED:
            shm.look()
            full = hostpods.SHARED_MEMORY_FULL
            if shm.was_full and await self._annotate(pod, full, "true"):
                return
            await asyncio.sleep(shm.interval or _LOOK)

    # --- progress

    async def _carry_progress(self, uid: str, noticing: changes.Changes) -> None:
        """What the job writes into the pod's annotation: noticed at once, because kubelet removes
        the file soon after the pod's end; written not too often."""
        folder = self._folder / uid / "volumes" / "kubernetes.io~empty-dir" / "run"
        while not folder.is_dir():
            pod = self._pod(uid)
            if pod is None or pod.status.phase in _ENDED:
                return
            await asyncio.sleep(_LOOK)
        told = written = sent = ""
        due = 0.0
        writing: asyncio.Task[bool] | None = None
        with noticing.watching(folder) as watch:
            try:
                while pod := self._pod(uid):
                    watch.clear()
                    told = progress.read(str(folder / "progress.json"), _user(pod)) or told
                    over = pod.status.phase in _ENDED
                    if writing is not None and writing.done():
                        if writing.result():
                            written, due = sent, time.monotonic() + progress.EVERY
                        writing = None
                    if over and told == written:
                        return
                    timely = over or time.monotonic() >= due
                    if writing is None and told != written and timely:
                        sent = told
                        # Beside the reading: an API server that is away keeps nothing unread.
                        write = self._annotate(pod, hostpods.PROGRESS, told)
                        writing = asyncio.create_task(write)
                        writing.add_done_callback(lambda _: watch.wake())
                    await watch.wait()
                    await asyncio.sleep(_GATHER)
            finally:
                if writing is not None:
                    writing.cancel()

    def _pod(self, uid: str) -> kubernetes.Pod | None:
        """As it is now; None when it is gone."""
        return next((pod for pod in self._pods if pod.uid == uid), None)

    async def _annotate(self, pod: kubernetes.Pod, name: str, told: str) -> bool:
        patch = {"metadata": {"uid": pod.uid, "annotations": {name: told}}}
        try:
            await self._store.patch(kubernetes.Pod, pod.name, pod.namespace, patch=patch)
        except (errors.NotFound, errors.Conflict):
            return True  # gone, or another one of its name
        except errors.ApiError as problem:
            log.warning("%s of pod %s cannot be written: %s", name, pod.name, problem.message)
            return False
        return True


def _user(pod: kubernetes.Pod) -> int | None:
    """Whom the pod's processes run as, if it says so."""
    found = (pod.spec.security_context or {}).get("runAsUser")
    return found if isinstance(found, int) else None
