"""The router: which route a path has, and that no handler is called before its access rule."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
from aiohttp import web

from tests.unit.server.conftest import Served
from windlass.server.platform import routes
from windlass.server.platform.call import Handler, PlatformCall
from windlass.server.platform.router import Router
from windlass.server.platform.services import Services

DIGEST = "sha256:" + "1" * 64
VALUES = {
    "namespace": "default", "digest": DIGEST, "box": "0" * 24, "key": "0", "token": "ab",
    "stepkey": "a" * 64, "study": "lr",
}  # fmt: skip
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")


def path_of(template: str) -> str:
    return re.sub(r"{(\w+)}", lambda found: VALUES.get(found[1], "x"), template)


@pytest.fixture
def called(served: Served, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The templates of routes whose handlers ran; the handlers themselves do nothing."""
    ran: list[str] = []

    def spied(route: routes.Route) -> routes.Route:
        def choose(_: Services) -> Handler:
            async def handler(call: PlatformCall) -> web.StreamResponse:
                ran.append(f"{call.request.method} {route.template}")
                return web.Response()

            return handler

        return dataclasses.replace(route, handler=choose)

    platform = served.app._platform
    router = Router(
        map(spied, routes.ROUTES), platform.services, platform.router._authorizers
    )  # fmt: skip
    monkeypatch.setattr(platform, "router", router)
    monkeypatch.setattr(platform, "match", router.match)
    return ran


async def test_no_handler_runs_for_a_caller_without_the_permission(
    served: Served, called: list[str]
) -> None:
    stranger = await served.user("eve")
    for route in routes.ROUTES:
        for method in route.methods:
            if route.audience == "everyone" or "/tokens/" in route.template:
                continue  # for every user, or decided by whose token it is
            answer = await served.call(method, path_of(route.template), token=stranger)
            refused = 401 if route.audience == "mailbox" else 403
            assert answer.code == refused, (method, route.template)
    assert called == []


async def test_each_route_is_found_and_runs_for_an_administrator(
    served: Served, called: list[str]
) -> None:
    expected = []
    for route in routes.ROUTES:
        for method in route.methods:
            if route.audience != "mailbox":
                answer = await served.call(method, path_of(route.template))
                assert answer.code == 200, (method, route.template, answer.body)
                expected.append(f"{method} {route.template}")
    assert called == expected


async def test_methods_without_a_route_are_not_allowed(served: Served, called: list[str]) -> None:
    by_template: dict[str, set[str]] = {}
    for route in routes.ROUTES:
        by_template.setdefault(route.template, set()).update(route.methods)
    for template, methods in by_template.items():
        for method in set(METHODS) - methods:
            assert (await served.call(method, path_of(template))).code == 405, (method, template)
    assert called == []


@pytest.mark.parametrize(
    "path",
    [
        "namespaces/default/blobs/sha256:xyz", "namespaces/default/blobs/md5:00",
        f"namespaces/..%2Fdefault/blobs/{DIGEST}", f"namespaces/UPPER/blobs/{DIGEST}",
        "namespaces/default/mailboxes/..", f"namespaces/default/mailboxes/{'0' * 24}/calls/..",
        f"namespaces/default/mailboxes/{'0' * 24}/calls/{'k' * 41}", "tokens/a-b", "ps/", "ps/x",
        "namespaces//ps", "namespaces/default/runs//why",
    ],
)  # fmt: skip
def test_paths_with_other_values_are_not_in_the_table(served: Served, path: str) -> None:
    assert served.app._platform.match(f"{routes.ROOT}/{path}") is None


@pytest.mark.parametrize("colon", [":", "%3A", "%3a"])
def test_parameters_are_unquoted(served: Served, colon: str) -> None:
    found: Any = served.app._platform.match(
        f"{routes.ROOT}/namespaces/default/blobs/{DIGEST.replace(':', colon)}"
    )
    assert found.parameters == {"namespace": "default", "digest": DIGEST}


def test_a_method_of_a_path_has_one_route(served: Served) -> None:
    platform = served.app._platform
    twice = (*routes.ROUTES, routes.ROUTES[0])
    with pytest.raises(ValueError, match="two routes for GET"):
        Router(twice, platform.services, platform.router._authorizers)


def test_requests_that_move_content_do_not_count_as_executing() -> None:
    """A slow client would keep the seat from the other requests of its user."""
    moving = [
        route for route in routes.ROUTES
        if routes._BYTES in (route.body, *route.reply.media) and route.access != routes._WRITE_LOGS
    ]  # fmt: skip
    assert len(moving) > 8
    assert [route.template for route in moving if not route.waits] == []
