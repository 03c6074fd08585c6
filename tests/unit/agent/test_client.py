"""The log's way from the API server to the agent, over a real Unix socket."""

import asyncio
import contextlib
import os
import socket
import stat
import subprocess
import sys
import types

import pytest

from windlass.agent.api import server, unix_socket
from windlass.agent.api.client import AgentGateway
from windlass.agent.runtime import procfs
from windlass.kinds import codec
from windlass.kinds.types import core, meta
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
    endpoint = server.AgentServer(tmp_path / "pods")
    with unix_socket.listening(tmp_path, ["n1"]) as listener:
        async with endpoint.serving(listener):
            await register(store)
            yield AgentGateway(store, tmp_path)


async def register(store, ready: str = "True") -> None:
    with contextlib.suppress(errors.AlreadyExists):
        await store.create(core.Node(metadata=meta.ObjectMeta(name="n1")))
    status = {"conditions": [{"type": "Ready", "status": ready}]}
    await store.patch(core.Node, "n1", patch={"status": status}, subresource="status")


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


async def test_a_pod_that_never_started_here_is_reported(gateway):
    other = POD | {"metadata": {"name": "q", "namespace": "team", "uid": "uid-2"}}
    with pytest.raises(errors.BadRequest, match="has not started on this node"):
        await read(gateway, other)


async def test_a_pod_without_a_node_is_reported(gateway):
    with pytest.raises(errors.BadRequest, match="on no node yet"):
        await read(gateway, POD | {"spec": {"containers": [{"name": "main"}]}})


async def test_an_agent_that_is_away_is_unavailable(tmp_path, store):
    await register(store)
    gateway = AgentGateway(store, tmp_path)
    with pytest.raises(errors.Unavailable, match="does not run on this machine"):
        await read(gateway)
    with unix_socket.listening(tmp_path, ["n1"]) as listener:
        listener.close()  # as kill -9 leaves it: the file is there, the process is gone
        with pytest.raises(errors.Unavailable, match="does not answer"):
            await read(gateway)


async def test_the_agent_of_a_node_that_is_not_ready_is_not_asked(gateway, store):
    await register(store, ready="False")
    with pytest.raises(errors.Unavailable, match="node n1 is not ready"):
        await read(gateway)
    node = codec.to_dict(await store.get(core.Node, "n1"))
    with pytest.raises(errors.Unavailable, match="node n1 is not ready"):
        await gateway.usage(node, "stats/summary")


async def test_an_agent_listens_on_no_port_and_only_its_user_reaches_its_socket(gateway, tmp_path):
    folder = tmp_path / unix_socket.FOLDER
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "n1/socket")]
    assert modes == [0o700, 0o600]
    assert listening_ports() == set()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
async def test_another_user_is_refused_though_the_folder_is_open(gateway, tmp_path):
    path = tmp_path / unix_socket.FOLDER / "n1"
    for each in (path / "socket", path):
        each.chmod(0o777)
    script = (
        f"import os, socket; os.chdir({str(path)!r}); os.setuid(65534);"
        "s = socket.socket(socket.AF_UNIX); s.connect('socket');"
        "s.sendall(b'GET /logs/uid-1/main HTTP/1.0\\r\\n\\r\\n'); print(s.recv(4096).decode())"
    )
    command = [sys.executable, "-c", script]
    asked = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
    assert "403" in asked.stdout.splitlines()[0], asked


async def test_one_socket_serves_many_nodes_and_leaves_nothing_behind(tmp_path):
    names = ["fake-0", "fake-1", "n" * 253]
    for _ in range(2):  # the second time beside what a killed process left
        with unix_socket.listening(tmp_path, names):
            for name in names:
                with (
                    unix_socket.address(tmp_path, name) as path,
                    socket.socket(socket.AF_UNIX) as client,
                ):
                    client.connect(path)
    assert list((tmp_path / unix_socket.FOLDER).iterdir()) == []


def listening_ports() -> set[int]:
    return procfs.listening_ports([os.getpid()])
