"""The server on Kubernetes: `python -m windlass.server cluster --state DIR`.

Serves the platform API alone, as an aggregated API: people reach it through the cluster's API
server, which says who they are; pods reach it directly with tokens of their own. Objects live in
the cluster; code, mailboxes and kept logs lie in the state folder, or where all servers see them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import functools
import gc
import logging
import os
import signal
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from windlass.agent import kept as agent_kept
from windlass.control import manager
from windlass.kinds import kubernetes
from windlass.ledger import activity, service
from windlass.ledger.service import Ledger
from windlass.server import (
    discovery,
    frontproxy,
    handling,
    nodereports,
    openapi,
    places,
    platformpaths,
    routes,
    usage,
)
from windlass.server.audit import AuditLog
from windlass.server.frontproxy import FrontProxy
from windlass.server.handling import HEALTH, Handling, Seen, bytes_response, only_get
from windlass.server.places import Places
from windlass.server.platformapi import PlatformApi
from windlass.server.reviewing import PodTokens, Reviews
from windlass.server.streams import Streams
from windlass.store import connect, errors
from windlass.store.kubernetes.access import KubeconfigError
from windlass.store.kubernetes.client import KubernetesStore
from windlass.store.reflector import Reflector

log = logging.getLogger("windlass.server")

_STOP_SECONDS = 10.0
_LOOK_SECONDS = 30.0
"""Between two looks at the certificate's files; a new authority of the front proxy is seen at
once."""


class ClusterApp(Handling):
    def __init__(
        self, store: KubernetesStore, front: FrontProxy, kept: Places, audit: AuditLog | None
    ) -> None:
        super().__init__(audit)
        self.front = front
        self._store = store
        self._reviews = Reviews(store)
        self._tokens = PodTokens(store)
        self._streams = Streams()
        self._platform = PlatformApi(store, self._reviews, kept, self._streams)
        told = nodereports.Reported(kept.reports)
        others = functools.partial(_metrics_server, store)
        self._usage = usage.Usage(store, self._reviews, told, told, others)
        self.background = [*self._platform.background(), asyncio.create_task(_sweep(kept, store))]

    def keep_ledger(self, ledger: Ledger | None) -> None:
        """Whom questions about usage are for, and who is told what nodes use."""
        self._platform.accounts.ledger = ledger
        if ledger is not None:
            ledger.meter = self._measured

    async def _measured(self) -> activity.Measured:
        # Which of its devices a pod gets is kubelet's choice.
        return dataclasses.replace(await self._usage.measured(), nodes_choose=True)

    async def stop(self) -> None:
        self._stopping = True
        await self._platform.stop()
        await self._streams.stop()
        for task in self.background:
            task.cancel()
        await asyncio.gather(*self.background, return_exceptions=True)

    async def _answer(self, request: web.BaseRequest, seen: Seen) -> web.StreamResponse:
        path = request.rel_url.raw_path.rstrip("/") or "/"
        if path in HEALTH:
            return self._health(request, path)
        worked = await self._platform.answer_worker(request, path)
        if worked is not None:
            return worked
        identity = self.front.identify(request)
        if identity is None:
            identity = await self._tokens.identify(request.headers.get("Authorization"))
        seen.identity = identity
        answered = await self._platform.answer(request, seen, identity, path)
        if answered is not None:
            return answered
        used = usage.match(path) if routes.is_listed(path) else None
        if used is not None:
            # Also of a report: each would be a line in the audit log, where only refusals belong.
            seen.asks("get", f"{used.what.removesuffix('s')}metrics.{platformpaths.GROUP}")
            return await self._usage.answer(request, identity, used)
        if path == "/metrics":
            await self._reviews.authorize_path(identity, path)
            return self._metrics_page(request)
        if identity.pod is None:
            return _described(request, path)
        raise errors.NotFound("the server could not find the requested resource")


async def _metrics_server(store: KubernetesStore, path: str) -> list[dict[str, Any]]:
    """The cluster's own resource metrics; nothing where there are none."""
    status, _, body = await store.raw("GET", f"{activity.PATH}/{path}")
    if status in (404, 503):  # nobody serves them, or not now
        return []
    if status >= 300:
        raise errors.from_status(msgspec.json.decode(body), status)
    found: list[dict[str, Any]] = msgspec.json.decode(body)["items"]
    return found


def _described(request: web.BaseRequest, path: str) -> web.Response:
    """Discovery and OpenAPI of the one group: no secret to anyone who is known."""
    if path.startswith("/openapi/"):
        body = openapi.document(path, only=platformpaths.GROUP)
        only_get(request)
        return bytes_response(body, "application/json")
    found = discovery.platform_document(path, request.headers.get("Accept"))
    if found is None:
        raise errors.NotFound("the server could not find the requested resource")
    only_get(request)
    return bytes_response(*found)


# --- the process ----------------------------------------------------------------------------------


def main(argv: list[str]) -> int:
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    handling.quiet_about_strangers()
    options = _parse(argv)
    import uvloop

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(options))
    except (
        KubeconfigError,
        frontproxy.NotConfigured,
        errors.ApiError,
        OSError,
        ValueError,
    ) as problem:
        print(f"windlass.server: {problem}", file=sys.stderr)  # noqa: T201 (for people)
        return 1
    return 0


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m windlass.server cluster", description=__doc__)
    parser.add_argument("--state", type=Path, required=True, help="where files are kept")
    parser.add_argument("--host", default="0.0.0.0", help="default %(default)s")  # noqa: S104
    parser.add_argument("--port", type=int, default=8443, help="default %(default)s")
    parser.add_argument("--tls-cert", type=Path, required=True, help="certificate chain")
    parser.add_argument("--tls-key", type=Path, required=True, help="its key")
    parser.add_argument("--kubeconfig", help="default: KUBECONFIG, else the pod's service account")
    parser.add_argument("--context", help="default: the current one of the kubeconfig")
    parser.add_argument(
        "--storage", default="", metavar="URL",
        help="s3://BUCKET/PREFIX?endpoint=...: code, logs and mailboxes lie there and in the "
        "PostgreSQL database of --ledger, for any number of servers; default: in --state",
    )  # fmt: skip
    parser.add_argument(
        "--storage-keys", type=Path, default=Path("/etc/windlass/storage"), metavar="DIR",
        help="folder with the files access-key and secret-key, and ca.crt if the storage has an "
        "authority of its own; default %(default)s",
    )  # fmt: skip
    service.add_option(parser)
    return parser.parse_args(argv)


async def _places(options: argparse.Namespace) -> Places:
    if not options.storage:
        return places.on_disk(options.state, options.state / agent_kept.FOLDER)
    database = service.address(options.ledger, options.state)
    return await places.shared(options.storage, options.storage_keys, database)


async def _sweep(kept: Places, store: KubernetesStore) -> None:
    await kept.sweep_logs(store)


async def serve(options: argparse.Namespace) -> None:
    """Until a signal asks it to stop."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    options.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    store = connect.open_store(options.kubeconfig, options.context)
    audit = AuditLog(options.state / "audit.log")
    try:
        async with _front_proxy(store) as facts:
            kept = await _places(options)
            app = ClusterApp(store, FrontProxy.read(_found(facts)), kept, audit)
            try:
                async with _ledger(store, options, app):
                    await _until(stop, options, app, facts)
            finally:
                await app.stop()
                await kept.close()
    finally:
        audit.close()
        await store.close()


@contextlib.asynccontextmanager
async def _ledger(
    store: KubernetesStore, options: argparse.Namespace, app: ClusterApp
) -> AsyncIterator[None]:
    """Keeps the ledger beside the API, in one of the servers at a time."""
    url = service.address(options.ledger, options.state)
    if url is None:
        yield
        return
    ledger = service.Ledger(url)
    app.keep_ledger(ledger)
    identity = f"{socket.gethostname()}-{os.getpid()}"
    registry = app.metrics.registry
    keeping = asyncio.create_task(
        manager.build(
            store, identity=identity, registry=registry, chosen=[ledger.controllers()]
        ).run()
    )
    try:
        yield
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await ledger.stop()


@contextlib.asynccontextmanager
async def _front_proxy(store: KubernetesStore) -> AsyncIterator[Reflector[kubernetes.ConfigMap]]:
    """What the cluster says of its front proxy, kept up to date: its authority rotates."""
    one = f"metadata.name={frontproxy.NAME}"
    async with Reflector(
        store, kubernetes.ConfigMap, frontproxy.NAMESPACE, field_selector=one
    ) as facts:
        await facts.synced()
        yield facts


def _found(facts: Reflector[kubernetes.ConfigMap]) -> kubernetes.ConfigMap:
    found = facts.get(frontproxy.NAME, frontproxy.NAMESPACE)
    return found if found is not None else kubernetes.ConfigMap()


async def _until(
    stop: asyncio.Event,
    options: argparse.Namespace,
    app: ClusterApp,
    facts: Reflector[kubernetes.ConfigMap],
) -> None:
    runner = web.ServerRunner(app.server(), shutdown_timeout=_STOP_SECONDS)
    await runner.setup()
    entrance = _Entrance(options.tls_cert, options.tls_key, app.front)
    try:
        await web.TCPSite(
            runner, options.host, options.port, ssl_context=entrance.context, backlog=1024,
            reuse_address=True,
        ).start()  # fmt: skip
        gc.collect()
        gc.freeze()
        log.info("serving %s on port %d", platformpaths.GROUP, runner.addresses[0][1])
        woken = asyncio.Event()
        facts.add_handler(lambda *_: woken.set())
        waking = asyncio.create_task(_tell(woken, stop))
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await woken.wait()
            woken.clear()
            with contextlib.suppress(frontproxy.NotConfigured, OSError, ssl.SSLError):
                app.front = FrontProxy.read(_found(facts))
                entrance.renew(app.front)
        await waking
        app._stopping = True
    finally:
        await runner.cleanup()
        log.info("stopped")


async def _tell(woken: asyncio.Event, stop: asyncio.Event) -> None:
    await stop.wait()
    woken.set()


class _Entrance:
    """The TLS context, made anew when a certificate or the front proxy's authority changes."""

    def __init__(self, certificate: Path, key: Path, front: FrontProxy) -> None:
        self._files = certificate, key
        self._made_of = self._ingredients(front)
        self.context = self._make(front)
        self._current = self.context
        # Called for each connection: so the one that listens can stay while others take its place.
        self.context.sni_callback = self._take_current

    def renew(self, front: FrontProxy) -> None:
        ingredients = self._ingredients(front)
        if ingredients != self._made_of:
            self._current = self._make(front)
            self._made_of = ingredients
            log.info("a new certificate, or a new authority of the front proxy, is in use")

    def _take_current(self, connection: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
        connection.context = self._current

    def _ingredients(self, front: FrontProxy) -> tuple[bytes, bytes, str]:
        certificate, key = self._files
        return certificate.read_bytes(), key.read_bytes(), front.authority

    def _make(self, front: FrontProxy) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        context.load_cert_chain(*self._files)
        context.load_verify_locations(cadata=front.authority)
        # Pods bring none; one that is brought must be the front proxy's.
        context.verify_mode = ssl.CERT_OPTIONAL
        return context
