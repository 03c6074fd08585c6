"""The services beside the API in the server's process: the controllers.

`server.main` starts each and stops them before the API closes. They are imported only on demand: a
server for objects alone does not load them.
"""

from __future__ import annotations

from typing import Protocol

from windlass.ledger.service import Ledger
from windlass.store.embedded.api import Api
from windlass.store.embedded.client import EmbeddedStore
from windlass.telemetry.prometheus import Registry

IDENTITY = "embedded-server"
"""The lock on the state folder makes it unique. It is the same after a restart, so that the new
process leads at once."""


class Service(Protocol):
    async def run(self) -> None:
        """Runs until cancelled."""
        ...


def services(api: Api, registry: Registry, ledger: Ledger | None = None) -> list[Service]:
    from windlass.control import manager, wiring

    chosen = list(wiring.ALL) + ([ledger.controllers()] if ledger is not None else [])
    store = EmbeddedStore(api)
    return [manager.build(store, identity=IDENTITY, registry=registry, chosen=chosen)]
