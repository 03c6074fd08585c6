"""Parts of devices that no node can ever grant: the sentence says what is missing and what
helps."""

from __future__ import annotations

import dataclasses

import pytest

from windlass.core.cycle import cycle
from windlass.core.model.types import (
    WHOLE,
    ClusterFacts,
    Decision,
    Device,
    DeviceRequest,
    Isolation,
    Node,
    Profile,
    Queue,
    Role,
    Verdict,
    Workload,
)
from windlass.core.snapshot import snapshot
from windlass.kinds.reasons import Reason

WHOLE_ONLY = frozenset(("whole",))
SHARED = frozenset(("whole", "share", "ratio"))
CUT = frozenset(("whole", "partition"))
SEVENTH = Profile("1g", 1, tuple(range(7)), 142)


def node(
    name: str = "n",
    forms: frozenset[str] = SHARED,
    model: str = "a100",
    memory: int = 0,
    isolation: Isolation = "none",
    profiles: tuple[Profile, ...] = (),
) -> Node:
    device = Device(
        f"{name}/0", "gpu", model, memory=memory, forms=forms, isolation=isolation,
        slices=8 if profiles else 0, profiles=profiles,
    )  # fmt: skip
    return Node(name, {"cpu": 8000}, (device,))


def decide(request: DeviceRequest, *nodes: Node) -> Decision:
    workload = Workload("me", "q", (Role("w", 1, 1, {"cpu": 1000}, (request,)),))
    return cycle.decide(
        snapshot.build(ClusterFacts(nodes, (Queue("q"),), waiting=(workload,))), 0.0
    )


QUARTER = DeviceRequest("gpu", ratio=4)
COMPUTE = DeviceRequest("gpu", compute=250)
MEMORY = DeviceRequest("gpu", memory=8192)
BOTH = DeviceRequest("gpu", compute=250, memory=8192)
PARTITION = DeviceRequest("gpu", profile="1g")

NOT_GRANTED = (
    "no node grants {} of {}: none that has any offers {} in windlass.dev/capabilities; "
    "ask for whole ones"
)
UNKNOWN = (
    "needs 8192Mi of a gpu; no node that grants shares of it has the label "
    "windlass.dev/gpu-memory: have it set, or ask for a share by compute or as a fraction"
)
LOOSE = (
    "no node keeps shares of gpu apart from each other as strictly as {}: none offers "
    "isolation:{} in windlass.dev/capabilities; ask for less isolation or for whole ones"
)


def like(request: DeviceRequest, **more: object) -> DeviceRequest:
    return dataclasses.replace(request, **more)


SENTENCES = [
    # No node grants parts.
    ("ratio", QUARTER, [node(forms=WHOLE_ONLY)], NOT_GRANTED.format("shares", "gpu", "shares")),
    ("compute", COMPUTE, [node(forms=WHOLE_ONLY)], NOT_GRANTED.format("shares", "gpu", "shares")),
    ("memory", MEMORY, [node(forms=WHOLE_ONLY)], NOT_GRANTED.format("shares", "gpu", "shares")),
    (
        "memory of a device that says how much it has",
        MEMORY,
        [node(forms=WHOLE_ONLY, memory=81920)],
        NOT_GRANTED.format("shares", "gpu", "shares"),
    ),
    ("both", BOTH, [node(forms=WHOLE_ONLY)], NOT_GRANTED.format("shares", "gpu", "shares")),
    (
        "partition",
        PARTITION,
        [node(forms=SHARED)],
        NOT_GRANTED.format("partitions", "gpu", "partitions"),
    ),
    # Nodes grant parts of another model: nodes of two kinds.
    (
        "shares of the other model",
        like(QUARTER, models=("h100",)),
        [node("old"), node("new", WHOLE_ONLY, "h100")],
        NOT_GRANTED.format("shares", "gpu (h100)", "shares"),
    ),
    (
        "a model that is not there",
        like(QUARTER, models=("h100", "h200")),
        [node(), node("b", model="v100")],
        "needs a part of a gpu (h100 or h200); those of the nodes it may use are a100, v100: name "
        "one of these, or no model",
    ),
    (
        "nodes that do not say their model",
        like(COMPUTE, models=("h100",)),
        [node(model="")],
        "needs a part of a gpu (h100); no node it may use has the label "
        "windlass.dev/gpu-model: have it set, or name no model",
    ),
    # Memory that is not known, or too little.
    ("memory not known", MEMORY, [node()], UNKNOWN),
    ("both, memory not known", BOTH, [node()], UNKNOWN),
    (
        "memory known only where nobody grants",
        MEMORY,
        [node("grants"), node("says", WHOLE_ONLY, memory=81920)],
        UNKNOWN,
    ),
    (
        "too little memory",
        like(MEMORY, memory=90000),
        [node(memory=81920), node("b", memory=40960), node("c")],
        "needs 90000Mi of a gpu; the largest of which shares are granted has 81920Mi",
    ),
    # Isolation.
    ("soft", like(QUARTER, isolation="soft"), [node()], LOOSE.format("soft", "soft")),
    (
        "hard",
        like(COMPUTE, isolation="hard"),
        [node(isolation="soft"), node("b")],
        LOOSE.format("hard", "hard"),
    ),
    (
        "apart enough only where memory is not known",
        like(MEMORY, isolation="hard"),
        [node("a", isolation="hard"), node("b", memory=81920)],
        UNKNOWN,
    ),
    # Partitions.
    (
        "a partition that no device has",
        like(PARTITION, profile="3g"),
        [node(forms=CUT, profiles=(SEVENTH,))],
        "no gpu can be cut into 3g; they can be cut into 1g",
    ),
    (
        "a device that cannot be cut",
        PARTITION,
        [node(forms=CUT)],
        "no gpu can be cut into 1g; they cannot be cut at all",
    ),
    # No device at all.
    (
        "no gpu",
        QUARTER,
        [Node("n", {"cpu": 8000})],
        "needs 1/4 gpu on one node; the node with most of them has 0",
    ),
]


@pytest.mark.parametrize(
    ("request_", "nodes", "says"), [each[1:] for each in SENTENCES], ids=[e[0] for e in SENTENCES]
)
def test_a_request_that_no_node_can_grant_is_impossible_with_that_reason(
    request_: DeviceRequest, nodes: list[Node], says: str
) -> None:
    (found,) = decide(request_, *nodes).verdicts
    possible = 0 if says.endswith("has 0") else None
    assert found == Verdict("me", Reason.IMPOSSIBLE, says, "gpu", WHOLE, possible=possible)


GRANTED = [
    ("ratio", QUARTER, node()),
    ("compute", COMPUTE, node()),
    ("memory", MEMORY, node(memory=8192)),
    ("both", BOTH, node(memory=8192)),
    ("soft where it is hard", like(QUARTER, isolation="soft"), node(isolation="hard")),
    ("partition", PARTITION, node(forms=CUT, profiles=(SEVENTH,))),
]


@pytest.mark.parametrize(
    ("request_", "there"), [each[1:] for each in GRANTED], ids=[each[0] for each in GRANTED]
)
def test_a_request_is_granted_only_on_nodes_that_can(request_: DeviceRequest, there: Node) -> None:
    """Beside it stands a node on which no plug-in grants anything."""
    (placed,) = decide(request_, node("other", WHOLE_ONLY), there).placements
    assert [pod.node for pod in placed.pods] == ["n"]


def test_a_share_by_memory_counts_in_its_queue_though_others_do_not_say_how_much_they_have() -> (
    None
):
    """Half of the device: a limit of a third of one is too little, whatever the node that says
    nothing could grant."""
    half = DeviceRequest("gpu", memory=40960)
    workload = Workload("me", "q", (Role("w", 1, 1, {"cpu": 1000}, (half,)),))
    nodes = (node("silent"), node("says", memory=81920))
    for limit, reason in ((333, Reason.WAITING_FOR_QUOTA), (500, None)):
        told = ClusterFacts(nodes, (Queue("q", limit={"gpu": limit}),), waiting=(workload,))
        decision = cycle.decide(snapshot.build(told), 0.0)
        assert [each.reason for each in decision.verdicts] == ([reason] if reason else [])
