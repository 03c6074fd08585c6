"""Where members may go for their volumes: bound ones, ones that are to be had, and how many."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.control import build
from windlass.control.convert import run_workloads as read
from windlass.control.volumes import attach_limits, topology
from windlass.core.cluster import constraints
from windlass.core.model import types
from windlass.kinds.reasons import Reason
from windlass.kinds.types import cluster, core, meta, pod_placement, run

ZONE = "topology.kubernetes.io/zone"
CLASS, DRIVER = "late", "disks"


def claim(
    volume: str = "", *, name: str = "data", size: str = "1Gi", **more: Any
) -> topology.Claim:
    bound = {topology.BIND_COMPLETED: "yes"} if more.pop("bound", bool(volume)) else {}
    return topology.Claim(
        metadata=meta.ObjectMeta(
            name=name, namespace=build.NAMESPACE, uid=name,
            annotations={**bound, **more.pop("annotations", {})},
        ),
        spec=cluster.PersistentVolumeClaimSpec(
            volume_name=volume, storage_class_name=more.pop("storage_class", CLASS),
            resources=cluster.ClaimResources({"storage": size}), **more,
        ),
        status=cluster.PersistentVolumeClaimStatus("Bound" if bound else "Pending"),
    )  # fmt: skip


def storage(provisioner: str = DRIVER, mode: str = cluster.WAITS_FOR_NODE, **more: Any):
    return cluster.StorageClass(
        metadata=meta.ObjectMeta(name=CLASS),
        provisioner=provisioner, volume_binding_mode=mode, **more,
    )  # fmt: skip


LOCAL = storage("kubernetes.io/no-provisioner")


def volume(*zones: str, name: str = "v", size: str = "1Gi", **more: Any) -> topology.Volume:
    terms = [
        cluster.NodeSelectorTerm(match_expressions=[
            cluster.NodeSelectorRequirement(key=ZONE, operator="In", values=[zone])])
        for zone in zones
    ]  # fmt: skip
    required = cluster.NodeSelector(node_selector_terms=terms)
    affinity = cluster.VolumeNodeAffinity(required=required)
    return topology.Volume(
        metadata=meta.ObjectMeta(name=name, labels=more.pop("labels", None)),
        spec=cluster.PersistentVolumeSpec(
            node_affinity=affinity if zones else None, capacity={"storage": size},
            storage_class_name=CLASS, **more,
        ),
        status=cluster.PersistentVolumeStatus("Available"),
    )  # fmt: skip


def known(*seen: topology.Kind) -> topology.Volumes:
    made = topology.Volumes()
    for each in seen:
        made.on_change(None, each)
    return made


def mounting(*names: str) -> run.Run:
    mounts = [run.Mount(source=f"claim:{name}", path=f"/{name}") for name in names or ("data",) * 2]
    return build.a_run("job", mounts=mounts)


def reach(*seen: topology.Kind, names: tuple[str, ...] = ()) -> topology.Reach:
    return known(*seen).reach(mounting(*names))


def node(zone: str) -> types.Node:
    return types.Node(zone, {}, labels={ZONE: zone} if zone != "none" else {})


def zones_of(found: topology.Reach) -> set[str]:
    constraint = types.Constraint(volumes=found.terms, storage=found.storage)
    assert not found.problem
    return {zone for zone in "abc" if constraints.feasible(constraint, node(zone))}


# --- bound ----------------------------------------------------------------------------------------


def test_a_bound_volume_is_reached_from_any_of_its_places():
    assert zones_of(reach(claim("v"), volume("a", "b"))) == {"a", "b"}
    assert zones_of(reach(claim("v"), volume())) == {"a", "b", "c"}


@pytest.mark.parametrize("key", [ZONE, "failure-domain.beta.kubernetes.io/zone"])
def test_labels_of_a_volume_say_where_it_is_to_nodes_that_say_where_they_are(key):
    found = reach(claim("v"), volume(labels={key: "a__b"}))
    assert zones_of(found) == {"a", "b"}
    assert constraints.feasible(types.Constraint(volumes=found.terms), node("none"))


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ((), "does not exist"),
        ((claim(),), "no class"),
        ((claim(storage_class=None), storage()), "no class"),
        ((claim("v"),), "lost its volume"),
        ((claim("v", bound=False), volume()), "is not bound yet"),
        ((claim(), storage(mode="Immediate")), "not bound yet"),
        ((claim(), LOCAL), "no volume of class late"),
    ],
)
def test_a_claim_that_cannot_be_mounted_holds_the_run_and_says_why(seen, words):
    found = reach(*seen)
    assert words in found.problem
    held = read.read_workload(mounting(), "q", reach=found).hold_reason
    assert held == (Reason.WAITING_FOR_DATA, found.problem)


# --- to be had ------------------------------------------------------------------------------------


def test_a_volume_that_is_yet_to_be_made_goes_where_its_class_allows():
    term = cluster.TopologySelectorTerm(
        match_label_expressions=[cluster.TopologySelectorLabel(key=ZONE, values=["b"])]
    )
    found = reach(claim(), storage(allowed_topologies=[term]))
    assert (zones_of(found), found.unbound) == ({"b"}, ("data",))


def test_a_volume_is_made_only_where_its_driver_has_capacity_for_it():
    driver = cluster.CSIDriver(
        metadata=meta.ObjectMeta(name=DRIVER), spec=cluster.CSIDriverSpec(True)
    )
    rooms = [
        cluster.CSIStorageCapacity(
            metadata=meta.ObjectMeta(name=zone, namespace="any"), storage_class_name=CLASS,
            node_topology=pod_placement.LabelSelector(match_labels={ZONE: zone}), capacity=size,
        )
        for zone, size in (("a", "512Mi"), ("b", "2Gi"))
    ]  # fmt: skip
    assert zones_of(reach(claim(), storage(), driver, *rooms)) == {"b"}
    rooms[1].maximum_volume_size = "512Mi"
    assert zones_of(reach(claim(), storage(), driver, *rooms)) == set()


def test_a_volume_that_is_provisioned_for_a_node_is_waited_for_there():
    chosen = claim(annotations={cluster.SELECTED_NODE: "b"})
    assert zones_of(reach(chosen, storage(), volume("a"))) == {"b"}


def test_a_claim_gets_a_volume_that_is_there_before_one_is_made():
    found = reach(claim(), storage(), volume("a"))
    assert zones_of(found) == {"a", "b", "c"}
    assert constraints.supply(found.storage, node("a")) == ["v"]
    assert constraints.supply(found.storage, node("b")) == [""]


def test_two_claims_of_a_pod_need_two_volumes():
    claims = claim(name="one"), claim(name="two", size="2Gi")
    small, large = volume("a", "b", name="small"), volume("a", name="large", size="5Gi")
    found = reach(*claims, LOCAL, small, large, names=("two", "one"))
    assert found.unbound == ("one", "two"), "who wants least comes first"
    assert constraints.supply(found.storage, node("a")) == ["small", "large"]
    assert zones_of(found) == {"a"}


@pytest.mark.parametrize(
    "unfit",
    [
        volume("a", size="512Mi"),
        volume("a", volume_mode="Block"),
        volume("a", access_modes=["ReadOnlyMany"]),
        volume("a", volume_attributes_class_name="gold"),
        volume("a", claim_ref=core.ObjectReference(namespace="else", name="data")),
    ],
)
def test_a_volume_that_is_not_what_a_claim_asks_for_is_not_taken(unfit):
    wanted = claim(access_modes=["ReadWriteOnce"])
    assert reach(wanted, LOCAL, unfit).problem
    fit = volume("a", access_modes=["ReadWriteOnce", "ReadOnlyMany"])
    assert zones_of(reach(wanted, LOCAL, fit)) == {"a"}


def test_a_claim_that_selects_volumes_takes_only_these():
    wanted = claim(selector=pod_placement.LabelSelector(match_labels={"disk": "fast"}))
    assert reach(wanted, LOCAL, volume("a")).problem
    assert zones_of(reach(wanted, LOCAL, volume("a", labels={"disk": "fast"}))) == {"a"}


def test_a_volume_that_is_kept_for_a_claim_is_the_only_one_for_it():
    kept = volume("a", name="kept", claim_ref=core.ObjectReference(
        namespace=build.NAMESPACE, name="data"))  # fmt: skip
    found = reach(claim(), LOCAL, kept, volume("b", name="other"))
    assert zones_of(found) == {"a"}


# --- how many -------------------------------------------------------------------------------------


def disk(name: str) -> tuple[topology.Claim, topology.Volume]:
    csi = cluster.CSIVolumeSource(driver=DRIVER, volume_handle=f"disk-{name}")
    return claim(name, name=name), volume(name=name, csi=csi)


class Nodes:
    """`a` and `b` attach two volumes each, `c` any number."""

    def __init__(self) -> None:
        pairs = [disk(name) for name in ("one", "two", "three")]
        self.attachments = attach_limits.Attachments(
            known(*(each for pair in pairs for each in pair))
        )
        for name in "ab":
            driver = cluster.CSINodeDriver(DRIVER, cluster.VolumeLimit(2))
            spec = cluster.CSINodeSpec([driver])
            told = cluster.CSINode(metadata=meta.ObjectMeta(name=name), spec=spec)
            self.attachments.on_change(None, told)

    def hold(self, key: str, where: str, *names: str) -> None:
        self.attachments.hold(key, {where: self.attachments.handles(build.NAMESPACE, names)})

    def left(self, where: str) -> int:
        return self.attachments.limit(types.Node(where, {})).attach_limits[DRIVER]

    def asks(self, *names: str) -> tuple[int, set[str]]:
        found = self.attachments.extend(topology.Reach(), build.NAMESPACE, names)
        return dict(found.attach).get(DRIVER, 0), set(found.too_many)


def test_a_volume_counts_once_for_a_node_however_many_mount_it():
    nodes = Nodes()
    assert (nodes.left("a"), nodes.left("c")) == (2, attach_limits.UNLIMITED)
    nodes.hold("pod", "a", "one")
    nodes.hold("another", "a", "one", "two")
    assert nodes.left("a") == 0
    nodes.attachments.hold("another", None)
    assert nodes.left("a") == 1


def test_pods_with_unattached_volumes_are_kept_from_nodes_at_their_attach_limit():
    nodes = Nodes()
    assert nodes.asks("one", "two") == (2, set())
    nodes.hold("pod", "a", "one", "two")
    assert nodes.asks("one") == (0, set()), "it is there already, or there is room"
    nodes.hold("other", "b", "two", "three")
    assert nodes.asks("one") == (0, {"b"})


def test_an_attached_volume_without_a_pod_counts_until_it_is_detached():
    nodes = Nodes()
    source = cluster.AttachedVolume(persistent_volume_name="three")
    flying = cluster.VolumeAttachment(
        metadata=meta.ObjectMeta(name="x"),
        spec=cluster.VolumeAttachmentSpec(DRIVER, "a", source),
    )
    nodes.attachments.on_change(None, flying)
    assert nodes.left("a") == 1
    nodes.hold("pod", "a", "three")
    assert nodes.left("a") == 1, "it was on its way for this pod"
    nodes.attachments.on_change(flying, None)
    nodes.attachments.hold("pod", None)
    assert nodes.left("a") == 2


def test_what_the_core_counts_for_members_is_not_counted_twice():
    nodes = Nodes()
    role = types.Role("w", 1, 1, {}, attach=((DRIVER, 1),))
    pods = (types.PodAssignment("w", 0, "a", ()),)
    running = types.Running(types.Workload("gang", "q", (role,)), pods, 0.0)
    nodes.attachments.replace(None, running)
    nodes.hold("pod", "a", "one")
    assert nodes.left("a") - 1 == 1, "the core takes one of what it is told"
