"""The platform API of a server, on both engines: its services, its router, its background work.

`app.App` (embedded) and `cluster_app.ClusterApp` create one each; they authenticate the callers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web

from windlass.control.model import capabilities
from windlass.kinds.types import core
from windlass.ledger.service import Ledger
from windlass.server.auth.authorization import Rights
from windlass.server.auth.identity import Identity
from windlass.server.auth.pod_authorizer import PodRights
from windlass.server.fairness.settings import Settings
from windlass.server.http.request_handler import RequestRecord
from windlass.server.http.streams import Streams
from windlass.server.platform import routes
from windlass.server.platform.access import Authorizers
from windlass.server.platform.handlers.blobs import BlobService
from windlass.server.platform.handlers.external_pods import ExternalPodService
from windlass.server.platform.handlers.logs import LogService
from windlass.server.platform.handlers.mailboxes import MailboxService
from windlass.server.platform.handlers.metrics import MetricsService
from windlass.server.platform.handlers.outputs import OutputService
from windlass.server.platform.handlers.queues import QueueService
from windlass.server.platform.handlers.rendezvous import RendezvousService
from windlass.server.platform.handlers.runs import RunService
from windlass.server.platform.handlers.steps import StepService
from windlass.server.platform.handlers.studies import StudyService
from windlass.server.platform.handlers.usage_reports import UsageService
from windlass.server.platform.router import Match, Router
from windlass.server.platform.services import EmbeddedServices, Services
from windlass.server.storage.backends import StorageBackends
from windlass.store import errors, interface

_WORKER = Identity("")
"""Of a mailbox's worker: its token names a mailbox, and no user."""


class PlatformApi:
    def __init__(
        self,
        store: interface.Store,
        rights: Rights,
        authorize_path: Callable[[Identity, str], Awaitable[None]],
        storage: StorageBackends,
        streams: Streams,
        metrics: MetricsService,
        embedded: EmbeddedServices | None = None,
    ) -> None:
        self._store = store
        usage = UsageService(store)
        runs = RunService(store, rights, usage)
        self.services = Services(
            runs=runs,
            external_pods=ExternalPodService(store, runs),
            queues=QueueService(store, rights, runs.explainer),
            usage=usage,
            logs=LogService(store, streams, storage.logs),
            rendezvous=RendezvousService(store),
            blobs=BlobService(store, storage.blobs),
            outputs=OutputService(store, storage.outputs),
            mailboxes=MailboxService(storage.mailboxes, self._worker_settings),
            steps=StepService(store, storage.blobs),
            studies=StudyService(store),
            metrics=metrics,
            embedded=embedded,
        )
        authorizers = Authorizers(
            rights, PodRights(store, rights), authorize_path, self.services.mailboxes.check_token
        )
        self.router = Router(routes.ROUTES, self.services, authorizers)
        self.match = self.router.match

    def apply_limits(self, settings: Settings) -> None:
        """Limits that an administrator changed."""
        self.services.blobs.limits = settings.namespace
        if self.services.embedded is not None:
            self.services.embedded.tokens.limit = settings.tokens

    def use_ledger(self, ledger: Ledger | None) -> None:
        """The ledger that answers requests about usage, and whose database has results of
        steps and studies."""
        self.services.usage.ledger = ledger
        self.services.steps.ledger = ledger
        self.services.studies.ledger = ledger

    def background(self) -> list[asyncio.Task[None]]:
        """Tasks that remove unused code, mailboxes and results of steps."""
        return [
            asyncio.create_task(self.services.mailboxes.sweep_regularly()),
            asyncio.create_task(self.services.blobs.sweep_regularly()),
            asyncio.create_task(self.services.outputs.sweep_regularly()),
            asyncio.create_task(self.services.steps.prune_regularly()),
        ]

    async def stop(self) -> None:
        """Ends the requests that wait."""
        await self.services.mailboxes.stop()
        await self.services.rendezvous.stop()
        await self.services.runs.stop()

    async def serve_worker(
        self, record: RequestRecord, match: Match, admitted: Callable[[], Awaitable[None]]
    ) -> web.StreamResponse:
        """The answer to a worker of a mailbox, whose token the access rule checks; then
        `admitted` is called."""
        return await self.router.serve(record, _WORKER, match, admitted)

    async def _worker_settings(self) -> dict[str, str]:
        """How pods reach this server and, where they run images, which Python they have."""
        try:
            found = await self._store.get(core.ConfigMap, capabilities.NAME, capabilities.NAMESPACE)
        except errors.NotFound:
            return {}
        facts = capabilities.Engine.read(found)
        python = {"python": facts.python} if facts.images else {}
        return {"server": facts.server, "authority": facts.authority, **python}
