"""Reading traces of openb's shape, and the published protocol: FGD gets its published figures."""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
from pathlib import Path

import pytest

from bench import packing as bench_packing
from bench import packing_fgd, report
from windlass.core.packing import fragmentation_packer, potential
from windlass.core.packing.potential import DemandShape
from windlass.sim.inputs import openb

NODES = """sn,cpu_milli,memory_mib,gpu,model
node-b,32000,1024,2,T4
node-a,64000,2048,4,G2
node-c,16000,512,0,
"""
PODS = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec
pod-2,4000,64,1,250,G2|T4
pod-0,1000,32,0,0,
pod-1,8000,128,2,1000,
"""
ORDER = {"seed": 7, "order": [1, 2, 0, 1, 1], "node_rank": [2, 0, 1]}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "pods.csv").write_text(PODS)
    (tmp_path / "orders.jsonl").write_text(json.dumps(ORDER) + "\n")
    return tmp_path


@pytest.fixture
def public() -> Path:
    """The public trace."""
    root = openb.folder()
    if not root.is_dir():
        reason = bench_packing.ABSENT.format(folder=root)
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return root


def read(folder: Path) -> tuple[openb.Nodes, openb.Pods, list[openb.Arrival]]:
    nodes, pods = openb.read_nodes(folder / "nodes.csv"), openb.read_pods(folder / "pods.csv")
    return nodes, pods, openb.read_arrivals(folder / "orders.jsonl", nodes, pods)


def test_lists_are_sorted_by_name(files: Path) -> None:
    nodes, pods, (arrival,) = read(files)
    assert nodes.names == ("node-a", "node-b", "node-c")
    assert pods.shapes == (
        DemandShape(cpu=1000, memory=32),
        DemandShape(cpu=8000, memory=128, count=2, milli=1000),
        DemandShape(cpu=4000, memory=64, count=1, milli=250, models=("G2", "T4")),
    )
    assert arrival.seed == 7


def test_gzip_and_plain_read_alike(files: Path) -> None:
    plain = read(files)
    for name in ("nodes.csv", "pods.csv", "orders.jsonl"):
        path = files / name
        path.write_bytes(gzip.compress(path.read_bytes()))
    assert read(files) == plain


def test_pod_list_without_models_is_unbound(files: Path) -> None:
    (files / "pods.csv").write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1,2,1,500\n")
    assert openb.read_pods(files / "pods.csv").shapes[0].models == ()


def test_fleet_is_in_the_order_of_ties(files: Path) -> None:
    nodes, _, (arrival,) = read(files)
    fleet = nodes.fleet(arrival.rank)
    assert fleet.cpu.tolist() == [32000, 16000, 64000]
    assert fleet.devices.sum(axis=1).tolist() == [2000, 0, 4000]


def test_replay_counts_what_arrived_and_what_found_capacity(files: Path) -> None:
    nodes, pods, (arrival,) = read(files)
    fleet = nodes.fleet(arrival.rank)
    tables = potential.build(potential.Demand(pods.counts()), fleet)
    curve = openb.replay(pods, arrival, fleet, fragmentation_packer.Packer(fleet, tables))
    # 6 devices: 2, then 2.25, 2.25, 4.25, 6.25 of them arrive; the last two find no pair free.
    assert curve.placed == 4
    assert curve.allocated == {33: 33.33, 38: 37.5, 71: 70.83, 104: 70.83}
    assert curve.unallocated(104) == 29.17
    assert curve.unallocated(130) is None
    assert curve.unallocated(100) == curve.unallocated(71), "no pod came between the two"
    assert curve.unallocated(10) == 100.0


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("nodes.csv", "sn,cpu_milli\nx,1\n", "line 2 has no column 'memory_mib'"),
        ("nodes.csv", "sn,cpu_milli,memory_mib,gpu,model\n", "has no nodes"),
        ("nodes.csv", NODES.replace("32000", "-5"), "line 2: cpu_milli is '-5'"),
        ("nodes.csv", NODES.replace("32000", "nan"), "line 2: cpu_milli is 'nan'"),
        ("pods.csv", PODS.replace("2,1000", "2,500"), "line 4: .*a share is of one"),
        ("pods.csv", "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n", "has no pods"),
        ("nodes.csv", NODES.replace("32000", "1e30"), "line 2: cpu_milli is '1e30'"),
        ("nodes.csv", NODES.replace("32000", "1.5"), "line 2: cpu_milli is '1.5'.*whole number"),
        ("nodes.csv", "sn,cpu_milli,memory_mib,gpu\nx,1,1,1000000000\n", "from 0 to 1024"),
        ("nodes.csv", "sn,cpu_milli,memory_mib,gpu\nx,1,1,1\n\nx,1,1,1\n", "line 4: sn is 'x'"),
        ("orders.jsonl", "{}\n", "line 1 is not an arrival order"),
        ("orders.jsonl", json.dumps({**ORDER, "order": "012"}), "lists of whole numbers"),
        ("orders.jsonl", json.dumps({**ORDER, "order": [0.5]}), "lists of whole numbers"),
        ("orders.jsonl", json.dumps({**ORDER, "node_rank": [None]}), "lists of whole numbers"),
        ("orders.jsonl", json.dumps({**ORDER, "order": [9]}), "names pod 9"),
        ("orders.jsonl", json.dumps({**ORDER, "node_rank": [0]}), "ranks 1 nodes"),
        ("orders.jsonl", json.dumps({**ORDER, "node_rank": [1, 0, 0]}), "several nodes the rank 0"),
        ("orders.jsonl", json.dumps({**ORDER, "order": []}), "line 1 orders no pods"),
        ("orders.jsonl", 2 * (json.dumps(ORDER) + "\n"), "line 2 has the seed 7 of a line before"),
        ("orders.jsonl", "\n", "has no arrival orders"),
    ],
)
def test_bad_file_is_named_with_its_line(files: Path, name: str, text: str, says: str) -> None:
    (files / name).write_text(text)
    with pytest.raises(openb.BadTrace, match=says):
        read(files)


def test_public_lists_beside_lists_of_ones_own_are_refused(files: Path) -> None:
    parser = argparse.ArgumentParser()
    bench_packing.configure(parser)
    own = ("--nodes", files / "nodes.csv", "--pods", files / "pods.csv", "--orders", files / "o")
    given = parser.parse_args([*map(str, own), "--lists", "default"])
    with pytest.raises(SystemExit, match="leave one of them out"):
        bench_packing.measure(report.Options(quick=True, extra=given))


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(openb.BadTrace, match=r"nothing.csv cannot be read"):
        openb.read_nodes(tmp_path / "nothing.csv")


@pytest.mark.parametrize(("name", "seed"), [("multigpu50", 42), ("gpuspec33", 47)])
def test_our_fgd_is_the_published_one(public: Path, name: str, seed: int) -> None:
    nodes, pods, arrival = _public_list(public, name, seed)
    fleet = nodes.fleet(arrival.rank)
    curve = openb.replay(pods, arrival, fleet, packing_fgd.Fgd(fleet, pods.counts()))
    table = public / "published" / "analysis_allo_discrete.csv.gz"
    with gzip.open(table, "rt") as lines:
        (expected,) = (
            row for row in csv.DictReader(lines)
            if (row["workload"], row["sc_policy"], row["seed"])
            == (openb.PREFIX + name, "06-FGD", str(seed))
        )  # fmt: skip
    # Means of means were rounded in another order there: a hundredth of a point is equal.
    assert {at: pytest.approx(curve.allocated[at], abs=0.011) for at in range(131)} == {
        at: float(expected[str(at)]) for at in range(131)
    }


@pytest.mark.parametrize("policy", ["windlass", "windlass-learned"])
def test_less_stays_idle_than_under_fgd(public: Path, policy: str) -> None:
    nodes, pods, arrival = _public_list(public, "multigpu40", 45)
    fleet = nodes.fleet(arrival.rank)
    curve = openb.replay(pods, arrival, fleet, bench_packing.policy_named(policy, fleet, pods))
    table = public / "published" / "analysis_allo_discrete.csv.gz"
    rows = {row["policy"]: row for row in bench_packing.published(table, ["multigpu40"], [45])}
    assert set(rows) == {"fgd", "bestfit"}
    for at in bench_packing.POINTS:
        idle = curve.unallocated(at)
        assert idle is not None
        assert idle < rows["fgd"][f"unallocated_{at}"] - 0.2 < rows["bestfit"][f"unallocated_{at}"]


def _public_list(root: Path, name: str, seed: int) -> tuple[openb.Nodes, openb.Pods, openb.Arrival]:
    nodes = openb.read_nodes(root / "csv" / "openb_node_list_gpu_node.csv.gz")
    pods = openb.read_pods(root / "csv" / f"{openb.PREFIX}{name}.csv.gz")
    arrivals = openb.read_arrivals(root / "orders" / f"order_{name}.jsonl.gz", nodes, pods)
    return nodes, pods, next(arrival for arrival in arrivals if arrival.seed == seed)
