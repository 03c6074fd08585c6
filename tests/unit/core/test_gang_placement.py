"""Where pods go: all or nothing, near each other, affinity to other pods, and accounting."""

import collections

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from windlass.core.cluster.cluster import Cluster
from windlass.core.cluster.pod_label_index import PodLabelIndex
from windlass.core.model import pod_sets
from windlass.core.model.pod_sets import PodSetRequest
from windlass.core.model.types import (
    Affinity,
    Constraint,
    Device,
    DeviceRequest,
    Node,
    PodAssignment,
    Requirement,
    Role,
    Running,
    Spread,
    Taint,
    Toleration,
    Topology,
    Workload,
)
from windlass.core.placement import gang_placement
from windlass.core.placement.placement_context import PlacementContext, PlacementFailure, Work

LEVELS = ("block", "rack")


def node(name, cpu=4, path=("b", "r"), **more) -> Node:
    return Node(name, {"cpu": cpu}, path=path, **more)


def role(count=1, cpu=1, name="w", **more) -> Role:
    return Role(name, count, count, {"cpu": cpu}, **more)


def workload(*roles, key="u", **more) -> Workload:
    return Workload(key, "q", roles, **more)


def context_of(nodes, running=(), levels=LEVELS) -> PlacementContext:
    cluster, pod_index = Cluster(nodes, levels), PodLabelIndex()
    for each in running:
        roles = {role.name: role for role in each.workload.roles}
        for pod in each.pods:
            cluster.occupy(roles[pod.role], pod)
        pod_index.add(each)
    cluster.settle()
    return PlacementContext(cluster, Work(10**9), pod_index)


def placed(context, what):
    return gang_placement.place(context, what, pod_sets.minimum(what))


def where(answer) -> list[str]:
    """Nodes of the pods, or nothing when they were not placed."""
    return [] if isinstance(answer, PlacementFailure) else [pod.node for pod in answer]


def at(what: Workload, *nodes: str) -> Running:
    return Running(what, tuple(PodAssignment("w", i, name) for i, name in enumerate(nodes)), 0.0)


# --- gangs, domains, packing: against counting by hand ------------------------------------------


@st.composite
def grids(draw) -> list[Node]:
    """Nodes of different sizes in racks in blocks."""
    blocks, racks = st.sampled_from(["b0", "b1"]), st.sampled_from(["r0", "r1", "r2"])
    return [
        node(f"n{i}", draw(st.integers(0, 6)), (draw(blocks), draw(racks)))
        for i in range(draw(st.integers(1, 8)))
    ]


def domains(nodes, depth) -> dict[tuple[str, ...], list[Node]]:
    found = collections.defaultdict(list)
    for each in nodes:
        found[each.path[:depth]].append(each)
    return found


def room(nodes, cpu) -> int:
    return sum(each.allocatable["cpu"] // cpu for each in nodes)


SIZES = st.tuples(st.integers(1, 3), st.integers(1, 3))
"""How many pods, and the cpu of each."""
PACKS = st.sampled_from(["binpack", "spread"])


@settings(deadline=None, max_examples=300)
@given(
    nodes=grids(),
    count=st.integers(1, 12),
    cpu=st.integers(1, 3),
    pack=PACKS,
    topology=st.sampled_from(
        [None, *(Topology(level, required) for level in ("block", "rack", "node")
                 for required in (True, False))]
    ),
)  # fmt: skip
def test_a_gang_is_placed_exactly_if_it_fits(nodes, count, cpu, pack, topology):
    context = context_of(nodes)
    before = context.cluster.free.copy()
    answer = placed(context, workload(role(count, cpu), pack=pack, topology=topology))
    groups = list(domains(nodes, 0).values())
    if topology is not None and topology.required:
        depth = {"block": 1, "rack": 2}.get(topology.level)
        groups = list(domains(nodes, depth).values()) if depth else [[each] for each in nodes]
    fits = any(room(group, cpu) >= count for group in groups)
    assert isinstance(answer, PlacementFailure) != fits
    if not fits:
        assert answer.resolved
        assert answer.fitting == max(room(group, cpu) for group in groups) or not answer.topology
        assert (context.cluster.free == before).all(), "nothing is taken"
        return
    used = collections.Counter(where(answer))
    assert sum(used.values()) == count
    assert [pod.index for pod in answer] == list(range(count))
    assert any(used.keys() <= {each.name for each in group} for group in groups)
    assert (context.cluster.free >= 0).all()
    assert before.sum() - context.cluster.free.sum() == count * cpu


@settings(deadline=None, max_examples=200)
@given(nodes=grids(), count=st.integers(2, 12), level=st.sampled_from(LEVELS))
def test_the_tightest_domain_is_taken(nodes, count, level):
    groups = domains(nodes, LEVELS.index(level) + 1)
    rooms = {path: room(group, 1) for path, group in groups.items()}
    fitting = [size for size in rooms.values() if size >= count]
    assume(fitting)
    answer = placed(
        context_of(nodes), workload(role(count), topology=Topology(level, required=True))
    )
    by_name = {each.name: each.path[: LEVELS.index(level) + 1] for each in nodes}
    assert rooms[by_name[answer[0].node]] == min(fitting)


@settings(deadline=None, max_examples=200)
@given(nodes=grids(), count=st.integers(1, 20))
def test_spread_is_even_as_far_as_there_is_capacity(nodes, count):
    assume(room(nodes, 1) >= count)
    used = collections.Counter(
        where(placed(context_of(nodes, levels=()), workload(role(count), pack="spread")))
    )
    most = max(used.values())
    for each in nodes:
        size = each.allocatable["cpu"]
        assert used[each.name] >= min(size, most - 1), "nobody has two more than who has room"


@settings(deadline=None, max_examples=200)
@given(nodes=grids(), count=st.integers(1, 20))
def test_binpack_uses_the_fewest_nodes(nodes, count):
    assume(room(nodes, 1) >= count)
    used = set(where(placed(context_of(nodes, levels=()), workload(role(count)))))
    sizes = sorted((each.allocatable["cpu"] for each in nodes), reverse=True)
    fewest = next(n for n in range(len(sizes) + 1) if sum(sizes[:n]) >= count)
    assert len(used) == fewest


@settings(deadline=None, max_examples=200)
@given(nodes=grids(), sizes=st.lists(SIZES, min_size=2, max_size=3), required=st.booleans())
def test_several_roles_start_together_or_not_at_all(nodes, sizes, required):
    context = context_of(nodes)
    before = context.cluster.free.copy()
    roles = [role(count, cpu, f"w{i}") for i, (count, cpu) in enumerate(sizes)]
    answer = placed(
        context, workload(*roles, topology=Topology("rack", True) if required else None)
    )
    if isinstance(answer, PlacementFailure):
        assert (context.cluster.free == before).all()
        if answer.resolved:
            alone = [r for r in roles if room(nodes, r.needs["cpu"]) < r.min_count]
            assert answer.role in alone, "impossible only with a proof"
        return
    assert collections.Counter(s.role for s in answer) == {r.name: r.min_count for r in roles}
    assert (context.cluster.free >= 0).all()
    if required:
        racks = {each.name: each.path for each in nodes}
        assert len({racks[pod.node] for pod in answer}) == 1


def test_preferred_topology_climbs_to_the_next_wider_level():
    nodes = [node("a", 2, ("b0", "r0")), node("b", 2, ("b0", "r1")), node("c", 9, ("b1", "r2"))]
    nodes.append(node("d", 1, ("b1", "r3")))
    answer = placed(context_of(nodes[:2] + nodes[3:]), workload(role(4), topology=Topology("rack")))
    assert set(where(answer)) == {"a", "b"}, "no rack has 4, but one block has"


def test_members_without_devices_leave_nodes_with_devices_alone():
    with_gpu = node("a", 9, devices=(Device("g", "gpu"),))
    context = context_of([with_gpu, node("b", 2)])
    assert where(placed(context, workload(role(1)))) == ["b"]


# --- which nodes at all -------------------------------------------------------------------------

EXISTS = Requirement("gpu", "Exists")


@pytest.mark.parametrize(
    ("constraint", "nodes"),
    [
        (Constraint(selector=(("zone", "x"),)), {"a", "c"}),
        (Constraint(affinity=((Requirement("zone", "In", ("x", "y")),),)), {"a", "b", "c"}),
        (Constraint(affinity=((Requirement("zone", "NotIn", ("x",)),),)), {"b", "d"}),
        (Constraint(affinity=((Requirement("zone", "DoesNotExist"),),)), {"d"}),
        (Constraint(affinity=((Requirement("size", "Gt", ("5",)),),)), {"b"}),
        (Constraint(affinity=((Requirement("size", "Lt", ("5",)),),)), {"a"}),
        (Constraint(affinity=((Requirement("zone", "In", ("y",)),), (EXISTS,))), {"b"}),
        (Constraint(affinity=((),)), set()),
        (Constraint(volumes=(((Requirement("zone", "In", ("x",)),),),)), {"a", "c"}),
        (Constraint(volumes=(((Requirement("zone", "In", ("y",)),), (EXISTS,)),)), {"b"}),
        (Constraint(volumes=(((Requirement("zone", "In", ("x",)),),), ((EXISTS,),))), set()),
        (Constraint(names=frozenset(("b",))), {"b"}),
        (Constraint(not_now=frozenset(("a", "d", "gone"))), {"b", "c"}),
        (Constraint(tolerations=(Toleration("dedicated", "Exists"),)), set("abcde")),
        (Constraint(tolerations=(Toleration("dedicated", "Equal", "ml"),)), set("abcde")),
        (Constraint(tolerations=(Toleration("dedicated", "Equal", "x"),)), set("abcd")),
        (Constraint(tolerations=(Toleration("", "Exists", effect="NoExecute"),)), set("abcd")),
    ],
)  # fmt: skip
def test_constraints_choose_nodes_as_kubernetes_does(constraint, nodes):
    cluster = Cluster([
        node("a", labels={"zone": "x", "size": "3"}),
        node("b", labels={"zone": "y", "size": "7"}),
        node("c", labels={"zone": "x"}, taints=(Taint("busy", effect="PreferNoSchedule"),)),
        node("d"),
        node("e", taints=(Taint("dedicated", "ml"),), labels={"zone": "z"}),
        node("f", ready=False, labels={"zone": "x", "size": "3"}),
        node("g", ready_in=60.0, labels={"zone": "x", "size": "3"}),
    ])  # fmt: skip
    if not constraint.tolerations:
        nodes -= {"e"}
    caps = cluster.pod_capacity(cluster.shape_of(role(constraint=constraint)))
    assert {cluster.nodes[i].name for i in caps.nonzero()[0]} == nodes


def test_host_ports_admit_one_member_per_node():
    web = role(2, ports=(80,))
    context = context_of([node("a"), node("b")])
    assert sorted(where(placed(context, workload(web)))) == ["a", "b"]
    assert isinstance(
        placed(context, workload(role(1, ports=(443, 80)), key="v")), PlacementFailure
    )
    assert not isinstance(
        placed(context, workload(role(1, ports=(443,)), key="w")), PlacementFailure
    )


def test_a_failed_attempt_gives_its_ports_back():
    context = context_of([node("a")])
    web = role(1, ports=(80,))
    assert isinstance(placed(context, workload(web, role(1, 9, "big"))), PlacementFailure)
    assert not isinstance(placed(context, workload(web)), PlacementFailure)


def test_volumes_count_against_the_attach_limit_of_a_node():
    nodes = [node("a", 9, attach_limits={"csi": 3}), node("b", 9)]
    answer = placed(context_of(nodes), workload(role(1, attach=(("csi", 2),))))
    assert where(answer) == ["a"]
    answer = placed(context_of(nodes), workload(role(2, attach=(("csi", 2),))))
    assert isinstance(answer, PlacementFailure)
    assert answer.fitting == 1


def test_a_resource_that_no_node_has_fits_nowhere():
    thing = Role("w", 1, 1, {"cpu": 1, "example.com/thing": 1})
    assert isinstance(placed(context_of([node("a")]), workload(thing)), PlacementFailure)


# --- near, away, spread: as Kubernetes ----------------------------------------------------------

ZONED = [
    node("a", 9, labels={"zone": "x", "host": "a"}),
    node("b", 9, labels={"zone": "x", "host": "b"}),
    node("c", 9, labels={"zone": "y", "host": "c"}),
    node("d", 9, labels={"host": "d"}),
]
WEB = (("app", "web"),)
IS_WEB = (Requirement("app", "In", ("web",)),)
web = workload(role(labels=WEB), key="web")


def near(key, **more) -> Affinity:
    return Affinity(key, IS_WEB, **more)


def away(key, **more) -> Affinity:
    return Affinity(key, IS_WEB, anti=True, **more)


@pytest.mark.parametrize(
    ("running", "what", "nodes"),
    [
        (["a"], role(affinities=(near("host"),)), {"a"}),
        (["a"], role(affinities=(near("zone"),)), {"a", "b"}),
        ([], role(affinities=(near("zone"),)), set()),
        ([], role(affinities=(near("zone"),), labels=WEB), {"a", "b", "c"}),
        (["c"], role(affinities=(near("zone"),), labels=WEB), {"c"}),
        (["d"], role(affinities=(near("zone"),)), set()),
        (["a"], role(affinities=(away("host"),)), {"b", "c", "d"}),
        (["a"], role(affinities=(away("zone"),)), {"c", "d"}),
        (["a", "c"], role(affinities=(near("zone"), away("host"))), {"b"}),
        (["a"], role(affinities=(near("zone", namespaces=frozenset(("else",))),)), set()),
        (["a"], role(affinities=(away("zone", required=False),)), {"a", "b", "c", "d"}),
        (["a", "a", "c"], role(spreads=(Spread("zone", IS_WEB),), labels=WEB), {"c"}),
        (["a", "c"], role(spreads=(Spread("zone", IS_WEB),), labels=WEB), {"a", "b", "c"}),
        (["a", "a"], role(spreads=(Spread("zone", IS_WEB, 2),)), {"a", "b", "c"}),
        (["a", "a"], role(spreads=(Spread("zone", IS_WEB, 2),), labels=WEB), {"c"}),
        (["a", "c"], role(spreads=(Spread("zone", IS_WEB, min_domains=3),), labels=WEB), set()),
        (["a"], role(spreads=(Spread("host", IS_WEB),), labels=WEB), {"b", "c", "d"}),
    ],
    ids=[
        "near by host", "near by zone", "nobody to be near to", "the first of its kind",
        "the second of its kind", "a node without the key is in no domain", "away by host",
        "away by zone", "near one, away from the other", "another namespace is not looked at",
        "preferred forbids nothing", "skew 1, x has two", "skew 1, even", "itself does not count",
        "itself counts", "too few domains count as an empty one", "spread over hosts",
    ],
)  # fmt: skip
def test_terms_allow_the_nodes_that_kubernetes_would(running, what, nodes):
    pod_index = [at(web, *running)] if running else []
    allowed = set()
    for each in ZONED:
        context = context_of(ZONED, pod_index)
        context.within = context.cluster.mask(Constraint(names=frozenset((each.name,))))
        allowed |= set(where(placed(context, workload(what))))
    assert allowed == nodes


def test_anti_affinity_of_running_pods_counts_too():
    hermit = workload(role(affinities=(away("zone"),)), key="hermit")
    context = context_of(ZONED, [at(hermit, "a")])
    assert set(where(placed(context, workload(role(1, labels=WEB))))) <= {"c", "d"}
    assert where(placed(context, workload(role(1), topology=Topology("node")))) == ["a"], "no web"


def test_only_the_hermits_own_namespace_is_kept_away():
    hermit = workload(role(affinities=(away("host"),)), key="hermit", namespace="one")
    nodes = [node("a", 9, labels={"host": "a"})]
    for namespace, fits in (("one", False), ("two", True)):
        context = context_of(nodes, [at(hermit, "a")])
        answer = placed(context, workload(role(labels=WEB), namespace=namespace))
        assert isinstance(answer, PlacementFailure) != fits


def test_members_of_a_gang_see_each_other():
    apart = workload(role(3, labels=WEB, affinities=(away("host"),)))
    assert len(set(where(placed(context_of(ZONED), apart)))) == 3
    too_many = workload(role(5, labels=WEB, affinities=(away("host"),)))
    context = context_of(ZONED)
    assert isinstance(placed(context, too_many), PlacementFailure)
    assert len(where(placed(context, apart))) == 3, "nothing of the failed attempt is left"
    even = workload(role(4, labels=WEB, spreads=(Spread("zone", IS_WEB),)))
    zones = {each.name: each.labels.get("zone") for each in ZONED}
    used = collections.Counter(zones[name] for name in where(placed(context_of(ZONED), even)))
    assert used == {"x": 2, "y": 2}


def test_spread_counts_only_nodes_that_the_selector_allows():
    nodes = [*ZONED[:3], node("e", 9, labels={"zone": "z", "host": "e"})]
    only_xy = Constraint(affinity=((Requirement("zone", "In", ("x", "y")),),))
    what = role(constraint=only_xy, labels=WEB, spreads=(Spread("zone", IS_WEB),))
    context = context_of(nodes, [at(web, "a", "c")])
    assert where(placed(context, workload(what))), "zone z is empty but out of reach"


def test_spread_counts_tainted_nodes_as_kubernetes_does_by_default():
    nodes = [ZONED[0], node("e", 9, labels={"zone": "z"}, taints=(Taint("dedicated"),))]
    what = role(labels=WEB, spreads=(Spread("zone", IS_WEB),))
    assert isinstance(placed(context_of(nodes, [at(web, "a")]), workload(what)), PlacementFailure)


def test_preferences_decide_among_nodes_that_are_allowed():
    context = context_of(ZONED, [at(web, "c")])
    assert where(placed(context, workload(role(affinities=(near("host", required=False),))))) == [
        "c"
    ]
    assert where(placed(context, workload(role(affinities=(away("host", required=False),))))) != [
        "c"
    ]


def test_a_crowd_that_left_is_forgotten():
    hermit = at(workload(role(affinities=(away("zone"),)), key="hermit"), "a")
    pod_index = PodLabelIndex()
    pod_index.add(hermit)
    assert pod_index.has_anti_affinity
    pod_index.remove(hermit)
    assert not pod_index.has_anti_affinity


def test_requests_are_numbered_from_where_they_begin():
    context = context_of([node("a")])
    what = role(1)
    answer = gang_placement.place(context, workload(what), [PodSetRequest(what, 2, first=3)])
    assert [pod.index for pod in answer] == [3, 4]


def test_of_two_roles_one_that_is_counted_by_trying_is_not_surely_without_capacity():
    """The whole GPU is taken first, and it is the one that the share would have needed."""
    shares = frozenset(("whole", "share"))
    gpus = tuple(
        Device(f"g{i}", "gpu", memory=memory, forms=shares) for i, memory in enumerate((80, 16))
    )
    twins = role(devices=(DeviceRequest("gpu"), DeviceRequest("gpu", memory=40)))
    both = workload(twins, role(name="helper"))
    for what in (both, workload(twins)):
        answer = placed(context_of([node("n", devices=gpus)]), what)
        assert isinstance(answer, PlacementFailure)
        assert not answer.resolved
