"""What runs beside the API in the server's process: the control room's controllers.

`server.main` starts each and stops them before the API closes. They are loaded only when they are
wanted: a server that serves objects alone does not pay for them.
"""

from __future__ import annotations

from typing import Protocol

from windlass.store.embedded.api import Api
from windlass.store.embedded.client import EmbeddedStore


class Service(Protocol):
    async def run(self) -> None:
        """Works until cancelled."""
        ...


def services(api: Api) -> list[Service]:
    return []
