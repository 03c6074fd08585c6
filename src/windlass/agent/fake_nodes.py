"""Nodes that are not there, for trying gangs, topology and quotas on a laptop.

`windlass up --fake-nodes 16 --gpus 8 --racks 4` starts one of these beside the agent. Its pods only
pretend: they are Running at once, for the seconds that the annotation `windlass.dev/pretend` says
(`30`, or `30:1` to fail), or that a command `sleep 30` would take, else until they are deleted.
Nothing is started on the machine, and everything it knows is in the API, so it can be killed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hmac
import logging
import signal
import sys
from pathlib import Path
from typing import Any

from aiohttp import web

from windlass.agent import http, node, podstatus
from windlass.agent.containers import Observed
from windlass.kinds import hostpods, kubernetes, times
from windlass.store import client, connect, errors
from windlass.store.kubernetes.access import KubeconfigError
from windlass.store.reflector import Change, Reflector

log = logging.getLogger("windlass.agent.fake")

_RETRY = 1.0
_WORDS = "pretended: this node is not there, nothing was started for: "
_WITHOUT_END = " (it goes on until it is stopped; pass -a windlass.dev/pretend=30 for 30 s)"


def plan(pod: kubernetes.Pod) -> tuple[float | None, int]:
    """(seconds that the pod pretends to run, its exit code); None: until it is deleted."""
    told = (pod.metadata.annotations or {}).get(hostpods.PRETEND, "")
    seconds, _, code = told.partition(":")
    if not told and pod.spec.containers:
        first = pod.spec.containers[0]
        words = [*(first.command or ()), *(first.args or ())]
        if len(words) == 2 and words[0].rpartition("/")[2] == "sleep":
            seconds = words[1]
    try:
        return max(0.0, float(seconds)), int(code or 0) & 255
    except ValueError:
        return None, 0


class Fakes:
    """Pretends for all its nodes at once."""

    def __init__(self, store: client.Store, names: list[str], address: str) -> None:
        self._store = store
        self._names = frozenset(names)
        self._address = address
        self._reflector = Reflector(store, kubernetes.Pod)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._wake: dict[str, asyncio.Event] = {}

    async def run(self) -> None:
        async with self._reflector, asyncio.TaskGroup() as group:
            await self._reflector.synced()
            self._reflector.add_handler(lambda *change: self._changed(group, *change))
            await asyncio.Event().wait()

    def find(self, uid: str) -> kubernetes.Pod | None:
        return next((pod for pod in self._reflector if pod.uid == uid), None)

    def _changed(
        self,
        group: asyncio.TaskGroup,
        _: Change,
        before: kubernetes.Pod | None,
        after: kubernetes.Pod | None,
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
                pod = self._reflector.get(name, namespace)
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

    async def _step(self, pod: kubernetes.Pod) -> float | None:
        """The one next thing; seconds until the next."""
        if pod.metadata.deletion_timestamp:
            if pod.status.phase in ("Pending", "Running"):
                await self._write(pod, ended=True, code=143)
            uid = client.Preconditions(uid=pod.uid)
            with contextlib.suppress(errors.NotFound, errors.Conflict):
                await self._store.delete(
                    kubernetes.Pod, pod.name, pod.namespace, grace_seconds=0, preconditions=uid
                )
            return None
        if pod.status.phase in ("Succeeded", "Failed"):
            return None
        seconds, code = plan(pod)
        if pod.status.phase != "Running":
            await self._write(pod, ended=False, code=0)
            return seconds
        begun = times.parse(pod.status.start_time or times.seconds(times.now()))
        left = None if seconds is None else seconds - (times.now() - begun).total_seconds()
        if left is not None and left <= 0:
            await self._write(pod, ended=True, code=code)
            return None
        return left

    async def _write(self, pod: kubernetes.Pod, *, ended: bool, code: int) -> None:
        now = times.now()
        begun = pod.status.start_time or times.seconds(now)
        reason = ("Completed" if code == 0 else "Error") if ended else ""
        seen = [
            Observed(
                container.name, "ended" if ended else "running", 0, begun, times.micros(now), code,
                reason=reason, message="pretended" if ended else "",
            )
            for container in pod.spec.containers
        ]  # fmt: skip
        status: dict[str, Any] = podstatus.build(pod, seen, self._address, now)
        if ended:
            status["phase"] = "Succeeded" if code == 0 else "Failed"
        with contextlib.suppress(errors.NotFound, errors.Conflict):
            await self._store.patch(
                kubernetes.Pod, pod.name, pod.namespace,
                patch={"metadata": {"uid": pod.uid}, "status": status}, subresource="status",
            )  # fmt: skip


class _Words:
    """The log of a pod that pretends: one line, and the end of it when it ends."""

    def __init__(self, fakes: Fakes, secret: str) -> None:
        self._fakes = fakes
        self._secret = secret

    async def answer(self, request: web.Request) -> web.StreamResponse:
        given = request.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {self._secret}".encode()):
            raise web.HTTPUnauthorized(text="the agent's secret is missing or wrong")
        uid = request.match_info["uid"]
        pod = self._fakes.find(uid)
        if pod is None:
            raise web.HTTPNotFound(text="the pod is not on this node")
        words = [
            " ".join([*(container.command or ()), *(container.args or ())])
            for container in pod.spec.containers
        ]
        response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8"})
        await response.prepare(request)
        moment = f"{pod.status.start_time} " if request.query.get("timestamps") == "true" else ""
        end = _WITHOUT_END if plan(pod)[0] is None else ""
        await response.write(f"{moment}{_WORDS}{'; '.join(words)}{end}\n".encode())
        while request.query.get("follow") == "true" and pod is not None:
            if pod.status.phase in ("Succeeded", "Failed"):
                break
            await asyncio.sleep(0.1)
            pod = self._fakes.find(uid)
        await response.write_eof()
        return response


def nodes_of(count: int, gpus: int, racks: int, model: str) -> dict[str, node.Pretended]:
    """Name -> what it pretends to have; neighbours share a rack."""
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "1000"}
    labels = {"windlass.dev/fake": "true"}
    if gpus:
        amounts["windlass.dev/gpu"] = str(gpus)
        labels["windlass.dev/gpu-model"] = model
    width = len(str(max(0, count - 1)))
    return {
        f"fake-{number:0{width}}": node.Pretended(
            amounts, {**labels, "windlass.dev/rack": f"rack-{number * racks // count}"}
        )
        for number in range(count)
    }


async def serve(options: argparse.Namespace) -> None:
    """Until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    wanted = nodes_of(options.nodes, options.gpus, options.racks, options.model)
    store = connect.open_store(options.kubeconfig)
    fakes = Fakes(store, list(wanted), "127.0.0.1")
    app = web.Application()
    words = _Words(fakes, http.ensure_secret(options.state))
    app.router.add_get("/logs/{uid}/{container}", words.answer)
    runner = web.AppRunner(app, shutdown_timeout=1.0, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        async with contextlib.AsyncExitStack() as stack:
            for name, pretended in wanted.items():
                heart = node.Heart(store, name, "127.0.0.1", port, None, pretended)
                await stack.enter_async_context(heart.beating())
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
    parser = argparse.ArgumentParser(prog="python -m windlass.agent.fake", description=__doc__)
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
        print(f"windlass.agent.fake: {problem}", file=sys.stderr)  # noqa: T201 - for people
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
