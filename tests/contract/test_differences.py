"""What the embedded server leaves out of Kubernetes: refused clearly, never half done.

docs/ lists the same. These cases are about the embedded server only.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.conftest import new_namespace
from tests.contract.objects import config_map, core, ok, own, refused, run
from tests.harness.embedded import EmbeddedServer
from tests.harness.rest import Rest


@pytest.fixture(scope="module")
def server(embedded_server: EmbeddedServer) -> Iterator[Rest]:
    client = embedded_server.rest()
    yield client
    client.close()


@pytest.fixture
def room(server: Rest) -> str:
    return new_namespace(server)


@pytest.mark.parametrize("path", [core, own])
def test_server_side_apply_is_refused_with_the_remedy(
    server: Rest, room: str, path: object
) -> None:
    target = core(room, "configmaps", "a") if path is core else own(room, "runs", "a")
    body = config_map("a") if path is core else run("a")
    answer = server.request(
        "PATCH", target, body, content_type="application/apply-patch+yaml", fieldManager="test"
    )
    status = refused(answer, 415, "UnsupportedMediaType")
    assert "server-side apply" in status["message"].lower()
    assert server.get(target).status == 404


def test_kind_that_is_not_served_is_not_found(server: Rest, room: str) -> None:
    assert server.get(f"/apis/apps/v1/namespaces/{room}/deployments").status == 404


def test_version_says_that_it_is_windlass(server: Rest) -> None:
    assert "windlass" in ok(server.get("/version"))["gitVersion"]


def test_unknown_field_of_a_core_kind_is_kept(server: Rest, room: str) -> None:
    """Core kinds are partial here: what Windlass does not know travels along untouched."""
    body = config_map("a") | {"fromTheFuture": {"x": 1}}
    created = ok(server.post(core(room, "configmaps"), body, fieldValidation="Strict"), 201)
    assert created["fromTheFuture"] == {"x": 1}
