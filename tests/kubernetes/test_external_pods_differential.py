"""Our feasible sets against kube-scheduler's own answers, pod by pod on one and the same state.

For each random pod: (a) kube-scheduler places it, and our set must have its node, or says that it
cannot, and our set must be empty; (b) before that one node of our set and one outside it are put to
kube-scheduler by pinning a copy of the pod: it must take the first and refuse the second. Then the
state moves on with kube-scheduler's choice. docs/guide/external-pods.md lists known
differences: cordoned nodes take no pod here, kube-scheduler lets in pods that tolerate the cordon.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness import rest
from tests.harness.control_plane import ControlPlane
from tests.kubernetes import differential, differential_volumes
from tests.kubernetes.differential_dice import NAMESPACES, Dice
from windlass.control.scheduler.cache import cache
from windlass.control.volumes import topology
from windlass.kinds.types import cluster, core, meta
from windlass.store import connect, errors
from windlass.store.informer import Change, Informer
from windlass.store.kubernetes.client import KubernetesStore

pytestmark = pytest.mark.kubernetes

SEED = int(os.environ.get("WINDLASS_SEED", "20260117"))
NODES, PODS_PER_CLUSTER = 9, 50
PATIENCE = 120
Json = dict[str, Any]


@pytest.fixture(scope="module")
def plane(kubernetes_binaries: Path) -> Iterator[ControlPlane]:
    """One of its own, with the stock scheduler that looks at every node."""
    # Volumes are bound by the stock controllers; none is attached.
    nobody = ["--controllers=-persistentvolume-attach-detach-controller"]
    with ControlPlane.start(controller_flags=nobody) as started:
        started.start_scheduler(
            {"percentageOfNodesToScore": 100, "podInitialBackoffSeconds": 1, "parallelism": 2}
        )
        yield started


class Judge:
    """kube-scheduler, asked one pod at a time; and our picture of the same cluster."""

    def __init__(self, plane: ControlPlane, store: KubernetesStore) -> None:
        self._rest, self._store = plane.rest, store
        self.seen = cache.SchedulerCache()
        self._pods: dict[str, core.Pod] = {}
        self._nodes: dict[str, core.Node] = {}
        self.volumes = topology.Volumes()
        self._seen: set[tuple[str, str]] = set()
        """Kind and name of what there is of storage."""
        self._turn = asyncio.Lock()
        self._making: set[asyncio.Task[None]] = set()
        self._news = asyncio.Condition()
        self._informers: list[Informer[Any]] = [
            Informer(store, core.Node, on_event=self._see_node),
            Informer(store, core.Pod, on_event=self._see_pod),
            Informer(store, core.Namespace, on_event=self.seen.pod_cache.on_namespace),
            *(
                Informer(store, kind, on_event=self._see_volumes)
                for kind in (
                    cluster.PersistentVolume, cluster.PersistentVolumeClaim,
                    cluster.StorageClass, cluster.CSIDriver,
                    cluster.CSIStorageCapacity,
                )
            ),
            *(
                Informer(store, kind, on_event=self._see_attachments)
                for kind in (cluster.CSINode, cluster.VolumeAttachment)
            ),
        ]  # fmt: skip

    async def __aenter__(self) -> Judge:
        for each in self._informers:
            each.start()
        for each in self._informers:
            await each.synced()
        return self

    async def __aexit__(self, *_: object) -> None:
        for each in self._informers:
            await each.stop()
        await asyncio.gather(*self._making)

    def _see_node(self, change: Change, before: Any, after: Any) -> None:
        self.seen.on_node(change, before, after)
        if after is None:
            self._nodes.pop(before.name, None)
        else:
            self._nodes[after.name] = after
        self._told()

    def _see_pod(self, change: Change, before: Any, after: Any) -> None:
        self.seen.on_pod(change, before, after)
        if after is None:
            self._pods.pop(before.name, None)
        else:
            self._pods[after.name] = after
        self._told()

    def _see_volumes(self, change: Change, before: Any, after: Any) -> None:
        self.seen.on_volume(change, before, after)
        self.volumes.on_change(before, after)
        self._note(before, after)
        if isinstance(after, topology.Claim) and not after.spec.volume_name:
            chosen = topology.selected_node(before) if before is not None else ""
            if topology.selected_node(after) and not chosen:
                self._making.add(asyncio.ensure_future(self._make(after)))

    def _see_attachments(self, change: Change, before: Any, after: Any) -> None:
        self.seen.on_attachment(change, before, after)
        self._note(before, after)

    def _note(self, before: Any, after: Any) -> None:
        one = after or before
        key = type(one).resource.kind, f"{one.namespace}/{one.name}"
        (self._seen.add if after else self._seen.discard)(key)
        self._told()

    async def _make(self, claim: topology.Claim) -> None:
        """As a driver does that makes volumes on demand."""
        path = f"/api/v1/namespaces/{claim.namespace}/persistentvolumeclaims/{claim.name}"
        body = (await self._request("GET", path)).json
        node = {"metadata": {"labels": self._nodes[topology.selected_node(claim)].metadata.labels}}
        kind = f"/apis/storage.k8s.io/v1/storageclasses/{body['spec']['storageClassName']}"
        driver = (await self._request("GET", kind)).json["provisioner"]
        made = differential_volumes.made_for(body, node, driver)
        await self._write("POST", "/api/v1/persistentvolumes", made)

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
        names = [each["persistentVolumeClaim"]["claimName"] for each in body["spec"]["volumes"]]
        reach = self.volumes.reach_of(body["metadata"]["namespace"], names)
        assert agrees(answer), f"{body['metadata']['name']}: {answer!r}; {said}; {reach}"
        return answer

    async def forget(self, body: Json) -> None:
        name = body["metadata"]["name"]
        await self._write("DELETE", f"{_pods(body)}/{name}", {"gracePeriodSeconds": 0})
        await self.until(f"{name} is gone", lambda: name not in self._pods)

    async def as_stored(self, body: Json) -> Json | None:
        """With all defaults; None: the API refuses such a pod."""
        path = f"{_pods(body)}?dryRun=All"
        answer = await self._request("POST", path, body)
        return answer.json if answer.status == 201 else None

    def waits_for_volumes(self, body: Json) -> bool:
        """Whether taking the pod in binds claims."""
        names = [each["persistentVolumeClaim"]["claimName"] for each in body["spec"]["volumes"]]
        return bool(self.volumes.reach_of(body["metadata"]["namespace"], names).unbound)

    async def settle(self, body: Json) -> None:
        """Until the volumes of a pod that was taken in are bound, and known to be."""
        names = [each["persistentVolumeClaim"]["claimName"] for each in body["spec"]["volumes"]]
        for name in names:
            where = body["metadata"]["namespace"], name
            await self.until(f"{name} is bound", lambda w=where: self._is_bound(*w))

    def _is_bound(self, namespace: str, name: str) -> bool:
        claim = self.volumes.claim(namespace, name)
        volume = self.volumes.volume(claim.spec.volume_name) if claim is not None else None
        return (
            claim is not None and volume is not None and claim.status.phase == "Bound"
            and topology.is_bound(claim) and volume.status.phase == "Bound"
        )  # fmt: skip

    async def lay_out(self, nodes: list[Json], storage: differential_volumes.Storage) -> None:
        """Another cluster, without pods; kube-scheduler has seen all of it."""
        for pod in list(self._pods.values()):
            await self.forget({"metadata": {"name": pod.name, "namespace": pod.namespace}})
        for name in list(self._nodes):
            await self._write("DELETE", f"/api/v1/nodes/{name}", None)
        for path, each in storage.all():
            await self._write("POST", path, each)
        await self.until("volumes are ready", lambda: self._is_ready(storage))
        last = differential.node(Dice(0), f"last-{nodes[0]['metadata']['name']}")
        last["spec"] = {}
        for each in (*nodes, last):
            await self._write("POST", "/api/v1/nodes", each)
        probe = differential.pinned(_probe(), "probe", last["metadata"]["name"])
        await self.ask(probe)  # perhaps before the node was seen; then it is asked again
        await self.until("the last node is seen", lambda: self._pods["probe"].spec.node_name)
        await self.forget(probe)
        await self._write("DELETE", f"/api/v1/nodes/{last['metadata']['name']}", None)
        names = {each["metadata"]["name"] for each in nodes}
        await self.until("all is seen", lambda: set(self._nodes) == names)

    def _is_ready(self, storage: differential_volumes.Storage) -> bool:
        """All of it is seen, volumes are there to be had, and claims that name one have it."""
        kinds = (
            ("StorageClass", storage.classes), ("CSINode", storage.limits),
            ("VolumeAttachment", storage.attachments), ("PersistentVolumeClaim", storage.claims),
            ("CSIStorageCapacity", storage.rooms),
        )  # fmt: skip
        wanted = {
            (kind, f"{_space(kind, each)}/{each['metadata']['name']}")
            for kind, listed in kinds for each in listed
        }  # fmt: skip
        listed = [self.volumes.volume(each["metadata"]["name"]) for each in storage.volumes]
        named = [each["metadata"] for each in storage.claims if "volumeName" in each["spec"]]
        return (
            wanted <= self._seen
            and all(v is not None and v.status.phase in ("Available", "Bound") for v in listed)
            and all(self._is_bound(each["namespace"], each["name"]) for each in named)
        )

    async def _write(self, method: str, path: str, body: Json | None) -> None:
        answer = await self._request(method, path, body)
        assert answer.status < 300, answer.summary

    async def _request(self, method: str, path: str, body: Json | None = None) -> rest.Answer:
        async with self._turn:  # one connection: one request at a time
            return await asyncio.to_thread(self._rest.request, method, path, body)


def _pods(body: Json) -> str:
    return f"/api/v1/namespaces/{body['metadata']['namespace']}/pods"


def _space(kind: str, body: Json) -> str:
    return "alpha" if kind == "CSIStorageCapacity" else str(body["metadata"].get("namespace", ""))


def _probe() -> Json:
    spec = {"containers": [{"name": "c", "image": "none"}]}
    return {"metadata": {"name": "probe", "namespace": "alpha"}, "spec": spec}


def _answer(pod: core.Pod | None) -> str:
    """`on NODE`; `on `: nowhere; "" as long as nothing was said."""
    if pod is None:
        return ""
    if pod.spec.node_name:
        return f"on {pod.spec.node_name}"
    told = next((c for c in pod.status.conditions or () if c.type == "PodScheduled"), None)
    return "on " if told is not None and told.status == "False" else ""


async def compare(judge: Judge, dice: Dice, number: int) -> None:
    """One random cluster and the pods that come to it."""
    names = [f"c{number}-n{i}" for i in range(NODES)]
    nodes = [differential.node(dice, name) for name in names]
    await judge.lay_out(nodes, differential_volumes.storage(dice, f"c{number}", names))
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
        excused = cordoned if open_to else set()
        if await _pin(judge, dice, body, ours, names, excused, said):
            ours = differential.feasible(judge.seen, stored)  # its claims are bound now
            said = f"{said}; then, with its claims bound: {sorted(ours)}"

        def agrees(chosen: str, ours: set[str] = ours, excused: bool = open_to) -> bool:
            if chosen in cordoned and excused:
                return True  # documented: a cordoned node takes no pod here
            return chosen in ours if chosen else not ours

        chosen = await judge.insist(body, agrees, said)
        if chosen:
            await judge.settle(body)
        if not chosen or chosen in cordoned:
            await judge.forget(body)


async def _pin(
    judge: Judge, dice: Dice, body: Json, ours: set[str], names: list[str],
    excused: set[str], said: str,
) -> bool:  # fmt: skip
    """Whether the state changed by it: a copy that is taken in has its claims bound. Half of the
    pods with such claims are therefore not put to a node of our set, but asked about as they are.
    """
    if not differential.can_be_pinned(body):
        return False
    binds = judge.waits_for_volumes(body)
    bound = False
    outside = sorted(set(names) - ours - excused)
    for place, wanted in ((outside, ""), (sorted(ours), None)):
        if place and (wanted == "" or not binds or dice.maybe(0.5)):
            node = dice.choice(place)
            copy = differential.pinned(body, f"{body['metadata']['name']}-pinned", node)
            right = node if wanted is None else wanted
            await judge.insist(copy, lambda answer, right=right: answer == right, said)
            if right and binds:
                await judge.settle(body)
                bound = True
            await judge.forget(copy)
    return bound


def _tolerates_cordon(body: Json) -> bool:
    return any(
        each.get("operator") == "Exists" and not each.get("key")
        for each in body["spec"].get("tolerations") or ()
    )


@pytest.fixture
async def judge(plane: ControlPlane) -> AsyncIterator[Judge]:
    store = connect.open_store(str(plane.kubeconfig))
    for name, labels in NAMESPACES.items():
        metadata = meta.ObjectMeta(name=name, labels=labels)
        try:
            await store.create(core.Namespace(metadata=metadata))
            account = core.ServiceAccount(metadata=meta.ObjectMeta(name="default", namespace=name))
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
        *(("/apis/storage.k8s.io/v1/csidrivers", each) for each in differential_volumes.DRIVERS),
    ):
        assert plane.rest.post(path, body).status in (201, 409)
    async with Judge(plane, store) as made:
        yield made
    await store.close()


async def test_a_sample_of_pods_is_judged_as_kube_scheduler_judges_them(judge: Judge) -> None:
    dice = Dice(SEED)
    for number in range(3):
        await compare(judge, dice, number)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not os.environ.get("WINDLASS_SOAK"), reason="make soak runs it")
async def test_five_thousand_pods_are_judged_as_kube_scheduler_judges_them(judge: Judge) -> None:
    dice = Dice(SEED + 1)
    for number in range(100, 200):
        await compare(judge, dice, number)
