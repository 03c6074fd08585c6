"""One group of controllers as a process of its own: `python -m windlass.control scheduler`.

The Deployments of an installation run it. It reads the cluster through a kubeconfig or, in a pod,
as
its service account (a token that rotates is read again each minute and after a 401). Several may
run: one leads, the others stand by. SIGTERM and SIGINT stop it in order: started work is finished,
and the lease is released, so that the next process leads at once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import ipaddress
import logging
import os
import secrets
import signal
import socket
import ssl
import sys
from collections.abc import AsyncIterator

from windlass.control import manager, wiring
from windlass.control.runtime import health
from windlass.store import connect
from windlass.store.kubernetes import reviews
from windlass.store.kubernetes.client import KubernetesStore
from windlass.store.kubernetes.config.model import KubeconfigError
from windlass.telemetry import prometheus

log = logging.getLogger("windlass.control")

_COLLECT_EVERY = (50_000, 10, 10)
"""Allocations between two runs of the cyclic collector. A controller keeps hundreds of thousands of
objects and creates few cycles: with the default of 700 the collector visits live objects again and
again, and finds nothing."""


def main(argv: list[str] | None = None) -> int:
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    options = _parse(argv)
    gc.set_threshold(*_COLLECT_EVERY)
    # Imported late: --help need not load it.
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
    parser.add_argument("set", choices=[each.name for each in wiring.ALL], help="what to run")
    parser.add_argument("--kubeconfig", help="default: KUBECONFIG, else the pod's service account")
    parser.add_argument("--context", help="default: the current one of the kubeconfig")
    parser.add_argument(
        "--listen", default="0.0.0.0:8080", metavar="HOST:PORT", type=_address,
        help="where /healthz and /readyz are served, without authentication (default %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--metrics-listen", metavar="HOST:PORT", type=_address,
        help="where /metrics is served over TLS to callers with the right; default: not served",
    )  # fmt: skip
    parser.add_argument("--tls-cert", help="certificate chain of --metrics-listen")
    parser.add_argument("--tls-key", help="its key; without both, only on a loopback address")
    options = parser.parse_args(argv)
    given = options.metrics_listen
    if given and not (options.tls_cert and options.tls_key) and not _is_loopback(given[0]):
        parser.error("--metrics-listen needs --tls-cert and --tls-key: callers send their tokens")
    return options


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def serve(options: argparse.Namespace) -> None:
    """Runs until a signal stops it."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    store = connect.open_store(options.kubeconfig, options.context)
    registry = prometheus.Registry()
    chosen = [each for each in wiring.ALL if each.name == options.set]
    led = manager.build(
        store, identity=_identity(), registry=registry, chosen=chosen, started=_settle_down
    )
    host, port = options.listen
    try:
        async with (
            health.answering(host, port, led.trouble) as actual,
            _metrics(options, store, registry),
        ):
            log.info("%s: health on port %d", led.name, actual)
            working = asyncio.create_task(led.run())
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            log.info("stopped")
    finally:
        await store.close()


@contextlib.asynccontextmanager
async def _metrics(
    options: argparse.Namespace, store: KubernetesStore, registry: prometheus.Registry
) -> AsyncIterator[None]:
    if options.metrics_listen is None:
        yield
        return
    host, port = options.metrics_listen
    tls = None
    if options.tls_cert:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.minimum_version = ssl.TLSVersion.TLSv1_2
        tls.load_cert_chain(options.tls_cert, options.tls_key)
    guard = reviews.PathGuard(store)
    async with health.exposing(host, port, registry, guard.admit, tls) as actual:
        log.info("metrics on port %d", actual)
        yield


def _identity() -> str:
    """Unique for every process: a process that finds the lease under its own identity takes it."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


def _settle_down() -> None:
    """Objects from the begin of a term live as long as the term: the collector need not visit them
    again. Later objects, and those of a previous term, are collected as usual."""
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
