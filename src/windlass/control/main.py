"""One set of controllers as a process of its own: `python -m windlass.control scheduler`.

This is what the Deployments of an installation run. It reads the cluster through a kubeconfig or,
in a pod, as its service account (a token that rotates is read again each minute and after a 401).
Several may run: one leads, the others stand by. SIGTERM and SIGINT stop it in order: what has
begun is finished, and the lease is given back, so that the next one begins at once.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import secrets
import signal
import socket
import sys

from windlass.control import health, manager, metrics, sets
from windlass.store import connect
from windlass.store.kubernetes.access import KubeconfigError

log = logging.getLogger("windlass.control")

_COLLECT_EVERY = (50_000, 10, 10)
"""How many objects are made between two looks of the cyclic collector. A process of ours keeps
hundreds of thousands of objects and hardly makes a cycle: with the usual 700 it looks at what is
being read or decided again and again, and finds nothing."""


def main(argv: list[str] | None = None) -> int:
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    options = _parse(argv)
    gc.set_threshold(*_COLLECT_EVERY)
    # Imported late: who only asks for --help need not load it.
    import uvloop

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(options))
    except (KubeconfigError, OSError) as problem:
        print(f"windlass.control: {problem}", file=sys.stderr)  # noqa: T201 (for people)
        return 1
    return 0


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m windlass.control", description=__doc__)
    parser.add_argument("set", choices=[each.name for each in sets.ALL], help="what to run")
    parser.add_argument("--kubeconfig", help="default: KUBECONFIG, else the pod's service account")
    parser.add_argument("--context", help="default: the current one of the kubeconfig")
    parser.add_argument(
        "--listen", default="0.0.0.0:8080", metavar="HOST:PORT", type=_address,
        help="where /healthz, /readyz and /metrics are served (default %(default)s)",
    )  # fmt: skip
    return parser.parse_args(argv)


async def serve(options: argparse.Namespace) -> None:
    """Until a signal asks it to stop."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    store = connect.open_store(options.kubeconfig, options.context)
    registry = metrics.Registry()
    chosen = [each for each in sets.ALL if each.name == options.set]
    led = manager.build(
        store, identity=_identity(), registry=registry, chosen=chosen, started=_settle_down
    )
    host, port = options.listen
    try:
        async with health.answering(host, port, registry, led.trouble) as actual:
            log.info("%s: health and metrics on port %d", led.name, actual)
            working = asyncio.create_task(led.run())
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            log.info("stopped")
    finally:
        await store.close()


def _identity() -> str:
    """No two lives of any process share it: who finds the lease under its own takes it."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


def _settle_down() -> None:
    """What a term begins with lives as long as the term: the collector need not walk over it
    again and again. What has changed since is collected as ever, and what a term before left."""
    if gc.get_freeze_count():
        gc.unfreeze()
        gc.collect()
    gc.freeze()


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, such as 0.0.0.0:8080")
    return host, int(port)
