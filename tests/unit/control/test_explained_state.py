"""The explainer answers from the same snapshot and policy that the scheduler decides on."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
from collections.abc import AsyncIterator, Iterable
from typing import Any

from tests.unit.control import build
from tests.unit.control.test_limits import quota
from tests.unit.control.test_runtime_classes import HEAVY, in_kata
from tests.unit.control.test_volumes import DRIVER, claim, storage, volume
from windlass.control.explain.service import Explainer
from windlass.control.model import policy
from windlass.control.model.capabilities import NAMESPACE
from windlass.control.runtime.informers import InformerFactory
from windlass.control.scheduler import loop
from windlass.core.model import types
from windlass.core.snapshot.snapshot import Snapshot
from windlass.kinds.types import cluster, core, meta, pod_placement, run
from windlass.store.interface import ObjectList

NOW = datetime.datetime(2026, 1, 1, 10, tzinfo=datetime.UTC)


class WithClusterKinds:
    """The embedded store, and beside it objects of kinds that only a cluster serves."""

    def __init__(self, store: Any, objects: Iterable[meta.Object]) -> None:
        self._store, self._objects = store, list(objects)

    async def list(self, kind: Any, namespace: str = "", **more: Any) -> Any:
        found = [each for each in self._objects if type(each) is kind]
        return ObjectList(found, "1") if found else await self._store.list(kind, namespace, **more)

    async def watch(self, kind: Any, namespace: str = "", **more: Any) -> AsyncIterator[Any]:
        if any(type(each) is kind for each in self._objects):
            await asyncio.Event().wait()
        async for event in self._store.watch(kind, namespace, **more):
            yield event

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def cluster_objects() -> list[meta.Object]:
    selector = pod_placement.LabelSelector(match_labels={"app": "web"})
    limit = cluster.CSINodeDriver(name=DRIVER, allocatable=cluster.VolumeLimit(count=3))
    attached = cluster.VolumeAttachment(
        metadata=meta.ObjectMeta(name="attached"),
        spec=cluster.VolumeAttachmentSpec(
            attacher=DRIVER, node_name="n1",
            source=cluster.AttachedVolume(persistent_volume_name="elsewhere"),
        ),
    )  # fmt: skip
    csi = cluster.CSIVolumeSource(driver=DRIVER, volume_handle="h-v")
    other = cluster.CSIVolumeSource(driver=DRIVER, volume_handle="h-elsewhere")
    return [
        quota({"pods": "3"}),
        HEAVY,
        claim("v"),
        volume("z1", name="v", csi=csi),
        volume(name="elsewhere", csi=other),
        storage(),
        cluster.CSINode(
            metadata=meta.ObjectMeta(name="n1"), spec=cluster.CSINodeSpec(drivers=[limit])
        ),
        attached,
        cluster.PodDisruptionBudget(
            metadata=meta.ObjectMeta(name="web", namespace=build.NAMESPACE),
            spec=cluster.PodDisruptionBudgetSpec(selector=selector),
            status=cluster.PodDisruptionBudgetStatus(disruptions_allowed=0),
        ),
    ]


async def fill(store: Any) -> None:
    await store.create(core.Namespace(metadata=meta.ObjectMeta(name=NAMESPACE)))
    where = meta.ObjectMeta(name=policy.NAME, namespace=NAMESPACE)
    await store.create(core.ConfigMap(metadata=where, data={"reservations": "7"}))
    await store.create(build.node("n1", cpu="2", labels={"topology.kubernetes.io/zone": "z1"}))
    await store.create(build.a_queue())
    data = [run.Mount(source="claim:data", path="/data")]
    for owner in (
        build.a_run("wide", build.role(replicas=4)),
        build.a_run("data", build.role(cpu="8"), mounts=data),
        in_kata("kata", cpu="8"),
    ):
        await store.create(owner)
    web = build.external_pod("web", "n1", cpu="1")
    web.metadata.namespace, web.metadata.labels = build.NAMESPACE, {"app": "web"}
    web.spec.scheduler_name, web.spec.containers[0].image = "windlass", "web"
    await store.create(web)


def facts(snapshot: Snapshot) -> types.ClusterFacts:
    """Without past usage: the scheduler accounts it, and others read what it has written."""
    return dataclasses.replace(snapshot.facts(), accounts=(), accounted_at=None)


async def test_the_explainer_has_the_snapshot_and_the_policy_of_the_scheduler(store) -> None:
    await fill(store)
    served = WithClusterKinds(store, cluster_objects())
    informers = InformerFactory(served)
    scheduler = loop.Scheduler(served, informers, epoch=1, now=lambda: NOW)
    explainer = Explainer(served, now=lambda: NOW)
    async with informers:
        await scheduler.cycle()
        decided = await scheduler.read(facts)
        try:
            explained = await explainer.read(lambda snapshot, *_: facts(snapshot))
            known = await explainer.read(lambda _, __, used: used)
        finally:
            await explainer.stop()
    assert explained == decided
    assert known == scheduler._state.policy
    assert known.reservations == 7
    assert decided is not None
    assert [each.hard for each in decided.quotas] == [{"pods": 3}]
    (node,) = decided.nodes
    assert node.attach_limits == {DRIVER: 2}, "one of three is attached and mounted by no pod"
    waiting = {each.key: each for each in decided.waiting}
    by_name = {owner.name: waiting[owner.uid] for owner in (await store.list(run.Run)).items}
    assert by_name["data"].roles[0].constraint.volumes, "the claim's volume is in one zone"
    assert by_name["kata"].roles[0].runtime.name == "kata"
    (web,) = decided.running
    assert web.protected_until > NOW.timestamp(), "its disruption budget protects it"
