"""The server on Kubernetes: `python -m windlass.server cluster --state DIR`.

Serves the platform API alone, as an aggregated API: users reach it through the cluster's API
server, which authenticates them; pods reach it directly with tokens of their own. Objects live in
the cluster; code, mailboxes and log archives are in the state folder, or in shared storage.
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

from windlass.control import manager
from windlass.kinds.types import core
from windlass.ledger import service
from windlass.ledger.ingest import utilization
from windlass.ledger.service import Ledger
from windlass.podlogs import archive
from windlass.server.apiserver import discovery, openapi
from windlass.server.auth import request_header
from windlass.server.auth.delegated import PodTokens, Reviews
from windlass.server.auth.identity import Identity
from windlass.server.auth.request_header import FrontProxy
from windlass.server.fairness import follower, levels
from windlass.server.fairness.settings import Settings
from windlass.server.http import bodies, connections, request_handler, watchdog
from windlass.server.http.audit import AuditLog
from windlass.server.http.request_handler import HEALTH, RequestHandler, RequestRecord, only_get
from windlass.server.http.responses import bytes_response
from windlass.server.http.streams import Streams
from windlass.server.platform import openapi as platform_openapi
from windlass.server.platform import paths
from windlass.server.platform.api import PlatformApi
from windlass.server.platform.handlers import metrics_push
from windlass.server.platform.handlers.metrics import MetricsService
from windlass.server.storage import backends
from windlass.server.storage.backends import StorageBackends
from windlass.store import connect, errors
from windlass.store.informer import Informer
from windlass.store.kubernetes import reviews
from windlass.store.kubernetes.client import KubernetesStore
from windlass.store.kubernetes.config.model import KubeconfigError

log = logging.getLogger("windlass.server")

_STOP_SECONDS = 10.0
_POLL_SECONDS = 30.0
"""Between two checks of the certificate files; a new authority of the front proxy takes effect at
once."""


class ClusterApp(RequestHandler):
    def __init__(
        self,
        store: KubernetesStore,
        front: FrontProxy,
        storage: StorageBackends,
        audit: AuditLog | None,
    ) -> None:
        super().__init__(audit)
        self.front = front
        self._store = store
        self._reviews = Reviews(store)
        self._tokens = PodTokens(store)
        self._scrapers = reviews.PathGuard(store)
        self._streams = Streams()
        reports = metrics_push.StoredReports(storage.node_metrics)
        external = functools.partial(_metrics_server, store)
        self._node_metrics = MetricsService(store, reports, reports, external)
        self._agents = self.metrics.registry.gauge(
            "windlass_agents_reporting", "Node agents that reported within three minutes."
        )
        self._node_reports = storage.node_metrics
        self._platform = PlatformApi(
            store, self._reviews, self._reviews.authorize_path, storage, self._streams,
            self._node_metrics,
        )  # fmt: skip
        self.background = [
            *self._platform.background(),
            asyncio.create_task(_sweep(storage, store)),
            asyncio.create_task(follower.follow(store, self.apply_limits)),
        ]

    def apply_limits(self, settings: Settings) -> None:
        super().apply_limits(settings)
        self._platform.apply_limits(settings)

    def use_ledger(self, ledger: Ledger | None) -> None:
        """The ledger that answers requests about usage, and gets the metrics of nodes."""
        self._platform.use_ledger(ledger)
        if ledger is not None:
            ledger.meter = self._measured

    async def _measured(self) -> utilization.Measured:
        # kubelet chooses the devices of a pod, so the ledger does not know which ones it has.
        return dataclasses.replace(await self._node_metrics.measured(), nodes_choose=True)

    async def stop(self) -> None:
        self._stopping = True
        await bodies.SLOW.stop()
        await self._platform.stop()
        await self._streams.stop()
        for task in self.background:
            task.cancel()
        await asyncio.gather(*self.background, return_exceptions=True)

    async def _answer(self, request: web.BaseRequest, record: RequestRecord) -> web.StreamResponse:
        path = request.rel_url.raw_path.rstrip("/") or "/"
        if path in HEALTH:
            return self._health(request, path)
        if path == "/metrics" and self.front.identify(request) is None:
            await self._scrapers.admit(request.headers.get("Authorization"), path)
            return await self._scraped(request)
        match = self._platform.match(path)
        if match is not None and not match.needs_identity:
            caller = levels.of_mailbox(match.parameters["namespace"])
            return await self._platform.serve_worker(
                record, match, functools.partial(self.admit, record, *caller)
            )
        identity = self.front.identify(request)
        proxied = identity is not None
        if identity is None:
            identity = await self._identified(request)
        record.identity = identity
        await self.admit(record, *levels.of(identity), proxied=proxied)
        if match is not None:
            return await self._platform.router.serve(record, identity, match)
        if path == "/metrics":
            await self._reviews.authorize_path(identity, path)
            return await self._scraped(request)
        if identity.pod is None:
            return _described(request, path)
        raise errors.NotFound("the server could not find the requested resource")

    async def _identified(self, request: web.BaseRequest) -> Identity:
        """The pod of a token. The cluster's API server reviews unknown ones, so the requests of one
        address take turns."""
        flow = self.queues.flow(*levels.of_source(request.remote or ""))
        await self.queues.enter(flow)
        try:
            return await self._tokens.identify(request.headers.get("Authorization"))
        finally:
            self.queues.leave(flow)

    async def _scraped(self, request: web.BaseRequest) -> web.Response:
        self._agents.set(to=len(await self._node_reports.fresh()))
        return self._metrics_page(request)


async def _metrics_server(store: KubernetesStore, path: str) -> list[dict[str, Any]]:
    """The cluster's own resource metrics; empty without a metrics-server."""
    status, _, body = await store.raw("GET", f"{utilization.PATH}/{path}")
    if status in (404, 503):  # no metrics-server, or not ready
        return []
    if status >= 300:
        raise errors.from_status(msgspec.json.decode(body), status)
    found: list[dict[str, Any]] = msgspec.json.decode(body)["items"]
    return found


def _described(request: web.BaseRequest, path: str) -> web.Response:
    """Discovery and OpenAPI of the one group, for every authenticated caller."""
    if path.startswith("/openapi/"):
        body = openapi.document(path, platform_openapi.cluster, only=paths.GROUP)
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
    request_handler.quiet_about_strangers()
    options = _parse(argv)
    import uvloop

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(options))
    except (
        KubeconfigError,
        request_header.NotConfigured,
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
        help="s3://BUCKET/PREFIX?endpoint=..., gs://BUCKET or az://CONTAINER?account=...: code, "
        "logs and mailboxes are there and in the PostgreSQL database of --ledger, for any number "
        "of servers; default: in --state",
    )  # fmt: skip
    parser.add_argument(
        "--storage-keys", type=Path, default=Path("/etc/windlass/storage"), metavar="DIR",
        help="folder with the keys of the storage, as its Secret is mounted; default %(default)s",
    )  # fmt: skip
    service.add_option(parser)
    return parser.parse_args(argv)


async def _storage(options: argparse.Namespace) -> StorageBackends:
    if not options.storage:
        return backends.on_disk(options.state, options.state / archive.FOLDER)
    database = service.address(options.ledger, options.state)
    return await backends.shared(options.storage, options.storage_keys, database)


async def _sweep(storage: StorageBackends, store: KubernetesStore) -> None:
    await storage.sweep_logs(store)


async def serve(options: argparse.Namespace) -> None:
    """Runs until a signal stops it."""
    with watchdog.watching():
        await _serve(options)


async def _serve(options: argparse.Namespace) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    options.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    store = connect.open_store(options.kubeconfig, options.context)
    audit = AuditLog(options.state / "audit.log")
    try:
        async with _front_proxy(store) as facts:
            storage = await _storage(options)
            app = ClusterApp(store, FrontProxy.read(_found(facts)), storage, audit)
            try:
                async with _ledger(store, options, app):
                    await _until(stop, options, app, facts)
            finally:
                await app.stop()
                await storage.close()
    finally:
        audit.close()
        await store.close()


@contextlib.asynccontextmanager
async def _ledger(
    store: KubernetesStore, options: argparse.Namespace, app: ClusterApp
) -> AsyncIterator[None]:
    """Runs the ledger beside the API, in one of the servers at a time."""
    url = service.address(options.ledger, options.state)
    if url is None:
        yield
        return
    ledger = service.Ledger(url)
    app.use_ledger(ledger)
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
async def _front_proxy(store: KubernetesStore) -> AsyncIterator[Informer[core.ConfigMap]]:
    """The ConfigMap of the front proxy, kept up to date: its authority rotates."""
    one = f"metadata.name={request_header.NAME}"
    async with Informer(
        store, core.ConfigMap, request_header.NAMESPACE, field_selector=one
    ) as facts:
        await facts.synced()
        yield facts


def _found(facts: Informer[core.ConfigMap]) -> core.ConfigMap:
    found = facts.get(request_header.NAME, request_header.NAMESPACE)
    return found if found is not None else core.ConfigMap()


async def _until(
    stop: asyncio.Event,
    options: argparse.Namespace,
    app: ClusterApp,
    facts: Informer[core.ConfigMap],
) -> None:
    server = app.server()
    runner = web.ServerRunner(server, shutdown_timeout=_STOP_SECONDS)
    await runner.setup()
    entrance = _Entrance(options.tls_cert, options.tls_key, app.front)
    try:
        bound = connections.bind(options.host, options.port)
        listener = connections.Listener(server, bound, entrance.context)
        async with listener.accepting():
            gc.collect()
            gc.freeze()
            log.info("serving %s on port %d", paths.GROUP, listener.port)
            await _renew(stop, app, facts, entrance)
            app._stopping = True
    finally:
        await runner.cleanup()
        log.info("stopped")


async def _renew(
    stop: asyncio.Event, app: ClusterApp, facts: Informer[core.ConfigMap], entrance: _Entrance
) -> None:
    """Takes up new certificates and authorities until the server stops."""
    woken = asyncio.Event()
    facts.add_handler(lambda *_: woken.set())
    waking = asyncio.create_task(_wake_on_stop(woken, stop))
    while not stop.is_set():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_POLL_SECONDS):
                await woken.wait()
        woken.clear()
        with contextlib.suppress(request_header.NotConfigured, OSError, ssl.SSLError):
            app.front = FrontProxy.read(_found(facts))
            entrance.renew(app.front)
    await waking


async def _wake_on_stop(woken: asyncio.Event, stop: asyncio.Event) -> None:
    await stop.wait()
    woken.set()


class _Entrance:
    """The TLS context, renewed when a certificate or the front proxy's authority changes."""

    def __init__(self, certificate: Path, key: Path, front: FrontProxy) -> None:
        self._files = certificate, key
        self._made_of = self._ingredients(front)
        self.context = self._make(front)
        self._current = self.context
        # Called for each connection, so a new context takes effect while the socket stays open.
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
        # Pods have no client certificate; if there is one, it must be of the front proxy.
        context.verify_mode = ssl.CERT_OPTIONAL
        return context
