"""The log's way from the API server to the agent, over real HTTP on loopback."""

import types

import aiohttp
import pytest

from windlass.agent import http, procfs
from windlass.agent.gateway import AgentGateway
from windlass.kinds import kubernetes, meta
from windlass.store import errors
from windlass.store.embedded.api import Api
from windlass.store.embedded.client import EmbeddedStore

POD = {
    "metadata": {"name": "p", "namespace": "team", "uid": "uid-1"},
    "spec": {"nodeName": "n1", "containers": [{"name": "main"}, {"name": "side"}]},
}


def options(container="main", **more):
    asked = {
        "container": container, "follow": False, "previous": False, "timestamps": False,
        "since_seconds": None, "since_time": "", "tail_lines": None, "limit_bytes": None,
    }  # fmt: skip
    return types.SimpleNamespace(**(asked | more))


@pytest.fixture
async def store(tmp_path):
    api = await Api.open(tmp_path / "store.db")
    yield EmbeddedStore(api)
    await api.close()


@pytest.fixture
async def gateway(tmp_path, store):
    """A gateway, and an agent's endpoint with one pod that has said two lines."""
    folder = tmp_path / "pods" / "uid-1"
    start = folder / "containers" / "main" / "0"
    start.mkdir(parents=True)
    procfs.write_durably(folder / "pod.json", {"namespace": "team", "name": "p"})
    lines = ["2026-01-01T00:00:01.000000Z stdout F one", "2026-01-01T00:00:02.000000Z stderr F two"]
    (start / "log.0").write_text("\n".join(lines) + "\n")
    endpoint = http.Endpoint(tmp_path / "pods", http.ensure_secret(tmp_path))
    async with endpoint.listening("127.0.0.1", 0) as port:
        await register(store, port)
        yield AgentGateway(store, tmp_path)


async def register(store, port: int) -> None:
    await store.create(kubernetes.Node(metadata=meta.ObjectMeta(name="n1")))
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }
    await store.patch(kubernetes.Node, "n1", patch={"status": status}, subresource="status")


async def read(gateway, pod=None, **asked) -> str:
    pieces = [piece async for piece in gateway.log(pod or POD, options(**asked))]
    return b"".join(pieces).decode()


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, "one\ntwo\n"),
        ({"tail_lines": 1}, "two\n"),
        ({"limit_bytes": 2}, "on"),
        ({"since_time": "2026-01-01T00:00:02Z"}, "two\n"),
        ({"tail_lines": 1, "timestamps": True}, "2026-01-01T00:00:02.000000Z two\n"),
        ({"since_seconds": 1}, ""),
    ],
)
async def test_the_log_comes_as_asked_for(gateway, asked, expected):
    assert await read(gateway, **asked) == expected


REFUSALS = {
    "which container": ({"container": ""}, "choose one of: ['main', 'side']"),
    "no such container": ({"container": "none"}, "container none is not valid for pod p"),
    "nothing said yet": ({"container": "side"}, "has no such log yet"),
    "never restarted": ({"previous": True}, "has no such log yet"),
}


@pytest.mark.parametrize(("asked", "message"), REFUSALS.values(), ids=REFUSALS)
async def test_what_cannot_be_shown_says_why(gateway, asked, message):
    with pytest.raises(errors.BadRequest) as caught:
        await read(gateway, **asked)
    assert message in caught.value.message


async def test_a_pod_that_never_started_here_is_told(gateway):
    other = POD | {"metadata": {"name": "q", "namespace": "team", "uid": "uid-2"}}
    with pytest.raises(errors.BadRequest, match="has not started on this node"):
        await read(gateway, other)


async def test_a_pod_without_a_node_is_told(gateway):
    with pytest.raises(errors.BadRequest, match="on no node yet"):
        await read(gateway, POD | {"spec": {"containers": [{"name": "main"}]}})


async def test_an_agent_that_is_away_is_unavailable(tmp_path, store):
    http.ensure_secret(tmp_path)
    await register(store, 1)
    with pytest.raises(errors.Unavailable, match="does not answer"):
        await read(AgentGateway(store, tmp_path))


async def test_without_the_secret_nothing_is_shown(tmp_path, gateway, store):
    url = await gateway._url(POD, "p")
    for headers in ({}, {"Authorization": "Bearer guess"}):
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{url}/logs/uid-1/main", headers=headers) as answer,
        ):
            assert answer.status == 401
    assert (tmp_path / "secret").stat().st_mode & 0o077 == 0
