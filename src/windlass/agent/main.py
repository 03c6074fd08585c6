"""The agent process: `python -m windlass.agent --kubeconfig FILE --state DIR`.

Runs the pods of one node as processes. Stopping or killing it stops no pod.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import logging
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from windlass.agent import (
    http,
    kept,
    machine,
    node,
    nursery,
    owners,
    pods,
    privileges,
    sweeping,
    tokens,
    usage,
)
from windlass.store import connect
from windlass.store.kubernetes.access import KubeconfigError
from windlass.store.kubernetes.client import KubernetesStore

log = logging.getLogger("windlass.agent")


def main(argv: list[str] | None = None) -> int:
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    options = _parse(argv)
    state = options.state.expanduser().absolute()
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (state / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return _refuse(f"another agent uses {state}; stop it first or choose --state DIR")
        try:
            abilities = privileges.find(state, options.isolation)
            asyncio.run(_serve(options, state, abilities))
        except (KubeconfigError, PermissionError) as problem:
            return _refuse(str(problem))
    return 0


def _refuse(why: str) -> int:
    print(f"windlass.agent: {why}", file=sys.stderr)  # noqa: T201 - for people
    return 1


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m windlass.agent", description=__doc__)
    parser.add_argument("--kubeconfig", required=True, help="how to reach the API")
    parser.add_argument("--state", type=Path, required=True, help="where pods and logs are kept")
    parser.add_argument("--node", default=machine.node_name(), help="default: the host's name")
    parser.add_argument(
        "--listen", default="127.0.0.1:0", metavar="HOST:PORT", help="where logs are served"
    )
    parser.add_argument(
        "--isolation", choices=("auto", "user", "process"), default="auto",
        help="a user id for each namespace's pods: where possible, always, never",
    )  # fmt: skip
    return parser.parse_args(argv)


async def _serve(options: argparse.Namespace, state: Path, abilities: privileges.Abilities) -> None:
    """Until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    host, _, port = options.listen.rpartition(":")
    folder = state / "pods"
    meter = usage.Meter(options.node, folder, abilities.cgroups)
    endpoint = http.Endpoint(folder, http.ensure_secret(state), meter)
    store = connect.open_store(options.kubeconfig)
    shims = nursery.Nursery()
    shims.warm()
    try:
        async with endpoint.listening(host, int(port)) as actual:
            heart = node.Heart(store, options.node, host, actual, abilities)
            working = asyncio.create_task(_work(store, options.node, host, state, heart, shims))
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if working.done():
                working.result()
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
    finally:
        shims.close()
        if abilities.cgroups is not None:
            abilities.cgroups.close()
        await store.close()


async def _work(
    store: KubernetesStore,
    name: str,
    host: str,
    state: Path,
    heart: node.Heart,
    shims: nursery.Nursery,
) -> None:
    abilities = heart.abilities
    async with contextlib.AsyncExitStack() as stack:
        user_of: Callable[[str], int | None] = _nobody
        if abilities.isolation == "user":
            holders = owners.Owners(store, privileges.Users(state))
            await stack.enter_async_context(holders.watching())
            user_of = holders.user_of
        place = pods.Place(
            name, host, state / "pods", shims, abilities, user_of, tokens.ApiTokens(store),
            kept=kept.Kept(state / kept.FOLDER),
        )  # fmt: skip
        await stack.enter_async_context(heart.beating())
        sweeper = asyncio.create_task(sweeping.environments_for_ever(place.teams, place.folder))
        stack.callback(sweeper.cancel)
        await pods.Pods(store, place).run()


def _nobody(_: str) -> int | None:
    """Without users of their own, all pods run as the agent does."""
    return None
