"""The agent process: `python -m windlass.agent --kubeconfig FILE --state DIR`.

Runs the pods of one node as processes. Stopping or killing it stops no pod.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import logging
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from windlass.agent.api import server, unix_socket
from windlass.agent.metrics import usage
from windlass.agent.node import inventory, privileges, registration, single_tenant
from windlass.agent.pods import garbage_collection, pod_tokens, worker
from windlass.agent.runtime import job_limits, zygote
from windlass.podlogs import archive
from windlass.store import connect
from windlass.store.kubernetes.client import KubernetesStore
from windlass.store.kubernetes.config.model import KubeconfigError

log = logging.getLogger("windlass.agent")

ADDRESS = "127.0.0.1"
"""IP address of the node and of its pods, which share the machine's network."""


def main(argv: list[str] | None = None) -> int:
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    options = _parse(argv)
    state = options.state.expanduser().resolve()
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (state / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return _refuse(f"another agent uses {state}; stop it first or choose --state DIR")
        try:
            abilities = privileges.find(state, options.isolation)
            if abilities.cgroups is not None:
                abilities.cgroups.limit_all(job_limits.all_containers())
            asyncio.run(_serve(options, state, abilities))
        except (KubeconfigError, PermissionError) as problem:
            return _refuse(str(problem))
    return 0


def _refuse(why: str) -> int:
    print(f"windlass.agent: {why}", file=sys.stderr)  # noqa: T201 - for people
    return 1


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m windlass.agent", description=__doc__)
    parser.add_argument("--kubeconfig", required=True, help="how to reach the API server")
    parser.add_argument("--state", type=Path, required=True, help="folder for pods and logs")
    parser.add_argument("--node", default=inventory.node_name(), help="default: the host's name")
    parser.add_argument(
        "--isolation", choices=("auto", "user", "process"), default="auto",
        help="a user id of its own for each namespace: if possible, always, never",
    )  # fmt: skip
    parser.add_argument(
        "--host-mounts", action="append", default=[], metavar="DIR",
        help="a folder of the machine that isolated pods may mount; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--job-limit", action="append", default=[], metavar="NAME=VALUE",
        help="processes=N, files=N or disk=SIZE of a job; may be repeated",
    )  # fmt: skip
    given = parser.parse_args(argv)
    try:
        given.limits = job_limits.parse(given.job_limit)
    except job_limits.Malformed as problem:
        parser.error(f"--job-limit {problem}")
    return given


async def _serve(options: argparse.Namespace, state: Path, abilities: privileges.Abilities) -> None:
    """Runs until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    folder = state / "pods"
    meter = usage.UsageMeter(options.node, folder, abilities.cgroups)
    endpoint = server.AgentServer(folder, meter)
    store = connect.open_store(options.kubeconfig)
    forks = zygote.Zygote()
    forks.warm()
    try:
        with unix_socket.listening(state, [options.node]) as listener:
            async with endpoint.serving(listener):
                heartbeat = registration.NodeHeartbeat(
                    store, options.node, ADDRESS, abilities, disk=shutil.disk_usage(state).total
                )
                working = asyncio.create_task(_work(store, options, state, heartbeat, forks))
                stopping = asyncio.create_task(stop.wait())
                await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
                stopping.cancel()
                if working.done():
                    working.result()
                working.cancel()
                await asyncio.gather(working, return_exceptions=True)
    finally:
        forks.close()
        if abilities.cgroups is not None:
            abilities.cgroups.close()
        await store.close()


async def _work(
    store: KubernetesStore,
    options: argparse.Namespace,
    state: Path,
    heartbeat: registration.NodeHeartbeat,
    forks: zygote.Zygote,
) -> None:
    abilities = heartbeat.abilities
    async with contextlib.AsyncExitStack() as stack:
        user_of: Callable[[str], int | None] = _agent_user
        if abilities.isolation == "user":
            check = single_tenant.SingleTenantCheck(store, privileges.NamespaceUsers(state))
            await stack.enter_async_context(check.watching())
            user_of = check.user_of
        context = worker.AgentContext(
            options.node, ADDRESS, state / "pods", forks, abilities, user_of,
            pod_tokens.ApiTokens(store), host_mounts=tuple(options.host_mounts),
            limits=options.limits, log_archive=archive.LogArchive(state / archive.FOLDER),
        )  # fmt: skip
        await stack.enter_async_context(heartbeat.running())
        sweeper = asyncio.create_task(
            garbage_collection.environments_forever(context.teams, context.folder)
        )
        stack.callback(sweeper.cancel)
        await worker.PodWorkers(store, context).run()


def _agent_user(_: str) -> int | None:
    """None: without isolation by user, all pods run as the agent's user."""
    return None
