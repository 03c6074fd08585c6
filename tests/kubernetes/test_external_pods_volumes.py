"""Volumes of other people's pods on a real control plane: which claim gets which volume, when a pod
is bound, and how many volumes a node attaches. The stock controllers bind claims."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import waiting
from tests.harness.control_plane import ControlPlane
from tests.harness.plugin import CRDS
from tests.kubernetes.external_pods import PATIENCE, Json, World, gang, node, pod
from tests.kubernetes.external_pods import world as world
from windlass.control.runtime import informers

pytestmark = pytest.mark.kubernetes

STORAGE, VOLUMES = "/apis/storage.k8s.io/v1", "/api/v1/persistentvolumes"
CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
DRIVER = "disks.example.com"


@pytest.fixture(scope="module")
def running(kubernetes_binaries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with ControlPlane.start(crds=CRDS) as plane:
        world = World(plane, tmp_path_factory.mktemp("volumes"))
        world.make("/api/v1/namespaces", {"metadata": {"name": informers.NAMESPACE}})
        world.make(
            f"{STORAGE}/storageclasses",
            *(
                {"metadata": {"name": name}, "provisioner": by,
                 "volumeBindingMode": "WaitForFirstConsumer"}
                for name, by in (("local", "kubernetes.io/no-provisioner"), ("made", DRIVER))
            ),
        )  # fmt: skip
        process = world.start()
        yield world
        process.kill()


def claim(name: str, of: str, **more: str) -> Json:
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"metadata": {"name": name}, "spec": {**spec, "storageClassName": of, **more}}


def volume(name: str, of: str, *hosts: str, **more: Json) -> Json:
    near = {"key": "kubernetes.io/hostname", "operator": "In", "values": list(hosts)}
    spec: Json = {
        "accessModes": ["ReadWriteMany"], "capacity": {"storage": "1Gi"}, "storageClassName": of,
        **(more or {"local": {"path": "/nowhere"}}),
    }  # fmt: skip
    if hosts:
        terms = [{"matchExpressions": [near]}]
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": terms}}
    return {"metadata": {"name": name}, "spec": spec}


def mounts(*names: str) -> list[Json]:
    return [{"name": each, "persistentVolumeClaim": {"claimName": each}} for each in names]


def is_available(world: World, name: str) -> bool:
    return bool(world.rest.get(f"{VOLUMES}/{name}").json["status"].get("phase") == "Available")


def test_a_claim_gets_a_volume_that_is_there_and_its_pod_follows_it(world: World) -> None:
    world.add_nodes(node("l1"), node("l2"))
    world.make(CLAIMS, claim("scratch", "local"))
    world.submit(pod("a", volumes=mounts("scratch")))
    assert "no volume of class local" in world.why("a", "WaitingForData")
    world.make(VOLUMES, volume("scratch-l2", "local", "l2"))
    assert world.is_bound("a") == "l2"
    found = world.rest.get(f"{CLAIMS}/scratch").json
    assert (found["spec"]["volumeName"], found["status"]["phase"]) == ("scratch-l2", "Bound")


def test_of_two_pods_that_want_one_volume_one_gets_it(world: World) -> None:
    world.add_nodes(node("o1"), node("o2"))
    world.make(VOLUMES, volume("only", "local", "o1", "o2"))
    waiting.until(lambda: is_available(world, "only"), "it can be had", PATIENCE)
    world.make(CLAIMS, claim("one", "local"), claim("two", "local"))
    world.submit(pod("first", volumes=mounts("one")), pod("second", volumes=mounts("two")))

    def winner() -> str:
        return next((name for name in ("first", "second") if world.node_of(name)), "")

    other = {"first": "second", "second": "first"}[waiting.until(winner, "one is bound", PATIENCE)]
    assert "no volume of class local" in world.why(other, "WaitingForData")
    assert not world.node_of(other)


def test_no_pod_of_a_gang_is_bound_before_the_volumes_of_all_are_there(world: World) -> None:
    world.add_nodes(node("g1"), node("g2"))
    world.make(CLAIMS, claim("late", "made"))
    first, second = gang("team", 2, requests={"cpu": "5"})
    second["spec"]["volumes"] = mounts("late")
    world.submit(first, second)

    def chosen() -> str:
        told = world.rest.get(f"{CLAIMS}/late").json["metadata"].get("annotations", {})
        return str(told.get("volume.kubernetes.io/selected-node", ""))

    where = waiting.until(chosen, "a node is chosen", PATIENCE)
    assert (world.node_of("team-0"), world.node_of("team-1")) == ("", "")
    made = volume("late", "made", where, csi={"driver": DRIVER, "volumeHandle": "late"})
    made["spec"]["claimRef"] = {"namespace": "default", "name": "late"}
    world.make(VOLUMES, made)
    assert world.is_bound("team-1") == where
    assert {where, world.is_bound("team-0")} == {"g1", "g2"}


def test_a_node_is_given_no_more_volumes_than_it_can_attach(world: World) -> None:
    limit = {"name": DRIVER, "nodeID": "d1", "topologyKeys": None, "allocatable": {"count": 1}}
    world.make(f"{STORAGE}/csinodes", {"metadata": {"name": "d1"}, "spec": {"drivers": [limit]}})
    world.add_nodes(node("d1"))
    for name in ("disk-a", "disk-b"):
        csi = {"driver": DRIVER, "volumeHandle": name}
        world.make(VOLUMES, volume(name, "made", csi=csi))
        world.make(CLAIMS, claim(name, "made", volumeName=name))
        waiting.until(
            lambda n=name: world.rest.get(f"{CLAIMS}/{n}").json["status"]["phase"] == "Bound",
            f"{name} is bound",
            PATIENCE,
        )
    world.submit(*(pod(f"at-once-{each}", volumes=mounts(f"disk-{each}")) for each in "ab"))

    def bound() -> list[str]:
        return [name for name in ("at-once-a", "at-once-b") if world.node_of(name)]

    (winner,) = waiting.until(bound, "one is bound", PATIENCE)
    loser = {"at-once-a": "at-once-b", "at-once-b": "at-once-a"}[winner]
    world.why(loser, "WaitingForCapacity")
    disk = winner.replace("at-once", "disk")
    world.submit(pod("shares", volumes=mounts(disk)))
    assert world.is_bound("shares") == "d1", "what is attached counts once"
    assert not world.node_of(loser)
    world.remove(winner)
    world.remove("shares")
    assert world.is_bound(loser) == "d1"
