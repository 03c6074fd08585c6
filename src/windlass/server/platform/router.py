"""Finds the route of a path, checks its access rule and calls its handler.

The server authenticates a caller between `match` and `serve`: workers of a mailbox have no user's
token, so their routes are served without an identity.
"""

from __future__ import annotations

import dataclasses
import re
import urllib.parse
from collections.abc import Awaitable, Callable, Iterable

from aiohttp import web

from windlass.server.auth.identity import Identity
from windlass.server.http.request_handler import RequestRecord, method_not_allowed
from windlass.server.platform.access import Authorizers
from windlass.server.platform.call import Handler, PlatformCall
from windlass.server.platform.paths import GROUP
from windlass.server.platform.routes import PATTERNS, Route
from windlass.server.platform.services import Services

_ANY = re.compile(r".+", re.DOTALL)


@dataclasses.dataclass(frozen=True, slots=True)
class Match:
    """A path of the table, with the routes of its methods."""

    routes: dict[str, tuple[Route, Handler]]
    parameters: dict[str, str]

    @property
    def needs_identity(self) -> bool:
        return any(route.audience != "mailbox" for route, _ in self.routes.values())


@dataclasses.dataclass(frozen=True, slots=True)
class _Template:
    literals: tuple[tuple[int, str], ...]
    parameters: tuple[tuple[int, str, re.Pattern[str]], ...]
    routes: dict[str, tuple[Route, Handler]]

    def match(self, parts: list[str]) -> Match | None:
        if any(parts[place] != text for place, text in self.literals):
            return None
        if not all(pattern.fullmatch(parts[place]) for place, _, pattern in self.parameters):
            return None
        return Match(self.routes, {name: parts[place] for place, name, _ in self.parameters})


class Router:
    def __init__(
        self, routes: Iterable[Route], services: Services, authorizers: Authorizers
    ) -> None:
        self._authorizers = authorizers
        self._by_length: dict[int, list[_Template]] = {}
        by_template: dict[str, dict[str, tuple[Route, Handler]]] = {}
        for route in routes:
            if route.embedded and services.embedded is None:
                continue
            handlers = by_template.setdefault(route.template, {})
            for method in route.methods:
                if method in handlers:
                    raise ValueError(f"two routes for {method} {route.template}")
                handlers[method] = route, route.handler(services)
        for template, handlers in by_template.items():
            made = _compile(template, handlers)
            self._by_length.setdefault(template.count("/"), []).append(made)

    def match(self, raw_path: str) -> Match | None:
        """The entry of a path as it came over the wire, for any method; None: not in the table."""
        templates = self._by_length.get(raw_path.count("/"))
        if templates is None:
            return None
        parts = raw_path.split("/")
        if "%" in raw_path:
            parts = [urllib.parse.unquote(part) for part in parts]
        for template in templates:
            if (found := template.match(parts)) is not None:
                return found
        return None

    async def serve(
        self,
        record: RequestRecord,
        identity: Identity,
        match: Match,
        admitted: Callable[[], Awaitable[None]] | None = None,
    ) -> web.StreamResponse:
        """The handler's answer. Forbidden, Unauthorized, or MethodNotAllowed without calling it.
        `admitted` is called once the access rule is satisfied."""
        found = match.routes.get(record.request.method)
        if found is None:
            raise method_not_allowed()
        route, handler = found
        if route.resource:
            record.describe(route.verb, f"{route.resource}.{GROUP}")
        call = PlatformCall(record.request, match.parameters, identity)
        await route.access.check(call, self._authorizers)
        if admitted is not None:
            await admitted()
        if route.waits:
            record.open_stream()
        return await handler(call)


def _compile(template: str, routes: dict[str, tuple[Route, Handler]]) -> _Template:
    literals, parameters = [], []
    for place, part in enumerate(template.split("/")):
        if part.startswith("{"):
            name = part.strip("{}")
            pattern = re.compile(PATTERNS[name]) if name in PATTERNS else _ANY
            parameters.append((place, name, pattern))
        else:
            literals.append((place, part))
    # From the end: paths of one length differ there first.
    return _Template(tuple(reversed(literals)), tuple(parameters), routes)
