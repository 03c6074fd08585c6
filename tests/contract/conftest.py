"""The engines of the contract suite, and a namespace of its own for each case."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.contract.objects import ok
from tests.harness import changes, rest

NODES = ("n1", "n2", "node-1")
"""Nodes that pods of the cases are on: pods of unknown nodes are swept up after a while."""

_numbers = itertools.count(1)


@pytest.fixture(
    scope="session",
    params=["embedded", pytest.param("kubernetes", marks=pytest.mark.kubernetes)],
)
def engine(request: pytest.FixtureRequest) -> str:
    """Which server answers."""
    return str(request.param)


@pytest.fixture(scope="session")
def api(engine: str, request: pytest.FixtureRequest) -> Iterator[rest.Rest]:
    """Plain HTTP to the engine as its administrator."""
    server = request.getfixturevalue(
        "control_plane" if engine == "kubernetes" else "embedded_server"
    )
    client = rest.from_kubeconfig(server.kubeconfig)
    if engine == "kubernetes":
        changes.install(client)
    for name in NODES:
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
        assert client.post("/api/v1/nodes", node).status in (201, 409)
    yield client
    client.close()


@pytest.fixture
def ns(api: rest.Rest) -> str:
    """A fresh namespace. Its `default` service account is there at once, so pods may be made."""
    return new_namespace(api)


def new_namespace(api: rest.Rest) -> str:
    name = f"case-{next(_numbers)}"
    ok(api.post("/api/v1/namespaces", {"metadata": {"name": name}}), 201)
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    answer = api.post(f"/api/v1/namespaces/{name}/serviceaccounts", account)
    assert answer.status in (201, 409), answer.summary
    return name
