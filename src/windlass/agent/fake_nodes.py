"""Fake nodes, to try gangs, topology and quotas on a laptop.

`windlass up --fake-nodes 16 --gpus 8 --racks 4` starts this process beside the agent. It starts no
containers: a pod is Running at once and ends after the seconds in the annotation
`windlass.dev/pretend` (`30`, or `30:1` for exit code 1) or of a command `sleep 30`, else when it is
deleted. All state is in the API, so the process may be killed at any moment.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
import sys
from pathlib import Path
from typing import Any

from aiohttp import web

from windlass.agent.api import server, unix_socket
from windlass.agent.node import registration
from windlass.agent.pods import pod_status
from windlass.agent.runtime.containers import Observed
from windlass.kinds.annotations import PRETEND
from windlass.kinds.types import core
from windlass.kinds.values import times
from windlass.store import connect, errors, interface
from windlass.store.informer import Change, Informer
from windlass.store.kubernetes.config.model import KubeconfigError

log = logging.getLogger("windlass.agent.fake_nodes")

_RETRY = 1.0
_LOG = "pretended: this is a fake node, nothing was started for: "
_WITHOUT_END = " (it runs until it is deleted; pass -a windlass.dev/pretend=30 for 30 s)"


def plan(pod: core.Pod) -> tuple[float | None, int]:
    """Run time in seconds and exit code of a pod; None: it runs until it is deleted."""
    annotation = (pod.metadata.annotations or {}).get(PRETEND, "")
    seconds, _, code = annotation.partition(":")
    if not annotation and pod.spec.containers:
        first = pod.spec.containers[0]
        argv = [*(first.command or ()), *(first.args or ())]
        if len(argv) == 2 and argv[0].rpartition("/")[2] == "sleep":
            seconds = argv[1]
    try:
        return max(0.0, float(seconds)), int(code or 0) & 255
    except ValueError:
        return None, 0


class FakePods:
    """Writes the status of the pods of all fake nodes."""

    def __init__(self, store: interface.Store, names: list[str], address: str) -> None:
        self._store = store
        self._names = frozenset(names)
        self._address = address
        self._informer = Informer(store, core.Pod)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._wake: dict[str, asyncio.Event] = {}

    async def run(self) -> None:
        async with self._informer, asyncio.TaskGroup() as group:
            await self._informer.synced()
            self._informer.add_handler(lambda *change: self._changed(group, *change))
            await asyncio.Event().wait()

    def find(self, uid: str) -> core.Pod | None:
        return next((pod for pod in self._informer if pod.uid == uid), None)

    def _changed(
        self,
        group: asyncio.TaskGroup,
        _: Change,
        before: core.Pod | None,
        after: core.Pod | None,
    ) -> None:
        pod = after or before
        if pod is None or pod.spec.node_name not in self._names:
            return
        if pod.uid in self._wake:
            self._wake[pod.uid].set()
        elif after is not None:
            self._wake[pod.uid] = asyncio.Event()
            group.create_task(self._drive(pod.uid, pod.name, pod.namespace))

    async def _drive(self, uid: str, name: str, namespace: str) -> None:
        wake = self._wake[uid]
        try:
            while True:
                wake.clear()
                pod = self._informer.get(name, namespace)
                if pod is None or pod.uid != uid:
                    return
                try:
                    delay = await self._step(pod)
                except errors.ApiError as problem:
                    log.warning("pod %s/%s: %s", namespace, name, problem.message)
                    delay = _RETRY
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(delay):
                        await wake.wait()
        finally:
            del self._wake[uid]

    async def _step(self, pod: core.Pod) -> float | None:
        """Does the next step of a pod; returns the seconds until the one after it."""
        if pod.metadata.deletion_timestamp:
            if pod.status.phase in ("Pending", "Running"):
                await self._write(pod, ended=True, code=143)
            uid = interface.Preconditions(uid=pod.uid)
            with contextlib.suppress(errors.NotFound, errors.Conflict):
                await self._store.delete(
                    core.Pod, pod.name, pod.namespace, grace_seconds=0, preconditions=uid
                )
            return None
        if pod.status.phase in ("Succeeded", "Failed"):
            return None
        seconds, code = plan(pod)
        if pod.status.phase != "Running":
            await self._write(pod, ended=False, code=0)
            return seconds
        started = times.parse(pod.status.start_time or times.seconds(times.now()))
        left = None if seconds is None else seconds - (times.now() - started).total_seconds()
        if left is not None and left <= 0:
            await self._write(pod, ended=True, code=code)
            return None
        return left

    async def _write(self, pod: core.Pod, *, ended: bool, code: int) -> None:
        now = times.now()
        started = pod.status.start_time or times.seconds(now)
        reason = ("Completed" if code == 0 else "Error") if ended else ""
        seen = [
            Observed(
                container.name, "ended" if ended else "running", 0, started, times.micros(now),
                code, reason=reason, message="pretended" if ended else "",
            )
            for container in pod.spec.containers
        ]  # fmt: skip
        status: dict[str, Any] = pod_status.build(pod, seen, self._address, now)
        if ended:
            status["phase"] = "Succeeded" if code == 0 else "Failed"
        with contextlib.suppress(errors.NotFound, errors.Conflict):
            await self._store.patch(
                core.Pod, pod.name, pod.namespace,
                patch={"metadata": {"uid": pod.uid}, "status": status}, subresource="status",
            )  # fmt: skip


class _LogEndpoint:
    """Serves the log of a fake pod: one line, and the end of the log when the pod ends."""

    def __init__(self, fakes: FakePods) -> None:
        self._fakes = fakes

    async def answer(self, request: web.Request) -> web.StreamResponse:
        uid = request.match_info["uid"]
        pod = self._fakes.find(uid)
        if pod is None:
            raise web.HTTPNotFound(text="the pod is not on this node")
        commands = [
            " ".join([*(container.command or ()), *(container.args or ())])
            for container in pod.spec.containers
        ]
        response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8"})
        await response.prepare(request)
        moment = f"{pod.status.start_time} " if request.query.get("timestamps") == "true" else ""
        end = _WITHOUT_END if plan(pod)[0] is None else ""
        await response.write(f"{moment}{_LOG}{'; '.join(commands)}{end}\n".encode())
        while request.query.get("follow") == "true" and pod is not None:
            if pod.status.phase in ("Succeeded", "Failed"):
                break
            await asyncio.sleep(0.1)
            pod = self._fakes.find(uid)
        await response.write_eof()
        return response


def nodes_of(count: int, gpus: int, racks: int, model: str) -> dict[str, registration.FakeCapacity]:
    """Node name -> its capacity and labels; adjacent nodes share a rack."""
    amounts = {"cpu": "64", "memory": "512Gi", "ephemeral-storage": "2Ti", "pods": "1000"}
    labels = {"windlass.dev/fake": "true"}
    if gpus:
        amounts["windlass.dev/gpu"] = str(gpus)
        labels["windlass.dev/gpu-model"] = model
    width = len(str(max(0, count - 1)))
    return {
        f"fake-{number:0{width}}": registration.FakeCapacity(
            amounts, {**labels, "windlass.dev/rack": f"rack-{number * racks // count}"}
        )
        for number in range(count)
    }


async def serve(options: argparse.Namespace) -> None:
    """Runs until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    wanted = nodes_of(options.nodes, options.gpus, options.racks, options.model)
    store = connect.open_store(options.kubeconfig)
    fakes = FakePods(store, list(wanted), "127.0.0.1")
    app = web.Application()
    logs = _LogEndpoint(fakes)
    app.router.add_get("/logs/{uid}/{container}", server.own_user_only(logs.answer))
    runner = web.AppRunner(app, shutdown_timeout=1.0, access_log=None)
    await runner.setup()
    try:
        async with contextlib.AsyncExitStack() as stack:
            listener = stack.enter_context(unix_socket.listening(options.state, list(wanted)))
            await web.SockSite(runner, listener).start()
            for name, capacity in wanted.items():
                node = registration.NodeHeartbeat(store, name, "127.0.0.1", None, capacity)
                await stack.enter_async_context(node.running())
            working = asyncio.create_task(fakes.run())
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            working.cancel()
            await asyncio.gather(working, stopping, return_exceptions=True)
    finally:
        await runner.cleanup()
        await store.close()


def main(argv: list[str] | None = None) -> int:
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    parser = argparse.ArgumentParser(
        prog="python -m windlass.agent.fake_nodes", description=__doc__
    )
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--state", type=Path, required=True, help="the agent's state folder")
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--gpus", type=int, default=0, help="of each node")
    parser.add_argument("--racks", type=int, default=1)
    parser.add_argument("--model", default="a100", help="of the GPUs")
    options = parser.parse_args(argv)
    options.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        asyncio.run(serve(options))
    except KubeconfigError as problem:
        print(f"windlass.agent.fake_nodes: {problem}", file=sys.stderr)  # noqa: T201 - for people
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
