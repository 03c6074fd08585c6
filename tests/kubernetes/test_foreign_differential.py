"""Our feasible sets against kube-scheduler's own answers, pod by pod on one and the same state.

For each random pod: (a) kube-scheduler places it, and our set must have its node, or says that it
cannot, and our set must be empty; (b) before that one node of our set and one outside it are put to
kube-scheduler by pinning a copy of the pod: it must take the first and refuse the second. Then the
state moves on with kube-scheduler's choice. What is known to differ is in docs/foreign-pods.md:
cordoned nodes take nobody here, kube-scheduler lets in who tolerates the cordon.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.control_plane import ControlPlane
from tests.kubernetes import differential
from windlass.control import picture
from windlass.kinds import clusterkinds, kubernetes, meta
from windlass.store import connect, errors
from windlass.store.kubernetes.client import KubernetesStore
from windlass.store.reflector import Change, Reflector

pytestmark = pytest.mark.kubernetes

SEED = int(os.environ.get("WINDLASS_SEED", "20260117"))
NODES, PODS_PER_CLUSTER = 9, 50
PATIENCE = 120
Json = dict[str, Any]


@pytest.fixture(scope="module")
def plane(kubernetes_binaries: Path) -> Iterator[ControlPlane]:
    """One of its own, with the stock scheduler that looks at every node."""
    with ControlPlane.start(controllers=False) as started:
        started.start_scheduler(
            {"percentageOfNodesToScore": 100, "podInitialBackoffSeconds": 1, "parallelism": 2}
        )
        yield started


class Judge:
    """kube-scheduler, asked one pod at a time; and our picture of the same cluster."""

    def __init__(self, plane: ControlPlane, store: KubernetesStore) -> None:
        self._rest, self._store = plane.rest, store
        self.seen = picture.Picture()
        self._pods: dict[str, kubernetes.Pod] = {}
        self._nodes: set[str] = set()
        self._claims: set[str] = set()
        self._news = asyncio.Condition()
        self._reflectors: list[Reflector[Any]] = [
            Reflector(store, kubernetes.Node, on_event=self._see_node),
            Reflector(store, kubernetes.Pod, on_event=self._see_pod),
            Reflector(store, kubernetes.Namespace, on_event=self.seen.book.see_namespace),
            Reflector(store, clusterkinds.PersistentVolume, on_event=self._see_volumes),
            Reflector(store, clusterkinds.PersistentVolumeClaim, on_event=self._see_volumes),
        ]

    async def __aenter__(self) -> Judge:
        for each in self._reflectors:
            each.start()
        for each in self._reflectors:
            await each.synced()
        return self

    async def __aexit__(self, *_: object) -> None:
        for each in self._reflectors:
            await each.stop()

    def _see_node(self, change: Change, before: Any, after: Any) -> None:
        self.seen.see_node(change, before, after)
        (self._nodes.add if after else self._nodes.discard)((after or before).name)
        self._told()

    def _see_pod(self, change: Change, before: Any, after: Any) -> None:
        self.seen.see_pod(change, before, after)
        if after is None:
            self._pods.pop(before.name, None)
        else:
            self._pods[after.name] = after
        self._told()

    def _see_volumes(self, change: Change, before: Any, after: Any) -> None:
        self.seen.see_volumes(change, before, after)
        (self._claims.add if after else self._claims.discard)((after or before).name)
        self._told()

    def _told(self) -> None:
        asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(self._tell()))

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()

    async def until(self, what: str, check: Callable[[], Any]) -> Any:
        async with asyncio.timeout(PATIENCE), self._news:
            await self._news.wait_for(check)
        return check()

    async def ask(self, body: Json) -> str:
        """The node that kube-scheduler chose, or "": it says that there is none."""
        name = body["metadata"]["name"]
        await self._write("POST", _pods(body), body)
        answer = await self.until(f"{name} is decided", lambda: _answer(self._pods.get(name)))
        return str(answer.removeprefix("on "))

    async def insist(self, body: Json, agrees: Callable[[str], bool], said: str) -> str:
        """Its answer, which must agree."""
        answer = await self.ask(body)
        assert agrees(answer), f"{body['metadata']['name']}: {answer!r}; {said}"
        return answer

    async def forget(self, body: Json) -> None:
        name = body["metadata"]["name"]
        await self._write("DELETE", f"{_pods(body)}/{name}", {"gracePeriodSeconds": 0})
        await self.until(f"{name} is gone", lambda: name not in self._pods)

    async def as_stored(self, body: Json) -> Json | None:
        """With all defaults; None: the API refuses such a pod."""
        path = f"{_pods(body)}?dryRun=All"
        answer = await asyncio.to_thread(self._rest.post, path, body)
        return answer.json if answer.status == 201 else None

    async def lay_out(self, nodes: list[Json], volumes: list[tuple[Json, Json]]) -> None:
        """Another cluster, without pods; kube-scheduler has seen all of it."""
        for pod in list(self._pods.values()):
            await self.forget({"metadata": {"name": pod.name, "namespace": pod.namespace}})
        for name in list(self._nodes):
            await self._write("DELETE", f"/api/v1/nodes/{name}", None)
        for volume, claim in volumes:
            path = f"/api/v1/namespaces/{claim['metadata']['namespace']}/persistentvolumeclaims"
            await self._write("POST", "/api/v1/persistentvolumes", volume)
            await self._write("POST", path, claim)
            status = f"{path}/{claim['metadata']['name']}/status"
            answer = await asyncio.to_thread(
                self._rest.merge, status, {"status": {"phase": "Bound"}}
            )
            assert answer.status == 200, answer.summary
        last = differential.node(differential.Dice(0), f"last-{nodes[0]['metadata']['name']}")
        last["spec"] = {}
        for each in (*nodes, last):
            await self._write("POST", "/api/v1/nodes", each)
        probe = differential.pinned(_probe(), "probe", last["metadata"]["name"])
        await self.ask(probe)  # perhaps before the node was seen; then it is asked again
        await self.until("the last node is seen", lambda: self._pods["probe"].spec.node_name)
        await self.forget(probe)
        await self._write("DELETE", f"/api/v1/nodes/{last['metadata']['name']}", None)
        names = {each["metadata"]["name"] for each in nodes}
        bound = {claim["metadata"]["name"] for _, claim in volumes}
        seen = lambda: self._nodes == names and bound <= self._claims  # noqa: E731
        await self.until("all is seen", seen)

    async def _write(self, method: str, path: str, body: Json | None) -> None:
        answer = await asyncio.to_thread(self._rest.request, method, path, body)
        assert answer.status < 300, answer.summary


def _pods(body: Json) -> str:
    return f"/api/v1/namespaces/{body['metadata']['namespace']}/pods"


def _probe() -> Json:
    spec = {"containers": [{"name": "c", "image": "none"}]}
    return {"metadata": {"name": "probe", "namespace": "alpha"}, "spec": spec}


def _answer(pod: kubernetes.Pod | None) -> str:
    """`on NODE`; `on `: nowhere; "" as long as nothing was said."""
    if pod is None:
        return ""
    if pod.spec.node_name:
        return f"on {pod.spec.node_name}"
    told = next((c for c in pod.status.conditions or () if c.type == "PodScheduled"), None)
    return "on " if told is not None and told.status == "False" else ""


async def compare(judge: Judge, dice: differential.Dice, number: int) -> None:
    """One random cluster and the pods that come to it."""
    names = [f"c{number}-n{i}" for i in range(NODES)]
    nodes = [differential.node(dice, name) for name in names]
    await judge.lay_out(nodes, differential.volumes(dice, f"c{number}", names))
    cordoned = {n["metadata"]["name"] for n in nodes if n["spec"]["unschedulable"]}
    asked = refused = 0
    while asked < PODS_PER_CLUSTER:
        body = differential.pod(dice, f"c{number}-p{asked}", names)
        stored = await judge.as_stored(body)
        refused += stored is None
        assert refused < PODS_PER_CLUSTER, "the API refuses most of these pods"
        if stored is None:
            continue
        asked += 1
        ours = differential.feasible(judge.seen, stored)
        said = f"seed {SEED}, {body['metadata']['name']}: ours {sorted(ours)}, {body['spec']}"
        open_to = _tolerates_cordon(stored)
        await _pin(judge, dice, body, ours, names, cordoned if open_to else set(), said)

        def agrees(chosen: str, ours: set[str] = ours, excused: bool = open_to) -> bool:
            if chosen in cordoned and excused:
                return True  # documented: a cordoned node takes nobody here
            return chosen in ours if chosen else not ours

        chosen = await judge.insist(body, agrees, said)
        if not chosen or chosen in cordoned:
            await judge.forget(body)


async def _pin(
    judge: Judge, dice: differential.Dice, body: Json, ours: set[str], names: list[str],
    excused: set[str], said: str,
) -> None:  # fmt: skip
    if not differential.can_be_pinned(body):
        return
    outside = sorted(set(names) - ours - excused)
    for place, wanted in ((outside, ""), (sorted(ours), None)):
        if place:
            node = dice.choice(place)
            copy = differential.pinned(body, f"{body['metadata']['name']}-pinned", node)
            right = node if wanted is None else wanted
            await judge.insist(copy, lambda answer, right=right: answer == right, said)
            await judge.forget(copy)


def _tolerates_cordon(body: Json) -> bool:
    return any(
        each.get("operator") == "Exists" and not each.get("key")
        for each in body["spec"].get("tolerations") or ()
    )


@pytest.fixture
async def judge(plane: ControlPlane) -> AsyncIterator[Judge]:
    store = connect.open_store(str(plane.kubeconfig))
    for name, labels in differential.NAMESPACES.items():
        metadata = meta.ObjectMeta(name=name, labels=labels)
        try:
            await store.create(kubernetes.Namespace(metadata=metadata))
            account = kubernetes.ServiceAccount(
                metadata=meta.ObjectMeta(name="default", namespace=name)
            )
            await store.create(account)
        except errors.AlreadyExists:
            continue
    heavy = {
        "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "heavy"},
        "handler": "heavy", "overhead": {"podFixed": {"cpu": "250m", "memory": "120Mi"}},
    }  # fmt: skip
    waits = {
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 7,
        "metadata": {"name": "waits"}, "preemptionPolicy": "Never",
    }  # fmt: skip
    for path, body in (
        ("/apis/node.k8s.io/v1/runtimeclasses", heavy),
        ("/apis/scheduling.k8s.io/v1/priorityclasses", waits),
    ):
        assert plane.rest.post(path, body).status in (201, 409)
    async with Judge(plane, store) as made:
        yield made
    await store.close()


async def test_a_sample_of_pods_is_judged_as_kube_scheduler_judges_them(judge: Judge) -> None:
    dice = differential.Dice(SEED)
    for number in range(3):
        await compare(judge, dice, number)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not os.environ.get("WINDLASS_SOAK"), reason="make soak runs it")
async def test_five_thousand_pods_are_judged_as_kube_scheduler_judges_them(judge: Judge) -> None:
    dice = differential.Dice(SEED + 1)
    for number in range(100, 200):
        await compare(judge, dice, number)
