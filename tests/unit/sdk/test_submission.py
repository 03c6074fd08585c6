"""A submit whose answer is lost: the client finds the run that its first request created."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from windlass.kinds import codec
from windlass.sdk import run_builder, submission
from windlass.store import errors
from windlass.store.kubernetes.client import KubernetesStore
from windlass.store.kubernetes.config.model import Access, Cluster, User


class Server:
    """Stores Runs by name; loses the answers to the first `losses` creations."""

    def __init__(self) -> None:
        self.stored: dict[str, dict[str, Any]] = {}
        self.losses = 0
        self.carried_out = True
        """Whether a request whose answer is lost was carried out."""

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "GET":
            return web.json_response(self.stored[request.path.rpartition("/")[2]])
        value = json.loads(await request.read())
        name = value["metadata"]["name"]
        lost, self.losses = self.losses > 0, self.losses - 1
        if name in self.stored:
            exists = errors.AlreadyExists("exists already", details={"name": name, "kind": "runs"})
            return web.json_response(exists.to_status(), status=409)
        if self.carried_out or not lost:
            value["metadata"]["uid"] = f"uid-{len(self.stored)}"
            self.stored[name] = value
        if lost:
            assert request.transport is not None
            request.transport.abort()
        return web.json_response(self.stored.get(name, {}), status=201)


@pytest.fixture
async def server() -> Server:
    return Server()


@pytest.fixture
async def store(server: Server) -> AsyncIterator[KubernetesStore]:
    runner = web.ServerRunner(web.Server(server.answer))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    access = Access(Cluster(server=f"http://127.0.0.1:{runner.addresses[0][1]}"), User())
    made = KubernetesStore(access)
    yield made
    await made.close()
    await runner.cleanup()


@pytest.mark.parametrize("carried_out", [True, False])
async def test_a_lost_answer_is_neither_an_error_nor_a_second_run(
    server: Server, store: KubernetesStore, carried_out: bool
) -> None:
    server.losses, server.carried_out = 1, carried_out
    made = await submission.create_run(
        store, run_builder.build(["true"], name="d11", namespace="n")
    )
    assert (made.name, made.uid) == ("d11", "uid-0")
    assert list(server.stored) == ["d11"]


async def test_another_run_of_the_name_is_still_refused(
    server: Server, store: KubernetesStore
) -> None:
    wanted = run_builder.build(["true"], name="d11", namespace="n")
    await submission.create_run(store, wanted)
    with pytest.raises(errors.AlreadyExists):
        await submission.create_run(store, wanted)


async def test_a_generated_name_is_chosen_once(server: Server, store: KubernetesStore) -> None:
    server.losses = 1
    value = codec.to_dict(run_builder.build(["true"], namespace="n"))
    value["metadata"] |= {"name": "", "generateName": "train-"}
    run_builder.mark(value)
    made = await submission.create(store, value)
    assert made.name.startswith("train-")
    assert list(server.stored) == [made.name]


async def test_an_answer_that_is_always_lost_is_reported(
    server: Server, store: KubernetesStore
) -> None:
    server.losses, server.carried_out = 99, False
    with pytest.raises(errors.AnswerLost):
        await submission.create_run(store, run_builder.build(["true"], namespace="n"))


def waiting(name: str, *after: str) -> dict[str, Any]:
    listed = [{"run": each, "when": "ok"} for each in after]
    return {"metadata": {"name": name}, "spec": {"after": listed}}


@pytest.mark.parametrize(
    ("values", "cycle"),
    [
        ([waiting("a"), waiting("b", "a"), waiting("c", "a", "b")], set()),
        ([waiting("a", "a")], {"a"}),
        ([waiting("a", "b"), waiting("b", "c"), waiting("c", "b")], {"b", "c"}),
        ([waiting("a", "outside")], set()),
        ([waiting("d", "b", "c"), waiting("b", "a"), waiting("c", "a"), waiting("a")], set()),
    ],
)
def test_runs_of_a_file_that_wait_for_each_other_are_found(
    values: list[dict[str, Any]], cycle: set[str]
) -> None:
    found = submission.cycle(values)
    assert set(found) == cycle
    after = {value["metadata"]["name"]: value["spec"].get("after") or () for value in values}
    for name, following in zip(found, [*found[1:], *found[:1]], strict=True):
        assert following in [each["run"] for each in after[name]]


def test_many_layers_of_runs_are_looked_through_once() -> None:
    layers = [[f"layer-{depth}-{place}" for place in range(3)] for depth in range(40)]
    values = [
        waiting(name, *before)
        for before, layer in reversed(list(itertools.pairwise([[], *layers])))
        for name in layer
    ]
    assert submission.cycle(values) == []
