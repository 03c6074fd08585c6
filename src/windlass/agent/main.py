"""The agent process: `python -m windlass.agent --kubeconfig FILE --state DIR`.

Runs the pods of one node as processes. Stopping or killing it stops no pod.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import logging
import signal
import sys
from pathlib import Path

from windlass.agent import http, machine, node, pods
from windlass.store import client, connect
from windlass.store.kubernetes.access import KubeconfigError

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
            print(  # noqa: T201 - for people
                f"windlass.agent: another agent uses {state}; stop it first or choose --state DIR",
                file=sys.stderr,
            )
            return 1
        try:
            asyncio.run(_serve(options, state))
        except KubeconfigError as problem:
            print(f"windlass.agent: {problem}", file=sys.stderr)  # noqa: T201 - for people
            return 1
    return 0


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m windlass.agent", description=__doc__)
    parser.add_argument("--kubeconfig", required=True, help="how to reach the API")
    parser.add_argument("--state", type=Path, required=True, help="where pods and logs are kept")
    parser.add_argument("--node", default=machine.node_name(), help="default: the host's name")
    parser.add_argument(
        "--listen", default="127.0.0.1:0", metavar="HOST:PORT", help="where logs are served"
    )
    return parser.parse_args(argv)


async def _serve(options: argparse.Namespace, state: Path) -> None:
    """Until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    host, _, port = options.listen.rpartition(":")
    place = pods.Place(options.node, host, state / "pods")
    endpoint = http.Endpoint(place.folder, http.ensure_secret(state))
    store = connect.open_store(options.kubeconfig)
    try:
        async with endpoint.listening(host, int(port)) as actual:
            heart = node.Heart(store, options.node, host, actual)
            starting = asyncio.create_task(_work(store, place, heart))
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if starting.done():
                starting.result()
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
    finally:
        await store.close()


async def _work(store: client.Store, place: pods.Place, heart: node.Heart) -> None:
    async with heart.beating():
        await pods.Pods(store, place).run()
