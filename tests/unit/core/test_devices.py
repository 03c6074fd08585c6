"""Devices: how many pods fit, which ones are granted, and that the books always balance."""

import dataclasses
import functools
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.core.cluster.cluster import Cluster
from windlass.core.cluster.devices.device_allocation import (
    HELD,
    PARTITIONED,
    RATIO,
    SHARED,
    UNLOCKED,
)
from windlass.core.model.types import (
    Device,
    DeviceRequest,
    Node,
    PodAssignment,
    Profile,
    Role,
    Workload,
)
from windlass.core.snapshot import availability_profile

ALL = frozenset(("whole", "share", "ratio", "partition"))
SEVENTHS = (
    Profile("1g", 1, tuple(range(7)), 142),
    Profile("2g", 2, (0, 2, 4), 285),
    Profile("3g", 4, (0, 4), 428),
    Profile("7g", 8, (0,), 1000),
)


def gpu(i=0, model="h100", memory=80, **more) -> Device:
    more = {"slices": 8, "profiles": SEVENTHS, "forms": ALL, "isolation": "hard"} | more
    return Device(f"gpu{i}", "gpu", model, memory=memory, **more)


def nic(i=0, **more) -> Device:
    return Device(f"nic{i}", "rdma", **more)


def cluster_of(*devices, cpu=1000) -> Cluster:
    return Cluster([Node("n", {"cpu": cpu * 1000}, devices)])


def role(*requests, bundle="", cpu=0) -> Role:
    return Role("w", 1, 99, {"cpu": cpu}, requests, bundle)


def room(cluster, what) -> int:
    return int(cluster.pod_capacity(cluster.shape_of(what))[0])


def fill(cluster, what) -> list[tuple[str, ...]]:
    """Grants of as many pods as fit, one after another."""
    found, shape = [], cluster.shape_of(what)
    while cluster.pod_capacity(shape)[0]:
        taken = cluster.take(shape, 0, 1)
        assert taken is not None, "what was counted must be there"
        found.append(taken[0])
    return found


def names(grants) -> list[str]:
    return [grant.device for grant in grants]


# --- how many fit: against trying everything ----------------------------------------------------

Left = tuple[tuple[str, int, int, int], ...]
"""Of every device: mode, compute, memory, and slots or slices used."""


def most_by_trying(devices, requests, bundle, left: Left) -> int:
    """The largest number of pods that any choice of devices allows."""

    @functools.cache
    def most(now: Left) -> int:
        return max((1 + most(after) for after in set(ways(now, requests, ()))), default=0)

    def ways(now: Left, wanted, used):
        if not wanted:
            if in_one_place(devices, bundle, used):
                yield now
            return
        for chosen, after in ways_to_grant(devices, now, wanted[0]):
            yield from ways(after, wanted[1:], used + chosen)

    return most(left)


def in_one_place(devices, bundle, used) -> bool:
    places = [device.numa if bundle == "numa" else device.switch for device in devices]
    where = {places[j] for j in used}
    unknown = set(places) <= {-1, ""}
    return not bundle or unknown or (len(where) == 1 and not where & {-1, ""})


def ways_to_grant(devices, now: Left, request):
    """(devices, what is left afterwards) for every way to serve one request."""
    usable = [j for j, d in enumerate(devices) if serves(d, request)]
    if request.form == "whole":
        free = [j for j in usable if now[j][0] == "free"]
        for chosen in itertools.combinations(free, request.count):
            if len(request.models) < 2 or len({devices[j].model for j in chosen}) == 1:
                yield chosen, put(now, dict.fromkeys(chosen, ("held", 0, 0, 0)))
        return
    for j in usable:
        for after in parts(devices[j], now[j], request):
            yield (j,), put(now, {j: after})


def parts(device, now, request):
    mode, compute, memory, used = now
    if request.form == "share" and mode in ("free", "share"):
        if compute >= request.compute and memory >= request.memory:
            yield "share", compute - request.compute, memory - request.memory, 0
    elif request.form == "ratio" and mode in ("free", f"1:{request.ratio}"):
        if used < request.ratio:
            yield f"1:{request.ratio}", 0, 0, used + 1
    elif request.form == "partition" and mode in ("free", "cut"):
        profile = next(p for p in device.profiles if p.name == request.profile)
        for start in profile.starts:
            bits = ((1 << profile.slices) - 1) << start
            if not bits & used:
                yield "cut", 0, 0, used | bits


def put(now: Left, changes) -> Left:
    return tuple(changes.get(j, each) for j, each in enumerate(now))


def serves(device, request) -> bool:
    strength = ["none", "soft", "hard"]
    return (
        device.kind == request.kind
        and device.healthy
        and request.form in device.forms
        and (not request.models or device.model in request.models)
        and (
            request.form == "whole"
            or strength.index(device.isolation) >= strength.index(request.isolation)
        )
    )


gpus = st.lists(
    st.builds(
        lambda i, model, numa, healthy, forms, isolation: gpu(
            i, model, numa=numa, switch=f"s{numa}" if numa >= 0 else "", links=f"l{numa}",
            healthy=healthy, forms=forms, isolation=isolation,
        ),
        st.just(0),
        st.sampled_from(["h100", "a100"]),
        st.sampled_from([-1, 0, 1]),
        st.sampled_from([True, True, True, False]),
        st.sampled_from([ALL, ALL, frozenset(("whole",)), frozenset(("whole", "ratio"))]),
        st.sampled_from(["none", "soft", "hard"]),
    ),
    max_size=4,
)  # fmt: skip
nics = st.lists(
    st.builds(lambda numa: nic(numa=numa, switch=f"s{numa}"), st.integers(0, 1)), max_size=2
)
models = st.sampled_from([(), (), ("h100",), ("h100", "a100"), ("a100", "h100"), ("b200",)])
gpu_requests = st.one_of(
    st.builds(DeviceRequest, st.just("gpu"), st.integers(1, 3), models=models),
    st.builds(
        DeviceRequest, st.just("gpu"), compute=st.sampled_from([0, 250, 400, 1000]),
        memory=st.sampled_from([17, 20, 33, 80]), models=models,
        isolation=st.sampled_from(["none", "soft", "hard"]),
    ),
    st.builds(DeviceRequest, st.just("gpu"), ratio=st.sampled_from([2, 4]), models=models),
    st.builds(DeviceRequest, st.just("gpu"), profile=st.sampled_from(["1g", "2g", "3g", "7g"])),
)  # fmt: skip
roles = st.one_of(
    st.builds(role, gpu_requests, bundle=st.sampled_from(["", "", "numa", "pcie"])),
    st.builds(
        role, gpu_requests, st.just(DeviceRequest("rdma")),
        bundle=st.sampled_from(["", "numa", "pcie"]),
    ),
)  # fmt: skip


def named(devices) -> tuple[Device, ...]:
    return tuple(dataclasses.replace(d, id=f"{d.kind}{i}") for i, d in enumerate(devices))


def what_is_left(cluster) -> Left:
    """The bank's own numbers, in the words of the search above."""
    bank, found = cluster.device_table, []
    for j in range(len(bank.devices[0])):
        mode, used = int(bank.mode[0, j]), int(bank.used[0, j])
        names = {UNLOCKED: "free", HELD: "held", SHARED: "share", PARTITIONED: "cut"}
        word = names.get(mode, f"1:{mode - RATIO}")
        found.append((word, int(bank.compute[0, j]), int(bank.memory[0, j]), used))
    return tuple(found)


@settings(deadline=None, max_examples=400)
@given(gpus=gpus, nics=nics, before=st.lists(gpu_requests, max_size=4), wanted=roles)
def test_what_fits_is_what_trying_everything_finds(gpus, nics, before, wanted):
    cluster = cluster_of(*named([*gpus, *nics]))
    for request in before:
        shape = cluster.shape_of(role(request))
        if cluster.pod_capacity(shape)[0]:
            cluster.take(shape, 0, 1)
    owned = cluster.nodes[0].devices
    most = most_by_trying(owned, wanted.devices, wanted.bundle, what_is_left(cluster))
    assert room(cluster, wanted) == most
    assert len(fill(cluster, wanted)) == most
    assert cluster.device_table.compute.min(initial=0) >= 0
    assert cluster.device_table.memory.min(initial=0) >= 0


# --- the books ----------------------------------------------------------------------------------


def numbers(cluster):
    bank = cluster.device_table
    arrays = (cluster.free, bank.compute, bank.memory, bank.mode, bank.used, bank.unlocked)
    ports = {port: sorted(where) for port, where in cluster.ports.items() if where}
    return [array.tolist() for array in arrays], ports


@settings(deadline=None, max_examples=200)
@given(gpus=gpus, nics=nics, wanted=st.lists(roles, min_size=1, max_size=8), data=st.data())
def test_taking_and_giving_back_in_any_order_leaves_nothing_behind(gpus, nics, wanted, data):
    cluster = cluster_of(*named([*gpus, *nics]))
    empty = numbers(cluster)
    pods = []
    for what in wanted:
        shape = cluster.shape_of(what)
        before, mark = numbers(cluster), cluster.mark()
        taken = cluster.take(shape, 0, 1) if cluster.pod_capacity(shape)[0] else None
        if taken is not None and data.draw(st.booleans()):
            cluster.rollback(mark)
            assert numbers(cluster) == before
        elif taken is not None:
            pods.append((what, PodAssignment("w", 0, "n", taken[0])))
    again = cluster_of(*named([*gpus, *nics]))
    for what, pod in pods:
        again.occupy(what, pod)
    assert numbers(again) == numbers(cluster)
    for what, pod in data.draw(st.permutations(pods)):
        cluster.release(what, pod)
        known = [cluster.pod_capacity(cluster.shape_of(each)).tolist() for each in wanted]
        fresh = cluster.fork(())
        assert known == [fresh.pod_capacity(fresh.shape_of(each)).tolist() for each in wanted]
    assert numbers(cluster) == empty


@settings(deadline=None, max_examples=200)
@given(gpus=gpus, wanted=st.lists(roles, min_size=1, max_size=8), data=st.data())
def test_many_at_once_is_the_same_as_one_by_one(gpus, wanted, data):
    cluster = cluster_of(*named(gpus))
    empty = numbers(cluster)
    workloads = []
    for i, what in enumerate(wanted):
        shape = cluster.shape_of(what)
        taken = cluster.take(shape, 0, 1) if cluster.pod_capacity(shape)[0] else None
        if taken is not None:
            workloads.append(
                (Workload(f"u{i}", "q", (what,)), (PodAssignment("w", 0, "n", taken[0]),))
            )
    full = numbers(cluster)
    going = [each for each in workloads if data.draw(st.booleans())]
    rows = [availability_profile.allocation_rows(cluster, *each) for each in going]
    members = np.concatenate([np.zeros((2, 0), np.int64), *(r.members for r in rows)], axis=1)
    devices = np.concatenate([np.zeros((5, 0), np.int64), *(r.devices for r in rows)], axis=1)
    other = cluster.fork()
    cluster.shift(members, devices, +1)
    for what, pods in going:
        other.release(what.roles[0], pods[0])
    assert numbers(cluster) == numbers(other)
    assert cluster.device_table.has_capacity(devices)
    cluster.shift(members, devices, -1)
    assert numbers(cluster) == full
    if len(going) == len(workloads):
        assert numbers(other) == empty


# --- one by one ---------------------------------------------------------------------------------


def test_memory_is_counted_in_whole_mebibytes_and_never_rounded():
    """24 x 2000 MiB is more than 46,068 MiB, however near it is: 23 fit, the next goes beside."""
    cluster = cluster_of(gpu(0, memory=46_068), gpu(1, memory=46_068))
    share = role(DeviceRequest("gpu", memory=2000))
    assert room(cluster, share) == 46
    where = [names(grants)[0] for grants in fill(cluster, share)]
    assert where == ["gpu0"] * 23 + ["gpu1"] * 23
    assert cluster.device_table.memory.tolist() == [[68, 68]]


def test_a_ratio_locks_the_device_until_the_last_part_is_given_back():
    cluster = cluster_of(gpu())
    quarter = role(DeviceRequest("gpu", ratio=4))
    others = [
        role(DeviceRequest("gpu")),
        role(DeviceRequest("gpu", ratio=2)),
        role(DeviceRequest("gpu", memory=1)),
        role(DeviceRequest("gpu", profile="1g")),
    ]
    first, second = fill(cluster, quarter)[:2]
    for part in (first, second):
        cluster.release(quarter, PodAssignment("w", 0, "n", part))
    assert room(cluster, quarter) == 2
    assert [room(cluster, other) for other in others] == [0, 0, 0, 0]
    for _ in range(2):
        cluster.release(quarter, PodAssignment("w", 0, "n", first))
    assert [room(cluster, other) for other in others] == [1, 2, 80, 7]


@pytest.mark.parametrize(
    ("taken", "left"),
    [
        ((), {"1g": 7, "2g": 3, "3g": 2, "7g": 1}),
        (("3g",), {"1g": 4, "2g": 2, "3g": 1, "7g": 0}),
        (("3g", "3g"), {"1g": 0, "2g": 0, "3g": 0, "7g": 0}),
        (("1g",), {"1g": 6, "2g": 3, "3g": 1, "7g": 0}),
        (("3g", "1g", "1g", "1g"), {"1g": 1, "2g": 0, "3g": 0, "7g": 0}),
    ],
)
def test_partitions_take_slices_where_their_profile_allows(taken, left):
    """A 3g partition takes 4 of the 8 memory slices: after two of them nothing is left."""
    cluster = cluster_of(gpu())
    for profile in taken:
        shape = cluster.shape_of(role(DeviceRequest("gpu", profile=profile)))
        assert cluster.take(shape, 0, 1) is not None
    room_for = {name: room(cluster, role(DeviceRequest("gpu", profile=name))) for name in left}
    assert room_for == left


def test_partitions_go_where_they_spoil_the_least():
    cluster = cluster_of(gpu(0), gpu(1))
    small = cluster.shape_of(role(DeviceRequest("gpu", profile="1g")))
    for _ in range(3):
        cluster.take(small, 0, 1)
    assert room(cluster, role(DeviceRequest("gpu", profile="7g"))) == 1
    assert room(cluster, role(DeviceRequest("gpu", profile="3g"))) == 3


def test_several_devices_come_from_one_link_group_and_from_the_smallest_that_has_them():
    groups = ["a", "a", "b", "b", "b", "c", "c", "c", "c"]
    cluster = cluster_of(*(gpu(i, links=group) for i, group in enumerate(groups)))
    three = cluster.take(cluster.shape_of(role(DeviceRequest("gpu", 3))), 0, 1)
    assert names(three[0]) == ["gpu2", "gpu3", "gpu4"]
    one = cluster.take(cluster.shape_of(role(DeviceRequest("gpu"))), 0, 1)
    assert names(one[0]) == ["gpu0"], "from a group that is already the smallest"


def test_a_bundle_is_the_nodes_choice_where_it_does_not_say_where_devices_are():
    plain = cluster_of(Device("gpu0", "gpu"), Device("gpu1", "gpu"))
    assert room(plain, role(DeviceRequest("gpu", 2), bundle="numa")) == 1
    assert room(plain, role(DeviceRequest("gpu", 3), bundle="numa")) == 0


def test_a_bundle_comes_from_one_switch_or_not_at_all():
    devices = [gpu(0, switch="x"), gpu(1, switch="y"), nic(0, switch="y")]
    cluster = cluster_of(*devices)
    both = role(DeviceRequest("gpu"), DeviceRequest("rdma"), bundle="pcie")
    assert [names(grants) for grants in fill(cluster, both)] == [["gpu1", "nic0"]]
    apart = cluster_of(gpu(0, switch="x"), nic(0, switch="y"))
    assert room(apart, both) == 0
    assert room(apart, dataclasses.replace(both, bundle="")) == 1


def test_the_first_acceptable_model_is_preferred_and_a_member_never_mixes_two():
    devices = [gpu(0, "a100"), gpu(1, "a100"), gpu(2, "h100"), gpu(3, "h100"), gpu(4, "h100")]
    pair = role(DeviceRequest("gpu", 2, models=("h100", "a100")))
    granted = [names(grants) for grants in fill(cluster_of(*devices), pair)]
    assert granted == [["gpu2", "gpu3"], ["gpu0", "gpu1"]]


def test_a_device_that_is_not_well_is_not_granted():
    assert room(cluster_of(gpu(0, healthy=False), gpu(1)), role(DeviceRequest("gpu"))) == 1
