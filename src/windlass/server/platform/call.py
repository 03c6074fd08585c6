"""One request to the platform API, after the router has read its path."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web

from windlass.kinds.types.run import Run
from windlass.server.auth.identity import Identity
from windlass.server.http import queries


@dataclasses.dataclass(slots=True)
class PlatformCall:
    request: web.BaseRequest
    parameters: Mapping[str, str]
    """The parameters of the path, by the names in the route's template."""
    identity: Identity
    run: Run | None = None
    """The Run of the path, if authorisation read it already."""

    @property
    def namespace(self) -> str:
        return self.parameters.get("namespace", "")

    @property
    def query(self) -> queries.Query:
        return self.request.rel_url.query


Handler = Callable[[PlatformCall], Awaitable[web.StreamResponse]]
