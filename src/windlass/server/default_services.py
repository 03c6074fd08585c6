"""What runs beside the API in the server's process: the control room's controllers.

`server.main` starts each and stops them before the API closes. They are loaded only when they are
wanted: a server that serves objects alone does not pay for them.
"""

from __future__ import annotations

from typing import Protocol

from windlass.control.metrics import Registry
from windlass.ledger.service import Ledger
from windlass.store.embedded.api import Api
from windlass.store.embedded.client import EmbeddedStore

IDENTITY = "embedded-server"
"""The lock on the state folder makes it unique; the same after a restart, so that the new process
leads at once."""


class Service(Protocol):
    async def run(self) -> None:
        """Works until cancelled."""
        ...


def services(api: Api, registry: Registry, ledger: Ledger | None = None) -> list[Service]:
    from windlass.control import manager, sets

    chosen = list(sets.ALL) + ([ledger.controllers()] if ledger is not None else [])
    store = EmbeddedStore(api)
    return [manager.build(store, identity=IDENTITY, registry=registry, chosen=chosen)]
