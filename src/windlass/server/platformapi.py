"""The whole platform API behind one door, the same on both engines.

`app.App` (embedded) and `cluster.ClusterApp` own one each: they say who the caller is, this knows
what may be asked. It reads objects through the store it is given and asks for the caller's rights
of whoever keeps them; code, mailboxes and kept logs lie where `places` says.
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from windlass.control import engine
from windlass.kinds import kubernetes
from windlass.server import (
    accounts,
    addresses,
    blobs,
    keptlogs,
    mailboxes,
    platform,
    platformpaths,
    routes,
    sharing,
)
from windlass.server.handling import Seen
from windlass.server.identity import Identity
from windlass.server.places import Places
from windlass.server.podrights import PodRights
from windlass.server.rights import Rights, creating_runs
from windlass.server.streams import Streams
from windlass.store import client, errors


class PlatformApi:
    def __init__(
        self,
        store: client.Store,
        rights: Rights,
        places: Places,
        streams: Streams,
    ) -> None:
        self._store = store
        self._rights = rights
        self._pods = PodRights(store, rights)
        self._blobs = blobs.Blobs(places.blobs)
        self._mailboxes = mailboxes.Mailboxes(places.mailboxes, self._for_workers)
        self._platform = platform.Platform(store, rights)
        self._sharing = sharing.Sharing(store, rights, self._platform)
        self.explainer = self._platform.explainer
        self.accounts = accounts.Accounts(store, rights)
        self._platform.costs = self.accounts
        self._addresses = addresses.Addresses(store, rights, self._pods)
        self._kept = keptlogs.KeptLogs(store, rights, streams, places.logs)

    def background(self) -> list[asyncio.Task[None]]:
        """What keeps code and mailboxes from growing for ever."""
        return [
            asyncio.create_task(self._mailboxes.sweep_regularly()),
            asyncio.create_task(blobs.sweep_regularly(self._blobs, self._store)),
        ]

    async def stop(self) -> None:
        """Lets everybody who waits for something go."""
        await self._mailboxes.stop()
        await self._addresses.stop()
        await self._platform.stop()

    async def answer_worker(self, request: web.BaseRequest, path: str) -> web.StreamResponse | None:
        """What is opened by a mailbox's own token, and by no user's; None for all else."""
        mailbox = mailboxes.match(path) if routes.is_listed(path) else None
        if mailbox is None or not mailbox.worker:
            return None
        return await self._mailboxes.answer_worker(request, mailbox)

    async def answer(
        self, request: web.BaseRequest, seen: Seen, identity: Identity, path: str
    ) -> web.StreamResponse | None:
        """The answer to a caller who is known; None if the path is none of ours."""
        if not routes.is_listed(path):
            return None
        blob = blobs.match(path)
        if blob is not None:
            return await self._blob(request, seen, identity, blob)
        mailbox = mailboxes.match(path)
        if mailbox is not None:
            await self._rights.authorize(identity, creating_runs(mailbox.namespace))
            return await self._mailboxes.answer_owner(request, mailbox, identity.user)
        question = platform.match(path)
        if question is not None:
            seen.asks("get", f"{question.what}.{platformpaths.GROUP}")
            return await self._platform.answer(request, identity, question)
        tree = sharing.match(path)
        if tree is not None:
            seen.asks("get", f"queues.{platformpaths.GROUP}")
            return await self._sharing.answer(request, identity, tree)
        account = accounts.match(path)
        if account is not None:
            seen.asks("get", f"{account.what}.{platformpaths.GROUP}")
            return await self.accounts.answer(request, identity, account)
        log = keptlogs.match(path)
        if log is not None:
            seen.asks("get", f"logs.{platformpaths.GROUP}")
            return await self._kept.answer(request, identity, log)
        book = addresses.match(path)
        if book is not None:
            seen.asks("get", f"addresses.{platformpaths.GROUP}")
            return await self._addresses.answer(request, identity, book)
        return None

    async def _for_workers(self) -> dict[str, str]:
        """How pods reach this server and, where they run images, which Python they have."""
        try:
            found = await self._store.get(kubernetes.ConfigMap, engine.NAME, engine.NAMESPACE)
        except errors.NotFound:
            return {}
        facts = engine.Engine.read(found)
        python = {"python": facts.python} if facts.images else {}
        return {"server": facts.server, "authority": facts.authority, **python}

    async def _blob(
        self, request: web.BaseRequest, seen: Seen, identity: Identity, blob: blobs.Target
    ) -> web.StreamResponse:
        seen.asks(request.method.lower(), f"blobs.{platformpaths.GROUP}")
        read = request.method == "GET"
        await self._pods.authorize_blob(identity, blob.namespace, blob.digest, read=read)
        await self._store.get(kubernetes.Namespace, blob.namespace)
        return await self._blobs.answer(request, blob)
