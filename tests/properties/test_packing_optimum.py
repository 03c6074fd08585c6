"""How close placement comes to the optimum by brute force, on tiny clusters.

Each campaign sums over many random sequences: a single one may arrive in an order that no online
rule can place well. The bounds are a little below what was measured (docs/design/packing.md).
"""

from __future__ import annotations

import dataclasses
import os
import random

import pytest

from tests.properties import packing_oracle as oracle
from tests.properties.settings import CAMPAIGN, SOAK
from windlass.core.cluster.cluster import Cluster
from windlass.core.cluster.devices import device_allocation
from windlass.core.model.types import Grant

pytestmark = CAMPAIGN

BY_NAME = {profile.name: profile for profile in oracle.A100}
SMALL, MEDIUM, LARGE, WIDE = "1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb"


@dataclasses.dataclass(frozen=True)
class Mix:
    """How often each profile is requested, and the least parts of what brute force allocates."""

    profiles: dict[str, float]
    of_optimum: float
    """Of a sequence of arrivals."""
    of_possible: float
    """Of arrivals that would fit after moving those that run, while partitions come and go."""


MIXES = {
    "every profile": Mix(dict.fromkeys(BY_NAME, 1.0), 0.895, 0.825),
    "all but the whole device": Mix({n: 1.0 for n in BY_NAME if n != "7g.40gb"}, 0.92, 0.82),
    "1g and 3g": Mix({SMALL: 1.0, LARGE: 1.0}, 0.895, 0.86),
    "2g and 3g": Mix({MEDIUM: 1.0, LARGE: 1.0}, 0.865, 0.85),
    "1g, 2g and 3g": Mix({SMALL: 5.0, MEDIUM: 3.0, LARGE: 2.0}, 0.895, 0.78),
    "1g and 4g": Mix({SMALL: 7.0, WIDE: 3.0}, 0.965, 0.74),
}


def sequences(normal: int, soak: int) -> list[random.Random]:
    """The same in the normal run; others in a soak, from the seed that the run names first."""
    first = int(os.environ["WINDLASS_SEED"]) if SOAK else 0
    return [random.Random(first + number) for number in range(soak if SOAK else normal)]


@pytest.mark.parametrize("cpu_each", [0, 4, 8])
@pytest.mark.parametrize("known", [0, 16, 64, 256])
def test_whole_gpus_are_packed_no_worse_than_by_binpack_however_little_is_known(
    known: int, cpu_each: int
) -> None:
    """Jobs of 1, 2, 4 and 8 GPUs, large ones seldom. With an empty history and ample cpu,
    `fragmentation` placed them nearly as `spread` does: 5 % less than `binpack` here."""
    mix = {oracle.whole(gpus, cpu_each): 1.0 / gpus for gpus in (1, 2, 4, 8)}
    totals = dict.fromkeys(("fragmentation", "binpack", "optimum"), 0)
    for throw in sequences(12, 150):
        count = throw.choice((2, 3, 4))
        nodes, arrivals = oracle.whole_gpu_nodes(count), oracle.draw(throw, mix, 8 * count)
        history = throw.choices(list(mix), list(mix.values()), k=known)
        totals["fragmentation"] += oracle.allocated(nodes, arrivals, "fragmentation", history)
        totals["binpack"] += oracle.allocated(nodes, arrivals, "binpack")
        totals["optimum"] += oracle.most_whole((each.size for each in arrivals), count)
    assert totals["fragmentation"] >= 0.995 * totals["binpack"], totals
    assert totals["fragmentation"] >= 0.90 * totals["optimum"], totals


def test_a_new_cluster_keeps_a_node_free_for_a_job_that_was_never_seen() -> None:
    small, large = oracle.whole(1, 0), oracle.whole(8, 0)
    nodes = oracle.whole_gpu_nodes(2)
    assert oracle.allocated(nodes, [small, small, small, large], "fragmentation") == 11


@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES)
def test_partitions_come_close_to_the_optimum(mix: Mix) -> None:
    weights = requests_of(mix)
    placed = optimum = 0
    for throw in sequences(60, 600):
        nodes, devices = throw.choice(((1, 2), (2, 1), (1, 3)))
        arrivals = oracle.draw(throw, weights, oracle.SLICES * nodes * devices)
        placed += oracle.allocated(oracle.partitioned_nodes(nodes, devices), arrivals, "binpack")
        optimum += oracle.most_slices([*map(oracle.profile_of, arrivals)], nodes * devices)
    assert placed >= mix.of_optimum * optimum, (placed, optimum)


def requests_of(mix: Mix) -> dict[oracle.Request, float]:
    return {oracle.partition(BY_NAME[name]): weight for name, weight in mix.profiles.items()}


@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES)
def test_few_partitions_are_refused_that_would_fit_if_others_were_moved(mix: Mix) -> None:
    """The rule before, which kept most partitions of the requested profile possible, is below five
    of these six bounds: below that of 1g and 4g by 3 points."""
    weights = requests_of(mix)
    placed = possible = 0
    for throw in sequences(24, 300):
        arrivals = throw.choices(list(weights), list(weights.values()), k=60)
        mean = sum(each.size * weight for each, weight in weights.items()) / sum(weights.values())
        stays = [1 + int(throw.expovariate(mean / (2 * oracle.SLICES))) for _ in arrivals]
        nodes = oracle.partitioned_nodes(*throw.choice(((1, 2), (2, 1))))
        some, all_of_them = oracle.placed_of_possible(nodes, arrivals, stays, "binpack")
        placed, possible = placed + some, possible + all_of_them
    assert placed >= mix.of_possible * possible, (placed, possible)


def test_profiles_that_are_requested_decide_once_they_are_known() -> None:
    """Only 2g and 3g are ever requested: starts that keep a 4g or a 7g possible are not worth a
    blocked 3g. With the history, at least one slice in fifty more is allocated."""
    weights = {oracle.partition(BY_NAME[name]): 1.0 for name in (MEDIUM, LARGE)}
    known = evenly = 0
    for throw in sequences(40, 600):
        arrivals = oracle.draw(throw, weights, 2 * oracle.SLICES)
        history = throw.choices(list(weights), k=128)
        nodes = oracle.partitioned_nodes(1, 2)
        known += oracle.allocated(nodes, arrivals, "fragmentation", history)
        evenly += oracle.allocated(nodes, arrivals, "binpack")
    assert known >= 1.02 * evenly, (known, evenly)


def test_as_many_partitions_of_one_profile_are_granted_as_were_counted() -> None:
    """A gang on one node is counted by the most partitions that fit. The position of the first one
    must leave positions for the others, whatever else it blocks."""
    for throw in sequences(300, 20_000):
        cluster = Cluster(list(oracle.partitioned_nodes(1, 2)))
        for _ in range(throw.randrange(6)):
            occupy(cluster, throw)
        role = oracle.partition(throw.choice(oracle.A100)).role
        shape = cluster.shape_of(role)
        count = int(cluster.pod_capacity(shape)[0])
        grants = cluster.take(shape, 0, count)
        assert grants is not None
        assert len(grants) == count
        assert int(cluster.pod_capacity(shape)[0]) == 0


def occupy(cluster: Cluster, throw: random.Random) -> None:
    """A partition anywhere, where the rule would not have put it."""
    profile, device = throw.choice(oracle.A100), throw.choice(cluster.nodes[0].devices)
    start = throw.choice(profile.starts)
    grant = Grant(device.id, "partition", profile.compute, 0, 0, profile.name, start)
    j = cluster.device_table.place[0][device.id]
    if not int(cluster.device_table.used[0, j]) & device_allocation.occupied(
        device, profile.name, start
    ):
        cluster.device_table.move(0, [grant], -1)
