"""From objects to inputs of the core, one kind at a time; allocations, all together."""

import pytest

from tests.unit.control import build
from windlass.control.convert import node_facts, run_workloads
from windlass.control.model import members, unsupported
from windlass.control.scheduler.cache import cache
from windlass.core.model import types
from windlass.kinds.reasons import Reason
from windlass.kinds.types import core, run

GI = 1 << 30
NOW = 1767261600.0 + 3600
"""An hour after build.START."""


def taken(runs=(), pods=(), nodes=None, queues=None) -> types.ClusterFacts:
    """The facts of all these objects."""
    seen = cache.SchedulerCache()
    for node in [build.node()] if nodes is None else nodes:
        seen.on_node("ADDED", None, node)
    for each in [build.a_queue()] if queues is None else queues:
        seen.on_queue("ADDED", None, each)
    for owner in runs:
        seen.on_run("ADDED", None, owner)
    for pod in pods:
        seen.on_pod("ADDED", None, pod)
    seen.drain_changes(NOW)
    return seen.facts()


def used_cpu(told: types.ClusterFacts) -> int:
    return sum(
        {role.name: role for role in each.workload.roles}[pod.role].needs.get("cpu", 0)
        for each in told.running
        for pod in each.pods
        if pod.node == "n1"
    )


def held_devices(told: types.ClusterFacts) -> dict[str, list[str]]:
    return {
        each.workload.key: [grant.device for pod in each.pods for grant in pod.grants]
        for each in told.running
    }


def holding(name="job", phase="Running", devices=None, *roles, **spec) -> run.Run:
    owner = build.in_phase(build.a_run(name, *roles, **spec), phase)
    return build.assigned(owner, devices=devices)


def workload_of(owner: run.Run) -> types.Workload:
    return run_workloads.read_workload(owner, "default")


# --- nodes


def test_what_a_node_has_is_counted_in_integers():
    extra = {"pods": "110", "hugepages-2Mi": "4Mi", "windlass.dev/gpu": "2"}
    node = node_facts.read_node(build.node(cpu="3500m", extra=extra))
    assert node.allocatable == {
        "cpu": 3500, "memory": 16 * GI, "pods": 110, "hugepages-2Mi": 4 << 20,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("extra", "labels", "devices"),
    [
        ({"windlass.dev/gpu": "2"}, {}, [("gpu/0", "gpu", ""), ("gpu/1", "gpu", "")]),
        (
            {"windlass.dev/gpu": "1", "windlass.dev/rdma": "1"},
            {"windlass.dev/gpu-model": "A100"},
            [("gpu/0", "gpu", "a100"), ("rdma/0", "rdma", "")],
        ),
        (
            {"nvidia.com/gpu": "1"},
            {"windlass.dev/gpu-model": "h100"},
            [("nvidia.com/gpu/0", "gpu", "h100")],
        ),
        ({"nvidia.com/gpu": "4", "windlass.dev/gpu": "1"}, {}, [("gpu/0", "gpu", "")]),
        ({"nvidia.com/gpu": "0", "example.com/licence": "5"}, {}, []),
    ],
)  # fmt: skip
def test_devices_are_counted_from_extended_resources(extra, labels, devices):
    node = node_facts.read_node(build.node(extra=extra, labels=labels))
    assert [(each.id, each.kind, each.model) for each in node.devices] == devices
    assert all(each.forms == {"whole"} for each in node.devices)


@pytest.mark.parametrize(
    ("labels", "mebibytes"),
    [
        ({}, 0),
        ({"windlass.dev/gpu-memory": "80Gi"}, 81920),
        ({"nvidia.com/gpu.memory": "40537"}, 40537),
        ({"windlass.dev/gpu-memory": "24Gi", "nvidia.com/gpu.memory": "40537"}, 24576),
        ({"windlass.dev/gpu-memory": "plenty"}, 0),
        ({"nvidia.com/gpu.memory": "40Gi"}, 0),
        ({"windlass.dev/rdma-memory": "1Gi"}, 0),
    ],
)
def test_how_much_memory_a_device_has_is_what_its_node_says(labels, mebibytes):
    for resource in ("windlass.dev/gpu", "nvidia.com/gpu"):
        node = node_facts.read_node(build.node(extra={resource: "2"}, labels=labels))
        assert [each.memory for each in node.devices] == [mebibytes] * 2


@pytest.mark.parametrize(
    ("offers", "isolation"),
    [
        ("shares", "none"),
        ("shares,isolation:soft", "soft"),
        ("isolation:soft,shares,isolation:hard", "hard"),
    ],
)
def test_how_far_shares_are_kept_apart_is_what_the_node_offers(offers, isolation):
    node = build.node(
        extra={"windlass.dev/gpu": "1"}, annotations={node_facts.CAPABILITIES: offers}
    )
    (device,) = node_facts.read_node(node).devices
    assert device.isolation == isolation


@pytest.mark.parametrize(
    ("labels", "path"),
    [
        ({}, ()),
        ({"topology.kubernetes.io/zone": "a"}, ("a",)),
        ({"topology.kubernetes.io/zone": "a", "windlass.dev/rack": "r7"}, ("a", "r7")),
        ({"windlass.dev/rack": "r7"}, ("", "r7")),
    ],
)
def test_where_a_node_stands_is_read_from_its_labels(labels, path):
    assert node_facts.read_node(build.node(labels=labels)).path == path


def test_the_levels_can_be_others():
    levels = {"block": "example.com/block", "rack": "example.com/rack"}
    node = build.node(labels={"example.com/block": "b", "example.com/rack": "r"})
    assert node_facts.read_node(node, levels).path == ("b", "r")


def test_a_node_that_is_not_ready_or_cordoned_is_not_open():
    cordoned = build.node("b")
    cordoned.spec.unschedulable = True
    nodes = [build.node("a"), cordoned, build.node("c", ready=False)]
    assert [node.ready for node in taken(nodes=nodes).nodes] == [True, False, False]


# --- queues


def test_guarantees_of_queues_are_counted_as_nodes_count():
    amounts = {"cpu": "8", "memory": "2Gi", "gpu": 3, "gpu/h100": "1", "pods": 7}
    (queue,) = taken(queues=[build.a_queue(limit=amounts, guarantee={"gpu": 2}, lend={"gpu": 0})]
                     ).queues  # fmt: skip
    expected = {"cpu": 8000, "memory": 2 * GI, "gpu": 3000, "gpu/h100": 1000, "pods": 7}
    assert queue.limit == expected
    assert (queue.guarantee, queue.lend) == ({"gpu": 2000}, {"gpu": 0})


def test_how_a_queue_goes_about_it_is_taken_over():
    spec = {"parent": "top", "weight": 3, "order": "fair", "strict": True, "reserve": 2}
    queue = run_workloads.read_queue(build.a_queue("q", min_runtime="10m", max_priority=70, **spec))
    assert {name: getattr(queue, name) for name in spec} == spec
    assert (queue.min_runtime, queue.max_priority) == (600.0, 70)


def test_a_queue_without_the_field_reserves_as_suits_its_order():
    orders = ("fifo", "shortest", "attained")
    queues = [run_workloads.read_queue(build.a_queue("q", order=order)) for order in orders]
    assert [(each.max_reservations, each.delays_reservations) for each in queues] == [
        (1, False), (1, True), (1, True),
    ]  # fmt: skip


def test_the_queue_is_named_or_owns_the_namespace_or_is_the_default():
    own = build.a_queue("support", namespaces=[build.NAMESPACE])
    named = build.in_phase(build.a_run("a", queue="vision"), "Queued")
    plain = build.in_phase(build.a_run("b"), "Queued")
    assert [u.queue for u in taken([named, plain], queues=[own]).waiting] == ["vision", "support"]
    assert [u.queue for u in taken([plain]).waiting] == ["default"]


# --- waiting workloads


def test_waiting_workloads():
    waiting = build.in_phase(build.a_run("waiting"), "Queued")
    held = build.in_phase(build.a_run("held", suspend=True), "Queued")
    ended = build.in_phase(build.a_run("ended"), "Failed")
    again = build.in_phase(build.a_run("again"), "Queued", Reason.NODE_LOST)
    build.assigned(again)
    again.status.attempt = 1
    told = taken([waiting, held, ended, again, holding("holding")])
    waits = {workload.key: workload for workload in told.waiting}
    assert waits.keys() == {"uid-waiting", "uid-held", "uid-again"}
    assert waits["uid-held"].hold_reason == (Reason.SUSPENDED, "suspended by spec.suspend")
    assert waits["uid-waiting"].hold_reason is None
    assert waits["uid-again"].not_before > 0


def test_elastic_roles_give_the_least_and_the_most():
    workload = workload_of(
        build.a_run("e", build.role(replicas=4, min_replicas=2), build.role("head"))
    )
    assert [(r.name, r.min_count, r.max_count) for r in workload.roles] == [
        ("worker", 2, 4),
        ("head", 1, 1),
    ]
    assert workload.roles[0].needs == {"cpu": 1000, "memory": GI}


@pytest.mark.parametrize(
    ("device", "request_"),
    [
        ({}, types.DeviceRequest("gpu", 1)),
        ({"count": 4, "models": ["h100", "a100"]},
         types.DeviceRequest("gpu", 4, models=("h100", "a100"))),
        ({"share": "1/4"}, types.DeviceRequest("gpu", ratio=4)),
        ({"share": "2/8", "isolation": "hard"},
         types.DeviceRequest("gpu", ratio=4, isolation="hard")),
        ({"memory": "8Gi", "compute": 25, "isolation": "soft"},
         types.DeviceRequest("gpu", compute=250, memory=8192, isolation="soft")),
        ({"memory": "1500k"}, types.DeviceRequest("gpu", memory=2)),
    ],
)  # fmt: skip
def test_devices_are_asked_for_in_one_form(device, request_):
    workload = workload_of(build.a_run("d", build.role(devices=[run.Device(kind="gpu", **device)])))
    assert workload.roles[0].devices == (request_,)


def test_placement_is_taken_over():
    nodes = run.NodeChoice(
        selector={"b": "2", "a": "1"}, tolerations=[run.Toleration(key="k", operator="Exists")]
    )
    placement = run.Placement(
        pack="spread", nodes=nodes, topology=run.Topology(level="rack", mode="required"),
        bundle=run.Bundle(within="numa", devices=["gpu", "rdma"]),
    )  # fmt: skip
    devices = [run.Device(kind="gpu"), run.Device(kind="rdma")]
    plain = build.role("plain")
    workload = workload_of(
        build.a_run("p", build.role(devices=devices), plain, placement=placement)
    )
    assert (workload.pack, workload.topology, workload.hold_reason) == (
        "spread", types.Topology("rack", required=True), None,
    )  # fmt: skip
    assert [role.bundle for role in workload.roles] == ["numa", ""]
    assert workload.roles[0].constraint == types.Constraint(
        selector=(("a", "1"), ("b", "2")),
        tolerations=(
            types.Toleration("windlass.dev/only", "Exists"), types.Toleration("k", "Exists"),
        ),
    )  # fmt: skip


def test_user_and_expected_duration_are_converted():
    duration = run.Durations(expected="90m")
    owner = build.a_run("w", user="alice", priority=70, preemptible=False, duration=duration)
    owner.metadata.creation_timestamp = build.START
    workload = workload_of(owner)
    assert (workload.user, workload.namespace, workload.history_key) == (
        "alice",
        "team",
        "team/alice",
    )
    assert (workload.priority, workload.preemptible, workload.expected) == (70, False, 5400.0)
    assert workload.submitted == NOW - 3600


def test_what_earlier_attempts_had_is_added_up():
    owner = build.a_run()
    for minute, phase in enumerate(["Queued", "Starting", "Running", "Stopping", "Queued"]):
        build.in_phase(owner, phase, at=f"2026-01-01T10:{minute * 10:02}:00Z")
    assert workload_of(owner).attained == 600.0
    assert run_workloads.ran(owner) is None
    build.in_phase(owner, "Running", at="2026-01-01T11:00:00Z")
    build.in_phase(owner, "Succeeded", at="2026-01-01T11:05:00Z")
    assert run_workloads.ran(owner) == 900.0


LEVEL = "spec.placement.topology.level block: nodes here are known by zone, rack, node"


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"mounts": [run.Mount(source="dataset:x", path="/data")]},
         "spec.mounts: dataset:x: datasets are not there yet; mount a claim or host:"),
        ({"placement": run.Placement(topology=run.Topology(level="block", mode="required"))},
         f"{LEVEL}; name one of these"),
        ({"placement": run.Placement(bundle=run.Bundle(within="socket", devices=["gpu", "rdma"]))},
         "spec.placement.bundle.within socket: only numa and pcie are supported; use numa"),
    ],
)  # fmt: skip
def test_what_no_engine_can_do_yet_is_said_not_ignored(spec, says):
    assert workload_of(build.a_run("a", **spec)).hold_reason == (Reason.UNSUPPORTED, says)


@pytest.mark.parametrize(
    ("devices", "bundle", "says"),
    [
        (["gpu", "rdma"], ["gpu", "rdma"], ""),
        ([], ["gpu", "rdma"], ""),
        (["gpu"], ["gpu", "rdma"],
         "spec.placement.bundle.devices: name all devices of role worker: gpu"),
    ],
)  # fmt: skip
def test_a_bundle_is_about_all_devices_of_a_role(devices, bundle, says):
    role = build.role(devices=[run.Device(kind=kind) for kind in devices])
    placement = run.Placement(bundle=run.Bundle(within="numa", devices=bundle))
    assert unsupported.unsupported(build.a_run("a", role, placement=placement).spec) == says


def test_a_share_that_is_not_one_over_a_number_is_refused():
    role = build.role(devices=[run.Device(kind="gpu", share="3/8")])
    says = "spec.roles[].devices[].share 3/8: write it as 1 over a number"
    assert unsupported.unsupported(build.a_run("a", role).spec) == says


# --- allocations


def test_an_assignment_holds_its_capacity_before_any_pod_exists():
    told = taken([holding(phase="Queued")])
    assert used_cpu(told) == 1000
    assert told.waiting == ()
    assert told.running[0].started == NOW


def test_a_pod_and_its_assignment_are_one_member():
    owner = holding()
    told = taken([owner], [build.pod(owner)])
    assert [each.workload.key for each in told.running] == ["uid-job"]
    assert used_cpu(told) == 1000


def test_a_pod_of_an_earlier_attempt_counts_until_it_is_gone():
    owner = holding()
    old = build.pod(owner)
    owner.status.attempt = 1
    build.assigned(owner)
    told = taken([owner], [old])
    assert used_cpu(told) == 2000
    assert {each.workload.queue for each in told.running} == {"default"}


def test_a_terminating_pod_of_a_finished_run_counts_and_an_ended_one_does_not():
    owner = holding(phase="Failed")
    told = taken([owner], [build.pod(owner, "Running")])
    assert used_cpu(told) == 1000
    assert told.running[0].leaving == (("pod", 0),)
    assert used_cpu(taken([owner], [build.pod(owner, "Succeeded")])) == 0


def test_other_peoples_pods_count_by_their_requests_in_no_queue():
    pod = build.external_pod(cpu="1500m")
    pod.spec.containers.append(pod.spec.containers[0])
    pod.spec.overhead = {"cpu": "250m"}
    (told,) = taken([], [pod]).running
    assert told.workload.roles[0].needs == {"cpu": 3250}
    assert (told.workload.key, told.workload.queue, told.workload.preemptible) == (
        "pod/x",
        "",
        False,
    )
    assert told.leaving == ()


def test_of_init_containers_the_largest_counts_but_those_that_stay_add_up():
    pod = build.external_pod(cpu="1")

    def before(cpu: str, policy: str | None = None) -> core.Container:
        resources = core.ResourceRequirements(requests={"cpu": cpu})
        return core.Container(name="i", resources=resources, restart_policy=policy)

    pod.spec.init_containers = [before("3"), before("2")]
    assert members.pod_amounts(pod) == {"cpu": 3000}
    pod.spec.init_containers = [before("3", "Always"), before("2")]
    assert members.pod_amounts(pod) == {"cpu": 5000}


def elastic(phase: str = "Running", held: int = 4) -> run.Run:
    role = build.role(replicas=held, min_replicas=1)
    return build.assigned(build.in_phase(build.a_run("e", role), phase))


def test_a_run_that_runs_wants_as_many_as_its_user_does():
    owner = elastic(held=2)
    owner.spec.roles[0].replicas = 5
    (told,) = taken([owner]).running
    assert [(role.min_count, role.max_count) for role in told.workload.roles] == [(1, 5)]


def test_a_run_that_stops_gives_all_of_it_back():
    told = taken([holding(phase="Stopping")]).running[0]
    assert told.leaving == (("worker", 0),)
    for request in ("stop", "suspend"):
        owner = holding()
        setattr(owner.spec, request, True)
        assert taken([owner]).running[0].leaving == (("worker", 0),)


def test_a_run_that_shrinks_gives_its_last_members_back():
    owner = elastic()
    owner.status.eviction = run.Eviction(
        by="x", reason="", keep_members={"worker": 3}, deadline=build.START
    )
    assert taken([owner]).running[0].leaving == (("worker", 3),)
    owner.spec.roles[0].replicas = 2
    assert taken([owner]).running[0].leaving == (("worker", 2), ("worker", 3))
    owner.status.eviction.keep_members = None
    assert len(taken([owner]).running[0].leaving) == 4


def test_a_run_that_starts_again_at_another_size_takes_its_capacity_along():
    owner = elastic()
    owner.status.eviction = run.Eviction(
        by="x", reason="", keep_members={"worker": 3}, deadline=build.START
    )
    build.in_phase(owner, "Queued", "Resized")
    owner.status.attempt = 1
    told = taken([owner])
    assert [pod.index for pod in told.running[0].pods] == [0, 1, 2]
    assert (told.running[0].leaving, told.waiting) == ((), ())
    owner.spec.suspend = True
    assert (taken([owner]).running, len(taken([owner]).waiting)) == ((), 1)


def test_members_that_need_not_run_together_give_back_their_capacity_when_they_end():
    role = build.role(replicas=3)
    gang = build.a_run("e", role, placement=run.Placement(gang=False))
    owner = build.assigned(build.in_phase(gang, "Running"))
    (told,) = taken([owner], [build.pod(owner, "Succeeded"), build.pod(owner, index=1)]).running
    assert [pod.index for pod in told.pods] == [1, 2]
    assert (told.workload.gang, told.workload.roles[0].max_count) == (False, 2)


def test_nodes_that_failed_a_run_are_tried_last():
    owner = build.in_phase(build.a_run(), "Queued")
    owner.status.avoid = ["n2", "n1"]
    (workload,) = taken([owner]).waiting
    (dislike,) = workload.roles[0].prefers
    assert (dislike.match[0].key, dislike.match[0].values) == ("metadata.name", ("n1", "n2"))
    assert dislike.weight < 0


def test_a_queues_minimum_runtime_protects_its_runs():
    facts_then = taken([holding()], queues=[build.a_queue(min_runtime="2h")])
    assert facts_then.running[0].protected_until == facts_then.running[0].started + 7200


def test_the_reservation_of_a_waiting_run_is_known():
    owner = build.in_phase(build.a_run("job", build.role(replicas=2)), "Queued")
    owner.status.nomination = build.assigned(
        build.a_run("job", build.role(replicas=2))
    ).status.assignment
    (told,) = taken([owner]).nominations
    assert [(pod.role, pod.index, pod.node) for pod in told.pods] == [
        ("worker", 0, "n1"), ("worker", 1, "n1"),
    ]  # fmt: skip
    owner.status.attempt = 1
    assert taken([owner]).nominations == ()


def test_a_run_should_end_when_it_said_it_would():
    (told,) = taken([holding(duration=run.Durations(expected="2h"))]).running
    assert (told.started, told.expected_end) == (NOW - 3600, NOW + 3600)


# --- devices


GPU_ROLE = build.role(devices=[run.Device(kind="gpu")])
GPU_NODE = build.node(extra={"windlass.dev/gpu": "4"})


@pytest.mark.parametrize(
    ("requests", "grants", "names"),
    [
        ((types.DeviceRequest("gpu", 2), types.DeviceRequest("rdma")),
         (types.Grant("gpu/1"), types.Grant("gpu/3"), types.Grant("rdma/0")),
         ["gpu/1", "gpu/3", "rdma/0"]),
        ((types.DeviceRequest("gpu", ratio=4),), (types.Grant("gpu/0", "ratio", 250, 0, 4),),
         ["gpu/0:250"]),
        ((types.DeviceRequest("gpu", compute=300, memory=64),),
         (types.Grant("gpu/0", "share", 300, 64),), ["gpu/0:300:64Mi"]),
        ((types.DeviceRequest("gpu", memory=8192),),
         (types.Grant("gpu/0", "share", 0, 8192),), ["gpu/0:0:8192Mi"]),
        ((types.DeviceRequest("gpu", compute=300),),
         (types.Grant("gpu/0", "share", 300),), ["gpu/0:300"]),
    ],
)  # fmt: skip
def test_what_a_member_was_granted_is_read_back_from_its_names(requests, grants, names):
    assert run_workloads.device_names(grants) == names
    assert run_workloads.read_grants(requests, names) == grants


def test_a_pod_that_lingers_keeps_the_devices_it_was_given():
    owner = holding("job", "Failed", ["gpu/2"], GPU_ROLE)
    pod = build.pod(owner, devices=["gpu/2"])
    told = taken([owner], [pod], nodes=[GPU_NODE])
    assert held_devices(told) == {f"pod/{pod.uid}": ["gpu/2"]}
    assert pod.spec.containers[0].resources.limits["windlass.dev/gpu"] == "1"


@pytest.mark.parametrize(
    ("device", "name", "grant"),
    [
        (run.Device(kind="gpu", share="1/4"), "gpu/0:250", ("ratio", 250, 0)),
        (run.Device(kind="gpu", compute=25), "gpu/0:250", ("share", 250, 0)),
        (run.Device(kind="gpu", memory="8Gi"), "gpu/0:0:8192Mi", ("share", 0, 8192)),
    ],
)
def test_a_pod_that_lingers_keeps_its_share_of_a_device(device, name, grant):
    owner = holding("job", "Failed", [name], build.role(devices=[device]))
    pod = build.pod(owner, devices=[name])
    (left,) = taken([owner], [pod], nodes=[GPU_NODE]).running
    ((held,),) = (assigned.grants for assigned in left.pods)
    assert (held.device, held.form, held.compute, held.memory) == ("gpu/0", *grant)
    # Its Run may be gone before it is: then it is what its name says.
    (left,) = taken([], [pod], nodes=[GPU_NODE]).running
    ((held,),) = (assigned.grants for assigned in left.pods)
    assert (held.device, held.compute, held.memory) == ("gpu/0", *grant[1:])


def test_a_pod_asks_for_a_vendors_device_by_the_vendors_name():
    owner = holding("job", "Running", ["nvidia.com/gpu/0", "nvidia.com/gpu/1"], GPU_ROLE)
    pod = build.pod(owner, devices=owner.status.assignment.members["worker"][0].devices)
    assert pod.spec.containers[0].resources.limits["nvidia.com/gpu"] == "2"


def test_devices_that_others_hold_without_a_name_are_not_those_that_are_named():
    owner = holding("job", "Running", ["gpu/3"], GPU_ROLE)
    pods = [build.external_pod("a", gpu="1"), build.external_pod("b", gpu="1")]
    told = taken([owner], pods, nodes=[GPU_NODE])
    assert held_devices(told) == {"uid-job": ["gpu/3"], "pod/a": ["gpu/2"], "pod/b": ["gpu/1"]}


def test_more_devices_than_there_are_cannot_be_held():
    told = taken([], [build.external_pod("a", gpu="9")], nodes=[GPU_NODE])
    assert held_devices(told) == {"pod/a": ["gpu/3", "gpu/2", "gpu/1", "gpu/0"]}


# --- prices and capabilities of nodes -----------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "price"),
    [
        ("3.6", 1_000_000), ("0.0000036", 1), (" 36 ", 10_000_000), ("1e3", 277_777_778),
        ("", 0), ("free", 0), ("-1", 0), ("NaN", 0), ("Infinity", 0), ("1e999999", 0),
        ("999999999999", types.MOST_PRICE),
    ],
)  # fmt: skip
def test_a_price_is_read_in_billionths_a_second_and_one_that_is_none_is_not_known(said, price):
    node = build.node(annotations={node_facts.PRICE: said})
    assert node_facts.read_node(node).price == price


def test_prices_and_capabilities_are_annotations_or_labels():
    node = build.node(
        labels={node_facts.PRICE: "3.6", node_facts.CAPABILITIES: "shares"},
        annotations={node_facts.CAPABILITIES: "shares, isolation:hard,"},
    )
    fact = node_facts.read_node(node)
    assert (fact.price, fact.capabilities) == (1_000_000, {"shares", "isolation:hard"})
    assert node_facts.read_node(build.node()).capabilities == frozenset()


def test_what_a_run_requires_and_prefers_of_nodes_is_read():
    choice = run.NodeChoice(
        capabilities=["shares"],
        prefer=[run.NodePreference(selector={"disk": "ssd", "zone": "a"}, weight=-3)],
    )
    (role,) = run_workloads.read_workload(
        build.a_run(placement=run.Placement(nodes=choice)), "default"
    ).roles
    assert role.constraint.capabilities == {"shares"}
    match = (types.Requirement("disk", "In", ("ssd",)), types.Requirement("zone", "In", ("a",)))
    assert role.prefers == (types.Preference(match, -3),)
